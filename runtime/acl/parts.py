"""Device models of a session: loaded on use, unloaded when memory is short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from occ.runtime.acl.arena import Arena, Block, OutOfMemory
from occ.runtime.acl.device import AclDevice
from occ.runtime.acl.model import Model, ModelTensor
from occ.runtime.acl.prototypes import DATA_TYPES
from occ.runtime.acl.singleop import OperatorModel
from occ.runtime.device_part import DevicePart, PartTensor
from occ.runtime.errors import RunError
from occ.runtime.release import is_older

Loaded = Model | OperatorModel


class Part:
    """A part of the plan, loaded or not.

    Attributes:
        record: its description in the artifact.
        open: loads it.
        model: the loaded model, or None.
        inputs, outputs: for each tensor of the model, its position in the record.
        users: runs in which it is queued.
    """

    def __init__(self, record: DevicePart, open_: Callable[[], Loaded]) -> None:
        self.record, self.open = record, open_
        self.model: Loaded | None = None
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.users = 0

    def fit(self, model: Loaded) -> None:
        """Compare the model with the record; single-operator programs follow the order of the record anyway.

        Raises:
            RunError: OCC0502 they do not match.
        """
        if isinstance(model, OperatorModel):
            self.inputs, self.outputs = list(range(model.inputs)), list(range(len(model.outputs)))
            return
        self.inputs = self._order("input", self.record.inputs, model.inputs)
        self.outputs = self._order("output", self.record.outputs, model.outputs)

    def _order(self, side: str, want: Sequence[PartTensor], have: Sequence[ModelTensor]) -> list[int]:
        """Inputs by name if the model has all names, else by position; outputs by position."""
        names = [t.name for t in want]
        by_name = sorted(names) == sorted(t.name for t in have) and len(set(names)) == len(names)
        order = [names.index(t.name) for t in have] if by_name else list(range(len(have)))
        fits = len(want) == len(have) and all(_fits(want[k], t) for k, t in zip(order, have, strict=True))
        if not fits:
            raise RunError(
                "OCC0502",
                f"the compiled part `{self.record.name}` has the {side}s {', '.join(map(str, have)) or 'none'};"
                f" the plan expects {', '.join(map(_text, want)) or 'none'}",
                "the `.om` belongs to another build: compile the part again",
            )
        return order


def _fits(want: PartTensor, have: ModelTensor) -> bool:
    same = DATA_TYPES.get(want.dtype) == have.number and len(want.shape) == len(have.dims)
    pairs = zip(want.shape, have.dims, strict=False)
    return same and all(not isinstance(w, int) or d in (w, -1) for w, d in pairs)


def _text(t: PartTensor) -> str:
    return f"{t.name}: {t.dtype}[{','.join(str(e) if isinstance(e, int) else '?' for e in t.shape)}]"


def _with_weights(folder: Path, files: Mapping[str, bytes], model: str, weights: Sequence[str]) -> Path:
    """Write a model and its weights in AscendCL's layout: weights in `weight` next to it."""
    (folder / "weight").mkdir()
    for name in weights:
        (folder / "weight" / name.rpartition("/")[2]).write_bytes(files[name])
    path = folder / "model.om"
    path.write_bytes(files[model])
    return path


class PartStore:
    """Loads parts into a session's memory.

    Attributes:
        swapping: whether not all parts fit at once, so that parts are unloaded to make room for others.
    """

    def __init__(self, device: AclDevice, arena: Arena) -> None:
        self.device, self.arena = device, arena
        self.swapping = False
        self._loaded: list[Part] = []  # least recently used first
        self._folders: list[TemporaryDirectory[str]] = []  # of models that read weights from files
        self._lock = threading.RLock()

    def add(self, record: DevicePart, files: Mapping[str, bytes]) -> Part:
        """Load a part for the first time.

        Raises:
            RunError: OCC0502 it is not compiled, or does not match the plan; OCC0510 it is for another SoC; OCC0511 it
                does not fit into memory.
        """
        self._check_machine(record)
        member = record.om or (record.beside if record.beside in files else "")
        if not member:
            raise RunError(
                "OCC0502",
                f"part `{record.name}` is GE graph IR that is not compiled for the device yet",
                "build with `--emit om` where the CANN toolkit is, or run it with `--simulate`",
            )
        part = Part(record, self._opener(record, files, member))
        self.use(part)
        self.unuse(part)
        return part

    def _opener(self, record: DevicePart, files: Mapping[str, bytes], member: str) -> Callable[[], Loaded]:
        where = self.device, self.arena, record.name
        if record.weight_files:
            folder = TemporaryDirectory(prefix="occ-weights-")
            self._folders.append(folder)
            path = _with_weights(Path(folder.name), files, member, record.weight_files)
            return lambda: Model(*where, path)
        if not record.program:
            source = np.frombuffer(files[member], np.uint8)
            return lambda: Model(*where, source)
        compiled = [np.frombuffer(files[n], np.uint8) for n in sorted(files) if n.startswith(member)]
        constants = np.frombuffer(files[record.constants], np.uint8)
        return lambda: OperatorModel(*where, files[record.program], constants, compiled)

    def _check_machine(self, record: DevicePart) -> None:
        device, release = self.device, self.device.acl.release
        if record.soc and record.soc != device.soc:
            raise RunError(
                "OCC0510",
                f"part `{record.name}` was compiled for `{record.soc}`, device {device.number} is `{device.soc}`",
                f"build it with `-C soc_version={device.soc}`",
            )
        if is_older(release, record.toolkit):
            raise RunError(
                "OCC0510",
                f"part `{record.name}` was compiled by CANN {record.toolkit}, this machine has CANN {release}",
                "an `.om` runs on the release that compiled it or a newer one: update CANN here, or build with an "
                "older",
            )

    def use(self, part: Part) -> Loaded:
        """The model of a part, loaded and kept until `unuse`.

        Raises:
            RunError: it does not load; OutOfMemory also if the memory is taken by parts in use.
        """
        with self._lock:
            if part.model is None:
                part.model = self._load(part)
            else:
                self._loaded.remove(part)
            self._loaded.append(part)
            part.users += 1
            return part.model

    def unuse(self, part: Part) -> None:
        """Mark that a run has finished with a part."""
        with self._lock:
            part.users -= 1

    def _load(self, part: Part) -> Loaded:
        while True:
            try:
                model = part.open()
                break
            except OutOfMemory:
                if not self._unload_one():
                    raise
        try:
            part.fit(model)
        except RunError:
            model.close()
            raise
        return model

    def _unload_one(self) -> bool:
        """Unload the least recently used part; returns whether there was one."""
        idle = next((p for p in self._loaded if not p.users), None)
        if idle is None:
            return False
        self.swapping = True
        self._unload(idle)
        return True

    def _unload(self, part: Part) -> None:
        self._loaded.remove(part)
        model, part.model = part.model, None
        assert model is not None
        model.close()

    def take(self, size: int) -> Block:
        """Memory for a tensor, if necessary in place of unused parts.

        Raises:
            OutOfMemory: there is none.
        """
        with self._lock:
            while True:
                try:
                    return self.arena.take(size)
                except OutOfMemory:
                    if not self._unload_one():
                        raise

    def close(self) -> None:
        """Unload everything. Called with the device current.

        Raises:
            RunError: the first unload that failed, after all were tried.
        """
        first: RunError | None = None
        with self._lock:
            while self._loaded:
                try:
                    self._unload(self._loaded[-1])
                except RunError as e:
                    first = first or e
            while self._folders:
                self._folders.pop().cleanup()
        if first is not None:
            raise first

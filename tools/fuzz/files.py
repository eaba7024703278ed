"""The fuzzer of files: models, texts, artifacts and inputs that were changed. Each must be taken, or refused with a diagnostic:
no other exception, no signal, no half minute, no 4 GB, and no file opened outside of its folder.
"""

from __future__ import annotations

import io
import json
import resource
import signal
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator, default_rng
from onnx import ModelProto

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.stages import ORDER
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from tools.fuzz import mutate
from tools.fuzz.campaign import Say
from tools.fuzz.generate import Case, generate
from tools.fuzz.patterns import MAKERS
from tools.fuzz.profiles import PROFILES
from tools.fuzz.watch import watched

SECONDS, BYTES = 30, 4 << 30  # of processor time, and of memory
INTERNAL = ("OCC0901",)  # OCC0902 is how verification, which is on here, refuses a text
Try = Callable[[Path], None]  # uses what lies in a folder


class TooLong(BaseException):
    """The time is over; no `except Exception` takes it."""


@dataclass
class Attempt:
    """A changed file, and what uses it.

    Attributes:
        data: the file, for the record of a failure.
        use: writes and uses it, in a folder of its own.
    """

    data: bytes
    use: Try


# What is changed ------------------------------------------------------------------------------------------------------


def small(seed: int, profile: str = "") -> Case:
    """A small random model."""
    name = profile or list(PROFILES)[seed % len(PROFILES)]
    return generate(seed, name, PROFILES[name], MAKERS)


def _advance(model: Any, target: str = "cpu-jit") -> None:
    compilation = Compilation(model, Settings(target, cache=False, verify=True))
    compilation.advance(compilation.last_stage)


def models(rng: Generator, seed: int) -> Iterator[Attempt]:
    """ONNX files: changed messages, and changed bytes."""
    case = small(seed)
    target = mutate.choose(rng, ("interp", "cpu-jit", "cpu"))
    while True:
        made = ModelProto()
        made.CopyFrom(case.model)
        mutate.message(rng, made)
        data = made.SerializeToString()
        if rng.random() < 0.3:
            data = mutate.blob(rng, data)
        yield Attempt(data, lambda _, data=data: _advance(data, target))


def external(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Models whose weights lie in other files: changed references."""
    case = small(seed, "products")
    words = [
        *mutate.STRINGS,
        "../m.data",
        "m.data",
        "m.onnx",
        "/dev/zero",
        "/proc/self/mem",
        "link",
        "sub/../m.data",
        ".",
    ]
    while True:
        made = ModelProto()
        made.CopyFrom(case.model)
        data = b"".join(t.raw_data for t in made.graph.initializer)
        onnx.external_data_helper.convert_model_to_external_data(made, location="m.data", size_threshold=0)
        for t in made.graph.initializer:
            onnx.external_data_helper.set_external_data(t, "m.data", offset=0, length=len(t.raw_data))
            t.data_location = onnx.TensorProto.EXTERNAL
            t.ClearField("raw_data")
            if rng.random() < 0.6:
                entry = mutate.choose(rng, t.external_data)
                entry.value = (
                    mutate.choose(rng, words) if rng.random() < 0.5 else str(mutate.choose(rng, mutate.INTEGERS))
                )
            if rng.random() < 0.2:
                mutate.message(rng, t)
        yield Attempt(made.SerializeToString(), lambda d, m=made, data=data: _external(d, m, data))


def _external(folder: Path, m: ModelProto, data: bytes) -> None:
    (folder / "m.data").write_bytes(data)
    (folder / "link").symlink_to("link")
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    _advance(folder / "m.onnx", "interp")


def texts(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Texts of every stage."""
    target = mutate.choose(rng, ("cpu-jit", "cpu"))
    case = small(seed)
    known: list[str] = []
    for stage in ORDER:
        try:
            m = Compilation(case.model, Settings(target, cache=False)).advance(stage)
        except CompileError:
            continue
        known.append(module_text(m, inline=True))
    known = [t for t in known if len(t) < 12_000] or known[:1]
    while known:
        text = mutate.text(rng, mutate.choose(rng, known))
        yield Attempt(text.encode("utf-8", "replace"), lambda _, t=text: _text(t, target))


def _text(text: str, target: str) -> None:
    from occ.compiler.driver.source import parsed

    m = parsed(text)
    compilation = Compilation(m, Settings(m.target or target, cache=False, verify=True))
    compilation.advance(compilation.last_stage)


def _built(seed: int) -> tuple[Case, dict[str, bytes], Artifact]:
    """A small artifact with native code, and one that is interpreted now and then."""
    for k in range(seed, seed + 50):
        case = small(k * 7 + 3)
        try:
            made = Compilation(case.model, Settings("interp" if seed % 4 == 0 else "cpu-jit", cache=False)).artifact()
            return case, made.members(), made
        except CompileError:
            continue
    raise AssertionError("no seed builds")


def manifests(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts with a changed manifest."""
    case, members, _ = _built(seed)
    whole = members["manifest.json"].decode()
    while True:
        text = json.dumps(mutate.tree(rng, json.loads(whole))) if rng.random() < 0.85 else mutate.text(rng, whole)
        if rng.random() < 0.002:
            text = mutate.choose(rng, ("[", '{"a":')) * 100_000
        changed = members | {"manifest.json": text.encode("utf-8", "replace")}
        yield Attempt(changed["manifest.json"], lambda d, c=changed: _run(d, _zip(c), case))


def zips(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts with changed bytes, names, or members."""
    case, members, _ = _built(seed)
    while True:
        changed = dict(members)
        kind = int(rng.integers(5))
        name = mutate.choose(rng, list(changed))
        if kind == 0:
            del changed[name]
        elif kind == 1:
            changed[name] = mutate.blob(rng, changed[name])
        elif kind == 2:
            changed[mutate.choose(rng, (*mutate.STRINGS, "a/../../b", "a\\b", name + "/", "C:x"))] = b"x"
        data = _zip(changed, mutate.choose(rng, (zipfile.ZIP_STORED,) * 4 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)))
        if kind >= 3:
            tail = max(len(data) - 600, 0)  # where the directory is
            data = data[:tail] + mutate.blob(rng, data[tail:]) if rng.random() < 0.7 else mutate.blob(rng, data)
        yield Attempt(data, lambda d, data=data: _run(d, data, case))


def libraries(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts whose library was changed, its digest as it was: nothing of it may be loaded."""
    case, members, _ = _built(seed | 1)
    name = "kernels/model.so"
    while name in members:
        code = mutate.blob(rng, members[name])
        if code != members[name]:
            yield Attempt(code, lambda d, c=code: _refused(lambda: _run(d, _zip(members | {name: c}), case)))


def inputs(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Files of arrays that were changed, for a run on the command line."""
    from occ.inputs import arrays_of

    case, _, artifact = _built(seed)
    session = open_session(artifact, 1)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **case.feeds)
    while True:
        if rng.random() < 0.5:
            data = mutate.blob(rng, buffer.getvalue())
            yield Attempt(data, lambda d, data=data: _inputs(d, data, lambda f: session.run(arrays_of(f))))
        else:
            feeds = {n: _array(rng, x) if rng.random() < 0.5 else x for n, x in case.feeds.items()}
            yield Attempt(repr(feeds).encode(), lambda _, f=feeds: session.run(f) and None)


def _inputs(folder: Path, data: bytes, use: Callable[[str], Any]) -> None:
    (folder / "x.npz").write_bytes(data)
    use(str(folder / "x.npz"))


def _array(rng: Generator, x: np.ndarray) -> Any:
    """An array of another type, shape, order, or alignment."""
    kind = int(rng.integers(7))
    if kind == 0:
        return x.astype(mutate.choose(rng, (np.float64, np.int8, np.bool_, np.complex64, object, ">f4")))
    if kind == 1:
        return x.reshape(-1)
    if kind == 2:
        return np.broadcast_to(x[..., None], (*x.shape, 2))[..., 1]
    if kind == 3:
        return x[::-1] if x.ndim else x.item()
    if kind == 4:
        return np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape) if x.size else None
    if kind == 5:
        return np.asfortranarray(np.repeat(x, 2, -1)) if x.ndim else [[]]
    return mutate.choose(rng, (None, "x", [], x.tolist(), np.zeros((0,) * x.ndim, x.dtype)))


KINDS: dict[str, Callable[[Generator, int], Iterator[Attempt]]] = {
    "models": models, "external": external, "texts": texts, "manifests": manifests, "zips": zips, "libraries": libraries,
    "inputs": inputs,
}  # fmt: skip


def _zip(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as z:
        for name, data in members.items():
            z.writestr(zipfile.ZipInfo(name or "_"), data, compress_type=how)
    return buffer.getvalue()


def _run(folder: Path, data: bytes, case: Case) -> None:
    path = folder / "a.occ"
    path.write_bytes(data)
    session = open_session(Artifact.load(path), 1)
    try:
        session.run(case.feeds)
    finally:
        session.close()


def _refused(use: Callable[[], None]) -> None:
    use()
    raise AssertionError("a changed library was loaded")


# The loop -------------------------------------------------------------------------------------------------------------


@dataclass
class Files:
    """Does files.

    Attributes:
        kind: of the files.
        cases: of one seed, which all come from one valid file.
        folder: where files that fail are written.
    """

    kind: str
    cases: int
    folder: Path

    def __call__(self, first: int, last: int, say: Say) -> None:
        """Change and use the files of some seeds."""
        resource.setrlimit(resource.RLIMIT_AS, (_used() + BYTES, resource.RLIM_INFINITY))
        signal.signal(signal.SIGPROF, _over)
        for seed in range(first, last):
            say({"seed": seed})
            self._seed(seed, say)

    def _seed(self, seed: int, say: Say) -> None:
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory(prefix="occ-fuzz-") as name:
            made = KINDS[self.kind](default_rng([seed, 29]), seed)
            current = self.folder / f"{self.kind}-{seed}.now"
            for k, attempt in zip(range(self.cases), made, strict=False):
                say({"seed": seed})  # that it lives; the counts come with the last case
                folder = Path(name) / str(k)
                folder.mkdir()
                self.folder.mkdir(parents=True, exist_ok=True)
                current.write_bytes(attempt.data)  # what ends the process is found here
                wrong, outcome = _tried(attempt, folder)
                counts[f"{self.kind}: {outcome}"] += 1
                if wrong:
                    (self.folder / f"{self.kind}-{seed}-{k}").write_bytes(attempt.data)
                    (self.folder / f"{self.kind}-{seed}-{k}.txt").write_text(wrong[1])
                    say({"faults": [(f"{self.kind}: {wrong[0]}", f"{self.kind}-{seed}-{k}", wrong[1][-900:])]})
            current.unlink(missing_ok=True)
        say({"cases": [self.kind] * counts.total(), "outcomes": list(counts.elements())})


def _tried(attempt: Attempt, folder: Path) -> tuple[tuple[str, str] | None, str]:
    """What is wrong, if anything is, and in one word what became of a file."""
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with watched(folder):
            attempt.use(folder)
        outcome: tuple[Any, str] = (None, "taken")
    except (CompileError, RunError) as e:
        codes = [d.code for d in e.diagnostics] if isinstance(e, CompileError) else [e.code]
        internal = [c for c in codes if c in INTERNAL]
        outcome = ((_where(e), _trace(e)), "internal") if internal else (None, "refused")
    except TooLong as e:
        outcome = ((f"over {SECONDS} s in {_where(e)}", _trace(e)), "slow")
    except BaseException as e:
        outcome = ((_where(e), _trace(e)), "raised")
    signal.setitimer(signal.ITIMER_PROF, 0)
    return outcome if time.process_time() - start < SECONDS else (outcome[0] or ("slow", ""), "slow")


def _where(e: BaseException) -> str:
    """The kind of an exception and the innermost place of occ that it came from."""
    while e.__cause__ is not None:
        e = e.__cause__
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "/tools/fuzz/" not in f.filename]
    ours = [f for f in frames if "/compiler/" in f.filename or "/runtime/" in f.filename or "/occ/" in f.filename]
    at = (ours or frames or [None])[-1]
    return f"{type(e).__name__} at {'/'.join(at.filename.split('/')[-3:])}:{at.name}" if at else type(e).__name__


def _trace(e: BaseException) -> str:
    return "".join(traceback.format_exception(e))[-4000:]


def _over(*_: Any) -> None:
    raise TooLong


def _used() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

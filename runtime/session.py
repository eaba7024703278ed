"""A loaded model: checks inputs, and calls an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from occ.runtime.binding import Binding
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import evaluate, symbols, text
from occ.runtime.errors import RunError
from occ.runtime.manifest import TensorInfo
from occ.runtime.resident import Resident
from occ.runtime.signature import Signature, as_array, check_mapping, numpy_dtype

if TYPE_CHECKING:
    from occ.runtime.artifact import Artifact


class Engine(Protocol):
    """The interface of engines, which execute a model.

    Attributes:
        resident: whether it uses arrays on its device directly.
    """

    resident: bool

    def run(self, inputs: Sequence[Any], env: Mapping[str, int], outputs: Sequence[Any]) -> list[Any]: ...


@dataclass(frozen=True)
class Port:
    """An input or output: its name, element type and extents, symbolic ones by the model's names."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    kind: str = "tensor"

    def __str__(self) -> str:
        if self.kind != "tensor":
            return f"{self.name}: {self.kind} of {self.dtype}"
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"


class Session:
    """A model ready to run. Thread-safe.

    Attributes:
        artifact: the artifact that it was loaded from or built as.
        engine: executes it.
        threads: threads used by one run.
        otherwise: returns a session for inputs that this one rejects because of extents of 1, or None.
        for_ranks: returns a session for the ranks of tensors in sequences that declare none, or None.
    """

    def __init__(self, artifact: Artifact, engine: Engine, threads: int, whole: Artifact | None = None) -> None:
        self.artifact, self.threads, self._whole = artifact, threads, whole or artifact
        self.engine = engine
        self._signature = Signature.of(artifact.manifest)
        self._names = [i.name for i in self._signature.inputs]
        self.otherwise: Callable[[Mapping[str, tuple[int, ...]]], Session | None] | None = None
        self.for_ranks: Callable[[Mapping[str, Any]], Session | None] | None = None
        self._quick: Callable[..., dict[str, Any] | None] | None = getattr(engine, "quick", None)

    @property
    def inputs(self) -> list[Port]:
        """The inputs, in order."""
        return [self._port(i) for i in self._signature.inputs]

    @property
    def outputs(self) -> list[Port]:
        """The outputs, in order."""
        return [self._port(o) for o in self._signature.outputs]

    def _port(self, info: TensorInfo) -> Port:
        return Port(
            info.name,
            info.dtype,
            tuple(e if isinstance(e, int) else text(e, self._signature.labels) for e in info.shape),
            info.kind,
        )

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run the model once.

        Args:
            inputs: an array for each input, by name: anything with the buffer protocol or DLPack, or a `DeviceTensor`.
            outputs: arrays to write outputs into, by name; contiguous, writable, of the right type and shape: anything
                with the buffer protocol or DLPack, such as a tensor of PyTorch. A `DeviceTensor` on the session's
                device is written directly, without a copy.

        Returns:
            The outputs by name, in the order of the model.

        Raises:
            RunError: an input or output is invalid, or a node cannot process its data.
        """
        if self._quick is not None and inputs is not None:
            found = self._quick(inputs, outputs)
            if found is not None:
                return found
        if self.for_ranks is not None and (made := self._of_ranks(inputs, outputs)) is not None:
            return made
        try:
            arrays, env, given = self._checked(inputs, outputs or {})
        except RunError:
            other = self._for_ones(inputs)
            if other is None:
                raise
            return other.run(inputs, outputs)
        results = self.engine.run(arrays, env, given)
        found = {o.name: r for o, r in zip(self._signature.outputs, results, strict=True)}
        return found | {n: y for n, y in outputs.items() if y is not None} if outputs else found

    def bind(
        self, inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None, **arrays: Any
    ) -> Binding:
        """Fix inputs and outputs once, for many runs: `b = m.bind(x=x, y=y); b()`.

        Args:
            inputs: an array for each input, by name, as for `run`; none may need conversion or copying.
            outputs: arrays to write outputs into, as for `run`; the others are allocated once.
            arrays: inputs and outputs by name, if the names are valid in Python.

        Raises:
            RunError: OCC0501 an array is invalid, or later writes to it would not be visible to a run.
        """
        taken, given = self._to_bind(inputs, outputs, arrays)
        try:
            checked, _, targets = self._checked(taken, given)
        except RunError:
            other = self._for_ones(taken)
            if other is None:
                raise
            return other.bind(taken, given)
        for name, array, original in zip(self._names, checked, (taken[n] for n in self._names), strict=True):
            if isinstance(array, np.ndarray) and not np.may_share_memory(array, np.asarray(original)) and array.size:
                raise RunError("OCC0501", f"the input `{name}` is copied for a run", "bind a contiguous array")
        bind = getattr(self.engine, "bind", None)
        call = None if bind is None else bind(checked, targets)
        if call is not None:
            found = {o.name: y for o, y in zip(self._signature.outputs, call.outputs, strict=True)}
            return Binding(call, found | given)
        made = self.run(taken, given)
        if self._changes_extents(made):
            raise RunError("OCC0501", "an output with data-dependent extents cannot be bound", "call `run`")

        def run() -> None:
            self.run(taken, made)

        return Binding(run, made)

    def _to_bind(
        self, inputs: Mapping[str, Any] | None, outputs: Mapping[str, Any] | None, arrays: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of `bind` as inputs and outputs by name."""
        for what, given in (("inputs", inputs), ("outputs", outputs)):
            check_mapping(what, {} if given is None else given, "`m.bind(x=x)`, or `m.bind({'x': x})`")
        read, written = dict(inputs or {}), dict(outputs or {})
        for name, array in arrays.items():
            (read if name in self._names and name not in read else written)[name] = array
        return read, written

    def _for_ones(self, inputs: Mapping[str, Any]) -> Session | None:
        """The session for extents of 1 that a node broadcasts, if inputs are rejected because of them."""
        if self.otherwise is None or not isinstance(inputs, Mapping):
            return None
        try:
            shapes = {n: tuple(getattr(x, "shape", None) or np.shape(x)) for n, x in inputs.items()}
        except ValueError:  # one is not an array, as already reported
            return None
        return self.otherwise(shapes)

    def _of_ranks(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The results of a session for the ranks in these inputs, if there is one and its assumptions hold."""
        if self.for_ranks is None or not isinstance(inputs, Mapping) or inputs.keys() != set(self._names):
            return None
        other = self.for_ranks(inputs)
        try:
            return None if other is None else other.run(inputs, outputs)
        except RunError as e:
            if e.code != "OCC0503":
                raise
            return None

    def _changes_extents(self, made: Mapping[str, Any]) -> bool:
        """Whether output extents depend on the data, or outputs are not arrays."""
        shown = {s for i in self._signature.inputs for e in i.shape for s in symbols(e)}
        return any(o.kind != "tensor" or self._gives[o.name][2] - shown for o in self._signature.outputs)

    def _checked(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, int], list[Any]]:
        """Inputs as arrays, the values of the symbolic dims, and an array or None for each output."""
        arrays = self._signature.arrays(inputs, resident=self.engine.resident)
        if not isinstance(outputs, Mapping):
            what = f"outputs are arrays to write into, by name, not {type(outputs).__name__}"
            raise RunError("OCC0501", what, "leave `outputs` out: a run returns all of them, by name")
        signature, env = self._bound(arrays)
        return arrays, env, self._given(outputs, env, signature)

    def _bound(self, arrays: Sequence[Any]) -> tuple[Signature, dict[str, int]]:
        """The plan for some inputs, by its signature, and the values of its dims.

        The general one, otherwise one of the others, which may accept what it rejects.
        """
        try:
            return self._signature, self._signature.bind(arrays)
        except RunError:
            for k in range(len(self.artifact.manifest.special)):
                signature = Signature.of(self.artifact.manifest.at(k))
                with suppress(RunError):
                    return signature, signature.bind(arrays)
            raise

    async def run_async(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`run` in a thread, while other tasks of the event loop continue.

        See `occ.RunQueue` for many runs with a limit.

        Cancelling the task does not stop the run.

        Raises:
            RunError: as `run`.
        """
        import asyncio  # only here: it takes a tenth of the time in which a compiler starts

        return await asyncio.to_thread(self.run, inputs, outputs)

    def __call__(self, *inputs: Any) -> tuple[np.ndarray, ...]:
        """Run the model on inputs by position; the outputs by position.

        Raises:
            RunError: as `run`.
        """
        names = self._names
        if len(inputs) != len(names):
            raise RunError(
                "OCC0501", f"the model takes {len(names)} inputs, not {len(inputs)}", f"inputs: {', '.join(names)}"
            )
        return tuple(self.run(dict(zip(names, inputs))).values())  # noqa: B905 - strict=True doubles its time

    @cached_property
    def _gives(self) -> dict[str, tuple[TensorInfo, np.dtype[Any] | None, set[str]]]:
        """The outputs by name, with the element types of tensors and the symbols of their extents."""
        return _listed(self._signature)

    def _given(self, outputs: Mapping[str, Any], env: Mapping[str, int], signature: Signature) -> list[Any]:
        if unknown := [n for n in outputs if n not in self._gives]:
            raise RunError("OCC0501", f"the model has no output `{unknown[0]}`", f"outputs: {', '.join(self._gives)}")
        outputs = {n: y if y is None or type(y) is np.ndarray else self._target(n, y) for n, y in outputs.items()}
        gives = self._gives if signature is self._signature else _listed(signature)
        for name, array in outputs.items():
            info, dtype, needed = gives[name]
            if (
                array is not None and dtype is not None and needed <= env.keys()
            ):  # data-dependent extents are checked when they are known
                self._check_output(info, dtype, array, env)
        return [outputs.get(n) for n in self._gives]

    def _target(self, name: str, value: Any) -> Any:
        """An array whose memory an output is written to, without a copy."""
        if isinstance(value, Resident):
            return value
        try:
            if hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
                return as_array(value, resident=self.engine.resident)
            return np.asarray(memoryview(value))
        except (ValueError, TypeError, BufferError) as e:
            what = f"the output `{name}` cannot be written into {type(value).__name__}: {e}"
            raise RunError("OCC0501", what, "pass an array") from None

    def _check_output(self, info: TensorInfo, dtype: np.dtype[Any], array: Any, env: Mapping[str, int]) -> None:
        shape = tuple([evaluate(e, env) for e in info.shape])
        fits = array.shape == shape and array.dtype == dtype
        # Arrays first: a decoder has one for each of its caches, and protocol queries take microseconds.
        if type(array) is not np.ndarray and isinstance(array, Resident):
            writable, how = self.engine.resident, ("", " that the session can write to")
        else:
            writable, how = array.flags.c_contiguous and array.flags.writeable, ("contiguous, writable ", "")
        if not (fits and writable):
            want = f"a {how[0]}{dtype}{list(shape)}{how[1]}"
            raise RunError("OCC0501", f"the output array `{info.name}` is {array.dtype}{list(array.shape)}, not {want}")

    def close(self) -> None:
        """Release what the session holds outside of the process's memory: a device. Others need not be closed.

        Raises:
            RunError: the driver of the device reports an error.
        """
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, path: str | os.PathLike[str], *, folder: bool = False) -> Path:
        """Write the model as an artifact.

        Raises:
            OSError: the path cannot be written.
            RunError: OCC0605 the name is that of a model or a library.
        """
        return self._whole.save(path, folder=folder)

    def __reduce__(self) -> str:
        raise TypeError(
            "a session cannot be pickled, since it has native code and threads: pass the path of its artifact to "
            "the other process, and load the artifact there: `session.save(path)`, `occ.load(path)`"
        )

    def __repr__(self) -> str:
        m = self.artifact.manifest
        ins, outs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        return f"<occ model {m.name} for {m.target}: ({ins}) -> ({outs})>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the model's inputs and outputs."""
        m = self.artifact.manifest
        count = sum(step.kind == "kernel" for step in m.plan.steps)
        weights = sum(w.nbytes for w in self.artifact.weights)
        facts = f"{count} kernel{'s' * (count != 1)}, {weights:,} bytes of weights, threads: {self.threads}"
        rows = "".join(
            f"<tr><td>{kind}</td><td>{escape(p.name)}</td><td><code>{escape(str(p)[len(p.name) + 2 :])}</code></td></tr>"
            for kind, ports in (("input", self.inputs), ("output", self.outputs))
            for p in ports
        )
        return f"<b>{escape(m.name)}</b> for {escape(m.target)}: {facts}<table>{rows}</table>"


def _listed(signature: Signature) -> dict[str, tuple[TensorInfo, np.dtype[Any] | None, set[str]]]:
    found = signature.outputs
    tensors = {o.name: numpy_dtype(o.dtype) for o in found if o.kind == "tensor"}
    return {o.name: (o, tensors.get(o.name), set().union(*map(symbols, o.shape))) for o in found}

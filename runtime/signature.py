"""Checks inputs against a model's signature, and solves for its symbolic dims."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from occ.runtime.containers import check_shape, elements
from occ.runtime.dims import MOST_COUNTED, Assumption, evaluate, in_order, in_words, symbols, text
from occ.runtime.element_types import ELEMENT_TYPES
from occ.runtime.errors import RunError
from occ.runtime.manifest import SCALARS, Constraint, DimInfo, Manifest, TensorInfo
from occ.runtime.resident import Resident


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of an element type; ml_dtypes must be installed for its types, as it is if inputs exist."""
    try:
        return np.dtype(ELEMENT_TYPES[name].numpy)
    except TypeError:
        import importlib

        try:
            return np.dtype(getattr(importlib.import_module("ml_dtypes"), ELEMENT_TYPES[name].numpy))
        except ImportError:
            return np.dtype(np.uint16 if name == "bf16" else np.uint8)


def dtype_of_numpy_name(name: str) -> np.dtype:
    """A numpy dtype by name, including those of ml_dtypes.

    Raises:
        KeyError: there is none.
    """
    return numpy_dtype({t.numpy: k for k, t in ELEMENT_TYPES.items()}[name])


def bind_shapes(infos: Sequence[TensorInfo], arrays: Sequence[Any], env: Mapping[str, int]) -> dict[str, int]:
    """`env` with the symbols that are extents of a function's arguments, which override the caller's values."""
    found: dict[str, int] = {}
    for info, x in zip(infos, arrays, strict=True):
        if info.kind == "tensor":
            found.update((e, n) for e, n in zip(info.shape, x.shape, strict=True) if isinstance(e, str))
    return {**env, **found}


def check_constraints(
    constraints: Sequence[Constraint], env: Mapping[str, int], labels: Mapping[str, str] | None = None
) -> list[Constraint]:
    """Check the build's assumptions; returns the constraints with symbols that have no value yet.

    Raises:
        RunError: OCC0503 an assumption does not hold.
    """
    open_: list[Constraint] = []
    for c in constraints:
        if not symbols(c.lhs) | symbols(c.rhs) <= set(env):
            open_.append(c)
            continue
        left, right = evaluate(c.lhs, env), evaluate(c.rhs, env)
        if left != right:
            raise constraint_error(c, left, right, labels)
    return open_


def check_mapping(what: str, given: Any, remedy: str) -> None:
    """Refuse arrays that are not in a mapping by name.

    Raises:
        RunError: OCC0501.
    """
    if type(given) is not dict and not isinstance(given, Mapping):
        raise RunError("OCC0501", f"{what} are passed by name, not as {type(given).__name__}", remedy)


def constraint_error(c: Constraint, left: int, right: int, labels: Mapping[str, str] | None = None) -> RunError:
    """OCC0503: an assumption does not hold.

    Args:
        c: the assumption.
        left, right: the values of its sides.
        labels: the model's names for its dims.
    """
    if right < 0:  # the left side is the minimum
        return RunError(
            "OCC0503",
            f"a result of node `{c.node}` would have {in_words(c.rhs, labels)} = {right} elements along an axis",
            "the inputs are too small for this model; a build for their sizes (--dim or --shape) may accept them",
        )
    if (ordered := in_order(c.lhs, c.rhs)) is not None:
        least, size = ordered
        n, found = (
            max(left, right),
            min(left, right),
        )  # the other operand of a minimum or maximum that is the other side
        if size == MOST_COUNTED:
            return RunError(
                "OCC0503",
                f"node `{c.node}` would work on {in_words(least, labels)} = {n} elements, but its kernel can only "
                f"count to {MOST_COUNTED}",
                "choose smaller extents; kernels of `cpu-jit` count only extents with 32 bits, those of `cpu` elements "
                "too",
            )
        reshape = "; a Reshape takes a 0 for the extent of its operand, unless its node sets allowzero=1"
        return RunError(
            "OCC0503",
            f"node `{c.node}` needs {in_words(size, labels)} to be at least {n}, but for these inputs it is {found}",
            "choose other extents, or build for this size with --dim or --shape" + (reshape if found == 0 else ""),
        )
    sides = f"{in_words(c.lhs, labels)} = {left} and {in_words(c.rhs, labels)} = {right}"
    return RunError(
        "OCC0503",
        f"node `{c.node}` needs two sizes to be equal, but for these inputs they are not: {sides}",
        "choose other extents, or build for this size with --dim or --shape",
    )


class Signature:
    """Inputs, outputs and dims of a model."""

    def __init__(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        dims: Sequence[DimInfo],
        constraints: Sequence[Constraint],
        assumed: Sequence[Assumption] = (),
    ) -> None:
        self._assumed = {(a.input, a.axis): a for a in assumed}
        self.inputs, self.outputs, self.dims, self.constraints = inputs, outputs, dims, constraints
        self.labels = {d.name: d.label for d in dims}
        self.dtypes = [numpy_dtype(i.dtype) for i in inputs]

    @classmethod
    def of(cls, m: Manifest) -> Signature:
        return cls(m.inputs, m.outputs, m.dims, m.constraints, m.assumed)

    def arrays(self, inputs: Mapping[str, Any], *, resident: bool = False) -> list[Any]:
        """The inputs as contiguous arrays in signature order, without copies if possible.

        Args:
            inputs: by name.
            resident: whether to leave arrays on a device where they are.

        Raises:
            RunError: OCC0501 a missing or unknown input, or an element type that differs.
        """
        names = {i.name: None for i in self.inputs}
        check_mapping("inputs", inputs, f"`m.run({{{next(iter(names), 'x')!r}: x}})`, or `m(x)` by position")
        if unknown := [n for n in inputs if n not in names]:
            raise RunError("OCC0501", f"the model has no input `{unknown[0]}`", f"inputs: {', '.join(names) or 'none'}")
        if missing := [n for n in names if n not in inputs]:
            raise RunError("OCC0501", f"the input `{missing[0]}` is missing", f"inputs: {', '.join(names)}")
        return [self._array(i, d, inputs[i.name], resident) for i, d in zip(self.inputs, self.dtypes, strict=True)]

    def _array(self, info: TensorInfo, dtype: np.dtype, value: Any, resident: bool) -> Any:
        if info.kind == "map" or isinstance(value, dict):
            return self._map(info, dtype, value)
        optional = info.kind in ("optional", SCALARS["optional"])
        if optional and value is None:
            return None
        if info.kind in ("sequence", SCALARS["sequence"]) or (optional and isinstance(value, (list, tuple))):
            nested = (list, tuple, dict)
            listed = elements(info, value)
            return [(self._array if isinstance(v, nested) else self._tensor)(info, dtype, v, False) for v in listed]
        return self._tensor(info, dtype, value, resident)

    def _tensor(self, info: TensorInfo, dtype: np.dtype, value: Any, resident: bool) -> Any:
        try:
            array = as_array(value, resident)
        except (ValueError, TypeError, BufferError) as e:
            raise RunError("OCC0501", f"the input `{info.name}` is not an array: {e}") from None
        if dtype.kind == "O" and array.dtype.kind in "UST":
            array = array.astype(object)
        if array.dtype != dtype and isinstance(value, (str, bytes, os.PathLike)):
            what = f"the input `{info.name}` is a text or a path, the model takes an array of {dtype}"
            raise RunError("OCC0501", what, "read a file of an array first: `numpy.load(path)`")
        if array.dtype.kind == "O" != dtype.kind:
            what = "None" if value is None else "no array of numbers"
            raise RunError("OCC0501", f"the input `{info.name}` is {what}, the model takes {dtype}")
        if array.dtype != dtype:
            raise RunError(
                "OCC0501",
                f"the input `{info.name}` is {array.dtype}, the model takes {dtype}",
                f"convert it: `x.astype({str(dtype)!r})`",
            )
        check_shape(info, array.shape)
        if dtype.kind == "O" and (wrong := [v for v in array.reshape(-1) if not isinstance(v, (str, bytes))]):
            what = f"an element of the input `{info.name}` is {type(wrong[0]).__name__}, but the model takes texts"
            raise RunError("OCC0501", what, "convert it: `x.astype(str)`")
        return np.ascontiguousarray(array) if array.ndim and isinstance(array, np.ndarray) else array

    def _map(self, info: TensorInfo, dtype: np.dtype, value: Any) -> dict[Any, Any]:
        """A map with values of the element type."""
        if not isinstance(value, dict) or info.kind == "tensor":
            raise RunError(
                "OCC0501", f"the input `{info.name}` is {type(value).__name__}, the model takes {self.show(info)}"
            )
        fits = {"f": (int, float, np.number), "i": (int, np.integer), "s": (str,)}
        allowed = fits.get("s" if info.dtype == "str" else info.dtype[0], (object,))
        if wrong := [k for k, v in value.items() if not isinstance(v, allowed)]:
            raise RunError(
                "OCC0501",
                f"the value of {wrong[0]!r} in the input `{info.name}` is no {info.dtype}, as the model takes",
            )
        return value if info.dtype == "str" else {k: dtype.type(v) for k, v in value.items()}

    def bind(self, arrays: Sequence[Any]) -> dict[str, int]:
        """Values of the symbolic dims.

        Raises:
            RunError: OCC0501 a rank or extent that differs; OCC0503 a violated assumption of the build.
        """
        env: dict[str, int] = {}
        origin: dict[str, str] = {}
        first: dict[str, tuple[str, int]] = {}
        late: list[tuple[TensorInfo, int, int]] = []
        for info, x in zip(self.inputs, arrays, strict=True):
            if info.kind != "tensor":
                continue
            if x.ndim != len(info.shape):
                raise RunError(
                    "OCC0501", f"the input `{info.name}` has rank {x.ndim}, the model takes {self.show(info)}"
                )
            for axis, (e, n) in enumerate(zip(info.shape, x.shape, strict=True)):
                if isinstance(e, str) and e not in env:
                    env[e], origin[e] = n, f"axis {axis} of the input `{info.name}`"
                    first[e] = info.name, axis
                elif isinstance(e, str) and env[e] != n:
                    what = (
                        f"`{self.labels.get(e, e)}` is {env[e]} by {origin[e]} and {n} by axis {axis} of the input "
                        f"`{info.name}`"
                    )
                    raise RunError("OCC0501", f"the dim {what}", self._help(info, (info.name, axis), first[e]))
                elif isinstance(e, int) and e != n:
                    raise RunError(
                        "OCC0501",
                        f"axis {axis} of the input `{info.name}` is {n}, the model takes {self.show(info)}",
                        self._help(info, (info.name, axis)) if (info.name, axis) in self._assumed else "",
                    )
                elif isinstance(e, list):
                    late.append((info, axis, n))
        for info, axis, n in late:
            if evaluate(info.shape[axis], env) != n:
                expected = f"{text(info.shape[axis], self.labels)} = {evaluate(info.shape[axis], env)}"
                raise RunError(
                    "OCC0501",
                    f"axis {axis} of the input `{info.name}` is {n}, the model takes {expected}",
                    self._help(info, (info.name, axis)) if (info.name, axis) in self._assumed else "",
                )
        for d in self.dims:
            if d.name in env and not d.takes(env[d.name]):
                raise RunError("OCC0501", f"{origin[d.name]} is {env[d.name]}, the model takes {d.text}")
        check_constraints(self.constraints, env, self.labels)
        return env

    def _help(self, info: TensorInfo, *places: tuple[str, int]) -> str:
        """The remedy for differing extents: why they are assumed equal, and how to change that."""
        found = next((self._assumed[p] for p in places if p in self._assumed), None)
        if found is not None:
            return (
                f"node `{found.node}` broadcasts `{found.dim}` and `{found.other}`, which this plan assumes to be "
                f"equal; build with `--dim {found.dim}=1` for an extent of 1"
            )
        free = [f"{text(e, self.labels)}_{k}" if isinstance(e, str) else "-1" for k, e in enumerate(info.shape)]
        shape = ",".join(free)
        return f"the model takes {self.show(info)}; build with `--shape {info.name}={shape}` if its axes can differ"

    def show(self, info: TensorInfo) -> str:
        """An input as text: `f32[batch,3,224,224]`."""
        if info.kind != "tensor":
            return f"{info.kind} of {info.dtype}"
        return f"{info.dtype}[{','.join(text(e, self.labels) for e in info.shape)}]"


def as_array(value: Any, resident: bool) -> Any:
    """Anything with the buffer protocol, `__array_interface__` or DLPack as an array, without a copy."""
    if isinstance(value, np.ndarray) or (resident and isinstance(value, Resident)):
        return value
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array_interface__"):
        return np.from_dlpack(value)
    return np.asarray(value)

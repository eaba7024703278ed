"""Types that cross region boundaries: joins of branches, slices stacked by loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.build_te import Elements
from occ.compiler.ir.containers import joined_containers, loose
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.shape import DATA_SYMBOL, data_dim, depends_on_data, normalize_axis
from occ.compiler.ir.types import TensorType, Type
from occ.compiler.passes.infer.known_elements import Known

Types = Sequence[Type | None]


class Inference(Known, Protocol):
    """The part of an inference that this file needs."""

    m: Module

    def function(
        self, func: Func, types: Types, values: Sequence[Elements | None], *, optional: bool = False
    ) -> list[Type | None]:
        """Infer a function from the types and known values of its arguments; returns the types of its results.

        If it is `optional`, an op that does not fit its operands is left to the run, which may never reach it.
        """
        ...

    def forget(self, func: Func, mark: int) -> None:
        """Drop what `function` recorded since `mark`."""
        ...

    @property
    def mark(self) -> int: ...


def extent_symbol(inf: Inference, func: Func, k: int, axis: int, known: Dim) -> Dim:
    """The symbol of an argument's extent that differs between calls."""
    arg = func.args[k].type
    if (
        isinstance(arg, TensorType)
        and arg.shape is not None
        and axis < len(arg.shape)
        and depends_on_data(arg.shape[axis])
    ):
        return arg.shape[axis]
    return inf.m.data_symbol(f"{_plain(func.args[k].name)}_{axis}")


def _plain(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in f"{DATA_SYMBOL}_{name}")[:40]


def element_type(inf: Inference, func: Func, k: int, t: Type | None) -> Type | None:
    """The type of a sequence's element in the body: its extents are symbols that each call binds."""
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    dims = tuple(
        extent_symbol(inf, func, k, axis, d) if not isinstance(d, int) else d for axis, d in enumerate(t.shape)
    )
    return TensorType(t.dtype, dims)


def result_type(t: Type | None, fresh: Callable[[], Dim]) -> Type | None:
    """The type of a loop's result: what depends on the loop's symbols is data-dependent."""
    if not isinstance(t, TensorType) or t.shape is None:
        return loose(t) if t is not None else None
    return t.with_shape(tuple(fresh() if depends_on_data(d) else d for d in t.shape))


def stacked_type(t: Type | None, length: Dim, axis: int) -> Type | None:
    """The type of `length` slices along a new axis."""
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    dims = list(t.shape)
    dims.insert(normalize_axis(axis, len(dims) + 1, "Scan"), length)
    return t.with_shape(tuple(dims))


def join(a: Type | None, b: Type | None, fresh: Callable[[], Dim]) -> Type | None:
    """The most precise type that covers both.

    Raises:
        Invalid: the element types or kinds differ.
    """
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype:
            raise Invalid(f"the branches return {a} and {b}")
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype, None)
        dims = tuple(x if x == y else fresh() for x, y in zip(a.shape, b.shape, strict=True))
        return TensorType(a.dtype, dims)
    return joined_containers(a, b)


def fresh_data_dims() -> Callable[[], Dim]:
    """A function that returns a new data-dependent dim at each call."""
    numbers = count()
    return lambda: data_dim(next(numbers))

"""Shape rules that operators share, and the equalities of symbolic dims that they assume."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from occ.compiler.diagnostics import Invalid, Unresolved
from occ.compiler.ir.dim import (
    Dim,
    Sym,
    cases,
    exact_quotient,
    floordiv,
    is_positive,
    lower,
    maximum,
    minimum,
    monomial,
    product,
    symbol,
    terms_of,
    upper,
)


class Assumed(NamedTuple):
    """Two dims that are assumed equal without proof.

    Where `spread`, either may be 1 as well, which another assumption is for.
    """

    a: Dim
    b: Dim
    spread: bool = False


_assumed: ContextVar[list[Assumed] | None] = ContextVar("assumed", default=None)


@contextmanager
def collecting(into: list[Assumed]) -> Generator[None]:
    """Collect in `into` every pair of dims that are taken as equal without proof."""
    token = _assumed.set(into)
    try:
        yield
    finally:
        _assumed.reset(token)


DATA_SYMBOL = "_u"  # how names of symbols begin that no input shows; dims of a model never begin so


def data_dim(k: int = 0) -> Dim:
    """An extent that the data decide. Inference puts a symbol in its place, one for each `k` of an op."""
    return symbol(f"_{k}")


def is_placeholder(d: Dim) -> bool:
    """Whether a dim is a `data_dim`."""
    return isinstance(d, Sym) and d.is_symbol and str(d)[1:].isdigit() and str(d).startswith("_")


def depends_on_data(d: Dim) -> bool:
    """Whether an extent depends on the data of a run."""
    return isinstance(d, Sym) and any(s.name.startswith("_") for s in d.symbols)


def surely_different(a: Dim, b: Dim) -> bool:
    """Whether two dims are proven to differ for all values of their symbols."""
    return lower(a - b) > 0 or lower(b - a) > 0


def assume_equal(a: Dim, b: Dim, *, spread: bool = False) -> None:
    """Have the runtime check that two dims are equal."""
    pairs = _assumed.get()
    if pairs is not None and a != b:
        pairs.append(Assumed(a, b, spread))


def is_collecting() -> bool:
    """Whether somebody wants to know what is assumed of dims."""
    return _assumed.get() is not None


def assume_at_least(size: Dim, least: Dim) -> None:
    """Have the runtime check that a size is at least another, unless what is assumed already says so."""
    wanted, known = (maximum(size, least), size), [(p.a, p.b) for p in _assumed.get() or ()]
    if wanted not in known and not any(size - least in (a - b, b - a) for a, b in known):
        assume_equal(*wanted)


def equal_dims(a: Dim, b: Dim, what: str, *, spread: bool = False) -> Dim:
    """The dim that `a` and `b` both are.

    Where that is not proven, it is assumed and checked at run time. Where `spread`, one that is 1 would be broadcast:
    whoever compiles again for that extent has another plan.

    Raises:
        Invalid: the dims surely differ; `what` names the operator and its rule.
    """
    if a == b:
        return a
    if surely_different(a, b):
        raise Invalid(f"{what}: {a} and {b}")
    assume_equal(a, b, spread=spread)
    return min((a, b), key=lambda d: (len(terms_of(d)) if not isinstance(d, int) else 0, str(d)))


def equal_shapes(given: Sequence[Dim], wanted: Sequence[Dim], what: str) -> None:
    """Have an operand a shape; where that is not proven, it is assumed and checked at run time.

    Raises:
        Invalid: it surely has another; `what` names the operator and the operand.
    """
    said = f"{what} has shape {show_shape(given)}, not {show_shape(wanted)}"
    if len(given) != len(wanted):
        raise Invalid(said)
    for n, m in zip(given, wanted, strict=True):
        equal_dims(n, m, said)


def equal_part(size: Dim, count: Dim, what: str) -> Dim:
    """The size of each of `count` equal parts; that nothing is left over is assumed where it is not proven.

    Raises:
        Invalid: something surely is left over; `what` names the operator and its rule.
    """
    found = exact_quotient(size, count)
    if found is None:
        if lower(count) <= 0:
            raise Invalid(f"{what}: {size} in {count} parts")
        found = floordiv(size, count)
        equal_dims(count * found, size, f"{what}: {size} in {count} parts")
    return found


def _assume_one(few: Dim) -> None:
    """Have an extent of at most 1 be 1.

    `min(1, N)` is that where `N` is not 0, which is what a run says where it is; a symbol has that as its bound.
    """
    found = cases(few) if isinstance(few, Sym) else None
    whole = [d for d in found[1] if d != 1] if found is not None and 1 in found[1] else []
    if len(whole) == 1 and isinstance(whole[0], Sym) and not whole[0].is_symbol:
        assume_equal(maximum(1, whole[0]), whole[0])
    else:
        assume_equal(few, 1)


def broadcast_dims(a: Dim, b: Dim, what: str) -> Dim:
    """The extent of two broadcast axes.

    Two unlike symbols are assumed equal, a symbol next to a constant likewise; an extent of at most 1, as that of the
    last of `N` elements, is assumed to be 1.
    """
    if a == 1:
        return b
    if b == 1:
        return a
    if a != b and (depends_on_data(a) or depends_on_data(b)):
        raise Unresolved("broadcast", "shape")  # either may be 1
    for few, other in ((a, b), (b, a)):
        if lower(few) >= 0 and upper(few) == 1 and upper(other) > 1:
            _assume_one(few)
            return other
    return equal_dims(a, b, what, spread=True)


def broadcast_shapes(*shapes: Sequence[Dim], op: str = "the operator") -> tuple[Dim, ...]:
    """The shape of multidirectional broadcasting (ONNX Broadcasting, which is numpy's).

    Raises:
        Invalid: the shapes do not broadcast; Unresolved: the data decide whether an extent is 1.
    """
    unlike = list(dict.fromkeys(map(tuple, shapes)))
    rank = max(map(len, unlike), default=0)
    result: tuple[Dim, ...] = (1,) * rank
    what = f"`{op}`: shapes {' and '.join(map(show_shape, unlike))} do not broadcast"
    for shape in unlike:
        padded = (1,) * (rank - len(shape)) + shape
        result = tuple(broadcast_dims(a, b, what) for a, b in zip(result, padded, strict=True))
    return result


def broadcasts_to(given: Sequence[Dim], wanted: Sequence[Dim], what: str) -> None:
    """Have an operand a shape that broadcasts to another one.

    Where that is not proven, it is assumed and checked at run time.

    Raises:
        Invalid: it surely does not; `what` says so.
    """
    if len(given) > len(wanted):
        raise Invalid(what)
    for n, m in zip(reversed(given), reversed(wanted), strict=False):
        if n != 1:
            equal_dims(n, m, what, spread=True)


def reshape_target(x: Sequence[Dim], asked: Sequence[Dim], *, allowzero: bool) -> tuple[Dim, ...]:
    """The shape that Reshape gives: 0 copies a dim unless `allowzero`, one -1 takes what is left.

    A symbolic extent is taken as it is, and the runtime refuses sizes for which it would be a 0 that copies another extent.

    Raises:
        Invalid: the element counts differ, or the request is contradictory.
    """
    if sum(1 for d in asked if d == -1) > 1:
        raise Invalid(f"`Reshape` to {show_shape(asked)}: more than one -1")
    if any(isinstance(d, int) and d < -1 for d in asked):
        raise Invalid(f"`Reshape` to {show_shape(asked)}: an extent is negative")
    result: list[Dim] = []
    for k, d in enumerate(asked):
        if d == 0 and not allowzero:
            if k >= len(x):
                raise Invalid(f"`Reshape` copies extent {k} of a tensor of rank {len(x)}")
            result.append(x[k])
        else:
            if not allowzero:
                _copies_nothing(d, x[k] if k < len(x) else 1)
            result.append(d)
    total = product(x)
    if -1 in result:
        known = product(d for d in result if d != -1)
        rest = exact_quotient(total, known)
        if rest is None:
            if known == 0 or (isinstance(total, int) and isinstance(known, int)):
                raise Invalid(f"`Reshape` of {show_shape(x)} to {show_shape(asked)}: the element counts differ")
            rest = floordiv(total, known)
            assume_equal(maximum(known, 1), known)
            equal_dims(
                rest * known, total, f"`Reshape` of {show_shape(x)} to {show_shape(asked)}: element counts differ"
            )
        result[result.index(-1)] = rest
    else:
        equal_dims(
            product(result), total, f"`Reshape` of {show_shape(x)} to {show_shape(asked)}: element counts differ"
        )
    return tuple(result)


def _copies_nothing(d: Dim, copied: Dim) -> None:
    """Assume that the extent `d` of a Reshape is not 0, unless the copied extent is 0."""
    if d == -1 or is_positive(d):
        return
    parts = terms_of(d)
    root = monomial(*((atom, 1) for atom, _ in parts[0][0])) if len(parts) == 1 else d  # it is 0 where `d` is
    if copied != 0 and exact_quotient(copied, root) is None:
        assume_equal(maximum(d, minimum(1, copied)), d)


def show_shape(shape: Sequence[Dim]) -> str:
    """A shape as text."""
    return f"[{','.join(map(str, shape))}]"


def normalize_axis(axis: int, rank: int, op: str) -> int:
    """An axis counted from the front.

    Raises:
        Invalid: the axis is outside `[-rank, rank)`.
    """
    if not -rank <= axis < max(rank, 1):
        raise Invalid(f"axis {axis} of `{op}` is outside of a tensor of rank {rank}", code="OCC0107")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int], rank: int, op: str) -> tuple[int, ...]:
    """Axes counted from the front, each once.

    Raises:
        Invalid: an axis is outside of the tensor or named twice.
    """
    result = tuple(normalize_axis(int(a), rank, op) for a in axes)
    if len(set(result)) != len(result):
        raise Invalid(f"an axis of `{op}` is named twice", code="OCC0107")
    return result

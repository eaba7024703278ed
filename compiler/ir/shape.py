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

    With `spread`, either may also be 1, which is a separate assumption.
    """

    a: Dim
    b: Dim
    spread: bool = False


_assumed: ContextVar[list[Assumed] | None] = ContextVar("assumed", default=None)


@contextmanager
def collecting(into: list[Assumed]) -> Generator[None]:
    """Collect in `into` every pair of dims that is assumed equal without proof."""
    token = _assumed.set(into)
    try:
        yield
    finally:
        _assumed.reset(token)


DATA_SYMBOL = "_u"  # prefix of symbols that no input shows; dims of a model never start with it


def data_dim(k: int = 0) -> Dim:
    """A data-dependent extent. Inference replaces it by a symbol, one for each `k` of an op."""
    return symbol(f"_{k}")


def is_placeholder(d: Dim) -> bool:
    """Whether a dim is a `data_dim`."""
    return isinstance(d, Sym) and d.is_symbol and str(d)[1:].isdigit() and is_data_name(str(d))


def is_data_name(name: str) -> bool:
    """Whether a symbol of that name stands for a size that run-time data decide."""
    return name.startswith("_")


def depends_on_data(d: Dim) -> bool:
    """Whether an extent depends on run-time data."""
    return isinstance(d, Sym) and any(is_data_name(s.name) for s in d.symbols)


def surely_different(a: Dim, b: Dim) -> bool:
    """Whether two dims are proven to differ for all values of their symbols."""
    return lower(a - b) > 0 or lower(b - a) > 0


def assume_equal(a: Dim, b: Dim, *, spread: bool = False) -> None:
    """Require at run time that two dims are equal."""
    pairs = assumed()
    if pairs is not None and a != b:
        pairs.append(Assumed(a, b, spread))


def assumed() -> list[Assumed] | None:
    """The assumptions collected so far, to which more can be added; None if none are collected."""
    return _assumed.get()


def assume_at_least(size: Dim, least: Dim) -> None:
    """Require at run time that a size is at least another, unless existing assumptions imply it."""
    wanted, known = (maximum(size, least), size), [(p.a, p.b) for p in assumed() or ()]
    if wanted not in known and not any(size - least in (a - b, b - a) for a, b in known):
        assume_equal(*wanted)


def at_least(size: Dim, least: Dim, what: str) -> Dim:
    """The size, which is at least another; where that is not proven, it is assumed and checked at run time.

    Raises:
        Invalid: it is provably less; `what` says so.
    """
    if upper(size - least) < 0:
        raise Invalid(what)
    if lower(size - least) < 0:
        assume_at_least(size, least)
    return size


def equal_dims(a: Dim, b: Dim, what: str, *, spread: bool = False) -> Dim:
    """The common value of the dims `a` and `b`.

    If they are not provably equal, that is assumed and checked at run time. With `spread`, one that is 1 would
    broadcast: compiling again with that extent yields another plan.

    Raises:
        Invalid: the dims certainly differ; `what` names the operator and its rule.
    """
    if a == b:
        return a
    if surely_different(a, b):
        raise Invalid(f"{what}: {a} and {b}")
    assume_equal(a, b, spread=spread)
    return min((a, b), key=lambda d: (len(terms_of(d)) if not isinstance(d, int) else 0, str(d)))


def equal_shapes(given: Sequence[Dim], wanted: Sequence[Dim], what: str) -> None:
    """Require an operand's shape; what cannot be proved is assumed and checked at run time.

    Raises:
        Invalid: it certainly has another; `what` names the operator and the operand.
    """
    said = f"{what} has shape {show_shape(given)}, not {show_shape(wanted)}"
    if len(given) != len(wanted):
        raise Invalid(said)
    for n, m in zip(given, wanted, strict=True):
        equal_dims(n, m, said)


def equal_part(size: Dim, count: Dim, what: str) -> Dim:
    """The size of each of `count` equal parts; divisibility that cannot be proved is assumed.

    Raises:
        Invalid: it is certainly not divisible; `what` names the operator and its rule.
    """
    found = exact_quotient(size, count)
    if found is None:
        if lower(count) <= 0:
            raise Invalid(f"{what}: {size} in {count} parts")
        found = floordiv(size, count)
        equal_dims(count * found, size, f"{what}: {size} in {count} parts")
    return found


def _assume_one(few: Dim) -> None:
    """Require that an extent of at most 1 is 1.

    `min(1, N)` is 1 unless `N` is 0, which a run would report; a symbol gets 1 as its lower bound.
    """
    found = cases(few) if isinstance(few, Sym) else None
    whole = [d for d in found[1] if d != 1] if found is not None and 1 in found[1] else []
    if len(whole) == 1 and isinstance(whole[0], Sym) and not whole[0].is_symbol:
        assume_equal(maximum(1, whole[0]), whole[0])
    else:
        assume_equal(few, 1)


def broadcast_dims(a: Dim, b: Dim, what: str) -> Dim:
    """The extent of two broadcast axes.

    Two different symbols are assumed equal, and so are a symbol and a constant; an extent of at most 1, such as the
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
        Invalid: the shapes do not broadcast; Unresolved: whether an extent is 1 depends on data.
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
    """Require that an operand's shape broadcasts to another one.

    What cannot be proved is assumed and checked at run time.

    Raises:
        Invalid: it certainly does not; `what` describes it.
    """
    if len(given) > len(wanted):
        raise Invalid(what)
    for n, m in zip(reversed(given), reversed(wanted), strict=False):
        if n != 1:
            equal_dims(n, m, what, spread=True)


def reshape_target(x: Sequence[Dim], asked: Sequence[Dim], *, allowzero: bool) -> tuple[Dim, ...]:
    """The result shape of Reshape: 0 copies a dim unless `allowzero`, one -1 takes the remaining elements.

    A symbolic extent is used as it is; the runtime rejects sizes for which it would be a 0 that copies another extent.

    Raises:
        Invalid: the element counts differ, or the request is contradictory.
        Unresolved: whether an extent is 0, and copies another, depends on data.
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
            if not allowzero and may_copy(d, copied := x[k] if k < len(x) else 1):
                if k < len(x) and depends_on_data(d):
                    raise Unresolved("Reshape", "shape")
                assume_equal(maximum(d, minimum(1, copied)), d)
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


def may_copy(d: Dim, copied: Dim) -> bool:
    """Whether the extent `d` of a Reshape may be a 0 that stands for another extent, `copied`."""
    if d == -1 or is_positive(d):
        return False
    parts = terms_of(d)
    root = monomial(*((atom, 1) for atom, _ in parts[0][0])) if len(parts) == 1 else d  # it is 0 if `d` is
    return copied != 0 and exact_quotient(copied, root) is None


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

"""Split, Slice, Pad: operators that take a part of a tensor, or surround it with a border."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim, ceildiv
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.ranks import same
from occ.compiler.ir.operator.scalars import scalar
from occ.compiler.ir.operator.spec import op
from occ.compiler.ir.ops.movement import static_dims, static_ints
from occ.compiler.ir.shape import (
    at_least,
    equal_dims,
    normalize_axes,
    normalize_axis,
)
from occ.compiler.ir.te.expr import Expr, literal, maximum, minimum, where, wrap
from occ.compiler.ir.te.function import Tensor
from occ.compiler.ir.te.roles import PAD

_LONGEST = 1 << 40  # no axis has as many elements; sums of this and extents have 64 bits


def split_sizes(total: Dim, sizes: Tensor | None, a: SimpleNamespace) -> tuple[Dim, ...]:
    """Extents of the outputs of a Split.

    Raises:
        Invalid: the parts do not add up.
    """
    if sizes is not None:
        parts = static_dims("Split", "split", sizes)
        if len(parts) != a.n_results:
            raise Invalid(f"`Split` in {len(parts)} parts has {a.n_results} results")
        equal_dims(sum(parts, start=0), total, "`Split`: the parts do not add up to the extent")
        return parts
    count = a.num_outputs or a.n_results
    if count != a.n_results:
        raise Invalid(f"`Split` in {count} parts has {a.n_results} results", code="OCC0107")
    each = ceildiv(total, count)
    return (*(each,) * (count - 1), total - each * (count - 1))


@op("Split", static=("split",), rank=same, writes="any")
class Split:
    def body(t, x, split=None, *, a):
        axis = normalize_axis(a.axis, x.rank, "Split")
        parts = split_sizes(x.shape[axis], split, a)
        results, start = [], 0
        for n in parts:
            shape = [n if k == axis else d for k, d in enumerate(x.shape)]
            results.append(
                t.map(shape, lambda *i, s=start: x[(*i[:axis], i[axis] + wrap(s), *i[axis + 1 :])], name="split")
            )
            start = start + n
        return tuple(results)


def slice_axis(size: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """(first position, number of positions) of one axis of a Slice (ONNX Slice, clamping rules)."""
    big = 2**31 - 2  # what exporters write for "to the end"

    def place(v: Dim, lo: Dim, hi: Dim) -> Dim:
        if isinstance(v, int) and abs(v) >= big:
            return hi if v > 0 else dim.minimum(lo, hi)
        if isinstance(v, int) and v < 0:
            v = v + size
        elif dim.upper(v) < 0:
            v = size + v
        return hi if v == hi else dim.minimum(dim.maximum(v, lo), hi)

    if step > 0:
        first, last = place(start, 0, size), place(end, 0, size)
        return first, dim.maximum(ceildiv(last - first, step), 0)
    first, last = place(start, 0, size - 1), place(end, -1, size - 1)
    return first, dim.maximum(ceildiv(first - last, -step), 0)


@op("Slice", static=("starts", "ends", "axes", "steps"), moves=True, rank=same, writes="any")
class Slice:
    def body(t, data, starts, ends, axes=None, steps=None, *, a):
        begin, end = static_dims("Slice", "starts", starts), static_dims("Slice", "ends", ends)
        on = tuple(range(len(begin))) if axes is None else static_ints("Slice", "axes", axes)
        on = normalize_axes(on, data.rank, "Slice")
        by = (1,) * len(begin) if steps is None else static_ints("Slice", "steps", steps)
        if not len(begin) == len(end) == len(on) == len(by):
            raise Invalid("`Slice`: starts, ends, axes and steps have different lengths")
        if 0 in by:
            raise Invalid("`Slice`: a step is 0")
        shape, first = list(data.shape), [0] * data.rank
        stride = [1] * data.rank
        for axis, b, e, step in zip(on, begin, end, by, strict=True):
            s = min(max(step, -_LONGEST), _LONGEST)
            first[axis], shape[axis] = slice_axis(data.shape[axis], b, e, s)
            stride[axis] = s
        return t.map(
            shape,
            lambda *i: data[tuple(k * s + wrap(f) for k, s, f in zip(i, stride, first, strict=True))],
            name="slice",
        )


@op("Pad", static=("pads", "axes"), rank=same, writes="any")
class Pad:
    def body(t, data, pads, constant_value=None, axes=None, *, a):
        listed = static_dims("Pad", "pads", pads)
        on = tuple(range(data.rank)) if axes is None else static_ints("Pad", "axes", axes)
        on = normalize_axes(on, data.rank, "Pad")
        if len(listed) != 2 * len(on):
            raise Invalid(f"`pads` of `Pad` has {len(listed)} entries for {len(on)} axes")
        before, after = [0] * data.rank, [0] * data.rank
        for k, axis in enumerate(on):
            before[axis], after[axis] = listed[k], listed[len(on) + k]
        if a.mode == "constant":
            fill = literal(0, data.dtype) if constant_value is None else scalar("Pad", "constant_value", constant_value)
            return t.pad(data, before, after, fill)
        shape = [b + n + e for b, n, e in zip(before, data.shape, after, strict=True)]
        cut, left = _cut(before, data.shape, after)

        def element(*i):
            pads = zip(i, before, left, after, cut, strict=True)
            return data[tuple(k if b == e == 0 else _mirror(k - b - wrap(c), n, a.mode) + c for k, b, n, e, c in pads)]

        return t.map(shape, element, role=PAD)


def _cut(before: Sequence[Dim], shape: Sequence[Dim], after: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """What negative pads cut off in front of each axis, and what they leave of it, which is then repeated."""
    cut = [dim.maximum(0 - b, 0) for b in before]
    left = [dim.maximum(n - c - dim.maximum(0 - e, 0), 0) for n, c, e in zip(shape, cut, after, strict=True)]
    has_elements = reduce(dim.minimum, (b + n + e for b, n, e in zip(before, shape, after, strict=True)), 1)
    for n, whole, b, e in zip(left, shape, before, after, strict=True):
        least = dim.minimum(dim.maximum(b, 0) + dim.maximum(e, 0), has_elements)
        at_least(n, least, f"`pads` of `Pad` are {b} and {e} of an axis of {whole} elements: nothing is left to repeat")
    return cut, left


def _mirror(k: Expr, n: Dim, mode: str) -> Expr:
    """Position `k` mapped into an axis of extent `n`: `reflect`, `edge` or `wrap`.

    Positions inside are a separate case if outside ones need arithmetic, so that the inside is copied directly.
    """
    match mode:
        case "edge":
            return minimum(maximum(k, 0), wrap(n - 1))
        case "wrap":
            return where((k >= 0) & (k < wrap(n)), k, k % wrap(n))
        case "reflect":
            period = dim.maximum(2 * (n - 1), 1)
            folded = k % wrap(period)
            return (
                where((k >= 0) & (k < wrap(n)), k, minimum(folded, wrap(period) - folded))
                if n != 1
                else literal(0, I64)
            )
        case _:
            raise Invalid(f"`mode` of `Pad` is {mode!r}", code="OCC0107")


ALL = (Split, Slice, Pad)

"""An internal op of Pad by computed numbers: the sizes that it keeps and adds."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import I64
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.ops.shape_of import pick
from occ.compiler.ir.te.expr import cast, clamp, literal, maximum, minimum, where

_LONGEST = 1 << 40  # no axis has as many elements; sums of this and extents have 64 bits


@op("pad_places", own_attributes="axes=ints")
class PadPlaces:
    """What a Pad keeps of each of `axes`, and adds: i64[4 * axes].

    These are the first position that is kept, the number of positions, and the elements before and after them.
    Negative pads cut off. Where one cuts off more than there is, that is missing at the other end.
    """

    operands = ("data", "pads")

    def body(t, data, pads, *, a):
        extents = [data.shape[axis] for axis in a.axes]

        def element(j):
            k = j // 4
            front, back = (clamp(cast(I64, pads[(k + at,)]), -2 * _LONGEST, _LONGEST) for at in (0, len(extents)))
            n, cut, none = pick(extents, k), maximum(-front, 0), literal(0, I64)
            left = n - cut - maximum(-back, 0)
            missing = minimum(left, 0)
            before = maximum(front, 0) + where(back < 0, missing, none)
            after = maximum(back, 0) + where(front < 0, missing, none)
            return pick([minimum(cut, n), maximum(left, 0), before, after], j % 4)

        return t.map([4 * len(extents)], element, name="places")


ALL: tuple[OpSpec, ...] = (PadPlaces,)

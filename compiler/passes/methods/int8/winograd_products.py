"""Integer convolutions of 3x3 by Winograd's minimal filtering, exact in pairs of 16 bits."""

from __future__ import annotations

from math import ceil

import numpy as np

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I8, U8
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.ops.own.winograd import whole_weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.methods.int8.byte_weight import byte_weight

_LEAST = 16  # channels and filters: with fewer, the transforms cost more than the products that they save
_LEAST_GAIN = 1.5  # savings in products: a plane of 7x7 is 4x4 tiles of 2x2, a gain of 1.7
_CODE = 4 * 255  # magnitude of transformed codes: a sum of four


def winograd_convolution(op: Op, rw: Rewriter, lanes: int) -> bool:
    """`ConvInteger` with a constant weight and zero point --> `winograd_dot`, if `lanes` channels fill a vector."""
    x, _, zero, _ = (*op.operands, None, None)[:4]
    if x is None or x.tensor.dtype not in (U8, I8) or not _pays(op, lanes):
        return False
    if zero is not None and not (isinstance(zero, Weight) and zero.tensor.size == 1):
        return False
    found = byte_weight(op)
    if found is None or found[1] is not None:
        return False
    w = found[0]
    made = whole_weight(w)
    # An output sums some of the 16 points: the sum of all magnitudes bounds it, and its parts, whatever the codes are.
    most = np.abs(made.astype(np.int64)).sum((0, 1, 2)).max(initial=0) * _CODE
    if most >= 1 << 31:
        return False
    point = 0 if zero is None else int(zero.data.reshape(()))
    total = (-point * w.sum((1, 2, 3), dtype=np.int64)).astype(np.int32)
    b = rw.builder(op)
    attrs = {"kernel_shape": (3, 3), "pads": op.a.pads or (0, 0, 0, 0), "zero": point}
    rw.replace(op, [b.winograd_dot(x, b.constant(made), b.constant(total), **attrs)])
    return True


def _pays(op: Op, lanes: int) -> bool:
    a, w = op.a, op.operands[1]
    if not isinstance(w, Weight) or w.tensor.rank != 4 or w.data.shape[2:] != (3, 3):
        return False
    filters, channels = w.data.shape[:2]
    plain = a.group == 1 and all(k == 1 for k in (*(a.strides or ()), *(a.dilations or ())))
    if not plain or a.auto_pad not in ("NOTSET", "") or min(filters, channels) < _LEAST or channels % lanes:
        return False
    if not all(isinstance(p, int) and p >= 0 for p in a.pads or ()):
        return False
    down, across = (_kept(n) for n in op.result.tensor.dims[2:])
    return 2.25 * down * across >= _LEAST_GAIN


def _kept(size: Dim) -> float:
    """The share of outputs of tiles that are kept, along an axis."""
    return size / (2 * ceil(size / 2)) if isinstance(size, int) else 1

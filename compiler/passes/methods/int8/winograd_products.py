"""Integer convolutions of 3x3 by Winograd's minimal filtering, exact in pairs of 16 bits."""

from __future__ import annotations

from math import ceil

import numpy as np

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I8, U8
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.ops.own.winograd import SIZE, SMALL, WHOLE, outputs_of, whole_weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.methods.int8.byte_weight import byte_weight

_LEAST = 16  # channels and filters: with fewer, the transforms cost more than the products that they save
_LEAST_GAIN = 1.5  # savings in products: a plane of 7x7 is 4x4 tiles of 2x2, a gain of 1.7
_FEW = 8  # positions along an axis up to which tiles are small: the weights of few large ones take longer to read
_CODE = 255  # largest magnitude of a code


def winograd_convolution(op: Op, rw: Rewriter, lanes: int) -> bool:
    """`ConvInteger` with a constant weight and zero point --> `winograd_dot`, if `lanes` channels fill a vector."""
    x, _, zero, _ = (*op.operands, None, None)[:4]
    if x is None or x.tensor.dtype not in (U8, I8) or not _is_plain(op, lanes):
        return False
    if zero is not None and not (isinstance(zero, Weight) and zero.tensor.size == 1):
        return False
    found = byte_weight(op)
    size = _size(op.result.tensor.dims[2:], found[0]) if found is not None and found[1] is None else 0
    if found is None or not size:
        return False
    w = found[0]
    point = 0 if zero is None else int(zero.data.reshape(()))
    total = (-point * w.sum((1, 2, 3), dtype=np.int64)).astype(np.int32)
    b = rw.builder(op)
    attrs = {"kernel_shape": (3, 3), "pads": op.a.pads or (0, 0, 0, 0), "zero": point}
    rw.replace(op, [b.winograd_dot(x, b.constant(whole_weight(w, size)), b.constant(total), **attrs)])
    return True


def _is_plain(op: Op, lanes: int) -> bool:
    a, w = op.a, op.operands[1]
    if not isinstance(w, Weight) or w.tensor.rank != 4 or w.data.shape[2:] != (3, 3):
        return False
    filters, channels = w.data.shape[:2]
    plain = a.group == 1 and all(k == 1 for k in (*(a.strides or ()), *(a.dilations or ())))
    if not plain or a.auto_pad not in ("NOTSET", "") or min(filters, channels) < _LEAST or channels % lanes:
        return False
    return all(isinstance(p, int) and p >= 0 for p in a.pads or ())


def _size(plane: tuple[Dim, ...], w: np.ndarray) -> int:
    """The side of the tiles that pays for results of a plane, or 0."""
    few = all(isinstance(n, int) and n <= _FEW for n in plane)
    sizes = [size for size in (SIZE, SMALL) if _fits(w, size) and (size == SMALL or not few)]
    # The schedule needs two tiles along each axis, since axes of extent 1 are not in its loops.
    sizes = [size for size in sizes if all(not isinstance(n, int) or n > outputs_of(3, size) for n in plane)]
    gains = {size: _gain(plane[0], size) * _gain(plane[1], size) for size in sizes}
    best = max(gains, key=gains.__getitem__, default=0)
    return best if best and gains[best] >= _LEAST_GAIN else 0


def _fits(w: np.ndarray, size: int) -> bool:
    """Whether results of any codes, times the power of two by which they are divided, fit i32."""
    wide, step = w.astype(np.int64), WHOLE[size].step ** 2
    peak = max(np.maximum(wide, 0).sum((1, 2, 3)).max(initial=0), -np.minimum(wide, 0).sum((1, 2, 3)).min(initial=0))
    return int(peak) * _CODE * (step & -step) < 1 << 31


def _gain(n: Dim, size: int) -> float:
    """The ratio of multiplications of direct convolution to Winograd's along an axis."""
    tile = outputs_of(3, size)
    kept = n / (ceil(n / tile) * tile) if isinstance(n, int) else 1
    return kept * tile * 3 / size

"""Orders of channels in which products of bytes fit in 16 bits in pairs."""

from __future__ import annotations

import numpy as np

from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.own.quantised_codes import pairs_fit
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.methods.int8.byte_weight import byte_weight

_MOST = 128  # of the sum of two weights of one sign: 255 times it fits in i16
_FOUR = 4  # channels that are multiplied and added at once
_LARGEST = 1 << 30  # weights that are compared, about half a second
_OF_CHANNELS = ("Add", "Cast", "Mul", "saturate")  # of which a channel of the result is made of the same one


def paired_channels(op: Op, rw: Rewriter) -> bool:
    """`ConvInteger` of 1x1 --> one of reordered channels, whose pairs of products fit in 16 bits.

    What makes the channels, up to the filters of the convolution before, has its constants reordered, which costs
    nothing. Weights of 100 and 90 do not fit; 100 and 20, or 100 and -90 do.
    """
    found, chain = byte_weight(op), _makers(op.operands[0], op)
    if found is None or found[1] is not None or op.a.group != 1 or chain is None:
        return False
    w = found[0]
    if any(n != 1 for n in w.shape[2:]) or w.shape[1] % _FOUR or pairs_fit(w.reshape(len(w), -1, 2)):
        return False
    if (order := matched(w.reshape(len(w), -1).T)) is None:
        return False
    for maker in chain:
        _reorder(maker, order, rw)
    rw.replace_operand(op, 1, rw.builder(op).constant(w[:, order]))
    if len(op.operands) > 3:
        rw.replace_operand(op, 3, None)
    return True


def _makers(x: Value | None, reader: Op) -> list[Op] | None:
    """The operators that make the channels of a value that nothing else reads, up to a convolution of one group."""
    found = list[Op]()
    while x is not None and (op := x.defining_op) is not None and op.parent is reader.parent and len(x.uses) == 1:
        x, *others = op.operands
        if not all(v is None or isinstance(v, Weight) for v in others):
            return None
        found.append(op)
        if op.name == "ConvInteger" and op.a.group == 1:
            return found if others[0] is not None else None
        if op.name not in _OF_CHANNELS and not _is_depthwise(op):
            return None
    return None


def _is_depthwise(op: Op) -> bool:
    """Whether a convolution makes each channel of the same one."""
    return op.name == "ConvInteger" and op.a.group == op.result.tensor.dims[1] == op.inputs[0].tensor.dims[1]


def _reorder(op: Op, order: np.ndarray, rw: Rewriter) -> None:
    """Reorder the channels of an operator's result, by its constants."""
    rank, b = op.result.tensor.rank, rw.builder(op)
    for k, v in enumerate(op.operands):
        if not isinstance(v, Weight):
            continue
        axis = 0 if op.name == "ConvInteger" else 1 - rank + v.data.ndim
        if 0 <= axis < v.data.ndim and v.data.shape[axis] == order.size:
            rw.replace_operand(op, k, b.constant(v.data.take(order, axis)))
    op.result.name += ".paired"  # it has other values than in the model


def matched(w: np.ndarray) -> np.ndarray | None:
    """An order of the rows of `i8[K, N]` in which each two fit together; None if none was found.

    A row that few others fit is paired first, with the one that fits the fewest: trained and random weights of up to
    160 columns leave no row over.
    """
    fits = _fitting(w)
    if fits is None:
        return None
    count, made = fits.sum(1, dtype=np.int64), list[int]()
    while len(made) < len(w):
        row = int(np.where(count, count, len(w)).argmin())
        if not count[row]:
            return None
        others = np.flatnonzero(fits[row])
        other = int(others[count[others].argmin()])
        made += [row, other]
        count -= fits[:, row]
        count -= fits[:, other]
        fits[[row, other]] = fits[:, [row, other]] = False
        count[[row, other]] = 0
    return np.array(made)


def _fitting(w: np.ndarray) -> np.ndarray | None:
    """Which rows fit together; None if one fits with no other, or if there are too many."""
    if w.shape[0] * w.size > _LARGEST:
        return None
    wide = w.astype(np.int16)
    parts = np.concatenate([np.maximum(wide, 0), np.maximum(-wide, 0)], 1).astype(np.uint8)
    fits = np.zeros((len(w), len(w)), bool)
    for row in np.argsort(-parts.sum(1, dtype=np.int64), kind="stable"):  # the first that might fit with no other
        fits[row] = (parts <= _MOST - parts[row]).all(1)
        fits[row, row] = False
        if not fits[row].any():
            return None
    return fits

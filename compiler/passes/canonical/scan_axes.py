"""Scans along inner axes as scans along the first axis, with transpositions around them."""

from __future__ import annotations

from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter


def scan_first_axes(op: Op, rw: Rewriter) -> bool:
    """`Scan(x) {scan_input_axes=[1]}` --> `Scan(Transpose(x))`, and a Transpose after results stacked along another
    axis. Moving all slices at once costs less than one copy each, and native code supports it.
    """
    a = op.a
    inputs, outputs = (tuple(axes or ()) for axes in (a.scan_input_axes, a.scan_output_axes))
    if not any((*inputs, *outputs)):
        return False
    b, home = rw.builder(op), op.parent
    assert home is not None
    states = len(op.operands) - a.captures - a.num_scan_inputs
    operands, types = list(op.operands), [r.type for r in op.results]
    for k, axis in enumerate(inputs, states):
        if (value := operands[k]) is not None and axis % value.tensor.rank:
            operands[k] = b.Transpose(value, perm=_front(axis % value.tensor.rank, value.tensor.rank))
    back: dict[int, tuple[int, ...]] = {}
    for k, axis in enumerate(outputs, states):
        made = op.results[k].tensor
        if at := axis % made.rank:
            types[k] = made.with_shape(tuple(made.dims[n] for n in _front(at, made.rank)))
            back[k] = (*range(1, at + 1), 0, *range(at + 1, made.rank))
    attrs = {k: v for k, v in op.attrs.items() if k not in ("scan_input_axes", "scan_output_axes")}
    scan = home.insert(
        Op(op.operator, operands, attrs, types, result_names=[r.name for r in op.results], loc=op.loc), op
    )
    moved = [b.Transpose(r, perm=back[k]) if k in back else r for k, r in enumerate(scan.results)]
    rw.replace(op, moved)
    return True


def _front(axis: int, rank: int) -> tuple[int, ...]:
    """The axes of a tensor, with one moved to the front."""
    return (axis, *(k for k in range(rank) if k != axis))

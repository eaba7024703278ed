"""Ranks and extents of operands, from the text of the ONNX specification.

What says how an operator works is one number or a vector of numbers. Bodies look at no more of a number than its first
element, and at a vector in row-major order, so what has another form is refused here: inference checks every node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.operator.spec import OpSpec
from occ.compiler.ir.shape import equal_dims

# Operands that are one number, as a scalar or in a tensor of one element. Bodies check others themselves.
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "ConvInteger": ("x_zero_point",),
    "CumProd": ("axis",),
    "CumSum": ("axis",),
    "Dropout": ("ratio", "training_mode"),
    "QLinearConv": ("x_scale", "x_zero_point", "y_scale", "y_zero_point"),
    **dict.fromkeys(("SequenceAt", "SequenceErase", "SequenceInsert"), ("position",)),
    "TopK": ("K",),
}
# Operands of rank 1. Not those that a runtime takes as a scalar too: the axes of Unsqueeze, the shape of Expand.
VECTORS: Mapping[str, tuple[str, ...]] = {
    "Pad": ("axes",),
    "Reshape": ("shape",),
    "STFT": ("window",),
    "Slice": ("axes", "steps"),
    "Split": ("split",),
    "Squeeze": ("axes",),
    "TopK": ("K",),
}


def check_forms(spec: OpSpec, shapes: Sequence[Sequence[Dim] | None]) -> None:
    """Check the operands of a node; extents that nothing proves are assumed, and checked at run time.

    Args:
        spec: the operator.
        shapes: of the operands in order; None for one that is absent or of unknown rank.

    Raises:
        Invalid: one has another rank, or another number of elements.
    """
    numbers, vectors = NUMBERS.get(spec.name, ()), VECTORS.get(spec.name, ())
    if not numbers and not vectors:
        return
    for formal, shape in zip(spec.operands, shapes, strict=False):
        if shape is None:
            continue
        if formal.name in vectors and len(shape) != 1:
            raise Invalid(f"`{formal.name}` of `{spec.name}` has rank {len(shape)}, not 1")
        for n in shape if formal.name in numbers else ():
            equal_dims(n, 1, f"`{spec.name}` takes a single number as `{formal.name}`: extents")

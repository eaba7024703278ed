"""Settings of a quantisation (bits, calibration, excluded nodes), and the operators and types each target supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from occ.compiler.diagnostics import error
from occ.compiler.targets.registry import get_target
from occ.runtime.dataclass import dataclass

Weights = Literal["int8", "int4"]
Method = Literal["minmax", "entropy", "percentile"]
BLOCKS = (16, 32, 64, 128, 256)
METHODS: dict[str, str] = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}  # names of the library
BITS: dict[str, int] = {"int8": 8, "int4": 4}

# Products, and the ops between them that pass codes through. Additions of two convolutions, as in residual nets, are
# included; Concat and Resize are not: tensors with different ranges would share a scale, such as boxes and scores of a
# detector.
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_BETWEEN = (
    "Add",
    "AveragePool",
    "Clip",
    "Flatten",
    "GlobalAveragePool",
    "LeakyRelu",
    "MaxPool",
    "Relu",
    "Reshape",
    "Sum",
)


@dataclass(frozen=True)
class Form:
    """The quantised form for a kind of target.

    Attributes:
        operators: those that static quantisation turns into operators on codes.
        signed: whether codes of activations are `int8` with zero point 0, rather than `uint8` with one of their own.
        options: further options of the library.
        device: whether runs need a device, which this machine may not have.
    """

    operators: tuple[str, ...]
    signed: bool
    device: bool = False
    options: tuple[tuple[str, bool], ...] = ()


# x86 multiplies `uint8` by `int8` (vpdpbusd); 8-bit kernels on ARM accept either.
CPU = Form((*_PRODUCTS, *_BETWEEN), signed=False, options=(("MatMulConstBOnly", True),))
# AMCT quantises the operands of convolutions and of products with constants; AscendQuant has `int8` codes, and with a
# zero point of 0 the sums need no correction (docs/ascend.md, "Quantised models").
ASCEND = Form(
    (*_PRODUCTS, "AveragePool", "MaxPool", "Relu"),
    signed=True,
    device=True,
    options=(("ActivationSymmetric", True), ("MatMulConstBOnly", True)),
)


def form_of(target: str) -> Form:
    """The form for a target: the device form if it generates GE graphs."""
    return ASCEND if "ge" in get_target(target).texts else CPU


@dataclass(frozen=True)
class QuantizationRequest:
    """How a model is quantised.

    Attributes:
        weights: bits of weight-only quantisation; None for weights and activations of 8 bits.
        target: the target of the codes.
        method: calibration of activation ranges: extremes, loss of information, or the percentile 99.999.
        keep: nodes, or results of nodes, that stay in floats.
        operators: types of operators to quantise; the form's own if empty.
        block: elements of a weight column that share a scale, for weight-only quantisation.
        per_channel: whether each channel of a weight has a scale of its own.
        reduce_range: whether weights have 7 bits, so that no runtime saturates when adding byte products in 16 bits.
    """

    weights: Weights | None = None
    target: str = "cpu"
    method: Method = "minmax"
    keep: Sequence[str] = ()
    operators: Sequence[str] = ()
    block: int = 32
    per_channel: bool = True
    reduce_range: bool = False

    def check(self, calibrated: bool) -> None:
        """Reject invalid values.

        Raises:
            CompileError: OCC0603.
        """
        for name, value, known in (
            ("weights", self.weights, (None, *BITS)),
            ("method", self.method, tuple(METHODS)),
            ("block", self.block, BLOCKS),
        ):
            if value not in known:
                choices = ", ".join(str(k) for k in known if k is not None)
                raise error("OCC0603", f"{name} is {value!r}", help=f"it takes {choices}")
        if calibrated and self.weights is not None:
            raise error(
                "OCC0603", "weights alone are quantised without calibration", help="leave `calibrate` out, or `weights`"
            )

"""Valid values of attributes, from the text of the ONNX specification.

Attribute names mean the same in nearly every operator; `Operator.attribute` states exceptions. Operators need not check
this: inference validates every node here before it applies the operator's definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from occ.compiler.diagnostics import Invalid, shorten
from occ.compiler.ir.dtype import BF16, F16, F32, F64, DType
from occ.compiler.ir.operator.onnx_values import DTYPE_ATTRS
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    values: tuple[str | int | DType, ...]

    def fits(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return "one of " + ", ".join(map(str, self.values))


@dataclass(frozen=True)
class AtLeast:
    """A number, or numbers, not less than a bound."""

    least: int

    def fits(self, value: Any) -> bool:
        return all(v >= self.least for v in (value if isinstance(value, tuple) else (value,)))

    def __str__(self) -> str:
        return f"at least {self.least}"


@dataclass(frozen=True)
class EachOf:
    """Numbers, each one of several."""

    values: tuple[int, ...]

    def fits(self, value: Any) -> bool:
        return all(v in self.values for v in value)

    def __str__(self) -> str:
        return "of " + " and ".join(map(str, self.values))


@dataclass(frozen=True)
class Above:
    """A number greater than a bound."""

    least: float

    def fits(self, value: Any) -> bool:
        return value > self.least

    def __str__(self) -> str:
        return f"above {self.least}"


@dataclass(frozen=True)
class OtherThan:
    """A number other than one."""

    refused: int

    def fits(self, value: Any) -> bool:
        return value != self.refused

    def __str__(self) -> str:
        return f"any number but {self.refused}"


Allowed = OneOf | AtLeast | EachOf | Above | OtherThan
_FLOATS = (F32, F16, BF16, F64)
_POSITIVE, _NATURAL, _BOOLEAN = AtLeast(1), AtLeast(0), OneOf((0, 1))
_SKIPS = (
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "EmbedLayerNormalization",
    "QEmbedLayerNormalization",
)
_WINDOWS = (
    "Conv",
    "ConvInteger",
    "QLinearConv",
    "ConvTranspose",
    "DeformConv",
    "AveragePool",
    "MaxPool",
    "LpPool",
    "MaxUnpool",
    "com.microsoft.FusedConv",
    "com.microsoft.NhwcMaxPool",
    "com.microsoft.QLinearConv",
    "com.microsoft.QLinearAveragePool",
)

ALLOWED: Mapping[str, Allowed] = {
    "allowzero": _BOOLEAN,
    "auto_pad": OneOf(("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")),
    "batch_dims": _NATURAL,
    "blocksize": _POSITIVE,
    "dilations": _POSITIVE,
    "group": _POSITIVE,
    "fmod": _BOOLEAN,
    "hidden_size": _POSITIVE,
    "interleaved": _BOOLEAN,
    "kernel_shape": _POSITIVE,
    "kernel_size": _POSITIVE,
    "kv_num_heads": _POSITIVE,
    "num_groups": _POSITIVE,
    "num_heads": _NATURAL,  # 0 in RotaryEmbedding: the rank decides
    "num_outputs": _POSITIVE,
    "num_scan_inputs": _POSITIVE,
    "offset_group": _POSITIVE,
    "output_height": _POSITIVE,
    "output_padding": _NATURAL,
    "output_width": _POSITIVE,
    "q_num_heads": _POSITIVE,
    "sampling_ratio": _NATURAL,
    "scan_input_directions": EachOf((0, 1)),
    "scan_output_directions": EachOf((0, 1)),
    "softmax_precision": OneOf(_FLOATS),
    "stash_type": OneOf(_FLOATS),
    "saturate": _BOOLEAN,
    "storage_order": _BOOLEAN,
    "strides": _POSITIVE,
    **{f"{op}.pads": _NATURAL for op in _WINDOWS},
    **{f"{op}.direction": OneOf(("forward", "reverse", "bidirectional")) for op in ("RNN", "GRU", "LSTM")},
    **{f"{op}.layout": OneOf((0, 1)) for op in ("RNN", "GRU", "LSTM")},
    **{f"{op}.clip": Above(0) for op in ("RNN", "GRU", "LSTM", "com.microsoft.DynamicQuantizeLSTM")},
    **{f"{op}.reduction": OneOf(("none", "add", "mul", "max", "min")) for op in ("ScatterElements", "ScatterND")},
    **{
        f"{op}.reduction": OneOf(("none", "mean", "sum"))
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    },
    "Attention.qk_matmul_output_mode": OneOf((0, 1, 2, 3)),
    "BitShift.direction": OneOf(("LEFT", "RIGHT")),
    **{f"{op}.mode": OneOf(("DCR", "CRD")) for op in ("DepthToSpace", "SpaceToDepth")},
    "DequantizeLinear.output_dtype": OneOf(_FLOATS),
    "Gelu.approximate": OneOf(("none", "tanh")),
    "GlobalLpPool.p": OtherThan(0),
    "ImageDecoder.pixel_format": OneOf(("RGB", "BGR", "Grayscale")),
    "LRN.size": _POSITIVE,
    "LpNormalization.p": OneOf((1, 2)),
    "LpPool.p": OtherThan(0),
    "Resize.mode": OneOf(("nearest", "linear", "cubic")),
    "RoiAlign.coordinate_transformation_mode": OneOf(("half_pixel", "output_half_pixel")),
    "RoiAlign.mode": OneOf(("avg", "max")),
    "QuantizeLinear.precision": OneOf(_FLOATS),
    "StringNormalizer.case_change_action": OneOf(("LOWER", "UPPER", "NONE")),
    "TensorScatter.mode": OneOf(("linear", "circular")),
    "TfIdfVectorizer.mode": OneOf(("TF", "IDF", "TFIDF")),
    "unidirectional": _BOOLEAN,
    **{f"com.microsoft.{op}.epsilon": _NATURAL for op in _SKIPS},
}


def check_values(name: str, given: Mapping[str, Any]) -> None:
    """Check the attributes of a node.

    Args:
        name: of the operator.
        given: explicitly stated attributes.

    Raises:
        Invalid: OCC0107 one has a value that the operator does not define.
    """
    for attr, value in given.items():
        if attr in DTYPE_ATTRS and value is None:
            raise Invalid(f"`{attr}` of `{name}` is not an element type that ONNX has", code="OCC0107")
        allowed = ALLOWED.get(f"{name}.{attr}") or ALLOWED.get(attr)
        if allowed is not None and value is not None and not _fits(allowed.fits, value):
            shown = shorten(repr(value), 60)
            raise Invalid(f"`{attr}` of `{name}` is {shown}", code="OCC0107", note=f"it may be {allowed}")


def _fits(test: Callable[[Any], bool], value: Any) -> bool:
    try:
        return test(value)
    except TypeError:  # a value of another kind
        return False

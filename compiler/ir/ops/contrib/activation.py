"""Activations of com.microsoft, and the activation of fused operators."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.op import Value
from occ.compiler.ir.operator.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.shape import equal_shapes


def activated(b: GraphBuilder, x: Value, name: str | None, values: tuple[float, ...]) -> Value:
    """`x` after the activation that a fused operator names.

    Raises:
        Invalid: it is unknown.
    """
    alpha = values[0] if values else None
    match name:
        case None | "":
            return x
        case (
            "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" | "HardSwish"
        ):  # onnxruntime ignores the parameters of these
            return b.op(name, x)
        case "LeakyRelu" | "Elu" | "ThresholdedRelu":
            return b.op(name, x, alpha=alpha)
        case "Selu":
            return b.Selu(x, alpha=alpha, gamma=values[1] if len(values) > 1 else None)
        case "ScaledTanh" | "ParametricSoftplus" if len(values) > 1:
            return b.op(name, x, alpha=alpha, beta=values[1])
        case "HardSigmoid":
            return b.HardSigmoid(x, alpha=alpha, beta=values[1] if len(values) > 1 else None)
        case "Clip" if len(values) > 1:
            return b.Clip(x, *(b.constant(np.asarray(v, x.tensor.dtype.numpy)) for v in values[:2]))
        case _:
            raise Invalid(f"the activation {name!r} is unknown", code="OCC0107")


def _gelu(name: str, operands: str, approximate: str) -> OpSpec:
    def composite(b: GraphBuilder, x: Value, bias: Value | None = None, *, a: SimpleNamespace) -> Value:
        return b.Gelu(x if bias is None else b.Add(x, bias), approximate=approximate)

    return OpSpec(f"{DOMAIN}.{name}", {"composite": composite, "signature": FormalSignature.of(operands)})


@op(f"{DOMAIN}.QuickGelu", signature=FormalSignature.of("X", alpha=1.702))
class QuickGelu:
    def composite(b, x, *, a):
        return b.Swish(x, alpha=a.alpha)


@op(f"{DOMAIN}.GatedAdd", signature=FormalSignature.of("X Y gate", "output"))
class GatedAdd:
    """`X + Y * gate`, with one gate per row."""

    def composite(b, x, y, gate, *, a):
        equal_shapes(y.tensor.dims, x.tensor.dims, "`GatedAdd`: Y")
        equal_shapes(gate.tensor.dims, (*x.tensor.dims[:-1], 1), "`GatedAdd`: the gate")
        return b.Add(x, b.Mul(y, gate))


ALL = (
    QuickGelu,
    GatedAdd,
    _gelu("Gelu", "X", "none"),
    _gelu("BiasGelu", "A B", "none"),
    _gelu("FastGelu", "X bias?", "tanh"),
)

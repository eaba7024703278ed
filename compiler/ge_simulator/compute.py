"""Simulates GE's elementwise operators and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from math import erf as scalar_erf
from typing import Any

import numpy as np

from occ.compiler.ge_simulator.quantised import without_offset
from occ.compiler.ge_simulator.reader import BadGraph, Node, cpp_type

Arrays = list[Any]
Kernel = Callable[[Node, Arrays], Any]


def _table_erf(x: np.ndarray) -> np.ndarray:
    """Erf in double precision: a series near zero, a continued fraction in the tails, both to 1e-15."""
    wide = x.astype(np.float64)
    flat = np.clip(wide.reshape(-1), -6, 6)
    small = np.abs(flat) < 2.5
    out = np.empty_like(flat)
    out[small] = _erf_series(flat[small])
    out[~small] = _erf_tail(flat[~small])
    out[np.isnan(wide.reshape(-1))] = np.nan
    return out.reshape(x.shape).astype(x.dtype)


def _erf_series(x: np.ndarray) -> np.ndarray:
    term, total, square = x.copy(), x.copy(), x * x
    for n in range(1, 60):
        term = term * -square / n
        total += term / (2 * n + 1)
    return total * (2 / np.sqrt(np.pi))


def _erf_tail(x: np.ndarray) -> np.ndarray:
    z = np.abs(x)
    fraction = z.copy()
    for k in range(60, 0, -1):
        fraction = z + (k / 2) / fraction
    return np.sign(x) * (1 - np.exp(-z * z) / (fraction * np.sqrt(np.pi)))


assert abs(float(_table_erf(np.array([0.7]))[0]) - scalar_erf(0.7)) < 1e-14  # an error of the series would show here


def _unary(fn: Callable[[Any], Any]) -> Kernel:
    return lambda node, x: fn(x[0]).astype(x[0].dtype)


def _binary(fn: Callable[[Any, Any], Any]) -> Kernel:
    def kernel(node: Node, x: Arrays) -> Any:
        if x[0].dtype != x[1].dtype:
            raise BadGraph(f"{node.name}: {node.type} of {x[0].dtype} and {x[1].dtype}")
        return fn(x[0], x[1])

    return kernel


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _gelu(x: np.ndarray) -> np.ndarray:
    """GE's Gelu is the tanh form."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _truncate_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return np.trunc(x / y)
    q = np.abs(x.astype(np.int64)) // np.maximum(np.abs(y.astype(np.int64)), 1)
    return (q * np.sign(x.astype(np.int64)) * np.sign(y.astype(np.int64))).astype(x.dtype)


def _real_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        raise BadGraph("RealDiv of integers is not exact")
    return x / y


def _div_no_nan(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, np.zeros((), x.dtype), x / np.where(y == 0, np.ones((), y.dtype), y))


def _elu(node: Node, x: Arrays) -> np.ndarray:
    a, v = node.attrs, x[0]
    below = a.get("alpha", 1.0) * np.expm1(np.minimum(v, 0) * a.get("input_scale", 1.0))
    return (a.get("scale", 1.0) * np.where(v > 0, v, below)).astype(v.dtype)


def _celu(node: Node, x: Arrays) -> np.ndarray:
    a1, a2, a3 = (node.attrs.get(f"alpha{k}", 1.0) for k in (1, 2, 3))
    v = x[0]
    return (np.maximum(0, a3 * v) + np.minimum(0, a1 * np.expm1(v / a2))).astype(v.dtype)


def _selu(v: np.ndarray) -> np.ndarray:
    return 1.0507009873554805 * np.where(v > 0, v, 1.6732632423543772 * np.expm1(np.minimum(v, 0)))


def _shrink(node: Node, x: Arrays) -> np.ndarray:
    v, lambd, bias = x[0], node.attrs.get("lambd", 0.5), node.attrs.get("bias", 0.0)
    return np.where(v < -lambd, v + bias, np.where(v > lambd, v - bias, 0)).astype(v.dtype)


def _prelu(node: Node, x: Arrays) -> np.ndarray:
    v, w = x
    if w.ndim != 1 or w.size not in (1, v.shape[min(1, v.ndim - 1)]):
        raise BadGraph(f"{node.name}: PRelu has one slope or one per channel")
    slope = w.reshape(-1, *(1,) * (v.ndim - 2)) if v.ndim > 2 else w
    return np.where(v > 0, v, v * slope).astype(v.dtype)


def _round(x: np.ndarray) -> np.ndarray:
    return np.rint(x)


def _cast(node: Node, x: Arrays) -> np.ndarray:
    """Floats convert to integers by truncation, and saturate; integers wrap around."""
    v, target = x[0], cpp_type(node.attrs["dst_type"])
    if target.kind not in "iu":
        return v.astype(target)
    if v.dtype.kind != "f":
        return v.astype(target)
    info = np.iinfo(target)
    wide = np.nan_to_num(np.trunc(v.astype(np.float64)), nan=0, posinf=float(info.max), neginf=float(info.min))
    out = np.clip(wide, float(info.min), float(info.max))
    return np.where(wide >= float(info.max), info.max, out.astype(np.int64)).astype(target)


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "iu" and np.any(y < 0):
        return np.power(x.astype(np.float64), y).astype(x.dtype)
    return np.power(x, y)


def _clip(node: Node, x: Arrays) -> np.ndarray:
    v, low, high = x
    return np.minimum(np.maximum(v, low), high)


def _product(node: Node, x: Arrays) -> np.ndarray:
    a, b = without_offset(node, x[0]), x[1]
    flags = ("transpose_x1", "transpose_x2") if node.type.startswith("MatMul") else ("adj_x1", "adj_x2")
    a, b = (v.swapaxes(-1, -2) if node.attrs.get(f, False) else v for v, f in zip((a, b), flags, strict=True))
    if node.type.startswith("MatMul") and (a.ndim != 2 or b.ndim != 2):
        raise BadGraph(f"{node.name}: MatMulV2 takes matrices")
    if a.ndim < 2 or b.ndim < 2:
        raise BadGraph(f"{node.name}: BatchMatMulV2 takes ranks of 2 and more")
    if a.dtype.kind == "i":  # double precision represents the sums exactly
        made = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64).astype(np.int32)
    else:
        made = np.matmul(a, b)
    return made if len(x) < 3 or x[2] is None else made + x[2]


def _bitcast(node: Node, x: Arrays) -> np.ndarray:
    target, given = cpp_type(node.attrs["type"]), x[0].astype(node.input_descs[0].dtype)
    if target.itemsize != given.itemsize:
        raise BadGraph(f"{node.name}: {given.dtype} and {target} differ in size")
    return given.view(target)


def _weight_quantised(node: Node, x: Arrays) -> np.ndarray:
    """`x @ ((weight + offset) * scale)`, with a scale and an offset per group of elements on the summed axis."""
    rows, weight, scale = x[:3]
    offset = x[3] if len(x) > 3 else None
    group, turned = node.attrs.get("antiquant_group_size", 0), node.attrs.get("transpose_weight", False)
    if any(v is not None for v in x[4:]) or node.attrs.get("transpose_x", False):
        raise BadGraph(f"{node.name}: quantised results, bias and transposed rows are not simulated")
    inner = weight.shape[-1 if turned else 0]
    if rows.ndim != 2 or rows.shape[1] != inner:
        raise BadGraph(f"{node.name}: rows {rows.shape} do not fit the weight {weight.shape}")
    if group and (group % 32 or not 32 <= group < inner):
        raise BadGraph(f"{node.name}: groups of {group} in an axis of {inner}")
    groups = -(-inner // group) if group else 1
    expected = (weight.shape[0], groups) if turned else (groups, weight.shape[1])
    if not group and scale.ndim == 1:  # one for each column, in a vector
        scale, offset = scale.reshape(expected), offset if offset is None else offset.reshape(expected)
    if scale.shape != expected or (offset is not None and offset.shape != expected):
        raise BadGraph(f"{node.name}: scales {scale.shape} and offsets do not fit, {expected} do")
    at, axis = np.arange(inner) // (group or inner), 1 if turned else 0
    wide = weight.astype(np.float32)
    if offset is not None:
        wide = wide + offset.take(at, axis)
    wide = (wide * scale.take(at, axis)).astype(np.float16).astype(np.float32)
    return rows @ (wide.T if turned else wide)


def _einsum(node: Node, x: Arrays) -> np.ndarray:
    return np.einsum(node.attrs["equation"], *x, optimize=True).astype(x[0].dtype)


def _select(node: Node, x: Arrays) -> np.ndarray:
    if x[1].dtype != x[2].dtype or x[0].dtype != np.bool_:
        raise BadGraph(f"{node.name}: SelectV2 of {[v.dtype for v in x]}")
    return np.where(x[0], x[1], x[2])


UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs, "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan,
    "Atanh": np.arctanh, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Erf": _table_erf, "Exp": np.exp,
    "Floor": np.floor, "Gelu": _gelu, "HardSwish": lambda v: v * np.clip(v + 3, 0, 6) / 6, "Invert": np.invert,
    "Identity": lambda v: v, "Log": np.log, "Mish": lambda v: v * np.tanh(_softplus(v)), "Neg": np.negative,
    "Reciprocal": lambda v: 1 / v, "Relu": lambda v: np.maximum(v, 0), "Rint": _round, "Round": _round,
    "Rsqrt": lambda v: 1 / np.sqrt(v), "Selu": _selu, "Sigmoid": _sigmoid, "Sign": np.sign, "Sin": np.sin,
    "Sinh": np.sinh, "Softplus": _softplus, "Softsign": lambda v: v / (1 + np.abs(v)), "Sqrt": np.sqrt,
    "Square": np.square, "Tan": np.tan,
    "Tanh": np.tanh, "TensorMove": lambda v: v,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "DivNoNan": _div_no_nan, "Equal": np.equal, "FloorDiv": np.floor_divide, "FloorMod": np.mod, "Greater": np.greater,
    "GreaterEqual": np.greater_equal, "LeftShift": np.left_shift, "Less": np.less, "LessEqual": np.less_equal,
    "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "Maximum": np.maximum, "Minimum": np.minimum,
    "Mod": np.fmod, "Mul": np.multiply, "NotEqual": np.not_equal, "Pow": _pow, "RealDiv": _real_div,
    "RightShift": np.right_shift,
    "Sub": np.subtract, "TruncateDiv": _truncate_div,
}  # fmt: skip
KERNELS: dict[str, Kernel] = {
    **{name: _unary(fn) for name, fn in UNARY.items()},
    **{name: _binary(fn) for name, fn in BINARY.items()},
    "AccumulateNV2": lambda node, x: sum(x[1:], x[0]),
    "Adds": lambda node, x: x[0] + x[0].dtype.type(node.attrs["value"]),
    "BatchMatMulV2": _product,
    "Bitcast": _bitcast,
    "Cast": _cast,
    "Celu": _celu,
    "ClipByValue": _clip,
    "Einsum": _einsum,
    "Elu": _elu,
    "HardSigmoid": lambda node, x: np.clip(
        x[0] * x[0].dtype.type(node.attrs.get("alpha", 0.16666666)) + x[0].dtype.type(node.attrs.get("beta", 0.5)), 0, 1
    ),
    "IsInf": lambda node, x: np.isinf(x[0]),
    "IsNan": lambda node, x: np.isnan(x[0]),
    "LeakyRelu": lambda node, x: np.where(
        x[0] < 0, x[0] * x[0].dtype.type(node.attrs.get("negative_slope", 0.0)), x[0]
    ),
    "LogicalNot": lambda node, x: np.logical_not(x[0]),
    "MatMulV2": _product,
    "MatrixDeterminant": lambda node, x: np.linalg.det(x[0]).astype(x[0].dtype),
    "Muls": lambda node, x: x[0] * x[0].dtype.type(node.attrs["value"]),
    "PRelu": _prelu,
    "SelectV2": _select,
    "Shrink": _shrink,
    "WeightQuantBatchMatmulV2": _weight_quantised,
    "Swish": lambda node, x: x[0] * _sigmoid(x[0] * x[0].dtype.type(node.attrs.get("scale", 1.0))),
}

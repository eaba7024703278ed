"""Infinities, NaN, zeros, subnormal numbers and tails through elementwise operators, against float64.

Models are one of many nodes, so that a target compiles once. Results below the normal numbers may be zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ

TARGETS = ("interp", "cpu-jit", "cpu")
TYPES = {
    "f32": (np.dtype(np.float32), TensorProto.FLOAT),
    "f16": (np.dtype(np.float16), TensorProto.FLOAT16),
    "bf16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16),
}
INF, NAN = math.inf, math.nan
SPECIAL = np.array([
    NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 5.0, -5.0, 12.0, -12.0, 20.0, -20.0, 88.0, -87.0, 89.0,
    -104.0, 1e-3, -1e-3, 1e-30, -1e-30, 1e-40, 1e10, -1e10, 6e4, -6e4, 3e38, -3e38, 3.92, -3.92, 0.99999, -0.99999,
])  # fmt: skip
VALUES = np.concatenate([SPECIAL, np.linspace(-20, 20, 97), np.linspace(-0.01, 0.01, 9)])

_erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# Operators and what they are of float64; those of the second table, as ONNX defines them, exact to units of 1.
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Abs": np.abs, "Acos": np.arccos, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan, "Atanh": np.arctanh,
    "Acosh": np.arccosh, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Erf": _erf, "Exp": np.exp, "Floor": np.floor,
    "IsInf": np.isinf, "IsNaN": np.isnan, "Log": np.log,
    "Mish": lambda x: x * np.tanh(_softplus(x)), "Neg": np.negative, "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0), "Round": np.rint, "Sigmoid": _sigmoid, "Sign": np.sign, "Sin": np.sin,
    "Sinh": np.sinh, "Softplus": _softplus, "Softsign": lambda x: x / (1 + np.abs(x)), "Sqrt": np.sqrt, "Tan": np.tan,
    "Tanh": np.tanh,
}  # fmt: skip
NEAR_ONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Celu": lambda x: np.maximum(x, 0) + np.minimum(np.expm1(x), 0), "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "Gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
}  # fmt: skip


def takes(op: str, kind: str) -> bool:
    name = {"f32": "float", "f16": "float16", "bf16": "bfloat16"}[kind]
    return f"tensor({name})" in onnx.defs.get_schema(op).inputs[0].types


def run(
    nodes: list[onnx.NodeProto],
    feed: dict[str, np.ndarray],
    target: str,
    constants: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feed.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(o) for n in nodes for o in n.output if not o.startswith("_")]
    given = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "special", infos, outputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return occ.compile(model, target).run(feed)


def differences(x: np.ndarray, y: np.ndarray, wanted: np.ndarray, units: float, beside: float = 0.0) -> list[str]:
    """Where a result is of another class than what is wanted, or off by more than some units in the last place."""
    info = ml_dtypes.finfo(y.dtype) if y.dtype.kind in "fV" else None
    if info is None:
        return [f"f({v}) = {a}, not {b}" for v, a, b in zip(x, y, wanted, strict=True) if a != b]
    with np.errstate(all="ignore"):
        wanted = wanted.astype(y.dtype).astype(np.float64)
    y = y.astype(np.float64)
    same = (y == wanted) | (np.isnan(y) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        limit = units * float(info.eps) * (np.abs(wanted) + beside) + float(info.smallest_normal)
        close = np.isfinite(y) & np.isfinite(wanted) & (np.abs(y - wanted) <= limit)
    return [f"f({x[k]}) = {y[k]}, not {wanted[k]}" for k in np.flatnonzero(~(same | close))]


ON_CPU = {  # Halide takes half a second for each; all of them are a slow test
    "f32": ("Exp", "Log", "Mish", "Round", "Sigmoid", "Softplus", "Tanh"),
    "f16": ("Exp", "IsInf", "Log", "Round", "Sqrt"),
    "bf16": ("Exp", "Log", "IsNaN"),
}


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("kind", TYPES)
def test_unary(kind: str, target: str) -> None:
    check_unary([op for op in (*EXACT, *NEAR_ONE) if takes(op, kind)], kind, target)


@pytest.mark.parametrize("kind", TYPES)
def test_unary_on_cpu(kind: str) -> None:
    check_unary(ON_CPU[kind], kind, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_all_unary_on_cpu(kind: str) -> None:
    check_unary([op for op in (*EXACT, *NEAR_ONE) if takes(op, kind)], kind, "cpu")


def check_unary(ops: Sequence[str], kind: str, target: str) -> None:
    dtype, _ = TYPES[kind]
    with np.errstate(all="ignore"):
        x = VALUES.astype(dtype)
        got = run([helper.make_node(op, ["x"], [op]) for op in ops], {"x": x}, target)
        exact = x.astype(np.float64)
        wrong = {
            op: found
            for op in ops
            if (found := differences(x, got[op], ({**EXACT, **NEAR_ONE}[op])(exact), 8, 4.0 * (op in NEAR_ONE)))
        }
    assert wrong == {}


@pytest.mark.parametrize("target", TARGETS)
def test_powers_remainders_and_casts(target: str) -> None:
    some = np.array([*SPECIAL[:13], 2.0, -2.0, 3.0, -3.0, 0.3, 7.25, 100.0, -100.0, 1e30, 1e-30, 3e38], np.float32)
    a, b = (v.ravel() for v in np.meshgrid(some, some, indexing="ij"))
    nodes = [
        helper.make_node("Pow", ["a", "b"], ["power"]),
        helper.make_node("Mod", ["a", "b"], ["remainder"], fmod=1),
        *(helper.make_node("Pow", ["a", f"c{k}"], [f"power{k}"]) for k in (-1, 4)),
        *(helper.make_node("Cast", ["a"], [f"cast{to}"], to=to) for to in (TensorProto.INT8, TensorProto.INT32)),
    ]
    got = run(nodes, {"a": a, "b": b}, target, {f"c{k}": np.float32(k) for k in (-1, 4)})
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = {"power": x**y, "remainder": np.fmod(x, y), "power-1": x**-1, "power4": x**4}
        for to, kind in ((TensorProto.INT8, np.int8), (TensorProto.INT32, np.int32)):  # NaN is 0, the rest saturates
            info = np.iinfo(kind)
            wanted[f"cast{to}"] = np.clip(np.trunc(np.nan_to_num(x, nan=0)), info.min, info.max)
        wrong = {k: found for k, v in wanted.items() if (found := differences(a, got[k], v, 100))}
    assert wrong == {}

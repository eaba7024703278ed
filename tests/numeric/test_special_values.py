"""Infinities, NaN, zeros, subnormal numbers and tails through elementwise operators, against float64.

Models are one of many nodes, so that a target compiles once. Results below the normal numbers may be zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
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


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("kind", TYPES)
def test_unary(kind: str, target: str) -> None:
    check_unary([op for op in (*EXACT, *NEAR_ONE) if takes(op, kind)], kind, target)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", TYPES)
def test_unary_on_cpu(kind: str) -> None:
    check_unary(ON_CPU[kind], kind, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_all_unary_on_cpu(kind: str) -> None:
    check_unary([op for op in (*EXACT, *NEAR_ONE) if takes(op, kind)], kind, "cpu")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_classes_at_the_end_of_rows_of_any_length(dtype: type) -> None:
    """LLVM made a test of classes of that of the last elements, and took it that none is infinite."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [helper.make_node(op, ["x"], [op]) for op in ("IsInf", "IsNaN")]
    outputs = [helper.make_empty_tensor_value_info(op) for op in ("IsInf", "IsNaN")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, ["n"])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = occ.compile(model, "cpu")
    for n in (1, 6, 8, 17, 40):
        x = np.resize(np.array([INF, NAN, -1.2, -INF, 2.8], dtype), n)
        got = session.run({"x": x})
        assert np.array_equal(got["IsInf"], np.isinf(x)), n
        assert np.array_equal(got["IsNaN"], np.isnan(x)), n


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


@pytest.mark.thinned
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


def pairs(
    kind: str,
) -> tuple[dict[str, np.ndarray], list[onnx.NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs, nodes, constants and what numpy makes of them: each operation rounds once, and nothing cancels."""
    dtype = TYPES[kind][0]
    some = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 3e38, 6e4, 1e-40, 1e-7, 1e-3, 2.5, -7.0]).astype(dtype)
    a, b = (v.ravel() for v in np.meshgrid(some, some, indexing="ij"))
    node = helper.make_node
    constants = {"zero": 0.0, "six": 6.0, "one": 1.0, "big": 1e3, "small": 1e-3}
    c = {k: np.array(v).astype(dtype) for k, v in constants.items()}
    total, less, scaled = a + b, a < b, a * c["big"]
    nodes = {
        "sum_is_first": ([node("Add", ["a", "b"], ["_s"]), node("Equal", ["_s", "a"], ["sum_is_first"])], total == a),
        "sum_is_less": ([node("Less", ["_s", "a"], ["sum_is_less"])], total < a),
        "back": ([node("Sub", ["_s", "a"], ["back"])], total - a),
        "nothing": ([node("Sub", ["a", "a"], ["nothing"])], a - a),
        "times_zero": ([node("Mul", ["a", "zero"], ["times_zero"])], a * c["zero"]),
        "zero_and": ([node("Mul", ["a", "zero"], ["_z"]), node("Add", ["_z", "b"], ["zero_and"])], a * c["zero"] + b),
        "le": ([node("LessOrEqual", ["a", "b"], ["le"])], a <= b),
        "ge": ([node("GreaterOrEqual", ["a", "b"], ["ge"])], a >= b),
        "gt": ([node("Greater", ["a", "b"], ["gt"])], a > b),
        "lesser": (
            [node("Less", ["a", "b"], ["_l"]), node("Where", ["_l", "a", "b"], ["lesser"])],
            np.where(less, a, b),
        ),
        "sixth": ([node("Div", ["a", "six"], ["sixth"])], a / c["six"]),
        "itself": ([node("Div", ["a", "a"], ["itself"])], a / a),
        "there": ([node("Mul", ["a", "big"], ["_m"]), node("Mul", ["_m", "small"], ["there"])], scaled * c["small"]),
        "side": ([node("Neg", ["a"], ["_n"]), node("Div", ["one", "_n"], ["side"])], c["one"] / -a),
        "bool": ([node("Cast", ["a"], ["bool"], to=TensorProto.BOOL)], a != 0),
        "most": ([node("Max", ["a", "b"], ["most"])], np.maximum(a, b)),
        "least": ([node("Min", ["a", "b"], ["least"])], np.minimum(a, b)),
    }
    return {"a": a, "b": b}, [n for made, _ in nodes.values() for n in made], c, {k: v for k, (_, v) in nodes.items()}


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_arithmetic_is_that_of_ieee_754(kind: str, target: str) -> None:
    """Nothing of `a + b == a`, `a - a`, `a * 0 + b`, `a / 6` is worked out as for real numbers. (Half precision keeps some digits
    of what it is computed in where nodes are fused.)
    """
    with np.errstate(all="ignore"):
        feed, nodes, constants, wanted = pairs(kind)
    if kind == "f16":
        kept = {
            k: v for k, v in wanted.items() if k not in ("sum_is_first", "sum_is_less", "back", "there", "zero_and")
        }
        wanted, nodes = kept, [n for n in nodes if n.output[0] in kept or n.output[0] in ("_l", "_n")]
        constants = {k: v for k, v in constants.items() if any(k in n.input for n in nodes)}
    got = run(nodes, feed, target, constants)
    with np.errstate(all="ignore"):
        wrong = {
            k: [
                (float(a), float(b), x, y)
                for a, b, x, y in zip(*feed.values(), v, got[k], strict=True)
                if not same(x, y)
            ]
            for k, v in wanted.items()
        }
    assert {k: v[:5] for k, v in wrong.items() if v} == {}


def same(x: np.generic, y: np.generic) -> bool:
    """Equal, or both NaN; below the normal numbers a target may give zero."""
    return bool(x == y or (x != x and y != y) or (abs(x) < 2e-38 and abs(y) < 2e-38))


ROWS = np.array(
    [[1, NAN, 3, 2], [NAN, 1, 2, 3], [3, 2, 1, NAN], [NAN] * 4, [1, 5, 2, 4], [-INF, NAN, INF, 0]], np.float32
)
WITH_NAN = {
    "ReduceMax": helper.make_node("ReduceMax", ["x", "axes"], ["ReduceMax"]),
    "ReduceMin": helper.make_node("ReduceMin", ["x", "axes"], ["ReduceMin"]),
    "ArgMax": helper.make_node("ArgMax", ["x"], ["ArgMax"], axis=1),
    "ArgMin": helper.make_node("ArgMin", ["x"], ["ArgMin"], axis=1),
    "last": helper.make_node("ArgMax", ["x"], ["last"], axis=1, select_last_index=1),
    "TopK": helper.make_node("TopK", ["x", "k"], ["TopK", "positions"], axis=1),
    "Hardmax": helper.make_node("Hardmax", ["x"], ["Hardmax"], axis=1),
    "GlobalMaxPool": helper.make_node("GlobalMaxPool", ["x3"], ["GlobalMaxPool"]),
}


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_nan_is_the_greatest_and_the_least(target: str) -> None:
    """As numpy and onnx.reference have it; onnxruntime's answer depends on where the NaN stands. ONNX does not say."""
    nodes = [*WITH_NAN.values(), helper.make_node("Unsqueeze", ["x", "axes"], ["x3"])]
    nodes.sort(key=lambda n: n.op_type != "Unsqueeze")
    constants = {"axes": np.array([1]), "k": np.array([4])}
    got = run(nodes, {"x": ROWS}, target, constants)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ROWS.shape)],
        [helper.make_empty_tensor_value_info(k) for k in got], [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, {"x": ROWS})
    for name, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(got[name].ravel(), w.ravel(), err_msg=name)  # it drops an axis of GlobalMaxPool


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_extremum_of_a_constant_nan_is_nan(dtype: type[np.floating], target: str) -> None:
    """A comparison with a constant is false where the constant is NaN, too."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    sides = {"left": ["n", "x"], "right": ["x", "n"], "of_one": ["n", "one"]}
    nodes = [helper.make_node(op, given, [f"{op}_{side}"]) for op in ("Max", "Min") for side, given in sides.items()]
    constants = [numpy_helper.from_array(np.array(v, dtype), n) for n, v in (("n", NAN), ("one", 1))]
    x = helper.make_tensor_value_info("x", kind, [19])
    outputs = [helper.make_tensor_value_info(n.output[0], kind, None) for n in nodes]
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    feeds = {"x": np.linspace(-3, 3, 19).astype(dtype)}
    want = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    found = occ.compile(model, target=target).run(feeds)
    for name, w in zip(found, want, strict=True):
        np.testing.assert_array_equal(found[name], w, err_msg=name)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_max_pool_keeps_nan(target: str) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "positions"], kernel_shape=[2])
    got = run([node], {"x": ROWS[:, None]}, target)
    np.testing.assert_array_equal(got["y"][:, 0], np.maximum(ROWS[:, :-1], ROWS[:, 1:]))
    first = np.where(np.isnan(ROWS[:, :-1]) | (ROWS[:, :-1] >= ROWS[:, 1:]), 0, 1)
    at = np.arange(ROWS.size).reshape(ROWS.shape)[:, :-1] + first
    np.testing.assert_array_equal(got["positions"][:, 0], at)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_log_softmax_of_large_numbers(target: str) -> None:
    """`x - max` is exact where they are near; `x - (max + log)` would lose the digits of the result."""
    x = (np.random.default_rng(0).standard_normal((100, 4)) * 2 + 89).astype(np.float32)
    got = run([helper.make_node("LogSoftmax", ["x"], ["y"], axis=1)], {"x": x}, target)["y"]
    shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    np.testing.assert_allclose(got, shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), rtol=1e-6, atol=3e-7)


@pytest.mark.thinned
@pytest.mark.parametrize("target", TARGETS)
def test_gelu_by_tanh_keeps_its_digits_in_the_tail(target: str) -> None:
    """`1 + tanh u` had none left of them at -5; an error of `u` itself, of a few units, counts `2u` times in `exp(2u)`."""
    x = np.linspace(-8, 8, 4001).astype(np.float32)
    u = math.sqrt(2 / math.pi) * (x.astype(np.float64) + 0.044715 * x.astype(np.float64) ** 3)
    wanted = x * _sigmoid(2 * u)
    got = run([helper.make_node("Gelu", ["x"], ["y"], approximate="tanh")], {"x": x}, target)["y"]
    limit = float(np.finfo(np.float32).eps) * (4 + 3 * np.abs(2 * u))
    assert np.all(np.abs(got - wanted) <= limit * np.abs(wanted))

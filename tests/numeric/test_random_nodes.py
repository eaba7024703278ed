"""Random models of one node, for the operators with a te body: empty tensors, rank 0, broadcasting, negative axes and
steps, large pads. Targets agree with onnx.reference. The seed is fixed, and how many models ran is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx.reference
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from occ.compiler.ir.dtype import from_numpy
from onnx import ModelProto, helper, numpy_helper
from onnx.defs import onnx_opset_version

import occ

SEED, EXAMPLES = 20261, 12
COUNTS: Counter[str] = Counter()
Draw = Callable[[st.SearchStrategy[Any]], Any]
# (operands, names of those that are weights, attributes, number of results)
Node = tuple[list[np.ndarray], set[int], dict[str, Any], int]

FLOATS = (np.float32, np.float64)
INTS = (np.int32, np.int64, np.int8, np.uint8)
UNARY = (
    "Abs", "Acos", "Asin", "Asinh", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "GreaterOrEqual", "Mod", "Pow")
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp",
)  # fmt: skip
ROWS = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum")


def shape(draw: Draw, low: int = 0, high: int = 3, least: int = 0) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from([least, 1, 2, 3, 5, 17]), min_size=low, max_size=high)))


def array(draw: Draw, dims: tuple[int, ...], dtype: Any) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if np.issubdtype(dtype, np.floating):
        x = (rng.normal(size=dims) * 3).astype(dtype)
        return np.where(rng.random(dims) < 0.05, dtype(draw(st.sampled_from([0.0, 1.0, -1.0]))), x).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -9), min(info.max, 9), dims, endpoint=True).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64).reshape(len(values))


def axis_of(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def unary(draw: Draw, name: str) -> Node:
    dtype = np.float32 if name in ("Erf", "HardSwish", "Mish", "Selu", "Shrink") else draw(st.sampled_from(FLOATS))
    x = array(draw, shape(draw, 1 if name == "Softsign" else 0), dtype)  # the reference fails on its rank 0
    return [np.clip(x, -1, 1) if name in ("Acos", "Asin") else x], set(), {}, 1


def binary(draw: Draw, name: str) -> Node:
    dtype = draw(
        st.sampled_from(FLOATS if name in ("Pow", "Less", "GreaterOrEqual") else (*FLOATS, np.int32, np.int64))
    )
    dims = shape(draw)
    other = tuple(1 if draw(st.booleans()) else n for n in dims)[draw(st.integers(0, len(dims))) :]
    x, y = array(draw, dims, dtype), array(draw, other, dtype)
    if name in ("Div", "Mod"):
        y = np.where(y == 0, dtype(3), y).astype(dtype)
    if name == "Pow":
        x = np.abs(x) + dtype(0.5)
    attrs = {"fmod": 1} if name == "Mod" and np.issubdtype(dtype, np.floating) else {}
    return ([x, y] if draw(st.booleans()) or name == "Pow" or name in ("Div", "Mod") else [y, x]), set(), attrs, 1


def reduction(draw: Draw, name: str) -> Node:
    low = 1 if name == "ReduceLogSumExp" else 0  # the reference fails on its rank 0
    least = 1 if name in ("ReduceMean", "ReduceMax", "ReduceMin") else 0
    x = array(draw, shape(draw, low, least=least), np.float32)
    axes = (
        draw(st.lists(st.integers(-x.ndim, x.ndim - 1), unique_by=lambda k: k % x.ndim, max_size=3)) if x.ndim else []
    )
    attrs = {"keepdims": draw(st.integers(0, 1))}
    return ([x, ints(*axes)] if axes else [x]), {1} if axes else set(), attrs, 1


def rows(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    if name == "CumSum":
        attrs = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
        return [x, np.array(axis, np.int64)], {1}, attrs, 1
    attrs = {"axis": axis} | ({"keepdims": draw(st.integers(0, 1))} if name.startswith("Arg") else {})
    return [x], set(), attrs, 1


def slice_(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1), np.float32)
    axes = draw(st.lists(st.integers(-x.ndim, x.ndim - 1), min_size=1, unique_by=lambda k: k % x.ndim))
    ends = st.integers(-25, 25)
    picks = [(draw(ends), draw(ends), draw(st.sampled_from([1, 2, 3, -1, -2, -7]))) for _ in axes]
    begin, end, step = zip(*picks, strict=True)
    return [x, ints(*begin), ints(*end), ints(*axes), ints(*step)], {1, 2, 3, 4}, {}, 1


def pad(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=2), np.float32)
    mode = draw(st.sampled_from(["constant", "edge", "wrap", "reflect"]))
    most = {"constant": 40, "edge": 20, "wrap": 1, "reflect": 1}[mode]  # numpy's own rule begins where one turn ends
    pads = [draw(st.integers(0, most)) for _ in range(2 * x.ndim)]
    return [x, ints(*pads), np.array(2.5, np.float32)], {1}, {"mode": mode}, 1


def gather(draw: Draw, name: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    n = x.shape[axis]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    dims = x.shape if name == "GatherElements" else shape(draw, 0, 2)
    return [x, rng.integers(-n, n, dims)], set(), {"axis": axis}, 1


def scatter(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), np.float32)
    axis = axis_of(draw, x.ndim)
    n = x.shape[axis]
    order = np.argsort(np.random.default_rng(draw(st.integers(0, 999))).random(x.shape), axis=axis)
    return [x, order - n * draw(st.integers(0, 1)), array(draw, x.shape, np.float32)], set(), {"axis": axis}, 1


def transpose(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw), draw(st.sampled_from((*FLOATS, *INTS))))
    return [x], set(), {"perm": draw(st.permutations(range(x.ndim)))} if x.ndim else {}, 1


def concat(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1), np.float32)
    axis = axis_of(draw, x.ndim)
    parts = [x]
    for _ in range(draw(st.integers(0, 3))):
        dims = list(x.shape)
        dims[axis] = draw(st.integers(0, 4))
        parts.append(array(draw, tuple(dims), np.float32))
    return parts, set(), {"axis": axis}, 1


def expand(draw: Draw, name: str) -> Node:
    dims = shape(draw)
    if name == "Tile":
        x = array(draw, dims, np.float32)
        return [x, ints(*(draw(st.integers(0, 3)) for _ in dims))], {1}, {}, 1
    given = tuple(1 if draw(st.booleans()) else n for n in dims)[draw(st.integers(0, len(dims))) :]
    return [array(draw, given, np.float32), ints(*dims)], {1}, {}, 1


def matmul(draw: Draw, _: str) -> Node:
    m, k, n = (draw(st.sampled_from([0, 1, 2, 7, 19])) for _ in range(3))
    batch = shape(draw, 0, 2)
    left = (*batch, m, k) if draw(st.booleans()) else (k,)
    right = (*batch, k, n) if draw(st.booleans()) else (k, n) if draw(st.booleans()) else (k,)
    return [array(draw, left, np.float32), array(draw, right, np.float32)], set(), {}, 1


def topk(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 1, least=1), draw(st.sampled_from((np.float32, np.int64))))
    axis = axis_of(draw, x.ndim)
    k = draw(st.integers(0, x.shape[axis]))
    return [x, ints(k)], {1}, {"axis": axis, "largest": draw(st.integers(0, 1))}, 2


def trilu(draw: Draw, _: str) -> Node:
    x = array(draw, shape(draw, 2), np.float32)
    return [x, np.array(draw(st.integers(-9, 9)), np.int64)], set(), {"upper": draw(st.integers(0, 1))}, 1


def conv(draw: Draw, name: str) -> Node:
    n = draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(n)]
    group, per, out = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x = array(draw, (draw(st.integers(1, 2)), group * per, *(draw(st.integers(k + 2, 9)) for k in kernel)), np.float32)
    attrs: dict[str, Any] = {
        "kernel_shape": kernel, "strides": [draw(st.integers(1, 3)) for _ in range(n)],
        "pads": [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)],
    }  # fmt: skip
    if name != "Conv":
        return [x], set(), attrs, 1
    weight = array(draw, (group * out, per, *kernel), np.float32)
    return [x, weight, array(draw, (group * out,), np.float32)], set(), attrs | {"group": group}, 1


MAKERS: dict[str, Callable[[Draw, str], Node]] = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(BINARY, binary), **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(ROWS, rows), "Slice": slice_, "Pad": pad, "Gather": gather, "GatherElements": gather,
    "ScatterElements": scatter, "Transpose": transpose, "Concat": concat, "Expand": expand, "Tile": expand,
    "MatMul": matmul, "TopK": topk, "Trilu": trilu, "Conv": conv, "MaxPool": conv, "AveragePool": conv,
}  # fmt: skip


def model(name: str, node: Node) -> tuple[ModelProto, dict[str, np.ndarray]]:
    operands, weights, attrs, n = node
    feed = {f"x{k}": x for k, x in enumerate(operands) if k not in weights}
    infos = [helper.make_tensor_value_info(k, from_numpy(x.dtype).onnx, x.shape) for k, x in feed.items()]
    outputs = [f"y{k}" for k in range(n)]
    made = helper.make_node(name, [f"x{k}" for k in range(len(operands))], outputs, **attrs)
    graph = helper.make_graph(
        [made], name, infos, [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(operands[k], f"x{k}") for k in sorted(weights)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx_opset_version())]), feed


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    print(f"\nrandom nodes: seed {SEED}, {sum(COUNTS.values())} runs of {len(COUNTS)} operators and targets")


@pytest.mark.parametrize("target", ["interp", "cpu-jit", pytest.param("cpu", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MAKERS)
def test_random_node_gives_what_the_reference_gives(name: str, target: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=2 if target == "cpu" else EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        node = MAKERS[name](data.draw, name)
        made, feed = model(name, node)
        with np.errstate(all="ignore"):
            expected = onnx.reference.ReferenceEvaluator(made).run(None, feed)
        got = occ.compile(made, target).run(feed)
        COUNTS[f"{name} {target}"] += 1
        for x, y in zip(got.values(), map(np.asarray, expected), strict=True):
            assert x.shape == y.shape
            assert x.dtype == y.dtype
            size = float(np.max(np.abs(y[np.isfinite(y)]), initial=1.0)) if y.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-6 * size)

    check()

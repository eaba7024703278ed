"""Elementwise operators, reductions and moves against onnx.reference: every element type they take, and odd shapes.

Each case is a node; all nodes of a batch are one model, so that a target compiles once for many cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.ir.dtype import from_numpy

UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "Gelu",
    "Elu",
    "Celu",
    "ThresholdedRelu",
    "Not",
    "BitwiseNot",
    "Softmax",
    "LogSoftmax",
]
BINARY = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Pow",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "And",
    "Or",
    "Xor",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "PRelu",
]
REDUCE = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]
TYPES = [
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]
# One pair for each way to broadcast: none, scalars, trailing axes, both ways, empty.
PAIRS = [
    ((5,), (5,)),
    ((), ()),
    ((2, 3), ()),
    ((), (4,)),
    ((2, 1, 5), (3, 1)),
    ((2, 0), (1,)),
    ((1, 17), (4, 17)),
    ((33,), (1,)),
]
SHAPES = [(7,), (), (2, 3), (0,), (2, 0, 3), (1, 37), (3, 1, 5)]


@dataclass(frozen=True)
class Case:
    """One node and its inputs."""

    op: str
    inputs: tuple[np.ndarray, ...]
    attrs: tuple[tuple[str, object], ...] = ()


def takes(op: str, dtype: str) -> bool:
    schema = onnx.defs.get_schema(op)
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    return f"tensor({name})" in schema.inputs[0].types


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, op: str) -> np.ndarray:
    """Values inside of the domain of an operator; away from where it jumps."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        low = 1 if op in ("Div", "Pow", "Mod") else 0 if dtype.startswith("u") else -4
        return rng.integers(low, 5, shape).astype(dtype)
    x = rng.uniform(-0.9, 0.9, shape)
    if op in ("Acosh", "Log", "Sqrt", "Pow"):
        x = np.abs(x) + (1.05 if op == "Acosh" else 0.2)
    if op in ("Div", "Reciprocal"):
        x = np.sign(x) * (np.abs(x) + 0.5)
    return np.asarray(x).astype(dtype)


def cases_of(ops: list[str], dtype: str) -> list[Case]:
    rng = np.random.default_rng(7)
    made: list[Case] = []
    for op in ops:
        if not takes(op, dtype):
            continue
        if op in BINARY:
            pairs = [p for p in PAIRS if op != "PRelu" or np.broadcast_shapes(*p) == p[0]]
            made += [Case(op, tuple(values(rng, s, dtype, op) for s in pair)) for pair in pairs]
        elif op in REDUCE:
            for shape in ((4,), (2, 3, 5), (1, 19)):
                x = values(rng, shape, dtype, op)
                made += [
                    Case(op, (x, np.array([-1])), (("keepdims", 1),)),
                    Case(op, (x, np.array([0])), (("keepdims", 0),)),
                ]
                made.append(Case(op, (x,)))
        else:
            shapes = [s for s in SHAPES if op not in ("Softmax", "LogSoftmax") or (s and 0 not in s)]
            if op == "Softsign":
                shapes.remove(())  # on which onnx.reference fails
            made += [Case(op, (values(rng, s, dtype, op),)) for s in shapes]
    return made


def model_of(cases: list[Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    nodes, infos, inputs, outputs = [], [], {}, []
    for k, case in enumerate(cases):
        names = []
        for j, x in enumerate(case.inputs):
            name = f"x{k}_{j}"
            names.append(name)
            if case.op in REDUCE and j == 1:
                nodes.append(helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(x)))
                continue
            inputs[name] = x
            infos.append(helper.make_tensor_value_info(name, from_numpy(x.dtype).onnx, x.shape))
        nodes.append(helper.make_node(case.op, names, [f"y{k}"], **dict(case.attrs)))
        outputs.append(helper.make_empty_tensor_value_info(f"y{k}"))
    graph = helper.make_graph(nodes, "cases", infos, outputs)
    version = onnx.defs.onnx_opset_version()
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", version)], ir_version=onnx.IR_VERSION
    ), inputs


TOLERANCE = {"float16": 4e-3, "float32": 2e-6, "float64": 2e-6}


def check(cases: list[Case], target: str) -> None:
    model, inputs = model_of(cases)
    got = occ.compile(model, target).run(inputs)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, inputs)
    wrong = []
    for case, y, want in zip(cases, got.values(), wanted, strict=True):
        want = np.asarray(want)
        if case.op in REDUCE:  # numpy widens sums of narrow integers, and the reference lets it; the schema does not
            want = want.astype(case.inputs[0].dtype)
        if y.shape != want.shape or y.dtype != want.dtype:
            wrong.append(
                f"{case.op} {[(x.dtype, x.shape) for x in case.inputs]}: {y.dtype}{y.shape}, not {want.dtype}{want.shape}"
            )
            continue
        limit = TOLERANCE.get(str(want.dtype), 0)
        a, b = y.astype(np.float64), want.astype(np.float64)
        if not np.allclose(a, b, rtol=limit, atol=limit, equal_nan=True):
            wrong.append(f"{case.op} {[(str(x.dtype), x.shape) for x in case.inputs]}: off by {np.abs(a - b).max()}")
    assert not wrong, "\n".join(wrong)


FAMILIES = {"unary": UNARY, "binary": BINARY, "reduce": REDUCE}
TAKEN = [(f, d) for f in sorted(FAMILIES) for d in TYPES if any(takes(op, d) for op in FAMILIES[f])]


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize(("family", "dtype"), TAKEN)
def test_family(family, dtype, target):
    check(cases_of(FAMILIES[family], dtype), target)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sample_on_cpu(dtype):
    """Halide compiles each kernel for a second or so: a fixed sample."""
    cases = [c for family in FAMILIES.values() for c in cases_of(family, dtype)]
    check(cases[:: 29 if dtype == "float32" else 41], "cpu")


@pytest.mark.thinned
@pytest.mark.parametrize(("op", "dtype"), [("ReduceMax", "bool"), ("Erf", "float64")])
def test_types_that_halide_has_no_word_for(op, dtype):
    check(cases_of([op], dtype)[:2], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype"), TAKEN)
def test_family_on_cpu(family, dtype):
    check(cases_of(FAMILIES[family], dtype), "cpu")

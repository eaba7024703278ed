"""Half floats through every schedule rule and every operator, with the Cast after them in the same kernel.

A Cast invites passes to keep what comes before it wide: whatever they change, its readers have to follow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from building import model_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from node_makers import MAKERS, Node
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.dtype import BY_NAME, from_numpy
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.passes.lower import schedule
from occ.runtime.open import open_artifact

pytestmark = pytest.mark.parametrize("kind", ["f16", "bf16"])
HALF = {"f16": ("float16", 2.0**-10), "bf16": ("bfloat16", 2.0**-7)}  # a unit in the last place
# The inputs of a node, its text, and the shapes of its weights.
CASES: dict[str, tuple[dict[str, str], str, dict[str, tuple[int, ...]]]] = {
    "padded": ({"x": "1,24,9,9"}, "Conv<pads=[1,1,1,1]>({x}, {w})", {"w": (32, 24, 3, 3)}),
    "pointwise": ({"x": "1,24,5,5"}, "Conv({x}, {w})", {"w": (32, 24, 1, 1)}),
    "depthwise": ({"x": "1,32,9,9"}, "Conv<group=32, pads=[1,1,1,1]>({x}, {w})", {"w": (32, 1, 3, 3)}),
    "normalised": ({"x": "1,32,5,5"}, "LRN<size=3>({x})", {}),
    "constant_product": ({"x": "6,40"}, "MatMul({x}, {w})", {"w": (40, 32)}),
    "few_rows": ({"x": "n,40"}, "MatMul({x}, {w})", {"w": (40, 32)}),
    "product": ({"x": "6,40", "z": "40,32"}, "MatMul({x}, {z})", {}),
    "greatest": ({"x": "1,32,9,9"}, "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({x})", {}),
    "average": ({"x": "1,32,9,9"}, "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>({x})", {}),
    "row_sums": ({"x": "5,64"}, "ReduceSum({x}, {w})", {"w": (-1,)}),
    "softmax": ({"x": "5,64"}, "Softmax({x})", {}),
    "layer_norm": ({"x": "5,64"}, "LayerNormalization({x}, {w})", {"w": (64,)}),
    "transposed": ({"x": "40,33"}, "Transpose({x})", {}),
    "elementwise": ({"x": "5,33"}, "Gelu({x})", {}),
    "resized": ({"x": "1,4,6,9"}, 'Resize<mode="linear">({x}, , {w})', {"w": (1, 1, 2, 2)}),
    "resized_alone": ({"x": "1,4,6,9"}, 'Resize<mode="linear">({x}, , {w})', {"w": (1, 1, 2, 2)}),
    "running": ({"x": "5,33"}, "CumSum({x}, {w})", {"w": (1,)}),
}
ALONE = {"resized_alone"}  # without a Cast: the rule wants the result itself


def half_model(kind: str, cases: dict) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of nodes whose results are cast to f32, and its inputs."""
    onnx_type, _ = HALF[kind]
    dtype = BY_NAME[kind].numpy
    rng = np.random.default_rng(5)
    inputs, lines, weights, feed = [], [], {}, {}
    for name, (given_, text, shapes) in cases.items():
        for x, dims in given_.items():
            inputs.append(f"{onnx_type}[{dims}] {x}_{name}")
            feed[f"{x}_{name}"] = rng.standard_normal([int(d) if d.isdigit() else 3 for d in dims.split(",")]).astype(
                dtype
            )
        for w, shape in shapes.items():
            weights[f"{w}_{name}"] = _weight(text, shape, rng, dtype)
        node = text.format(**{v: f"{v}_{name}" for v in (*given_, *shapes)})
        lines.append(f"h_{name} = {node}" if name in ALONE else f"h_{name} = {node}  y_{name} = Cast<to=1>(h_{name})")
    outputs = ", ".join(f"{onnx_type} h_{name}" if name in ALONE else f"float y_{name}" for name in cases)
    return model_of(f"g ({', '.join(inputs)}) => ({outputs}) {{ {' '.join(lines)} }}", weights, opset=22), feed


def _weight(text: str, shape: tuple[int, ...], rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
    if text.startswith(("ReduceSum", "CumSum")):
        return np.array(shape, np.int64)  # axes
    if text.startswith("Resize"):
        return np.array(shape, np.float32)  # scales
    return (rng.standard_normal(shape) * 0.2).astype(dtype)


def worst(y: np.ndarray, wanted: np.ndarray, unit: float) -> float:
    """The largest error, in units in the last place of an element, or of small ones next to large ones."""
    y, wanted = y.astype(np.float64), wanted.astype(np.float64)
    assert y.shape == wanted.shape
    assert np.array_equal(np.isfinite(y), np.isfinite(wanted))
    y, wanted = y[np.isfinite(wanted)], wanted[np.isfinite(wanted)]
    if not wanted.size:
        return 0.0
    return float((np.abs(y - wanted) / (unit * (np.abs(wanted) + np.abs(wanted).max() / 16) + 1e-30)).max())


@pytest.mark.thinned
def test_each_schedule_rule_in_half_floats_before_a_cast(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fired: Counter[str] = Counter()

    def counted(rule):
        def run(f, machine):
            made = rule.apply(f, machine)
            halves = {p.type.dtype.name for p in f.params} & set(HALF)
            fired[rule.name] += bool(isinstance(made, TeFunc) and halves)
            return made

        return replace(rule, apply=run)

    monkeypatch.setattr(schedule, "RULES", tuple(map(counted, schedule.RULES)))
    model, feed = half_model(kind, CASES)
    got = open_artifact(Compilation(model, Settings("cpu", verify=True)).artifact()).run(feed)
    wanted = occ.compile(model, "interp").run(feed)
    wrong = {}
    for name, y in got.items():
        if (error := worst(y, wanted[name], HALF[kind][1])) > 1:
            wrong[name] = error
    assert not wrong
    applied = {n for n, k in fired.items() if k}
    assert applied >= {"packed_contraction", "window", "resample", "elementwise", "fused_rows"}, fired


def takes(name: str, node: Node, onnx_type: str) -> bool:
    """Whether an operator takes half floats where the node has floats."""
    operands = node[0]
    formal = onnx.defs.get_schema(name).inputs
    types = [formal[min(k, len(formal) - 1)].types for k in range(len(operands))]
    mine = [t for t, x in zip(types, operands, strict=True) if x.dtype.kind == "f"]
    return bool(mine) and all(f"tensor({onnx_type})" in t for t in mine)


def drawn(name: str) -> list[Node]:
    """A random node of an operator, always the same."""
    made: list[Node] = []

    @seed(7)
    @settings(max_examples=2, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        made.append(MAKERS[name](data.draw, name))

    collect()
    return made[1:]  # the first is the simplest there is


def half_nodes(kind: str) -> list[tuple[str, Node]]:
    """Random nodes of each operator that takes half floats, on such."""
    half = BY_NAME[kind].numpy
    found = [(name, node) for name in MAKERS for node in drawn(name) if takes(name, node, HALF[kind][0])]
    return [(n, ([x.astype(half) if x.dtype.kind == "f" else x for x in xs], *rest)) for n, (xs, *rest) in found]


@pytest.mark.thinned
def test_each_operator_in_half_floats_before_a_cast(kind: str) -> None:
    """What the passes for `cpu` make of it is well formed, and `cpu-jit` computes what the interpreter does."""
    nodes, infos, constants, outputs, feed = [], [], [], [], {}
    for k, (name, (operands, weights, attrs, n)) in enumerate(half_nodes(kind)):
        names = [f"x{k}_{j}" for j in range(len(operands))]
        for j, x in enumerate(operands):
            if j in weights:
                constants.append(numpy_helper.from_array(x, names[j]))
            else:
                feed[names[j]] = x
                infos.append(helper.make_tensor_value_info(names[j], from_numpy(x.dtype).onnx, x.shape))
        nodes.append(helper.make_node(name, names, [f"h{k}_{j}" for j in range(n)], **attrs))
        nodes += [helper.make_node("Cast", [f"h{k}_{j}"], [f"{name}_{k}_{j}"], to=TensorProto.FLOAT) for j in range(n)]
        outputs += [helper.make_empty_tensor_value_info(f"{name}_{k}_{j}") for j in range(n)]
    graph = helper.make_graph(nodes, "casts", infos, outputs, constants)
    opset = helper.make_opsetid("", onnx.defs.onnx_opset_version())
    model = helper.make_model(graph, opset_imports=[opset])
    Compilation(model, Settings("cpu", verify=True)).advance("lowered")
    wanted = occ.compile(model, "interp").run(feed)
    got = occ.compile(model, "cpu-jit").run(feed)
    errors = {k: worst(y, wanted[k], HALF[kind][1]) for k, y in got.items()}
    assert {k: e for k, e in errors.items() if e > 1.01} == {}

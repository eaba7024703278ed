"""The `.air` file: as the simulator reads it, and as the schema module of the public torch-npu wheel does."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of, reference
from public_schema import faults, parsed

from occ.compiler.codegen_cann.graph.graph import Graph
from occ.compiler.codegen_cann.graph.validate import graph_problems
from occ.compiler.codegen_cann.mapping.table import build_graph
from occ.compiler.codegen_cann.output.air import air
from occ.compiler.codegen_cann.output.proto import encode
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ge_simulator.reader import BadGraph, read
from occ.compiler.ge_simulator.simulate import Simulator

RNG = np.random.default_rng(0)
NET = """g (float[1, 3, 9, 9] x, bool c) => (float[1, 4, 5, 5] y, float[1, 4, 5, 5] z) {
    a = Conv <pads = [1, 2, 1, 2], strides = [2, 2]> (x, w, b)
    s = Slice(a, starts, ends, axes)
    y = Softmax <axis = 1> (s)
    z = If (c) <
        then_branch = t () => (float[1, 4, 5, 5] p) { p = Mul(y, y) },
        else_branch = e () => (float[1, 4, 5, 5] q) { q = Neg(y) }
    >
}"""
WEIGHTS = {
    "w": RNG.standard_normal((4, 3, 3, 3), dtype=np.float32), "b": RNG.standard_normal(4, dtype=np.float32),
    "starts": np.array([0], np.int64), "ends": np.array([5], np.int64), "axes": np.array([3], np.int64),
}  # fmt: skip


def graph() -> Graph:
    m = Compilation(model_of(NET, WEIGHTS), Settings("ascend310p")).advance("fused")
    made = build_graph("part0", m.main.body.body, m.main.args, m.main.results, m.main.result_names, module=m)
    assert list(graph_problems(made)) == []
    return made


def inputs() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((1, 3, 9, 9), dtype=np.float32), "c": np.array(True)}


def test_air_is_deterministic():
    assert air(graph()) == air(graph())


def test_large_constants_go_to_files():
    data, files = air(graph(), inline_limit=200)
    assert sorted(files) == ["part0.weight0.bin"]
    assert files["part0.weight0.bin"] == WEIGHTS["w"].tobytes()
    want = reference(model_of(NET, WEIGHTS), inputs())
    got = Simulator(data, files).run(list(inputs().values()))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-6)
    with pytest.raises(BadGraph, match="no file"):
        read(data, {})


def test_edges_resolve_and_data_are_numbered():
    graphs = read(air(graph())[0])
    root = next(iter(graphs.values()))
    assert [d.name for d in root.data] == ["x", "c"]
    (node,) = [n for n in root.nodes if n.type == "If"]
    for name in node.subgraphs:
        assert [d.attrs["_parent_node_index"] for d in graphs[name].data] == [1]
    conv = next(n for n in root.nodes if n.type == "Conv2D")
    assert conv.attrs["pads"] == [1, 1, 2, 2]
    assert [d.format for d in conv.input_descs] == ["NCHW", "NCHW", "ND"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"name": "m"}, "no graph"),
        ({"graph": [{"name": "g", "op": [{"name": "a", "type": "Relu", "input": ["b:0"], "input_desc": [{"name": "x"}]}]}]}, "no output b:0"),
        ({"graph": [{"name": "g", "op": [{"name": "a", "type": "Data", "attr": {"index": {"i": 1}}}]}]}, "holes"),
        ({"graph": [{"name": "g", "op": [{"name": "a", "type": "Relu", "input": ["a:0"]}]}]}, "edges for"),
    ],
)  # fmt: skip
def test_reader_refuses_what_ge_refuses(message: dict[str, object], reason: str):
    with pytest.raises(BadGraph, match=reason):
        read(encode("ModelDef", message))


def test_reader_refuses_unknown_fields():
    with pytest.raises(BadGraph, match="unknown fields"):
        read(air(graph())[0] + b"\xf8\x07\x01")
    with pytest.raises(BadGraph, match="not a ModelDef"):
        read(b"\xff\xff\xff")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2**31, 200])
def test_air_is_a_model_of_the_public_schema(limit: int):
    message = parsed(air(graph(), limit)[0])
    assert list(faults(message)) == []
    assert message.graph[0].name == "part0"
    assert len(message.graph) == 3
    conv = next(op for op in message.graph[0].op if op.type == "Conv2D")
    assert conv.input_desc[0].dtype == 1  # DT_FLOAT of the proto enumeration
    assert list(conv.attr["strides"].list.i) == [1, 1, 2, 2]
    assert conv.attr["strides"].list.val_type == 2

"""What a graph computes of constants alone is a constant, unless the model would grow by it."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of, reference
from simulating import built, simulated, worst

from occ.compiler.codegen_cann.graph.fold_constants import fold_constants
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Ref, data_node
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.table import emit_op
from occ.compiler.ge_simulator.reader import Node, read
from occ.runtime.artifact import Artifact

RNG = np.random.default_rng(31)


def nodes(made: Artifact) -> list[Node]:
    (part,) = made.manifest.parts
    files = {name.rpartition("/")[2]: made.files[name] for name in part.files}
    return [n for g in read(made.files[part.air], files).values() for n in g.nodes]


def constant_nodes(made: Artifact) -> list[str]:
    """The types of nodes that read constants alone."""
    return [n.type for n in nodes(made) if n.inputs and len(n.constants) == len(n.inputs)]


@pytest.mark.parametrize("target", ["ascend310", "ascend310p", "ascend910b"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_weights_of_directions_are_constants(target: str, kind: str):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    given = {
        "w": RNG.standard_normal((2, gates * 6, 5), dtype=np.float32) / 3, "r": RNG.standard_normal((2, gates * 6, 6), dtype=np.float32) / 3,
        "b": RNG.standard_normal((2, 2 * gates * 6), dtype=np.float32) / 3,
    }  # fmt: skip
    model = model_of(
        f'g (float[4, 2, 5] x) => (float[4, 2, 2, 6] y) {{ y = {kind} <hidden_size = 6, direction = "bidirectional"> (x, w, r, b) }}',
        given,
    )
    made = built(model, target)
    assert not {"Cast", "GatherV2", "Reshape", "StridedSliceV2", "Transpose", "Unsqueeze"} & set(constant_nodes(made))
    x = {"x": RNG.standard_normal((4, 2, 5), dtype=np.float32)}
    assert worst(simulated(made, x), reference(model, x)) < (1e-5 if target == "ascend910b" else 3e-3)


@pytest.mark.parametrize(("rows", "wanted"), [(3, "Const"), (999, "Transpose")])
def test_a_table_that_is_read_elsewhere_has_no_large_second_form(rows: int, wanted: str):
    e = Emitter(Graph("g"), emit_op)
    at = data_node("i", Desc("INT64", (3,)), 0)
    e.graph.nodes.append(at)
    table = e.constant(RNG.standard_normal((rows, 64), dtype=np.float32))
    gathered = e.op("GatherV2", table, Ref(at), e.constant(np.array(0, np.int32)), out=Desc("FLOAT", (3, 64)))
    turned = e.transpose(table, [1, 0])
    e.graph.outputs = [gathered, e.op("Relu", turned)]
    fold_constants(e.graph)
    assert turned.node.type == wanted
    if wanted == "Const":
        assert np.array_equal(turned.node.value, table.node.value.T)


def test_an_element_that_a_scalar_index_takes_is_a_constant():
    e = Emitter(Graph("g"), emit_op)
    table, zero = e.constant(np.float32([3, 5, 7])), e.constant(np.array(0, np.int32))
    one = e.op("GatherV2", table, e.constant(np.array(2, np.int64)), zero, out=Desc("FLOAT", ()))
    e.graph.outputs = [e.op("Relu", one)]
    fold_constants(e.graph)
    assert isinstance(one.node.value, np.ndarray)
    assert one.node.value.tolist() == 7


def test_weights_in_half_precision_stay_small():
    """A product of FLOAT with weights that the matrix unit rounds anyway reads them through a Cast."""
    model = model_of(
        "g (float[2, 256] x) => (float[2, 256] y) { f = Cast <to = 1> (h) y = MatMul (x, f) }",
        {"h": RNG.standard_normal((256, 256)).astype(np.float16)},
    )
    made = built(model, "ascend310p")
    assert made.manifest.parts[0].weights <= 256 * 256 * 4
    x = {"x": RNG.standard_normal((2, 256), dtype=np.float32)}
    assert worst(simulated(made, x), reference(model, x)) < 2e-3


def test_ranges_have_constants_too():
    model = model_of(
        "g (float[n, 8] x) => (float[n, 4] y) { t = Transpose (w) y = MatMul (x, t) }",
        {"w": RNG.standard_normal((4, 8), dtype=np.float32)},
    )
    made = built(model, dynamic_ranges="n=1..9")
    assert constant_nodes(made) == []

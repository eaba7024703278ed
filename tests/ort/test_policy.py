"""Which nodes the execution provider takes: decided without onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import mlp, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import occ
from occ.onnxruntime import policy
from occ.onnxruntime.emit import facts_of


@st.composite
def graphs(draw):
    """Nodes of random graphs, each with one result, and which of them are taken."""
    count = draw(st.integers(1, 14))
    nodes = []
    for k in range(count):
        reads = draw(st.lists(st.integers(0, k - 1), max_size=3, unique=True)) if k else []
        nodes.append(helper.make_node("Sum", [f"v{r}" for r in reads] or ["x"], [f"v{k}"]))
    return nodes, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@settings(max_examples=300)
@given(graphs())
def test_groups_are_convex_and_take_each_node_once(case):
    nodes, taken = case
    groups = policy.convex_groups(nodes, taken.__getitem__)
    assert sorted(k for g in groups for k in g) == [k for k, t in enumerate(taken) if t]
    reads = [{int(n[1:]) for n in node.input if n != "x"} for node in nodes]
    for group in groups:
        below = set(group)  # what depends on the group, and which part of it is outside
        outside: set[int] = set()
        for k in range(len(nodes)):
            if k in below or not (reads[k] & (below | outside)):
                assert not (k in below and reads[k] & outside), "a path leaves the group and comes back"
                continue
            outside.add(k)


def test_what_others_must_do_is_not_taken():
    made = {
        op: helper.make_node(op, ["x"], ["y"])
        for op in ("Relu", "Loop", "RandomNormalLike", "StringNormalizer", "Nonsense")
    }
    assert [op for op, node in made.items() if policy.supported(node)] == ["Relu"]
    assert policy.supported(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"))


def test_small_groups_are_not_worth_their_borders():
    facts = facts_of(onnx.shape_inference.infer_shapes(mlp()))
    every = range(len(facts.nodes))
    assert 0 < policy.cost(every, facts.nodes, facts.types, facts.weights) < policy.LEAST
    large = facts_of(mlp(sizes=(256, 256, 256)))
    assert policy.cost(every, large.nodes, large.types, large.weights) > policy.LEAST


def test_a_part_computes_what_its_nodes_did():
    text = "g (float[n,3] x) => (float[n,3] y, float[n,3] b) { a = Mul(x, w)  b = Exp(a)  c = Neg(b)  y = Add(c, a) }"
    w = np.float32([1, 2, 3])
    facts = facts_of(model_of(text, {"w": w}))
    part = policy.part([0, 1], facts.nodes, facts.types, facts.weights, {"y", "b", "a"}, facts.opsets)
    assert part is not None
    onnx.checker.check_model(part, full_check=True)
    assert [v.name for v in part.graph.input] == ["x"]
    assert [v.name for v in part.graph.output] == ["a", "b"]
    np.testing.assert_array_equal(numpy_helper.to_array(part.graph.initializer[0]), w)


@pytest.mark.parametrize(
    ("declared", "fewer"),
    [
        ("float[n,4] x, float[4] z", False),
        ("float[n,4] x, float[m,4] z", True),
        ("float[n,4] x, float[n,4] z", True),
        ("float[n,4] x, float[k] z", True),
        ("float[2,4] x, float[2,4] z", False),
    ],
)
def test_which_groups_take_fewer_sizes_than_onnx_allows(declared, fewer):
    model = model_of(f"g ({declared}) => (float[a,b] y) {{ y = Add(x, z) }}")
    made = occ.compile(model, "interp").artifact.manifest
    assert policy.takes_fewer_sizes(made, model.graph.input) == fewer

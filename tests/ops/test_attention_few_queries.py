"""Attention whose number of queries is constant and small, as in a decoder that is built for single steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.runtime.buffers import aligned

RNG = np.random.default_rng(5)
T = "T"  # a symbolic number of keys

# heads of queries and of keys, batch, queries, keys, size of a head, whether there is a mask
CASES: Sequence[tuple[int, int, int | str, int, int | str, int, bool]] = [
    (8, 2, 1, 1, 64, 64, False), (8, 2, 1, 1, 77, 16, True), (6, 6, 2, 1, 130, 24, True), (1, 1, 1, 1, 96, 32, False),
    (4, 1, "N", 1, T, 64, True), (4, 2, "N", 4, T, 32, False), (6, 3, 1, 1, T, 8, True), (5, 5, 3, 3, 70, 16, False),
    (4, 4, 1, 2, 20, 16, True), (12, 4, 2, 1, T, 48, False),
]  # fmt: skip


def model(kind: int) -> onnx.ModelProto:
    """All cases side by side."""
    value = helper.make_tensor_value_info
    nodes, inputs, outputs = [], [], []
    for k, (heads, groups, n, queries, keys, size, masked) in enumerate(CASES):
        names = [f"{x}{k}" for x in "qkv"] + ([f"m{k}"] if masked else [])
        shapes = [(n, heads, queries, size), *[(n, groups, keys, size)] * 2, (n, 1, queries, keys)]
        inputs += [value(name, kind, shape) for name, shape in zip(names, shapes, strict=False)]
        outputs.append(value(f"y{k}", kind, (n, heads, queries, size)))
        nodes.append(helper.make_node("Attention", names, [f"y{k}"]))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


@pytest.mark.parametrize(("kind", "close"), [(TensorProto.FLOAT, 2e-6), (TensorProto.FLOAT16, 4e-3)])
def test_a_few_queries_of_many_keys(kind: int, close: float) -> None:
    made, dtype = model(kind), helper.tensor_dtype_to_np_dtype(kind)
    session = occ.compile(made, "cpu")
    # in f32, since the operator's own f16 rounds each step
    reference = ReferenceEvaluator(model(TensorProto.FLOAT))
    for env in ({"N": 1, T: 1}, {"N": 2, T: 64}, {"N": 3, T: 149}):
        feed = {
            i.name: RNG.normal(size=[env.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]).astype(
                dtype
            )
            for i in made.graph.input
        }
        want = reference.run(None, {k: v.astype(np.float32) for k, v in feed.items()})
        got = session.run(feed)
        for k, theirs in enumerate(want):
            np.testing.assert_allclose(got[f"y{k}"].astype(np.float32), theirs, atol=close, err_msg=str(CASES[k]))


def test_a_step_reads_its_cache_where_it_is() -> None:
    """Keys were transposed in memory, and scores and their softmax kernels of their own."""
    value = helper.make_tensor_value_info
    node = helper.make_node(
        "Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "K", "V"], q_num_heads=8, kv_num_heads=2, is_causal=1
    )
    inputs = [value("q", 1, [1, 1, 256]), *(value(x, 1, [1, 1, 64]) for x in "kv")]
    inputs += [value(x, 1, [1, 2, "P", 32]) for x in ("pk", "pv")]
    outputs = [value("y", 1, [1, 1, 256]), *(value(x, 1, [1, 2, "T", 32]) for x in "KV")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session, reference = occ.compile(made, "cpu", options={"caches": "growing"}), ReferenceEvaluator(made)
    assert sum(s.kind == "kernel" for s in session.artifact.manifest.plan.steps) == 3  # two that append, and attention
    cache = {x: aligned((200, 1, 2, 32), np.dtype(np.float32)) for x in "KV"}
    for array in cache.values():
        array[:] = np.nan
    for past in (0, 1, 2, 63, 64, 198):
        for x in "KV":
            cache[x][:past] = RNG.normal(size=(past, 1, 2, 32))
        feed = {k: RNG.normal(size=(1, 1, n)).astype(np.float32) for k, n in (("q", 256), ("k", 64), ("v", 64))}
        old = {f"p{x.lower()}": cache[x][:past] for x in "KV"}
        want = reference.run(["y"], feed | {k: v.transpose(1, 2, 0, 3).copy() for k, v in old.items()})[0]
        got = session.run(feed | old, {x: cache[x][: past + 1] for x in "KV"})["y"]
        np.testing.assert_allclose(got, want, atol=2e-6)


def test_any_number_of_heads_that_lie_together() -> None:
    """What torch.nn.MultiheadAttention exports with a dynamic batch: heads of all batches between keys and the size of a head."""
    heads, size = 3, 16
    value = helper.make_tensor_value_info
    ends = [value(x, 1, [length, "B", heads * size]) for x, length in (("q", "Q"), ("k", "K"), ("v", "K"))]
    shape = helper.make_node("Constant", [], ["shape"], value_ints=[0, -1, size])
    scale = helper.make_node("Constant", [], ["scale"], value_float=size**-0.5)
    nodes = [shape, scale, *(helper.make_node("Reshape", [x, "shape"], [f"{x}h"]) for x in "qkv")]
    nodes += [helper.make_node("Transpose", [f"{x}h"], [f"{x}t"], perm=p)
              for x, p in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2]))]  # fmt: skip
    chain = [
        ("MatMul", ["qt", "kt"], "s"),
        ("Mul", ["s", "scale"], "m"),
        ("Softmax", ["m"], "p"),
        ("MatMul", ["p", "vt"], "y"),
    ]
    nodes += [helper.make_node(op, reads, [made]) for op, reads, made in chain]
    graph = helper.make_graph(nodes, "g", ends, [value("y", 1, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session, reference = occ.compile(made, "cpu"), ReferenceEvaluator(made)
    for queries, keys, batch in ((1, 1, 1), (1, 70, 3), (3, 66, 2), (4, 5, 5), (9, 70, 1)):
        lengths = {"q": queries, "k": keys, "v": keys}
        feed = {x: RNG.normal(size=(n, batch, heads * size)).astype(np.float32) for x, n in lengths.items()}
        (want,) = reference.run(None, feed)
        np.testing.assert_allclose(session.run(feed)["y"], want, atol=2e-6)

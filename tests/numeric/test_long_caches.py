"""One new row over caches as long as several chunks of keys, and as short as a part of one, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import occ
from occ.runtime.buffers import aligned

RNG = np.random.default_rng(23)
GROUPS, SIZE, ROOM = 2, 64, 16384
LENGTHS = (1, 7, 1023, 1024, 1025, 4099, ROOM)
KINDS = [(TensorProto.FLOAT, 3e-6), (TensorProto.FLOAT16, 4e-3)]


def with_room(kind: int, heads: int, window: int) -> ModelProto:
    """GroupQueryAttention of a batch that writes into its caches; a mask says how many keys there are."""
    value, node, i64 = helper.make_tensor_value_info, helper.make_node, TensorProto.INT64
    nodes = [
        node("Shape", ["mask"], ["size"], start=1, end=2), node("Cast", ["size"], ["length"], to=TensorProto.INT32),
        node("Squeeze", ["length"], ["total"]), node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        node("Sub", ["count", "one"], ["last"]), node("Cast", ["last"], ["lens"], to=TensorProto.INT32),
        node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lens", "total"], ["y", "K", "V"], domain="com.microsoft",
             num_heads=heads, kv_num_heads=GROUPS, local_window_size=window),
    ]  # fmt: skip
    inputs = [value("q", kind, ["N", "S", heads * SIZE]), *(value(x, kind, ["N", "S", GROUPS * SIZE]) for x in "kv")]
    inputs += [*(value(x, kind, ["N", GROUPS, ROOM, SIZE]) for x in ("pk", "pv")), value("mask", i64, ["N", "T"])]
    outputs = [value("y", kind, ["N", "S", heads * SIZE]), *(value(x, kind, ["N", GROUPS, ROOM, SIZE]) for x in "KV")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [helper.make_tensor("one", i64, [1], [1])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def growing(kind: int, heads: int) -> ModelProto:
    """Attention of opset 23 with a past that grows."""
    value = helper.make_tensor_value_info
    operands, results = ["q", "k", "v", "", "pk", "pv"], ["y", "K", "V"]
    node = helper.make_node("Attention", operands, results, q_num_heads=heads, kv_num_heads=GROUPS, is_causal=1)
    inputs = [value("q", kind, ["N", "S", heads * SIZE]), *(value(x, kind, ["N", "S", GROUPS * SIZE]) for x in "kv")]
    inputs += [value(x, kind, ["N", GROUPS, "P", SIZE]) for x in ("pk", "pv")]
    outputs = [value("y", kind, ["N", "S", heads * SIZE]), *(value(x, kind, ["N", GROUPS, "T", SIZE]) for x in "KV")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def step(dtype: np.dtype, heads: int) -> dict[str, np.ndarray]:
    """A new row for two texts."""
    widths = {"q": heads, "k": GROUPS, "v": GROUPS}
    return {x: RNG.normal(size=(2, 1, n * SIZE)).astype(dtype) for x, n in widths.items()}


@pytest.mark.parametrize(("heads", "window"), [(8, -1), (6, 300)])
@pytest.mark.parametrize(("kind", "close"), KINDS)
def test_one_row_over_a_long_cache_with_room(kind: int, close: float, heads: int, window: int) -> None:
    model, dtype = with_room(kind, heads, window), helper.tensor_dtype_to_np_dtype(kind)
    session = occ.compile(model, dims={"T": f"1..{ROOM}"}, threads=2)
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    cache = {x: aligned((2, GROUPS, ROOM, SIZE), dtype) for x in ("pk", "pv")}
    for array in cache.values():
        array[:] = RNG.normal(size=array.shape)
    for total in LENGTHS:
        ends = np.array([[total], [max(total - 5, 1)]])  # the second text is shorter
        feed = step(dtype, heads) | {"mask": (np.arange(total) < ends).astype(np.int64)}
        want = peer.run(["y"], feed | cache)[0]
        got = session.run(feed | cache, {"K": cache["pk"], "V": cache["pv"]})["y"]
        np.testing.assert_allclose(got, want, atol=close, err_msg=f"{total} keys")


@pytest.mark.parametrize("heads", [8, 6])
@pytest.mark.parametrize(("kind", "close"), KINDS)
def test_one_row_over_a_long_cache_that_grows(kind: int, close: float, heads: int) -> None:
    model, dtype = growing(kind, heads), helper.tensor_dtype_to_np_dtype(kind)
    session = occ.compile(model, options={"caches": "growing"}, threads=2)
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    cache = {x: aligned((ROOM, 2, GROUPS, SIZE), dtype) for x in "KV"}
    for array in cache.values():
        array[:] = RNG.normal(size=array.shape)
    for total in LENGTHS:
        feed, old = step(dtype, heads), {f"p{x.lower()}": cache[x][: total - 1] for x in "KV"}
        want = peer.run(["y"], feed | {k: v.transpose(1, 2, 0, 3).copy() for k, v in old.items()})[0]
        got = session.run(feed | old, {x: cache[x][:total] for x in "KV"})["y"]
        np.testing.assert_allclose(got, want, atol=close, err_msg=f"{total} keys")

"""One new row over caches as long as several chunks of keys, and as short as a part of one, against onnxruntime."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime
import pytest
from machines import opened
from onnx import ModelProto, TensorProto, helper

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.printer import module_text
from occ.runtime.buffers import aligned

RNG = np.random.default_rng(23)
GROUPS, SIZE, ROOM = 2, 64, 16384
LENGTHS = (1, 7, 1023, 1024, 1025, 4099, ROOM)
KINDS = [(TensorProto.FLOAT, 3e-6), (TensorProto.FLOAT16, 4e-3)]
AVX2 = "x86-64-linux-avx-avx2-f16c-fma-sse41"
ZEN4 = f"{AVX2}-avx512-avx512_skylake-avx512_cannonlake-avx512_zen4"


def with_room(kind: int, heads: int, window: int, size: int = SIZE) -> ModelProto:
    """GroupQueryAttention of a batch that writes into its caches; a mask says how many keys there are."""
    value, node, i64 = helper.make_tensor_value_info, helper.make_node, TensorProto.INT64
    nodes = [
        node("Shape", ["mask"], ["size"], start=1, end=2), node("Cast", ["size"], ["length"], to=TensorProto.INT32),
        node("Squeeze", ["length"], ["total"]), node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        node("Sub", ["count", "one"], ["last"]), node("Cast", ["last"], ["lens"], to=TensorProto.INT32),
        node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lens", "total"], ["y", "K", "V"], domain="com.microsoft",
             num_heads=heads, kv_num_heads=GROUPS, local_window_size=window),
    ]  # fmt: skip
    inputs = [value("q", kind, ["N", "S", heads * size]), *(value(x, kind, ["N", "S", GROUPS * size]) for x in "kv")]
    inputs += [*(value(x, kind, ["N", GROUPS, ROOM, size]) for x in ("pk", "pv")), value("mask", i64, ["N", "T"])]
    outputs = [value("y", kind, ["N", "S", heads * size]), *(value(x, kind, ["N", GROUPS, ROOM, size]) for x in "KV")]
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


@pytest.mark.parametrize(
    ("processor", "heads", "size"),
    [("", 8, 128), ("", 14, 64), (AVX2, 8, 64), ("x86-64-linux-sse41", 8, 80)],
)
def test_tiles_of_registers_of_any_processor(processor: str, heads: int, size: int) -> None:
    model = with_room(TensorProto.FLOAT, heads, -1, size)
    options = {"halide.target": processor} if processor else {}
    session = opened(occ.build(model, options=options, dims={"T": f"1..{ROOM}"}), 2)
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    cache = {x: aligned((1, GROUPS, ROOM, size), np.dtype(np.float32)) for x in ("pk", "pv")}
    for array in cache.values():
        array[:] = RNG.normal(size=array.shape)
    widths = {"q": heads, "k": GROUPS, "v": GROUPS}
    for total in (5, 1100):
        feed = {x: RNG.normal(size=(1, 1, n * size)).astype(np.float32) for x, n in widths.items()}
        feed["mask"] = np.ones((1, total), np.int64)
        want = peer.run(["y"], feed | cache)[0]
        got = session.run(feed | cache, {"K": cache["pk"], "V": cache["pv"]})["y"]
        np.testing.assert_allclose(got, want, atol=3e-6)


def scheduled(processor: str, model: ModelProto) -> str:
    settings = Settings("cpu", options={"halide.target": processor, "caches": "growing"})
    return module_text(Compilation(model, settings).advance("scheduled"))


@pytest.mark.parametrize(
    ("processor", "kind", "fetches"),
    [(ZEN4, TensorProto.FLOAT, 0), (ZEN4, TensorProto.FLOAT16, 2), (f"{ZEN4}-avx512_zen5", TensorProto.FLOAT, 2)],
)
def test_rows_are_fetched_that_the_processor_does_not_foresee(processor: str, kind: int, fetches: int) -> None:
    assert scheduled(processor, with_room(kind, 8, -1)).count(".fetch_beyond(") == fetches


def test_rows_are_read_whole_and_one_after_the_other() -> None:
    """A part of each of several rows was read before their rest, which no processor foresees."""
    text = scheduled(ZEN4, with_room(TensorProto.FLOAT, 8, -1, 128))
    (order,) = re.findall(r"dot\.update\.reorder\((.*)\)", text)
    assert [name[0] for name in order.split(", ")[:4]] == ["r", "i", "r", "i"], "all parts of a key, then the next key"
    assert re.search(r"some\.update\.split\(\w+, \w+, \w+, 128\)", text), "all of the value"


@pytest.mark.parametrize(("kind", "heads"), [(TensorProto.FLOAT, 8), (TensorProto.FLOAT, 2), (TensorProto.FLOAT16, 8)])
def test_all_heads_of_a_key_are_read_in_their_order(kind: int, heads: int) -> None:
    """Scores of four keys at once for a head, then for the next one, were slower, no matter what the lines are used for."""
    text = scheduled(ZEN4, growing(kind, heads))
    assert set(re.findall(r"fetch_beyond\(p\d, (\d+), (\d+)\)", text)) == {("4096", "16384"), ("4096", "32768")}
    assert sorted(map(int, re.findall(r"tile\.bound_extent\(\w+, (\d+)\)", text))) == [1, heads]

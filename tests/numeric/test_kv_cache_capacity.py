"""Caches of a fixed size with room for what is to come: batches whose rows have lengths of their own, written in place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
import pytest
from building import model_of
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.interp.graph import Interpreter
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.te.roles import KEYS_OF_CHUNK
from occ.runtime.buffers import aligned
from occ.runtime.errors import RunError

RNG = np.random.default_rng(16)
HEADS, GROUPS, SIZE, ROOM = 6, 2, 32, 150
TARGETS = ["cpu-jit", "cpu"]
SKYLAKE = "x86-64-linux-avx-avx2-f16c-fma-sse41-avx512-avx512_skylake"


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def scatter(mode: str, *, read_twice: bool = False) -> ModelProto:
    """A cache of eight places, and another reader of the past."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], mode=mode)]
    outputs = [value("present", TensorProto.FLOAT, ["N", 2, 8, 4])]
    if read_twice:
        nodes.append(helper.make_node("Neg", ["past"], ["negative"]))
        outputs.append(value("negative", TensorProto.FLOAT, ["N", 2, 8, 4]))
    shapes: Mapping[str, Sequence[int | str]] = {"past": ["N", 2, 8, 4], "new": ["N", 2, "S", 4]}
    inputs = [value(k, TensorProto.FLOAT, v) for k, v in shapes.items()] + [value("at", TensorProto.INT64, ["N"])]
    opsets = [helper.make_opsetid("", 24)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=11)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("mode", "writes"),
    [("linear", [([0, 3, 5], 3), ([7, 1, 0], 1), ([0, 0, 0], 8)]), ("circular", [([6, 3, 7], 3), ([0, 5, 1], 8)])],
)
def test_writes_into_a_cache_where_it_is(target: str, mode: str, writes: Sequence[tuple[list[int], int]]) -> None:
    model = scatter(mode)
    session, reference = occ.compile(model, target), ReferenceEvaluator(model)
    cache = aligned((3, 2, 8, 4), np.dtype(np.float32))
    cache[:] = normal(*cache.shape)
    for at, length in writes:
        feed = {"past": cache, "new": normal(3, 2, length, 4), "at": np.array(at)}
        (want,) = reference.run(None, feed | {"past": cache.copy()})
        before = cache.copy()
        np.testing.assert_array_equal(session.run(feed)["present"], want)
        np.testing.assert_array_equal(cache, before)  # arrays of their own: the past stays
        session.run(feed, {"present": cache})
        np.testing.assert_array_equal(cache, want)


@pytest.mark.parametrize("target", TARGETS)
def test_a_write_outside_of_the_cache_is_an_error(target: str) -> None:
    session = occ.compile(scatter("linear"), target)
    feed = {"past": normal(1, 2, 8, 4), "new": normal(1, 2, 3, 4)}
    for at in (-1, 6):
        with pytest.raises(RunError, match="writes outside of the cache"):
            session.run(feed | {"at": np.array([at])})


def test_a_past_that_is_read_besides_is_not_written_into() -> None:
    made = Compilation(scatter("linear", read_twice=True), Settings("cpu-jit")).artifact()
    assert not any(s.kind == "copy" for s in made.manifest.plan.steps)
    made = Compilation(scatter("linear"), Settings("cpu-jit")).artifact()
    assert next(s.kind for s in made.manifest.plan.steps) == "copy"


def batches(kind: int, bits: int = 0) -> ModelProto:
    """GroupQueryAttention of a batch, as genai's builder has it: lengths are read off a mask of padding on the right."""
    value, code = helper.make_tensor_value_info, TensorProto.INT8 if bits else kind
    node, i32, i64 = helper.make_node, TensorProto.INT32, TensorProto.INT64
    operands = ["q", "k", "v", "pk", "pv", "lens", "total", *(["", "", "", "", "", "ks", "vs"] if bits else [])]
    how = {f"{x}_quant_type": "PER_CHANNEL" for x in "kv"} | {"kv_cache_bit_width": bits} if bits else {}
    nodes = [
        node("Shape", ["mask"], ["size"], start=1, end=2), node("Cast", ["size"], ["length"], to=i32),
        node("Squeeze", ["length"], ["total"]), node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        node("Sub", ["count", "one"], ["last"]), node("Cast", ["last"], ["lens"], to=i32),
        node("GroupQueryAttention", operands, ["y", "nk", "nv"], domain="com.microsoft", num_heads=HEADS,
             kv_num_heads=GROUPS, **how),
    ]  # fmt: skip
    inputs = [value("q", kind, ["N", "S", HEADS * SIZE]), *(value(x, kind, ["N", "S", GROUPS * SIZE]) for x in "kv")]
    inputs += [*(value(x, code, ["N", GROUPS, ROOM, SIZE]) for x in ("pk", "pv")), value("mask", i64, ["N", "T"])]
    inputs += [value(x, TensorProto.FLOAT, [1, GROUPS, 1, SIZE]) for x in ("ks", "vs")] if bits else []
    outputs = [
        value("y", kind, ["N", "S", HEADS * SIZE]),
        *(value(x, code, ["N", GROUPS, ROOM, SIZE]) for x in ("nk", "nv")),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [helper.make_tensor("one", i64, [1], [1])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kind", "bits", "close"),
    [(TensorProto.FLOAT, 0, 3e-6), (TensorProto.FLOAT16, 0, 4e-3), (TensorProto.FLOAT, 8, 3e-6)],
)
def test_rows_of_a_batch_append_where_their_caches_are(target: str, kind: int, bits: int, close: float) -> None:
    model, dtype = batches(kind, bits), helper.tensor_dtype_to_np_dtype(kind)
    session = occ.compile(model, target, dims={"T": f"1..{ROOM}"})
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    cache = {x: aligned((3, GROUPS, ROOM, SIZE), np.dtype(np.int8) if bits else dtype) for x in ("pk", "pv")}
    for array in cache.values():
        array[:] = RNG.integers(-100, 100, array.shape) if bits else normal(*array.shape)
    scales = {x: RNG.uniform(0.01, 0.02, (1, GROUPS, 1, SIZE)).astype(np.float32) for x in ("ks", "vs")} if bits else {}
    lengths = np.zeros(3, np.int64)
    for new in ([70, 41, 5], [1, 1, 1], [1, 1, 1]):  # a prompt with padding, then steps
        lengths += new
        rows, total = max(new), lengths.max()
        feed = {"q": normal(3, rows, HEADS * SIZE), **{x: normal(3, rows, GROUPS * SIZE) for x in "kv"}}
        feed = {k: v.astype(dtype) for k, v in feed.items()} | scales
        feed["mask"] = (np.arange(total) < lengths[:, None]).astype(np.int64)
        before = {k: v.copy() for k, v in cache.items()}
        want = peer.run(None, feed | before)
        got = session.run(feed | cache, {"nk": cache["pk"], "nv": cache["pv"]})
        assert np.shares_memory(got["nk"], cache["pk"])
        for n, (count, end) in enumerate(zip(new, lengths, strict=True)):
            np.testing.assert_allclose(got["y"][n, :count], want[0][n, :count], atol=close)
            for k, theirs in zip(("pk", "pv"), want[1:], strict=True):
                np.testing.assert_array_equal(cache[k][n, :, :end], theirs[n, :, :end])
                written = max(end, rows)  # onnxruntime writes the padding of a prompt too
                np.testing.assert_array_equal(cache[k][n, :, written:], before[k][n, :, written:])


def test_codes_are_read_where_they_are() -> None:
    session = occ.compile(batches(TensorProto.FLOAT, 8), "cpu", dims={"T": f"1..{ROOM}"})
    assert not [b for b in session.artifact.manifest.plan.buffers if ROOM in b.shape and b.dtype != "i8"]


def stepping() -> ModelProto:
    """Attention-24 over caches that TensorScatter writes into, each row with a number of keys of its own."""
    value, node, f32 = helper.make_tensor_value_info, helper.make_node, TensorProto.FLOAT
    nodes = [node("TensorScatter", [f"p{x}", x, "at"], [f"n{x}"]) for x in "kv"]
    nodes += [node("Attention", ["q", "nk", "nv", "", "", "", "count"], ["y"])]
    inputs = [value("q", f32, ["N", HEADS, "S", SIZE]), *(value(x, f32, ["N", GROUPS, "S", SIZE]) for x in "kv")]
    inputs += [value(f"p{x}", f32, ["N", GROUPS, ROOM, SIZE]) for x in "kv"]
    inputs += [value(x, TensorProto.INT64, ["N"]) for x in ("at", "count")]
    outputs = [
        value("y", f32, ["N", HEADS, "S", SIZE]),
        *(value(f"n{x}", f32, ["N", GROUPS, ROOM, SIZE]) for x in "kv"),
    ]
    opsets = [helper.make_opsetid("", 24)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=11)


@pytest.mark.parametrize("target", TARGETS)
def test_attention_over_caches_that_are_written_into(target: str) -> None:
    model = stepping()
    session, reference = occ.compile(model, target), ReferenceEvaluator(model)
    cache = {x: aligned((3, GROUPS, ROOM, SIZE), np.dtype(np.float32)) for x in ("pk", "pv")}
    for array in cache.values():
        array[:] = normal(*array.shape)
    at = np.array([0, 3, 70])
    for rows in (70, 1, 1, 3):
        feed = {"q": normal(3, HEADS, rows, SIZE), **{x: normal(3, GROUPS, rows, SIZE) for x in "kv"}}
        feed |= {"at": at, "count": at + rows}
        want = reference.run(None, feed | {k: v.copy() for k, v in cache.items()})
        got = session.run(feed | cache, {"nk": cache["pk"], "nv": cache["pv"]})
        np.testing.assert_allclose(got["y"], want[0], atol=3e-6)
        for k, theirs in zip(("pk", "pv"), want[1:], strict=True):
            np.testing.assert_array_equal(cache[k], theirs)
        at = at + rows


@pytest.mark.parametrize("features", ["sse41", "avx2", "avx512"])
def test_few_queries_in_vectors_of_any_length(features: str) -> None:
    """Of four lanes the half is two: sums of four read past them."""
    model = model_of("""<ir_version: 11, opset_import: ["" : 24]>
    g (float[n, 2, s, 32] q, float[n, 2, 70, 32] k, float[n, 2, 70, 32] v, int64[n] used) => (float[n, 2, s, 32] y) {
        y = Attention(q, k, v, , , , used)
    }""")
    m = Compilation(model, Settings("cpu", options={"halide.target": f"x86-64-linux-{features}"})).advance("scheduled")
    feeds = {
        "q": normal(3, 2, 1, 32),
        "k": normal(3, 2, 70, 32),
        "v": normal(3, 2, 70, 32),
        "used": np.array([1, 70, 32]),
    }
    (got,) = Interpreter(m).run([feeds[a.name] for a in m.main.args], {})
    np.testing.assert_allclose(got, ReferenceEvaluator(model).run(None, feeds)[0], rtol=1e-4, atol=1e-5)


def test_each_head_of_keys_is_a_task_that_reads_ahead() -> None:
    """Chunks of all heads were tasks, and a chunk in which all keys exist was computed with tests of that."""
    made = Compilation(batches(TensorProto.FLOAT), Settings("cpu", options={"halide.target": SKYLAKE}))
    text = module_text(made.advance("scheduled"))
    task = re.search(r"(\w+)\.fuse\((\w+), \w+, (\w+)\)\n *\1\.fuse\(\3, \w+, (\w+)\)", text)
    assert task, "chunks, heads and rows of the batch are one loop"
    assert f"{task[1]}.parallel({task[4]})" in text
    assert len(re.findall(r"\.fetch_beyond\(p\d, 8192, 32768\)", text)) == 2
    assert text.count("role(attend_chunk)") == 2
    assert re.search(r"tile\.update\.atomic\(\)", text), "scores are sums of the lanes of several registers at once"
    (attention,) = (f for f in made.module.te.values() if any(s.role == KEYS_OF_CHUNK for s in f.stages))
    source = generator(attention)
    assert len(re.findall(r"min\(likely\(", source)) == 2
    assert "likely(attend_values" in source

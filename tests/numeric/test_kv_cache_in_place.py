"""Caches that grow in place: steps of a decoder on one array per cache, against onnx.reference on arrays of their own."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.runtime.buffers import aligned
from occ.runtime.profile import profile

RNG = np.random.default_rng(7)
SIZE = 32


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def attention(heads: int, groups: int, *, empty: bool = False, size: int = SIZE) -> onnx.ModelProto:
    """Attention with a cache as torch exports it: keys and values repeated for the heads that share them."""
    n = helper.make_node
    sizes = {"two": [2], "batch": [0], "length": [2], "G": [groups], "g": [heads // groups], "D": [size], "H": [heads]}
    held = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in sizes.items()]
    held += [numpy_helper.from_array(np.array(v, np.float32), k) for k, v in (("scale", 0.25), ("zero", 0.0))]
    nodes = [
        n("Concat", ["pk", "k"], ["K"], axis=2), n("Concat", ["pv", "v"], ["V"], axis=-2),
        n("Shape", ["K"], ["shape"]), n("Gather", ["shape", "batch"], ["n"]), n("Gather", ["shape", "length"], ["t"]),
        n("Concat", ["n", "G", "g", "t", "D"], ["five"], axis=0), n("Concat", ["n", "H", "t", "D"], ["four"], axis=0),
        n("Unsqueeze", ["K", "two"], ["K5"]), n("Expand", ["K5", "five"], ["Ke"]), n("Reshape", ["Ke", "four"], ["Kh"]),
        n("Transpose", ["Kh"], ["Kt"], perm=[0, 1, 3, 2]),
        n("Unsqueeze", ["V", "two"], ["V5"]), n("Expand", ["V5", "five"], ["Ve"]), n("Reshape", ["Ve", "four"], ["Vh"]),
        n("MatMul", ["q", "Kt"], ["raw"]), n("Mul", ["raw", "scale"], ["scaled"]), n("Add", ["scaled", "mask"], ["scores"]),
        n("Softmax", ["scores"], ["p"], axis=-1),
    ]  # fmt: skip
    if empty:  # rows without keys, as torch exports them
        nodes += [n("IsNaN", ["p"], ["nan"]), n("Where", ["nan", "zero", "p"], ["w"])]
    nodes.append(n("MatMul", ["w" if empty else "p", "Vh"], ["y"]))
    inputs = [floats("q", "B", heads, "S", size), *(floats(x, "B", groups, "S", size) for x in "kv")]
    inputs += [*(floats(f"p{x}", "B", groups, "P", size) for x in "kv"), floats("mask", "B", 1, "S", "T")]
    outputs = [floats("y", "B", heads, "S", size), *(floats(x, "B", groups, "T", size) for x in "KV")]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (3, 3), (12, 6)])
def test_steps_append_to_one_array(target: str, heads: int, groups: int) -> None:
    made = attention(heads, groups)
    session, reference = occ.compile(made, target, options={"caches": "growing"}), ReferenceEvaluator(made)
    for batch in (1, 2):
        cache = {x: aligned((300, batch, groups, SIZE), np.dtype(np.float32)) for x in "KV"}
        for array in cache.values():
            array[:] = np.nan  # positions after the end are never read
        past = 0
        for new in (5, 1, 1, 3, 4, 70, 1, 2, 140, 1):
            given = {"q": normal(batch, heads, new, SIZE), "mask": normal(batch, 1, new, past + new)}
            given |= {x: normal(batch, groups, new, SIZE) for x in "kv"}
            old = {f"p{x.lower()}": cache[x][:past] for x in "KV"}
            want = reference.run(None, {**given, **{k: v.transpose(1, 2, 0, 3).copy() for k, v in old.items()}})
            got = session.run({**given, **old}, {x: cache[x][: past + new] for x in "KV"})
            past += new
            np.testing.assert_allclose(got["y"], want[0], atol=3e-6)
            for x, whole in zip("KV", want[1:], strict=True):
                np.testing.assert_array_equal(cache[x][:past].transpose(1, 2, 0, 3), whole)
                assert np.isnan(cache[x][past:]).all()


def test_arrays_apart_give_the_same() -> None:
    made = attention(4, 2)
    session = occ.compile(made, "cpu", options={"caches": "growing"})
    given = {"q": normal(1, 4, 1, SIZE), "mask": normal(1, 1, 1, 10)} | {x: normal(1, 2, 1, SIZE) for x in "kv"}
    old = {x: normal(1, 2, 9, SIZE) for x in ("pk", "pv")}
    want = ReferenceEvaluator(made).run(None, given | old)
    got = session.run(given | {k: v.transpose(2, 0, 1, 3).copy() for k, v in old.items()})
    np.testing.assert_allclose(got["y"], want[0], atol=3e-6)
    np.testing.assert_array_equal(got["K"].transpose(1, 2, 0, 3), want[1])


def test_an_append_moves_nothing_that_is_there() -> None:
    session = occ.compile(attention(4, 2), "cpu", options={"caches": "growing"})
    cache = {x: aligned((8, 1, 2, SIZE), np.dtype(np.float32)) for x in "KV"}
    steps = [s for s in session.artifact.manifest.plan.steps if s.kind == "copy"]
    assert len(steps) == 2  # of the past, where it is not in its place yet
    given = {"q": normal(1, 4, 1, SIZE), "mask": normal(1, 1, 1, 8)} | {x: normal(1, 2, 1, SIZE) for x in "kv"}
    got = session.run(given | {f"p{x.lower()}": cache[x][:7] for x in "KV"}, {x: cache[x] for x in "KV"})
    assert all(np.shares_memory(got[x], cache[x]) for x in "KV")


def halves(heads: int, groups: int, size: int) -> onnx.ModelProto:
    """Attention of opset 23 with a cache, all in f16."""

    def half(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)

    node = helper.make_node(
        "Attention",
        ["q", "k", "v", "", "pk", "pv"],
        ["y", "K", "V"],
        q_num_heads=heads,
        kv_num_heads=groups,
        is_causal=1,
    )
    inputs = [half("q", 1, "S", heads * size), *(half(x, 1, "S", groups * size) for x in "kv")]
    inputs += [half(x, 1, groups, "P", size) for x in ("pk", "pv")]
    outputs = [half("y", 1, "S", heads * size), *(half(x, 1, groups, "T", size) for x in "KV")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention in f64 of `q[S, H, D]` over `k, v[T, G, D]`, the last S of which are new."""
    new, heads, size = q.shape
    keys, values = (x.astype(np.float64).repeat(heads // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("shd,thd->hst", q.astype(np.float64), keys) / np.sqrt(size)
    scores += np.where(np.tri(new, len(k), len(k) - new) > 0, 0, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hst,thd->shd", e / e.sum(-1, keepdims=True), values)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize(("heads", "groups", "size"), [(8, 2, 64), (5, 5, 24)])
def test_caches_of_halves(target: str, heads: int, groups: int, size: int) -> None:
    made = halves(heads, groups, size)
    session = occ.compile(made, target, options={"caches": "growing"})
    peer = onnxruntime.InferenceSession(made.SerializeToString())
    cache = {x: aligned((210, 1, groups, size), np.dtype(np.float16)) for x in "KV"}
    for array in cache.values():
        array[:] = np.nan
    past = 0
    for new in (2, 1, 63, 4, 1, 70, 1):
        total = past + new
        given = {"q": normal(1, new, heads * size), **{x: normal(1, new, groups * size) for x in "kv"}}
        feed: dict[str, np.ndarray] = {k: v.astype(np.float16) for k, v in given.items()}
        old = {f"p{x.lower()}": cache[x][:past] for x in "KV"}
        theirs = peer.run(["y"], {**feed, **{k: v.transpose(1, 2, 0, 3).copy() for k, v in old.items()}})[0]
        got = session.run({**feed, **old}, {x: cache[x][:total] for x in "KV"})["y"].astype(np.float64)
        past = total
        want = attended(feed["q"].reshape(new, heads, size), cache["K"][:past, 0], cache["V"][:past, 0])
        # scores are rounded to f16, as the operator's MatMul rounds them: half an ulp of 4 is 2e-3
        assert np.abs(got.reshape(want.shape) - want).max() <= 4e-3
        assert np.abs(got - theirs).max() <= 4e-3
        assert all(np.isnan(array[past:]).all() for array in cache.values())


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_rows_without_keys_are_zero_for_few_queries_too(rows: int) -> None:
    made = attention(4, 2, empty=True)
    given = {"q": normal(1, 4, rows, SIZE), "mask": normal(1, 1, rows, rows + 70)}
    given |= {x: normal(1, 2, rows, SIZE) for x in "kv"} | {f"p{x}": normal(1, 2, 70, SIZE) for x in "kv"}
    given["mask"][:, :, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        want = ReferenceEvaluator(made).run(["y"], given)[0]
    assert (want[:, :, 0] == 0).all()
    np.testing.assert_allclose(occ.compile(made, "cpu").run(given)["y"], want, atol=3e-6)


@pytest.mark.thinned
@pytest.mark.parametrize(("heads", "groups", "size"), [(5, 1, 80), (4, 4, 72), (2, 1, 20), (32, 8, 64)])
def test_heads_of_any_size_are_read_to_their_end(heads: int, groups: int, size: int) -> None:
    made = attention(heads, groups, size=size)
    session, reference = occ.compile(made, "cpu", options={"caches": "growing"}), ReferenceEvaluator(made)
    cache = {x: aligned((131, 1, groups, size), np.dtype(np.float32)) for x in "KV"}
    for array in cache.values():
        array[:] = np.nan
    past = 0
    for new in (1, 63, 1, 64, 1):  # the last chunk of keys whole, and not
        given = {"q": normal(1, heads, new, size), "mask": normal(1, 1, new, past + new)}
        given |= {x: normal(1, groups, new, size) for x in "kv"}
        old = {f"p{x.lower()}": cache[x][:past] for x in "KV"}
        want = reference.run(["y"], {**given, **{k: v.transpose(1, 2, 0, 3).copy() for k, v in old.items()}})[0]
        got = session.run({**given, **old}, {x: cache[x][: past + new] for x in "KV"})["y"]
        past += new
        np.testing.assert_allclose(got, want, atol=3e-6)


def test_a_run_with_a_cache_can_be_profiled() -> None:
    session = occ.compile(attention(4, 2), "cpu", options={"caches": "growing"})
    given = {"q": normal(1, 4, 1, SIZE), "mask": normal(1, 1, 1, 10)} | {x: normal(1, 2, 1, SIZE) for x in "kv"}
    whole = {x: aligned((10, 1, 2, SIZE), np.dtype(np.float32)) for x in ("pk", "pv")}
    for a in whole.values():
        a[:] = normal(*a.shape)
    made = profile(session, given | {k: v[:9] for k, v in whole.items()})
    assert "attention" in made.table()


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("empty", [False, True])
def test_keys_that_a_mask_hides_have_no_weight(target: str, empty: bool) -> None:
    made, keys = attention(6, 2, empty=empty), 700
    session = occ.compile(made, target, options={"caches": "growing"})
    given = {"q": normal(1, 6, 3, SIZE), "mask": normal(1, 1, 3, keys)} | {x: normal(1, 2, 3, SIZE) for x in "kv"}
    given["mask"][..., 0, : keys - 5] = -np.inf  # all but a few of the last, as in a window
    given["mask"][..., 1, 5:] = -np.inf
    given["mask"][..., 2, :] = -np.inf
    old = {x: normal(1, 2, keys - 3, SIZE) for x in ("pk", "pv")}
    with np.errstate(invalid="ignore"):
        want = ReferenceEvaluator(made).run(["y"], given | old)[0]
    got = session.run(given | {k: v.transpose(2, 0, 1, 3).copy() for k, v in old.items()})["y"]
    np.testing.assert_allclose(got, want, atol=3e-6)
    assert (got[..., 2, :] == 0).all() if empty else np.isnan(got[..., 2, :]).all()

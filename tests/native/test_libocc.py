"""libocc: what it reports, runs and rejects; results are those of onnxruntime, texts name node and reason."""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import mlp, model_of, reference
from c_library import (
    CAPACITY,
    OK,
    ROOT,
    RUN,
    Failed,
    Model,
    Tensor,
    library,
    two_tensors,
)

from occ.compiler.native_entry.model_metadata import DTYPES

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(0)

# Models that libocc can run, with inputs.
CASES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "symbols": (
        "g (float[n, 8] x, float[m, 8] v) => (float[n, m] y, float[k, 8] c) { t = Transpose <perm = [1, 0]> (v) "
        "y = MatMul(x, t) c = Concat <axis = 0> (x, v) }",
        {"x": RNG.random((3, 8), np.float32), "v": RNG.random((5, 8), np.float32)},
    ),
    "empty": (
        "g (float[n, 8] x) => (float[n, 8] y, float s) { y = Exp(x) s = ReduceSum <keepdims = 0> (x) }",
        {"x": np.zeros((0, 8), np.float32)},
    ),
    "scalar": ("g (float x) => (float y) { y = Exp(x) }", {"x": np.array(2, np.float32)}),
    "no kernels": ("g (float[n] x) => (float[n] y) { y = Identity(x) }", {"x": np.arange(5, dtype=np.float32)}),
    "no inputs": ("g () => (int64[3] y) { y = Constant <value = int64[3] {1, 2, 3}> () }", {}),
    "types": (
        "g (bool[n] c, int64[n] a, int64[n] b, uint8[n] u, double[n] d) => (int64[n] y, float16[n] h, int32[n] i) "
        "{ y = Where(c, a, b) h = Cast <to = 10> (d) i = Cast <to = 6> (u) }",
        {
            "c": np.array([True, False, True]), "a": np.arange(3), "b": -np.arange(3),
            "u": np.array([1, 200, 255], np.uint8), "d": np.array([0.5, 1e3, -2.25]),
        },
    ),
    "branch": (
        """g (float[n, 4] x, bool c) => (float[n, 4] y) { y = If (c) <
            then_branch = t () => (float[n, 4] p) { p = Relu(x) }, else_branch = e () => (float[n, 4] p) { p = Neg(x) }> }""",
        {"x": RNG.standard_normal((3, 4), np.float32), "c": np.array(False)},
    ),
    "loop": (
        """g (float[n, 4] x, int64 m) => (float[n, 4] y) { y = Loop (m, , x) <body = b (int64 i, bool c, float[n, 4] p)
            => (bool d, float[n, 4] q) { d = Identity (c) f = Cast <to = 1> (i) q = Add (p, f) }> }""",
        {"x": RNG.standard_normal((3, 4), np.float32), "m": np.array(5)},
    ),
    "rank": ("g (float[n, 1] x) => (float[u] y) { e = Exp(x) y = Squeeze (e) }", {"x": np.ones((1, 1), np.float32)}),
    "other rank": ("g (float[n, 1] x) => (float[u] y) { e = Exp(x) y = Squeeze (e) }", {"x": np.ones((3, 1), np.float32)}),
    "non-zero": (
        "g (float[n, m] x) => (int64[2, k] y, float[k] z) { y = NonZero (x) t = Transpose (y) g = GatherND (x, t) z = Exp (g) }",
        {"x": np.array([[0, 1, 2], [0, 0, 3]], np.float32)},
    ),
    "a loop that data end": (
        """g (float[b] s, float limit) => (float[b] last, float[u] sums) {
            yes = Constant <value = bool {1}> ()
            most = Constant <value = int64 {20}> ()
            last, sums = Loop (most, yes, s) <body = step (int64 i, bool going, float[b] p) => (bool more, float[b] q, float v) {
                f = Cast <to = 1> (i) q = Add(p, f) v = ReduceSum <keepdims = 0> (q) more = Less (v, limit) }> }""",
        {"s": np.zeros(3, np.float32), "limit": np.array(20, np.float32)},
    ),
    "all zero": ("g (float[n, m] x) => (int64[2, k] y) { y = NonZero (x) }", {"x": np.zeros((2, 3), np.float32)}),
    "counted loop": (
        """g (float[n, 4] x) => (float[k, 4] y) { s = Shape <start = 0, end = 1> (x) z = Sub (s, s) e = Constant <value = int64[0] {}> ()
            m = Reshape (s, e) o = Reshape (z, e) last, y = Loop (m, , o) <body = b (int64 i, bool c, int64 p)
            => (bool d, int64 q, float[4] row) { d = Identity (c) q = Identity (i) r = Gather (x, i) row = Exp (r) }> }""",
        {"x": RNG.standard_normal((3, 4), np.float32)},
    ),
    "results that nothing bounds": (
        """g (float[n] x, int64 m) => (float[n] y, float[k, n] all, int8[k] signs, float[n] sums) {
            axis = Constant <value_ints = [0]> ()
            y, all, signs = Loop (m, , x) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] r, int8 s) {
                d = Identity (c) w = Sin (v) r = Neg (w) t = ReduceSum <keepdims = 0> (w) u = Sign (t) s = Cast <to = 3> (u) }>
            sums = ReduceSum <keepdims = 0> (all, axis) }""",
        {"x": RNG.standard_normal(5, np.float32), "m": np.array(70)},
    ),
    "expanded by data": (
        "g (float[n, 1] x, int64[2] s) => (float[p, q] y) { e = Expand (x, s) y = Exp (e) }",
        {"x": RNG.standard_normal((3, 1), np.float32), "s": np.array([3, 41])},
    ),
    "a range of the data": (
        "g (int64 a, int64 b) => (int64[k] y) { one = Constant <value_int = 1> () r = Range (a, b, one) y = Neg (r) }",
        {"a": np.array(-3), "b": np.array(400)},
    ),
    "reshaped by data": (
        "g (float[n, 6] x, int64[3] s) => (float[p, q, r] y) { e = Exp (x) y = Reshape (e, s) }",
        {"x": RNG.standard_normal((4, 6), np.float32), "s": np.array([2, -1, 3])},
    ),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_onnxruntime(case: str, target: str, built: Any):
    text, feed = CASES[case]
    model = model_of(text)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with Model(built(model, target)) as m:
        for _ in range(2):
            for want, got in zip(wanted, m.run(*feed.values()), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, strict=True)


def test_every_way_to_open_gives_the_same(built: Any):
    model, x = mlp(), RNG.random((3, 8), np.float32)
    path, want = built(model), reference(mlp(), {"x": x})[0]
    data = path.read_bytes()
    shifted = b"." + data  # weights that are not aligned are copied
    for source in (path, built(model, as_folder=True), data, shifted[1:]):
        with Model(source) as m:
            assert library().occ_verify(m.address) == OK
            np.testing.assert_allclose(m.run(x)[0], want, rtol=1e-5)
    handle = ctypes.c_void_p()
    with open(path, "rb") as f:
        assert library().occ_open_fd(f.fileno(), ctypes.byref(handle)) == OK
    library().occ_close(handle)  # the descriptor is closed, and the weights are still mapped


def test_weights_in_memory_may_lie_anywhere(built: Any):
    data, x = built(mlp()).read_bytes(), RNG.random((3, 8), np.float32)
    for offset in (0, 1, 63):
        raw = ctypes.create_string_buffer(len(data) + 64)
        ctypes.memmove(ctypes.addressof(raw) + offset, data, len(data))
        handle = ctypes.c_void_p()
        assert library().occ_open_memory(ctypes.addressof(raw) + offset, len(data), ctypes.byref(handle)) == OK
        inputs, outputs = (Tensor * 1)(Tensor.of(x)), (Tensor * 1)()
        assert library().occ_run(handle, inputs, 1, outputs, 1) == OK
        np.testing.assert_allclose(outputs[0].array(), reference(mlp(), {"x": x})[0], rtol=1e-5)
        library().occ_free(outputs)
        library().occ_close(handle)


def test_ports_have_names_types_and_extents(built: Any):
    model = model_of(
        "g (float[n, 8] x, bool[2, n] c) => (float[k] y, bool[2, n] d) { r = Reshape(x, s) y = Concat <axis = 0> (r, o) "
        "d = Not(c) }",
        {"s": np.array([-1]), "o": np.ones(1, np.float32)},
    )
    with Model(built(model)) as m:
        dll = library()
        assert (dll.occ_inputs(m.address), dll.occ_outputs(m.address)) == (2, 2)
        seen = []
        for find in (dll.occ_input, dll.occ_output):
            assert not find(m.address, 2)
            for k in range(2):
                p = find(m.address, k).contents
                extents = [(p.extents[a], p.symbols[a]) for a in range(p.rank)]
                seen.append((p.name.decode(), DTYPES[p.dtype - 1], extents))
        assert seen == [
            ("x", "f32", [(-1, b"n"), (8, None)]),
            ("c", "bool", [(2, None), (-1, b"n")]),
            ("y", "f32", [(-1, b"8*n + 1")]),
            ("d", "bool", [(2, None), (-1, b"n")]),
        ]


# outputs


@pytest.mark.parametrize("offset", [0, 4])
def test_outputs_in_memory_of_the_caller(offset: int, built: Any):
    x, want = np.ones((3, 8), np.float32), None
    with Model(built(mlp())) as m:
        (want,) = m.run(x)
        raw = np.full(4096, 7, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        inputs, outputs = two_tensors(x)
        assert library().occ_output_extents(m.address, inputs, 1, outputs, 1) == OK
        assert (outputs[0].bytes, list(outputs[0].extents[:2])) == (48, [3, 4])
        outputs[0].data = raw.ctypes.data + start
        for _ in range(2):
            assert library().occ_run(m.address, inputs, 1, outputs, 1) == OK
        np.testing.assert_array_equal(raw[start : start + 48].view(np.float32).reshape(3, 4), want)
        assert (raw[:start] == 7).all()
        assert (raw[start + 48 :] == 7).all()
        library().occ_free(outputs)
        assert outputs[0].data, "memory of the caller stays"
        outputs[0].bytes = 47
        with pytest.raises(Failed, match=r"output `y` needs 48 bytes, there are 47") as caught:
            m.check(library().occ_run(m.address, inputs, 1, outputs, 1))
        assert caught.value.code == CAPACITY


def test_memory_of_outputs_is_used_again_and_grows(built: Any):
    with Model(built(mlp())) as m:
        inputs, outputs = two_tensors(np.ones((3, 8), np.float32))
        places = []
        for n in (3, 2, 3, 500):
            x = np.ones((n, 8), np.float32)
            inputs[0] = Tensor.of(x)
            assert library().occ_run(m.address, inputs, 1, outputs, 1) == OK
            assert outputs[0].array().shape == (n, 4)
            places.append(outputs[0].data)
        assert len(set(places[:3])) == 1
        library().occ_free(outputs)
        assert not outputs[0].data


def test_outputs_that_nothing_bounds_in_memory_of_the_caller(built: Any):
    text, feed = CASES["results that nothing bounds"]
    model = model_of(text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    raw = np.full(1 << 16, 7, np.uint8)
    with Model(built(model)) as m:
        for trips, offset, size in ((70, 0, 1400), (70, 4, 1400), (1, 0, 20), (3, 0, 4096), (9, 4, 4096)):
            x, count = feed["x"], np.array(trips)
            inputs, outputs = (Tensor * 2)(Tensor.of(x), Tensor.of(count)), (Tensor * 4)()
            assert library().occ_output_extents(m.address, inputs, 2, outputs, 4) == OK
            assert [(list(t.extents[: t.rank]), t.bytes, t.by_data) for t in outputs] == [
                ([5], 20, 0), ([-1, 5], 0, 1), ([-1], 0, 1), ([5], 20, 0),
            ]  # fmt: skip
            start = -raw.ctypes.data % 64 + offset
            outputs[1].data, outputs[1].bytes = raw.ctypes.data + start, size
            assert library().occ_run(m.address, inputs, 2, outputs, 4) == OK
            for t, want in zip(outputs, session.run(None, {"x": x, "m": count}), strict=True):
                np.testing.assert_allclose(t.array(), want, rtol=1e-5, atol=1e-6, strict=True)
            assert outputs[1].data == raw.ctypes.data + start
            assert (raw[start + size :] == 7).all()
            raw[:] = 7
            for k in range(4):
                library().occ_free(ctypes.byref(outputs[k]))
        count = np.array(71)
        inputs[1], outputs[1].data, outputs[1].bytes = Tensor.of(count), raw.ctypes.data, 1400
        with pytest.raises(Failed, match=r"output `all` needs 1420 bytes, there are 1400") as caught:
            m.check(library().occ_run(m.address, inputs, 2, outputs, 4))
        assert caught.value.code == CAPACITY
        assert (raw == 7).all()
        for k in range(4):
            library().occ_free(ctypes.byref(outputs[k]))


# threads


def test_many_threads_with_one_model(built: Any):
    feeds = [RNG.standard_normal((n, 8), np.float32) for n in (1, 300, 17, 64, 5)]
    wanted = [reference(mlp(), {"x": x})[0] for x in feeds]
    for target in ("cpu", "cpu-jit"):
        with Model(built(mlp(), target)) as m:

            def work(k: int, m: Model = m) -> None:
                for i in range(40):
                    (got,) = m.run(feeds[(k + i) % 5])
                    np.testing.assert_allclose(got, wanted[(k + i) % 5], rtol=1e-4, atol=1e-5)

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(work, range(8)))


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_a_parallel_loop_of_the_caller(target: str, built: Any):
    task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    loop = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, task, ctypes.c_void_p, ctypes.c_int)
    done: list[tuple[int | None, int]] = []

    def backwards(context: int | None, run: Any, closure: int, count: int) -> int:
        for k in reversed(range(count)):
            assert run(closure, k) == 0
            done.append((context, k))
        return 0

    mine = loop(backwards)
    model = model_of("g (float[64, 4096] x) => (float[64, 4096] y) { y = Exp(x) }")
    x = RNG.random((64, 4096), np.float32)
    with Model(built(model, target)) as m:
        assert library().occ_set_threads(m.address, 4) == OK
        assert library().occ_set_parallel(m.address, ctypes.cast(mine, ctypes.c_void_p), 77) == OK
        np.testing.assert_allclose(m.run(x)[0], np.exp(x), rtol=1e-5)
        assert len(done) > 1
        assert done[0][0] == 77
        seen = len(done)
        library().occ_set_parallel(m.address, None, None)
        m.run(x)
        assert len(done) == seen


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize(
    ("result", "error"), [(0, "ended before all its tasks had run"), (7, "returned 7")], ids=["lost", "failed"]
)
def test_a_parallel_loop_of_the_caller_that_fails(target: str, result: int, error: str, built: Any):
    """A callback that is lost on its way, as ctypes loses those that raise, returns 0."""
    loop = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    mine = loop(lambda *_: result)
    model = model_of("g (float[64, 4096] x) => (float[64, 4096] y) { y = Exp (x) }")
    x = RNG.random((64, 4096), np.float32)
    with Model(built(model, target)) as m:
        assert library().occ_set_threads(m.address, 4) == OK
        assert library().occ_set_parallel(m.address, ctypes.cast(mine, ctypes.c_void_p), None) == OK
        with pytest.raises(Failed, match=f"the parallel loop of the caller {error}") as caught:
            m.run(x)
        assert caught.value.code == RUN
        library().occ_set_parallel(m.address, None, None)
        np.testing.assert_allclose(m.run(x)[0], np.exp(x), rtol=1e-5)


# what is written twice


def test_the_header_of_the_entry_is_that_of_the_page():
    page = (ROOT / "docs/native.md").read_text()
    assert page.split("```c\n", 1)[1].split("```", 1)[0] == (ROOT / "runtime/c/call.h").read_text()


def test_the_element_types_are_those_of_the_header():
    text = (ROOT / "runtime/c/occ.h").read_text()
    listed = re.search(r"OCC_ANY = 0,(.*?)}", text, re.DOTALL)
    assert listed is not None
    assert tuple(n.strip().removeprefix("OCC_").lower() for n in listed[1].split(",")) == DTYPES

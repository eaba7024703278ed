"""The native entry agrees with the interpreter, also in its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import mlp, model_of, reference

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.native_entry.read_routines import host_steps
from occ.runtime.artifact import Artifact

RNG = np.random.default_rng(0)

BRANCHES = """g (float[n, 4] x, bool c) => (float[n, 4] y, float[n] z) {
    y, a = If (c) <then_branch = t () => (float[n, 4] p, float[n, 4] q) { p = Relu(x)  q = Identity(x) },
                   else_branch = e () => (float[n, 4] p, float[n, 4] q) { s = Exp(x)  p = Neg(s)  q = Softmax(x) }>
    one = Constant <value = int64[1] {1}> ()
    z = ReduceSum <keepdims = 0> (a, one)
}"""
SUMS = """g (float[b, 3] s, float[t, b, 3] x, float[3] k) => (float[b, 3] last, float[t, b, 3] all, float[t, b] first) {{
    last, all, first = Scan <num_scan_inputs = 1, scan_input_directions = [{0}], scan_output_directions = [{1}, 0],
        body = step (float[b, 3] before, float[b, 3] now) => (float[b, 3] after, float[b, 3] out, float[b] mean) {{
            w = Mul(before, k)
            after = Add(w, now)
            out = Tanh(after)
            mean = ReduceMean <axes = [1], keepdims = 0> (now)
        }}> (s, x)
}}"""
WHILE = """g (float[b, 3] s, float[t, b, 3] x) => (float[b, 3] last, float[u, b, 3] all, int64 count) {
    zero = Constant <value = int64 {0}> ()
    shape = Shape (x)
    n = Gather (shape, zero)
    c = Less (zero, n)
    count, last, all = Loop (, c, zero, s) <body = step (int64 i, bool going, int64 k, float[b, 3] before)
        => (bool more, int64 next, float[b, 3] after, float[b, 3] out) {
            one = Constant <value = int64 {1}> ()
            next = Add (k, one)
            now = Gather (x, k)
            after = Add(before, now)
            out = Tanh(after)
            more = Less (next, n)
        }>
}"""
UNTIL = """g (float[b, 3] s, float limit, int64 most) => (float[b, 3] last, float sum) {
    yes = Constant <value = bool {1}> ()
    start = ReduceSum <keepdims = 0> (s)
    last, sum = Loop (most, yes, s, start) <body = step (int64 i, bool going, float[b, 3] before, float old)
        => (bool more, float[b, 3] after, float new) {
            f = Cast <to = 1> (i)
            after = Add(before, f)
            new = ReduceSum <keepdims = 0> (after)
            more = Less (new, limit)
        }>
}"""
GATHERED = """g (float[b] s, float limit) => (float[b] last, float[u, b] all, float[u] sums, float total) {
    yes = Constant <value = bool {1}> ()
    most = Constant <value = int64 {20}> ()
    last, all, z = Loop (most, yes, s) <body = step (int64 i, bool going, float[b] before)
        => (bool more, float[b] after, float[b] out, float v) {
            f = Cast <to = 1> (i)
            after = Add(before, f)
            out = Tanh(after)
            v = ReduceSum <keepdims = 0> (after)
            more = Less (v, limit)
        }>
    sums = Exp(z)
    total = ReduceSum <keepdims = 0> (sums)
}"""
CHAIN = """g (float[n, 8] x, float[m, 8] v) => (float[n, m] y, float[n, 8] z, float[n, 8] w) {
    a = Relu(x)
    b = Softmax(a)
    e = Exp(b)
    vt = Transpose <perm = [1, 0]> (v)
    y = MatMul(e, vt)
    z = LogSoftmax(e)
    w = Identity(x)
}"""


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def scan(back: int, out_back: int, *, t: int, b: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    model = model_of(SUMS.format(back, out_back), opset=16)
    return model, {"s": f32(b, 3), "x": f32(t, b, 3), "k": f32(3)}


def until(limit: float, most: int, b: int = 2) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    feed = {"s": f32(b, 3), "limit": np.array(limit, np.float32), "most": np.array(most)}
    return model_of(UNTIL, opset=16), feed


def while_(t: int, b: int = 2) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    return model_of(WHILE, opset=16), {"s": f32(b, 3), "x": f32(t, b, 3)}


KINDS = {
    "float": np.float32,
    "float16": np.float16,
    "double": np.float64,
    "int8": np.int8,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
}
FOUND = """g (float[n, m] x) => (float[k] y, float[k, 2] z, float s) {
    r = Relu(x)
    i = NonZero(r)
    t = Transpose <perm = [1, 0]> (i)
    g = GatherND(x, t)
    y = Exp(g)
    f = Cast <to = 1> (t)
    z = Neg(f)
    s = ReduceSum <keepdims = 0> (y)
}"""
KEPT = """g (float[n, m] x, bool[p] c) => (float[n, k] y) {{ r = Relu(x)  z = Compress <{0}> (r, c)  y = Exp(z) }}"""
LONGER = """g (float[n, m] x, bool c) => (float[k, m] y) {
    z = If (c) <then_branch = t () => (float[n, m] p) { p = Relu (x) },
                else_branch = e () => (float[u, m] q) { q = Concat <axis = 0> (x, x) }>
    y = Exp(z)
}"""


def found(x: np.ndarray) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    return model_of(FOUND), {"x": x}


def kept(
    c: list[bool], axis: str = "axis = 1", n: int = 3, m: int = 5
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    text = KEPT.format(axis) if axis else KEPT.replace("[n, k]", "[k]").replace("<{0}>", "").format()
    return model_of(text), {"x": f32(n, m), "c": np.array(c, np.bool_)}


def non_zero(kind: str, x: np.ndarray) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    shape = ", ".join("abcd"[: x.ndim])
    model = model_of(f"g ({kind}{f'[{shape}]' if x.ndim else ''} x) => (int64[r, k] y) {{ y = NonZero(x) }}")
    return model, {"x": x}


SOME = np.array([[[0, 1, 2], [-0.0, 0, 3]], [[0, 0, 0], [4, 0, 0]]])
CASES: dict[str, tuple[onnx.ModelProto, dict[str, np.ndarray]]] = {
    "mlp": (mlp(), {"x": f32(5, 8)}),
    "mlp-empty": (mlp(), {"x": f32(0, 8)}),
    "chain": (model_of(CHAIN), {"x": f32(7, 8), "v": f32(3, 8)}),
    "chain-empty-side": (model_of(CHAIN), {"x": f32(7, 8), "v": f32(0, 8)}),
    "then": (model_of(BRANCHES), {"x": f32(3, 4), "c": np.array(True)}),
    "else": (model_of(BRANCHES), {"x": f32(3, 4), "c": np.array(False)}),
    "else-empty": (model_of(BRANCHES), {"x": f32(0, 4), "c": np.array(False)}),
    "scan": scan(0, 0, t=4, b=2),
    "scan-odd": scan(0, 0, t=5, b=2),
    "scan-once": scan(1, 1, t=1, b=2),
    "scan-never": scan(0, 0, t=0, b=2),
    "scan-backwards": scan(1, 0, t=6, b=1),
    "scan-outputs-backwards": scan(0, 1, t=3, b=4),
    "while": while_(5),
    **{f"non-zero-{kind}": non_zero(kind, SOME.astype(dtype)) for kind, dtype in KINDS.items()},
    "non-zero-nan": non_zero("float", np.array([np.nan, 0, -0.0, np.inf], np.float32)),
    "non-zero-scalar": non_zero("float", np.array(2, np.float32)),
    **{
        f"gathered-{limit}-{b}": (
            model_of(GATHERED, opset=16),
            {"s": f32(b) * 0.1, "limit": np.array(limit, np.float32)},
        )
        for limit in (-5, 5, 1000)
        for b in (0, 2)
    },
    "found": found(f32(3, 5)),
    "found-none": found(np.zeros((3, 5), np.float32)),
    "found-all": found(np.ones((30, 50), np.float32)),
    "found-empty": found(f32(0, 5)),
    "kept": kept([True, False, True]),
    "kept-none": kept([False] * 5),
    "kept-rows": kept([False, True, True], "axis = -2"),
    "kept-flat": kept([True, False, True, True], ""),
    "kept-empty": kept([True, False], n=0),
    "longer": (model_of(LONGER, opset=18), {"x": f32(3, 5), "c": np.array(False)}),
    "not longer": (model_of(LONGER, opset=18), {"x": f32(3, 5), "c": np.array(True)}),
    "while-once": while_(1),
    "while-empty": while_(3, b=0),
    "until": until(50.0, 100),
    "until-limit": until(50.0, 2),
    "until-never": until(50.0, 0),
    "until-negative": until(50.0, -3),
    "until-empty": until(50.0, 5, b=0),
}


def both(model: onnx.ModelProto, target: str) -> list[Any]:
    return [occ.compile(model, target, threads=2), occ.compile(model, "interp")]


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_native_entry_gives_what_the_interpreter_gives(case: str, target: str):
    model, feed = CASES[case]
    native, interpreter = both(model, target)
    got, again, want = native.run(feed), native.run(feed), interpreter.run(feed)
    assert list(got) == list(want)
    for name in want:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6, strict=True)
        np.testing.assert_array_equal(again[name], got[name], strict=True)
    if case == "scan-never":  # which onnxruntime refuses
        expected = [feed["s"], np.zeros((0, 2, 3)), np.zeros((0, 2))]
    elif case.startswith("non-zero") and feed["x"].ndim:  # onnxruntime does not have all element types
        expected = reference(model, feed)
    else:
        peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = peer.run(None, feed)
    for x, y in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, Mapping[str, Any]] = {
    "rank": {"x": f32(8)},
    "extent": {"x": f32(2, 7)},
    "dtype": {"x": f32(2, 8).astype(np.float64)},
    "missing": {},
    "unknown": {"x": f32(2, 8), "other": f32(1)},
    "no array": {"x": "text"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_inputs_are_explained_alike(case: str):
    sessions = both(mlp(), "cpu-jit")
    texts = []
    for session in sessions:
        session.run({"x": f32(2, 8)})
        with pytest.raises(occ.RunError) as caught:
            session.run(REFUSED[case])
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


FAILING: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "check after a size": (
        "g (float[4] x, int64[n] i) => (float[k] y) { z = NonZero(i) s = Shape(z) [culprit] g = Gather(x, s) c = Cast <to = 1> (z)"
        " q = ReduceSum <keepdims = 0> (g) r = Reshape(c, flat) y = Add(r, q) }",
        {"x": f32(4), "i": np.arange(9)},
    ),
    "check": (
        "g (float[4] x, int64[n] i) => (float[n] y) { a = Relu(x) [culprit] y = Gather(a, i) }",
        {"x": f32(4), "i": np.array([1, 4])},
    ),
    "check in a branch": (
        """g (float[4] x, int64[n] i, bool c) => (float[n] y) {
            y = If (c) <then_branch = t () => (float[n] p) { [culprit] p = Gather(x, i) },
                        else_branch = e () => (float[n] p) { r = Cast <to = 1> (i)  p = Relu(r) }>
        }""",
        {"x": f32(4), "i": np.array([1, 4]), "c": np.array(True)},
    ),
    "check in a loop": (
        """g (float[4] x, int64[n] i) => (float[u, n] y) {
            last, y = Loop (, , i) <body = b (int64 k, bool c, int64[n] j) => (bool d, int64[n] next, float[n] row) {
                one = Constant <value = int64 {1}> () four = Constant <value = int64 {4}> ()
                d = Less (k, four) next = Add (j, one) [culprit] row = Gather(x, j) }>
        }""",
        {"x": f32(4), "i": np.array([1, 2])},
    ),
    "sizes": (
        "g (float[n] x, float[m] v) => (float[n] y) { [culprit] s = Concat <axis = 0> (x, v) t = Concat <axis = 0> (v, v) y = Add(s, t) }",
        {"x": f32(2), "v": f32(3)},
    ),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("case", FAILING)
def test_errors_of_a_run_are_the_same(case: str, target: str):
    text, feed = FAILING[case]
    messages = []
    for session in both(model_of(text, {"flat": np.array([-1])} if "flat" in text else None), target):
        with pytest.raises(occ.RunError) as caught:
            session.run(feed)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_what_is_not_compiled_python_runs_for_the_entry():
    session = occ.compile(model_of("g (string[n] x) => (string[n] y) { y = StringConcat(x, x) }"), "cpu-jit")
    assert host_steps(session.artifact.manifest)
    assert list(session.run({"x": np.array(["a", "bc"], object)})["y"]) == ["aa", "bcbc"]


def test_runs_of_unlike_sizes_side_by_side():
    model = mlp(sizes=(8, 64, 4))
    session = occ.compile(model, "cpu-jit", threads=2)
    feeds = [{"x": f32(n, 8)} for n in (1, 300, 17, 64, 5)]
    wanted = [reference(model, f)[0] for f in feeds]

    def work(k: int) -> None:
        for i in range(60):
            got = session.run(feeds[(k + i) % 5])["y"]
            np.testing.assert_allclose(got, wanted[(k + i) % 5], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_runs_that_find_unlike_sizes_side_by_side():
    session = occ.compile(model_of(FOUND), "cpu-jit", threads=2)
    feeds = [{"x": np.eye(n, 9, dtype=np.float32)} for n in (9, 9, 5, 1, 0)] + [{"x": np.ones((9, 9), np.float32)}]

    def work(k: int) -> None:
        for i in range(60):
            feed = feeds[(k + i) % len(feeds)]
            np.testing.assert_array_equal(session.run(feed)["z"], -np.argwhere(feed["x"]).astype(np.float32))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_equal_builds_give_equal_bytes(tools_only: Callable[[str], Path]):
    model, _ = CASES["then"]
    made: list[Artifact] = []
    for name in ("first", "second"):
        tools_only(name)
        made.append(Compilation(model, Settings("cpu")).artifact())
    first, second = made
    assert first.members() == second.members()
    assert b"occ_model_run" in first.files["src/entry.ll"]


# memory


def test_kernels_write_at_aligned_addresses():
    """Outputs are aligned, and the caller's memory is filled at any address."""
    model, feed = CASES["chain"]
    session = occ.compile(model, "cpu")
    for want, got in zip(reference(model, feed), session.run(feed).values(), strict=True):
        assert got.ctypes.data % 64 == 0
        raw = np.zeros(got.nbytes + 4, np.uint8)
        mine = raw[4:].view(np.float32).reshape(got.shape)
        name = next(n for n, v in session.run(feed).items() if v.shape == got.shape)
        assert session.run(feed, {name: mine})[name] is mine
        np.testing.assert_array_equal(mine, session.run(feed)[name])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("n", [3, 400])
def test_small_outputs_share_memory(n: int):
    """To allocate small outputs costs more than to compute them; large ones do not keep each other alive."""
    model, feed = CASES["chain"]
    feed = {name: RNG.normal(size=(n, 8)).astype(np.float32) for name in feed}
    session = occ.compile(model, "cpu")
    first, second = session.run(feed), session.run({k: -v for k, v in feed.items()})
    for want, (name, got) in zip(reference(model, feed), first.items(), strict=True):
        assert got.ctypes.data % 64 == 0
        assert (got.base is first["y"].base) == (n == 3 or name == "y")
        assert not np.may_share_memory(got, second[name])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_runs_refuse_inputs_that_are_not_named():
    """As many arrays as the model has, and one of another name."""
    model, feed = CASES["chain"]
    session = occ.compile(model, "cpu")
    with pytest.raises(occ.RunError, match=r"has no input `other`"):
        session.run({("other" if k == "v" else k): v for k, v in feed.items()})

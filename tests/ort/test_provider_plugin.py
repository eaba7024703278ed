"""The execution provider in onnxruntime: groups, results, what is refused, and models of EPContext nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of

import occ
from occ.onnxruntime.claims import Claims

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain
NAME = "OccExecutionProvider"
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def provider():
    assert occ.onnxruntime.register("cpu-jit", least=0) == NAME
    yield
    occ.onnxruntime.register("cpu-jit", least=0)


def session(model: onnx.ModelProto, **settings: object) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), occ.onnxruntime.session_options(options, **settings))


def plain(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def agree(model: onnx.ModelProto, feeds: dict[str, np.ndarray], **settings: object) -> int:
    """Compare with onnxruntime alone; returns how many nodes occ took."""
    occ.onnxruntime.register("cpu-jit", least=0)
    opened = session(model, **settings)
    for got, want in zip(opened.run(None, feeds), plain(model, feeds), strict=True):
        assert got.dtype == want.dtype
        # The remainder of cancelling terms has the error of the terms, and the order of the sum is the machine's.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * max(10, np.abs(want).max(initial=0)))
    return sum(c.nodes for c in occ.onnxruntime.claimed())


@pytest.mark.thinned
@pytest.mark.parametrize("settings", [{}, {"pool": "occ"}, {"pool": "occ", "threads": 2}])
def test_a_whole_model_at_two_sizes(settings):
    model = mlp(sizes=(64, 128, 32))
    for n in (1, 7, 300):
        assert agree(model, {"x": RNG.standard_normal((n, 64), dtype=np.float32)}, **settings) >= 3, (
            "all, if onnxruntime has not merged some"
        )


def test_nodes_between_groups_stay_with_onnxruntime():
    text = """g (float[n] x) => (float[m] y, int64[1,k] at) {
        a = Exp(x)  at = NonZero(a)  i = Squeeze(at)  b = Gather(a, i)  y = Neg(b)
    }"""
    took = agree(model_of(text), {"x": RNG.standard_normal(9).astype(np.float32)})
    assert 1 <= took < 5


@pytest.mark.parametrize("rows", [1, 0, 700])
def test_outputs_whose_extents_data_decide(rows: int) -> None:
    model = model_of("""g (float[n] x, int64[2] s, bool[n] m) => (float[u] c, float[p, q] y, float[n] z) {
        z = Exp (x)  c = Compress <axis = 0> (x, m)  e = Expand (x, s)  y = Neg (e)
    }""")
    x = np.arange(rows, dtype=np.float32) % 3
    assert agree(model, {"x": x, "s": np.array([5, 1]), "m": x > 0}) >= 3


def test_groups_in_the_bodies_of_loops():
    text = """g (int64 count, float[4] x) => (float[4] y) {
        go = Constant <value = bool {1}> ()
        y = Loop <body = b (int64 i, bool c, float[4] v) => (bool c2, float[4] w) { c2 = Identity(c)  e = Abs(v)  w = Sqrt(e) }> (count, go, x)
    }"""
    agree(model_of(text), {"count": np.array(3), "x": np.float32([1, 2, 3, 4])})


@pytest.mark.parametrize("dtype", ["float16", "double", "int64", "uint8", "bool"])
def test_other_types(dtype):
    op = "Not(x)" if dtype == "bool" else "Add(x, x)"
    values = np.array([[0, 1, 2], [3, 0, 1]]).astype({"double": "float64"}.get(dtype, dtype))
    assert agree(model_of(f"g ({dtype}[n,3] x) => ({dtype}[n,3] y) {{ y = {op} }}"), {"x": values}) == 1


def test_empty_tensors_and_several_outputs():
    text = "g (float[n,6] x) => (float[n,2] a, float[n,4] b) { s = Constant <value = int64[2] {2, 4}> ()  a, b = Split <axis = 1> (x, s) }"
    for n in (0, 3):
        agree(model_of(text), {"x": RNG.standard_normal((n, 6)).astype(np.float32)})


@pytest.mark.parametrize("fault", [RuntimeError("no"), MemoryError("no")])
def test_a_group_that_fails_to_build_is_left_to_onnxruntime(fault, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr("occ.api.build", fail)
    model = mlp(seed=77)
    assert agree(model, {"x": RNG.standard_normal((2, 8), dtype=np.float32)}) == 0
    assert type(fault).__name__ in occ.onnxruntime.refused()[0]


def test_a_fault_of_the_policy_fails_no_session(monkeypatch):
    monkeypatch.setattr(Claims, "groups", lambda *_: 1 / 0)
    assert agree(mlp(), {"x": RNG.standard_normal((2, 8), dtype=np.float32)}) == 0


def test_runs_and_sessions_at_once():
    model = mlp(sizes=(32, 64, 16))
    feeds = [{"x": RNG.standard_normal((n, 32), dtype=np.float32)} for n in (1, 2, 5, 9)]
    wanted = [plain(model, f)[0] for f in feeds]
    shared = session(model)
    wrong: list[object] = []

    def work(k: int) -> None:
        own = session(model)
        for _ in range(30):
            for opened in (shared, own):
                if not np.allclose(opened.run(None, feeds[k])[0], wanted[k], rtol=1e-4, atol=1e-4):
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


BROADCASTS = "g (float[n,4] x, float[{m},4] z) => (float[k,4] y) {{ a = Exp(x)  b = Neg(z)  y = Add(a, b) }}"


@pytest.mark.thinned
@pytest.mark.parametrize("m", ["m", "n"])
def test_sizes_that_the_artifact_takes_for_equal_may_broadcast(m):
    model = model_of(BROADCASTS.format(m=m))
    occ.onnxruntime.register("cpu-jit", least=0)
    opened = session(model)
    assert [c.nodes for c in occ.onnxruntime.claimed()] == [3]
    for rows in ((3, 3), (1, 3), (3, 1), (3, 3), (0, 1)):
        feeds = {k: RNG.standard_normal((n, 4), dtype=np.float32) for k, n in zip("xz", rows, strict=True)}
        got = opened.run(None, feeds)[0]
        np.testing.assert_allclose(got, np.exp(feeds["x"]) - feeds["z"], rtol=1e-5, atol=1e-6)


def test_a_size_that_the_artifact_fixes_may_broadcast():
    text = "g (float[n,8] x, float[k] v) => (float[n,4] y) { w = Constant <value = float[1,4] {1, 2, 3, 4}> ()  s = ReduceSum(x)  p = Mul(s, w)  y = Add(p, v) }"
    for k in (4, 1):
        agree(model_of(text), {"x": RNG.standard_normal((2, 8), dtype=np.float32), "v": np.ones(k, np.float32)})


def test_runs_that_broadcast_at_once():
    opened = session(model_of(BROADCASTS.format(m="m")))
    wrong: list[object] = []

    def work(n: int) -> None:
        x, z = np.full((1, 4), n, np.float32), np.full((n, 4), 2, np.float32)
        for _ in range(20):
            if not np.allclose(opened.run(None, {"x": x, "z": z})[0], np.exp(x) - z):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_sizes_that_do_not_broadcast_are_an_error_of_onnxruntime():
    opened = session(model_of("g (float[n,4] x, float[m,4] z) => (float[k,4] y) { y = Add(x, z) }"))
    with pytest.raises(Exception, match="broadcast"):
        opened.run(None, {"x": np.zeros((2, 4), np.float32), "z": np.zeros((3, 4), np.float32)})


# EPContext

LOAD = """
import sys, numpy as np, onnxruntime as ort
library, path, out = sys.argv[1:]
ort.register_execution_provider_library("any", library)
options = ort.SessionOptions()
options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == "OccExecutionProvider"], {})
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
session = ort.InferenceSession(path, options)
np.save(out, session.run(None, {"x": np.arange(24, dtype=np.float32).reshape(3, 8) / 24})[0])
del session
ort.unregister_execution_provider_library("any")
assert not any(m == "occ" or m.startswith("occ.") for m in sys.modules)
"""


def loaded_without_occ(path: Path, out: Path, paths: str = "") -> np.ndarray:
    library = str(occ.onnxruntime.get_library_path())
    env = os.environ | ({"PYTHONPATH": paths} if paths else {})
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, library, path, out], capture_output=True, text=True, env=env, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return np.load(out)


@pytest.mark.thinned
@pytest.mark.parametrize("weights", ["file", "embed"])
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_emit_ort_loads_without_occ(weights, target, tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(mlp().SerializeToString())
    ran = occ_cli("build", "m.onnx", "-t", target, "--emit", "ort", "--weights", weights, "-o", "d/r.onnx")
    assert ran.code == 0, ran.err
    assert {p.name for p in Path("d").iterdir()} == ({"r.onnx"} if weights == "embed" else {"r.onnx", "r.0.occ"})
    assert [n.op_type for n in onnx.load("d/r.onnx").graph.node] == ["EPContext"]
    want = plain(mlp(), {"x": np.arange(24, dtype=np.float32).reshape(3, 8) / 24})[0]
    # OCC_TEST_ORT: folders with other versions of onnxruntime
    for paths in ["", *filter(None, os.environ.get("OCC_TEST_ORT", "").split(":"))]:
        np.testing.assert_allclose(
            loaded_without_occ(tmp_path / "d/r.onnx", tmp_path / "y.npy", paths), want, rtol=1e-4, atol=1e-5
        )


@pytest.mark.thinned
@pytest.mark.parametrize("weights", ["file", "embed"])
def test_a_context_runs_other_sizes_with_its_model_where_that_is_at_hand(weights, tmp_path, occ_cli):
    onnx.save(model_of(BROADCASTS.format(m="m")), tmp_path / "m.onnx")
    how = ("-t", "cpu-jit", "--emit", "ort", "--weights", weights, "-o", tmp_path / "r.onnx")
    assert occ_cli("build", tmp_path / "m.onnx", *how).code == 0
    opened = onnxruntime.InferenceSession(str(tmp_path / "r.onnx"), occ.onnxruntime.session_options())
    x, z = (RNG.standard_normal((3, 4), dtype=np.float32) for _ in range(2))
    for rows in (3, 1, 2):
        given = z if rows == 1 else z[:rows]
        (got,) = opened.run(None, {"x": x[:rows], "z": given})
        np.testing.assert_allclose(got, np.exp(x[:rows]) - given, rtol=1e-5)
    with pytest.raises(Exception, match=r"onnxruntime cannot run it either"):
        opened.run(None, {"x": x[:2], "z": z})

    onnx.save(model_of(BROADCASTS.format(m="m").replace("Exp", "Abs")), tmp_path / "m.onnx")
    opened = onnxruntime.InferenceSession(str(tmp_path / "r.onnx"), occ.onnxruntime.session_options())
    with pytest.raises(Exception, match="has changed since"):
        opened.run(None, {"x": x[:2], "z": z})
    assert opened.run(None, {"x": x, "z": z})[0].shape == (3, 4)


@pytest.mark.parametrize("place", ["gone", "elsewhere"])
def test_a_context_says_which_sizes_it_takes_for_equal(place, tmp_path, occ_cli):
    (tmp_path / "d").mkdir()
    onnx.save(model_of(BROADCASTS.format(m="m")), tmp_path / "m.onnx")
    out = tmp_path / ("r.onnx" if place == "gone" else "d/r.onnx")
    assert occ_cli("build", tmp_path / "m.onnx", "-t", "cpu-jit", "--emit", "ort", "-o", out).code == 0
    if place == "gone":
        (tmp_path / "m.onnx").unlink()
    opened = onnxruntime.InferenceSession(str(out), occ.onnxruntime.session_options())
    ones = np.ones((3, 4), np.float32)
    (first,) = opened.run(None, {"x": ones, "z": ones})
    assert first.shape == (3, 4)
    assert opened.run(None, {"x": ones[:1], "z": ones})[0].shape == (3, 4)  # by a plan of its own
    with pytest.raises(Exception, match="axis 0 of the input `z` is 3, the model takes m, which is 2 by axis 0 of `x`"):
        opened.run(None, {"x": ones[:2], "z": ones})
    np.testing.assert_array_equal(opened.run(None, {"x": ones[:2], "z": ones[:2]})[0], first[:2])  # the session goes on


def test_emit_ort_keeps_what_occ_has_no_code_for(tmp_path, monkeypatch, occ_cli):
    monkeypatch.chdir(tmp_path)
    text = "g (float[n] x) => (int64[1,k] at, float[n] y) { a = Exp(x)  at = NonZero(a)  y = Neg(a) }"
    model = model_of(text)
    Path("m.onnx").write_bytes(model.SerializeToString())
    assert occ_cli("build", "m.onnx", "-t", "cpu-jit", "--emit", "ort", "-o", "r.onnx").code == 0
    made = onnx.load("r.onnx")
    assert sorted(n.op_type for n in made.graph.node) == ["EPContext", "NonZero"]
    opened = onnxruntime.InferenceSession("r.onnx", occ.onnxruntime.session_options())
    x = {"x": np.float32([0, -1, 2])}
    for got, want in zip(opened.run(None, x), plain(model, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_session_writes_its_own_context_model(tmp_path):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "c.onnx"))
    options.add_session_config_entry("ep.context_embed_mode", "1")
    onnxruntime.InferenceSession(mlp().SerializeToString(), occ.onnxruntime.session_options(options))
    want = plain(mlp(), {"x": np.arange(24, dtype=np.float32).reshape(3, 8) / 24})[0]
    np.testing.assert_allclose(loaded_without_occ(tmp_path / "c.onnx", tmp_path / "y.npy"), want, rtol=1e-4, atol=1e-5)


def test_a_context_that_is_damaged_or_leaves_its_folder_is_refused(tmp_path, occ_cli):
    (tmp_path / "m.onnx").write_bytes(mlp().SerializeToString())
    assert occ_cli("build", tmp_path / "m.onnx", "-t", "cpu-jit", "--emit", "ort", "-o", tmp_path / "r.onnx").code == 0
    for data, told in (
        (b"../m.occ", "leaves the folder"),
        (b"none.occ", "cannot be opened"),
        (b"r.onnx", "not an artifact"),
    ):
        made = onnx.load(tmp_path / "r.onnx")
        next(a for a in made.graph.node[0].attribute if a.name == "ep_cache_context").s = data
        onnx.save(made, tmp_path / "bad.onnx")
        with pytest.raises(Exception, match=told):
            onnxruntime.InferenceSession(str(tmp_path / "bad.onnx"), occ.onnxruntime.session_options())


def test_config_prints_the_library(occ_cli):
    ran = occ_cli("config", "--ep")
    assert ran.out.strip() == str(occ.onnxruntime.get_library_path())


BRANCHES = """
import sys, numpy as np, onnxruntime, occ
occ.onnxruntime.register("cpu-jit", least=0)
options = occ.onnxruntime.session_options()
session = onnxruntime.InferenceSession(sys.argv[1], options)
x = np.float32([1, 2, 3, 4])
for which, want in ((True, np.sqrt(np.exp(x))), (False, np.exp(-np.exp(x)))):
    np.testing.assert_allclose(session.run(None, {"which": np.array(which), "x": x})[0], want, rtol=1e-5)
print([c.nodes for c in occ.onnxruntime.claimed()])
"""


@pytest.mark.skipif(not os.environ.get("OCC_TEST_ORT"), reason="OCC_TEST_ORT names no folders of other onnxruntimes")
def test_groups_in_several_graphs_of_a_model_fail_no_session_of_older_releases(tmp_path):
    text = """g (bool which, float[4] x) => (float[4] y) {
        a = Exp(x)
        y = If <then_branch = t () => (float[4] b) { c = Abs(a)  b = Sqrt(c) },
                else_branch = e () => (float[4] b) { c = Neg(a)  b = Exp(c) }> (which)
    }"""
    onnx.save(model_of(text), tmp_path / "m.onnx")
    for folder in os.environ["OCC_TEST_ORT"].split(":"):
        command = [sys.executable, "-c", BRANCHES, tmp_path / "m.onnx"]
        env = os.environ | {"PYTHONPATH": folder}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip() in ("[1]", "[2, 2, 1]")

"""The runtime: what it accepts, what it refuses, that it copies nothing, that threads may share it, and what it imports."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from building import mlp, model_of, reference

import occ
from occ.runtime import threads as threads_module
from occ.runtime.native.call import EntryCall

MLP = mlp()


@pytest.fixture(scope="module", params=["cpu", "cpu-jit", "interp"])
def session(request):
    return occ.compile(MLP, request.param)


def batch(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 8), dtype=np.float32)


def check(got: np.ndarray, x: np.ndarray) -> None:
    (want,) = reference(MLP, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# what it takes


@pytest.mark.parametrize("n", [0, 1, 2, 17, 64])
def test_any_size_of_a_symbolic_dim_from_one_build(session, n):
    x = batch(n)
    check(session.run({"x": x})["y"], x)
    check(session(x)[0], x)


def test_ports_say_what_it_takes(session):
    assert [(p.name, p.dtype, p.shape) for p in session.inputs] == [("x", "f32", ("n", 8))]
    assert [(p.name, p.dtype, p.shape) for p in session.outputs] == [("y", "f32", ("n", 4))]


class Exporter:
    """Something that only speaks DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **how: object) -> object:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> object:
        return self.array.__dlpack_device__()


def test_other_kinds_of_arrays(session):
    x = batch(3)
    frozen = x.copy()
    frozen.flags.writeable = False
    for given in (memoryview(x), Exporter(x), frozen, np.asfortranarray(x), batch(6)[::2][:, ::-1][:, ::-1]):
        y = session(given)[0]
        check(y, np.asarray(given.array if isinstance(given, Exporter) else given))


def test_unaligned_inputs(session):
    raw = np.zeros(3 * 8 * 4 + 4, np.uint8)
    x = raw[4:].view(np.float32).reshape(3, 8)
    x[...] = batch(3)
    check(session(x)[0], x)


def test_an_input_is_not_copied_and_not_changed():
    """The kernels read the memory of the caller: they are pointed at it."""
    m = occ.compile(MLP, "cpu-jit")
    seen = []
    run = m.engine._entry._run
    read = lambda at: EntryCall.from_address(at).inputs
    m.engine._entry._run = lambda at: (seen.append([ctypes.c_void_p.from_address(read(at)).value]), run(at))[1]
    m(batch(5))  # the first run on inputs of a shape asks for its sizes
    seen.clear()
    x = batch(5)
    before = x.copy()
    m(x)
    assert seen == [[x.ctypes.data]]
    assert np.array_equal(x, before)


def test_preallocated_outputs_are_written_and_returned(session):
    x, y = batch(3), np.full((3, 4), np.nan, np.float32)
    got = session.run({"x": x}, {"y": y})["y"]
    assert got is y
    check(y, x)


def test_results_of_two_runs_do_not_share_memory(session):
    first = session(batch(3, 0))[0]
    kept = first.copy()
    session(batch(3, 1))
    assert np.array_equal(first, kept)


@pytest.mark.thinned
def test_many_threads_share_a_session(session):
    wanted = [(x, reference(MLP, {"x": x})[0]) for x in (batch(1 + k % 5, k) for k in range(16))]
    start = threading.Barrier(8)

    def work(k: int) -> None:
        start.wait()
        for x, want in wanted[k:] + wanted[:k]:
            np.testing.assert_allclose(session(x)[0], want, rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, k) for k in range(8)]:
            done.result()


def test_more_shapes_than_are_kept(session):
    for n in range(1, 40):
        x = batch(n)
        check(session(x)[0], x)


# what it refuses


def fails(session, inputs, outputs=None) -> str:
    with pytest.raises(occ.RunError) as caught:
        session.run(inputs, outputs)
    assert caught.value.code == "OCC0501"
    return str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "the input `x` is missing"),
        ({"x": batch(2), "z": batch(2)}, "no input `z`"),
        ({"x": batch(2).astype(np.float64)}, "is float64, the model takes float32"),
        ({"x": batch(2).astype(np.int32)}, "is int32"),
        ({"x": batch(2)[0]}, "rank 1"),
        ({"x": batch(2)[None]}, "rank 3"),
        ({"x": batch(2)[:, :7]}, "axis 1 of the input `x` is 7"),
        ({"x": "text"}, "the input `x` is"),
        ({"x": None}, "the input `x` is"),
        ({"x": [[1.0] * 8]}, "float64"),
        ({"x": [[1.0], [1.0, 2.0]]}, "the input `x`"),
    ],
)
def test_inputs_that_do_not_fit(session, inputs, message):
    assert message in fails(session, inputs)


def read_only() -> np.ndarray:
    y = np.zeros((2, 4), np.float32)
    y.flags.writeable = False
    return y


@pytest.mark.parametrize(
    "y",
    [
        np.zeros((2, 5), np.float32),
        np.zeros((2, 4)),
        np.zeros((4, 2), np.float32).T,
        read_only(),
        np.zeros(8, np.float32),
    ],
)
def test_output_arrays_that_do_not_fit(session, y):
    assert "the output array `y`" in fails(session, {"x": batch(2)}, {"y": y})


def test_an_output_that_does_not_exist(session):
    assert "no output `q`" in fails(session, {"x": batch(2)}, {"q": np.zeros((2, 4), np.float32)})


def test_the_wrong_number_of_inputs_by_position(session):
    with pytest.raises(occ.RunError, match=r"takes 1 inputs?, not 2"):
        session(batch(2), batch(2))


@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_a_dim_that_two_inputs_share(target):
    m = occ.compile(model_of("g (float[n] x, float[n] z) => (float[n] y) { y = Add(x, z) }"), target)
    assert m(np.ones(3, np.float32), np.ones(3, np.float32))[0].tolist() == [2, 2, 2]
    with pytest.raises(occ.RunError, match="is 3 by axis 0 of the input `x` and 4 by axis 0 of the input `z`"):
        m(np.ones(3, np.float32), np.ones(4, np.float32))


@pytest.mark.parametrize(("threads", "env"), [(0, None), (-1, None), (None, "0"), (None, "many"), (None, "²")])
def test_a_number_of_threads_that_is_none(threads, env, monkeypatch):
    if env is not None:
        monkeypatch.setenv("OCC_NUM_THREADS", env)
    with pytest.raises(occ.RunError) as caught:
        occ.compile(MLP, "interp", threads=threads)
    assert caught.value.code == "OCC0501"


@pytest.mark.parametrize(("usable", "quota", "expected"), [(8, None, 8), (8, 3, 3), (2, 6, 2), (1, None, 1), (8, 1, 1)])
def test_threads_are_the_processors_that_affinity_and_cgroup_leave(usable, quota, expected, monkeypatch):
    monkeypatch.delenv("OCC_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads_module.os, "sched_getaffinity", lambda _: set(range(usable)), raising=False)
    monkeypatch.setattr(threads_module, "cgroup_quota", lambda: quota)
    assert threads_module.thread_count(None) == expected
    assert threads_module.thread_count(5) == 5
    assert threads_module.thread_count(100_000) == 256  # no more are started
    monkeypatch.setenv("OCC_NUM_THREADS", "4")
    assert threads_module.thread_count(None) == 4


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"sys/fs/cgroup/cpu.max": "300000 100000"}, 3),
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "150000 100000"}, 2),
        ("0::/a/b", {"sys/fs/cgroup/a/b/cpu.max": "50000 100000", "sys/fs/cgroup/a/cpu.max": "800000 100000"}, 1),
        (
            "4:cpu,cpuacct:/docker/x\n0::/docker/x",
            {
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        ("9:memory:/a", {"sys/fs/cgroup/cpu.max": "100000 100000"}, None),
        ("0::/", {"sys/fs/cgroup/cpu.max": "nonsense"}, None),
        ("", {}, None),
    ],
)
def test_the_quota_is_the_least_of_the_cgroup_and_those_around_it(groups, files, expected, tmp_path):
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert threads_module.cgroup_quota(tmp_path) == expected


# what it is


RUN_ALONE = """
import sys
class Refuse:
    def find_spec(self, name, *_):
        top = name.split(".")[0]
        if name.startswith(("occ.compiler", "occ.cli", "occ.api", "occ.backend", "occ.loading")) or top in BANNED:
            raise ImportError(f"the runtime imports {name}")
BANNED = {"onnx", "google", "llvmlite", "lark", "halide", "click", "rich", "ml_dtypes"}
sys.meta_path.insert(0, Refuse())
import numpy as np
from occ.runtime.open import load
(y,) = load(sys.argv[1])(np.load(sys.argv[2]))
np.save(sys.argv[3], y)
known = {"numpy", "occ"} | set(sys.stdlib_module_names)
print(sorted({m.split(".")[0] for m in sys.modules if not m.startswith("_")} - known - {"sitecustomize", "usercustomize"}))
"""


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_an_artifact_runs_where_the_compiler_is_not(target, tmp_path: Path):
    occ.build(MLP, target, tmp_path / "m.occ")
    x = batch(4)
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", RUN_ALONE, *(str(tmp_path / n) for n in ("m.occ", "x.npy", "y.npy"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [n for n in done.stdout.strip().strip("[]").split(", ") if n and "editable" not in n] == []
    check(np.load(tmp_path / "y.npy"), x)


@pytest.mark.parametrize("module", ["occ", "occ.cli.options", "occ.cli.completers"])
def test_importing_is_quick(module: str):
    code = f"import {module}, sys; print(sorted(m for m in sys.modules if m.startswith(('onnx', 'llvmlite', 'lark', 'numpy'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

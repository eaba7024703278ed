"""Artifacts with device parts run on the stand-in, and leave nothing behind."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import plans
import pytest
from ascend_standin import P, Standin, om

from occ.runtime.acl.tensor import DeviceTensor
from occ.runtime.errors import RunError


def test_chain_of_parts(standin: Standin) -> None:
    x = np.arange(64, dtype=np.float32)
    with plans.session(plans.chain(standin)) as session:
        y = session.run({"v0": x})["v3"]
    np.testing.assert_array_equal(y, plans.chain_result(x))
    assert standin.copies("upload") == (1, 256)
    assert standin.copies("download") == (1, 256)


def test_parts_without_dependency_are_on_two_streams_at_once(standin: Standin) -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    with plans.session(plans.diamond(standin)) as session:
        y = session.run({"x": x})["y"]
    np.testing.assert_array_equal(y, x * 3 - (x + 5))
    assert standin.peak_streams == 2


def test_operators_one_by_one(standin: Standin) -> None:
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    with plans.session(plans.one_by_one(standin)) as session, ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda k: session.run({"x": x + k})["y"] - plans.one_by_one_result(x + k), range(16)):
            assert not got.any()


def test_an_operator_that_was_compiled_for_other_attributes(standin: Standin) -> None:
    made = plans.one_by_one(standin)
    made.files["device/p/0.om"] = made.files["device/p/0.om"].replace(b"i=3;", b"i=4;")
    with (
        plans.session(made) as session,
        pytest.raises(RunError, match=r"running operator `mix` \(Mix\) failed: .*100024"),
    ):
        session.run({"x": np.zeros((4, 8), np.float32)})


def test_bound_tensors_are_not_copied(standin: Standin) -> None:
    x = np.arange(64, dtype=np.float32)
    with plans.session(plans.chain(standin)) as session:
        source, target = DeviceTensor.from_numpy(x), DeviceTensor((64,), np.float32)
        before = [standin.copies(k) for k in ("upload", "download", "device")]
        for _ in range(3):
            results = session.run({"v0": source}, outputs={"v3": target})
        assert [standin.copies(k) for k in ("upload", "download", "device")] == before
        assert results["v3"] is target
        np.testing.assert_array_equal(target.numpy(), plans.chain_result(x))
        np.testing.assert_array_equal(np.asarray(session.run({"v0": target})["v3"]), plans.chain_result(x, 6))
        source.close()
        target.close()


def test_runs_of_many_threads(standin: Standin) -> None:
    def work(seed: int) -> bool:
        x = np.random.default_rng(seed).standard_normal((4, 8), dtype=np.float32)
        return bool((session.run({"x": x})["y"] == x * 3 - (x + 5)).all())

    with plans.session(plans.diamond(standin)) as session, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_sessions_share_the_device(standin: Standin) -> None:
    x = np.arange(64, dtype=np.float32)
    first, second = (plans.session(plans.chain(standin, n)) for n in (1, 2))
    assert standin.count("aclInit") == standin.count("aclrtSetDevice") == 1
    first.close()
    assert standin.count("aclrtResetDevice") == 0
    np.testing.assert_array_equal(second.run({"v0": x})["v2"], plans.chain_result(x, 2))
    second.close()
    assert standin.count("aclrtResetDevice") == 1
    with plans.session(plans.chain(standin)) as third:
        third.run({"v0": x})
    assert standin.count("aclInit") == 1


def test_a_session_that_is_dropped_is_closed(standin: Standin) -> None:
    session = plans.session(plans.chain(standin))
    session.run({"v0": np.zeros(64, np.float32)})
    del session


@pytest.mark.parametrize("kind", ["batch 1 2 4", "dims 1,8 2,8 4,8"])
def test_gears(standin: Standin, kind: str) -> None:
    values = {"x": P("x", "f32", (-1, 8)), "y": P("y", "f32", (-1, 8))}
    standin.programs[b"double"] = lambda xs: [xs[0] * 2]
    files = {"device/p.om": om(b"double", [values["x"]], [values["y"]], gears=kind)}
    made = plans.artifact(values, ["x"], ["y"], [plans.Node("p", ["x"], ["y"])], files, dims=["n"])
    with plans.session(made) as session:
        for n in (1, 4, 2, 4):
            x = np.random.default_rng(n).standard_normal((n, 8), dtype=np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], x * 2)
        with pytest.raises(RunError, match=r"compiled for .* gears .*, not 3") as e:
            session.run({"x": np.zeros((3, 8), np.float32)})
        assert e.value.code == "OCC0501"


def test_image_gears(standin: Standin) -> None:
    values = {"x": P("x", "f32", (1, 3, -1, -1), "NCHW"), "y": P("y", "f32", (1, 3, -1, -1), "NCHW")}
    standin.programs[b"negate"] = lambda xs: [-xs[0]]
    files = {"device/p.om": om(b"negate", [values["x"]], [values["y"]], gears="image 8,8 16,16")}
    made = plans.artifact(values, ["x"], ["y"], [plans.Node("p", ["x"], ["y"])], files, dims=["n"])
    with plans.session(made) as session:
        for n in (8, 16):
            x = np.random.default_rng(n).standard_normal((1, 3, n, n), dtype=np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], -x)


def test_open_shapes(standin: Standin) -> None:
    values = {"x": P("x", "i32", (-1, 3)), "y": P("y", "i32", (-1, 3))}
    standin.programs[b"add"] = lambda xs: [xs[0] + 1]
    files = {"device/p.om": om(b"add", [values["x"]], [values["y"]])}
    made = plans.artifact(values, ["x"], ["y"], [plans.Node("p", ["x"], ["y"])], files, dims=["n"])
    with plans.session(made) as session:
        for n in (5, 1):
            x = np.arange(3 * n, dtype=np.int32).reshape(n, 3)
            np.testing.assert_array_equal(session.run({"x": x})["y"], x + 1)


def test_inputs_go_by_name(standin: Standin) -> None:
    values = {n: P(n, "f32", (4,)) for n in ("a", "b", "y")}
    standin.programs[b"subtract"] = lambda xs: [xs[1] - xs[0]]
    files = {"device/p.om": om(b"subtract", [values["b"], values["a"]], [P("Sub:0:y", "f32", (4,))])}
    made = plans.artifact(values, ["a", "b"], ["y"], [plans.Node("p", ["a", "b"], ["y"])], files)
    a, b = np.float32([1, 2, 3, 4]), np.float32([5, 5, 5, 5])
    with plans.session(made) as session:
        np.testing.assert_array_equal(session.run({"a": a, "b": b})["y"], a - b)


def test_parts_take_turns_in_memory_under_a_limit(standin: Standin) -> None:
    made = plans.chain(standin, length=4, weight=1 << 20)
    x = np.arange(64, dtype=np.float32)
    with plans.session(made, npu_mem_limit=(1 << 20) + (1 << 15), arena_extend_strategy="kSameAsRequested") as session:
        for _ in range(2):
            np.testing.assert_array_equal(session.run({"v0": x})["v4"], plans.chain_result(x, 4))
        with ThreadPoolExecutor(4) as pool:
            results = pool.map(lambda _: session.run({"v0": x})["v4"], range(8))
            assert all((y == plans.chain_result(x, 4)).all() for y in results)
    assert standin.memory[1] <= (1 << 20) + (1 << 15)


def test_one_part_at_a_time_names_the_part(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "1")
    with plans.session(plans.diamond(standin)) as session:
        x = np.ones((4, 8), np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x * 3 - (x + 5))
        standin.programs[b"join"] = lambda xs: []
        with pytest.raises(RunError, match=r"running part `join` failed: `aclmdlExecute` returned 507011"):
            session.run({"x": x})
    standin.errors.clear()


def test_profile(standin: Standin, tmp_path: object) -> None:
    with plans.session(plans.chain(standin), profile=f"{tmp_path}/profile") as session:
        session.run({"v0": np.zeros(64, np.float32)})
    assert standin.count("aclprofStop") == standin.count("aclprofStart") == 1


def test_a_forked_child_is_told_that_the_device_is_its_parents(standin: Standin) -> None:
    x = np.arange(64, dtype=np.float32)
    with plans.session(plans.chain(standin)) as session:
        read, write = os.pipe()
        if not (child := os.fork()):
            signal.alarm(60)
            try:
                session.run({"v0": x})
            except RunError as e:
                os.write(write, str(e).encode())
            with suppress(RunError):
                DeviceTensor((4,), np.float32)
                os.write(write, b", and used it")
            session.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert "was opened before this process was forked" in (told := os.read(read, 999).decode())
        assert "used it" not in told
        np.testing.assert_array_equal(session.run({"v0": x})["v3"], plans.chain_result(x))
    os.close(read)
    os.close(write)

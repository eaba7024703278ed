"""Arrays that are bound once, outputs in the caller's memory, and runs side by side."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import onnx.parser
import pytest
from building import mlp, reference

import occ
from occ.runtime.buffers import aligned

MLP = mlp()


@pytest.fixture(scope="module", params=["cpu", "cpu-jit", "interp"])
def session(request):
    return occ.compile(MLP, request.param)


def batch(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 8), dtype=np.float32)


def check(got: np.ndarray, x: np.ndarray) -> None:
    (want,) = reference(MLP, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# bindings


@pytest.mark.parametrize("n", [0, 1, 17])
def test_a_binding_runs_on_what_its_arrays_hold(session, n):
    x, y = batch(n), np.zeros((n, 4), np.float32)
    bound = session.bind(x=x, y=y)
    for seed in range(3):
        x[...] = batch(n, seed)
        found = bound()
        assert found["y"] is y
        check(y, x)


def test_a_bound_native_call_takes_other_extents_of_the_same_memory():
    """More than the rows for which it has been made, with the memory between kernels that these need."""
    x, y = batch(500), aligned((500, 4), np.dtype(np.float32))
    call = occ.compile(MLP, "cpu").engine.bind([x[:2]], [y[:2]])  # pyright: ignore[reportAttributeAccessIssue]
    assert call.writes_in_place
    for n in (2, 500, 31):
        y[...] = -1
        call.extents[0] = n
        call()
        check(y[:n], x[:n])
        assert (y[n:] == -1).all()


def test_a_binding_allocates_the_outputs_that_it_is_not_given(session):
    x = batch(5)
    bound = session.bind({"x": x})
    first = bound()["y"]
    check(first, x)
    x[...] = batch(5, 1)
    assert bound()["y"] is first
    check(first, x)


def test_an_output_that_is_not_aligned_is_written_too(session):
    raw = np.zeros(4 * 3 + 1, np.float32)
    y, x = raw[1:].reshape(3, 4), batch(3)
    session.bind(x=x, y=y)()
    check(y, x)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": batch(3).astype(np.float64)}, "float64"),
        ({"x": batch(6)[::2]}, "is copied"),
        ({"x": batch(3), "y": np.zeros((2, 4), np.float32)}, "output array `y`"),
        ({"x": batch(3), "z": np.zeros((3, 4), np.float32)}, "no output `z`"),
        ({}, "`x` is missing"),
    ],
)
def test_what_cannot_be_bound_is_refused(session, given, said):
    with pytest.raises(occ.RunError, match=said):
        session.bind(**given)


@pytest.mark.parametrize("target", ["cpu-jit", "interp"])
def test_outputs_whose_extents_the_data_decide_are_not_bound(target):
    m = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }'
    )
    with pytest.raises(occ.RunError, match="cannot be bound"):
        occ.compile(m, target).bind(x=np.ones(4, np.float32))


def test_one_thread_at_a_time_is_in_a_binding():
    bound = occ.compile(MLP, "interp").bind(x=batch(2))
    entered, go = threading.Event(), threading.Event()

    def run() -> None:
        entered.set()
        go.wait()

    bound._run = run
    thread = threading.Thread(target=bound)
    thread.start()
    entered.wait()
    with pytest.raises(occ.RunError, match="another thread"):
        bound()
    go.set()
    thread.join()
    bound()


def test_a_node_that_meets_bad_data_raises_in_a_binding():
    m = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[4] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }'
    )
    i = np.array([0, 3])
    bound = occ.compile(m, "cpu-jit").bind(x=np.arange(4, dtype=np.float32), i=i)
    assert bound()["y"].tolist() == [0, 3]
    i[1] = 7
    with pytest.raises(occ.RunError, match="OCC0504"):
        bound()
    i[1] = 2
    assert bound()["y"].tolist() == [0, 2]


# outputs in the caller's memory


class Exporter:
    """Something that only speaks DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack__(self, **how: Any) -> object:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_outputs_go_where_the_buffer_protocol_or_dlpack_leads(session):
    x = batch(3)
    for target in (bytearray(3 * 4 * 4), Exporter(np.zeros((3, 4), np.float32))):
        view = memoryview(target).cast("f", (3, 4)) if isinstance(target, bytearray) else target
        found = session.run({"x": x}, {"y": view})
        assert found["y"] is view
        check(np.asarray(view if isinstance(target, bytearray) else target.array), x)


def test_outputs_that_cannot_be_written_into_are_refused(session):
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    for target in ([[0.0] * 4] * 3, bytes(48), frozen):
        with pytest.raises(occ.RunError, match="`y`"):
            session.run({"x": batch(3)}, {"y": target})


# side by side


def test_coroutines_run_a_model_while_others_go_on(session):
    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(*(session.run_async({"x": batch(n)}) for n in (1, 7)))

    for n, found in zip((1, 7), asyncio.run(both()), strict=True):
        check(found["y"], batch(n))


def test_a_queue_has_at_most_so_many_runs_under_way(session):
    inside, most, lock, done = [0], [0], threading.Lock(), []
    run = session.run

    class Counting:
        def run(self, inputs, outputs):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            found = run(inputs, outputs)
            with lock:
                inside[0] -= 1
            return found

    with occ.RunQueue(Counting(), 2) as queue:  # type: ignore[arg-type]
        queue.callback = lambda found, data: done.append((data, found["y"]))
        futures: list[Future[dict[str, Any]]] = [queue.submit({"x": batch(n)}, data=n) for n in range(1, 20)]
        queue.wait()
        assert all(f.done() for f in futures)
    assert most[0] <= 2
    assert sorted(n for n, _ in done) == list(range(1, 20))
    for n, y in done:
        check(y, batch(n))


def test_a_queue_serves_coroutines_and_passes_errors_on(session):
    async def many() -> list[Any]:
        with occ.RunQueue(session, 3) as queue:
            runs = [queue.run({"x": batch(n)}) for n in range(1, 12)] + [queue.run({})]
            return await asyncio.gather(*runs, return_exceptions=True)

    *found, wrong = asyncio.run(many())
    for n, one in enumerate(found, 1):
        check(one["y"], batch(n))
    assert isinstance(wrong, occ.RunError)
    with pytest.raises(occ.RunError, match="size of a queue"):
        occ.RunQueue(session, 0)

"""Batches of requests: who shares a run, what a failing request does to others, and models whose rows must not be joined."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from building import mlp, model_of

import occ
from occ.loading import on_half
from occ.serve.batching import Batcher, can_batch

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def session() -> Any:
    return occ.compile(mlp(), "interp")


def answers(batcher: Batcher, requests: list[dict[str, np.ndarray]]) -> list[Any]:
    """What requests that arrive at once are answered with, errors too."""

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(batcher, requests), return_exceptions=True)

    return asyncio.run(all_at_once())


def test_what_waits_is_one_run_and_everyone_gets_his_own(session: Any) -> None:
    runs: list[int] = []
    requests = [{"x": RNG.standard_normal((n, 8), dtype=np.float32)} for n in (1, 2, 1, 3, 1)]
    got = answers(Batcher(session, 4, runs.append), requests)
    assert runs == [4, 4], "1 + 2 + 1, then 3 + 1: none of more than 4 rows"
    for request, answer in zip(requests, got, strict=True):
        np.testing.assert_allclose(answer["y"], session.run(request)["y"], rtol=1e-5, atol=1e-6)


def test_a_request_that_fails_fails_alone(session: Any) -> None:
    good = {"x": np.ones((1, 8), np.float32)}
    got = answers(Batcher(session, 8), [good, {"z": np.ones((1, 8), np.float32)}, good])
    assert isinstance(got[1], occ.RunError)
    np.testing.assert_array_equal(got[0]["y"], got[2]["y"])


def test_a_run_that_fails_is_made_again_for_each(session: Any) -> None:
    class Choosy:
        def run(self, inputs: dict[str, np.ndarray]) -> Any:
            if (inputs["x"] < 0).any():
                raise occ.RunError("OCC0501", "no", "")
            return session.run(inputs)

    x = np.ones((1, 8), np.float32)
    got = answers(Batcher(Choosy(), 8), [{"x": x}, {"x": -x}, {"x": 2 * x}])  # pyright: ignore[reportArgumentType]
    assert [isinstance(g, Exception) for g in got] == [False, True, False]
    np.testing.assert_allclose(got[2]["y"], session.run({"x": 2 * x})["y"], rtol=1e-5)


def test_a_client_that_has_gone_delays_nobody(session: Any) -> None:
    async def leave() -> Any:
        batcher = Batcher(session, 4)
        x = {"x": np.ones((1, 8), np.float32)}
        tasks = [asyncio.create_task(batcher(x)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        return await tasks[2]

    assert asyncio.run(leave())["y"].shape[0] == 1


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("g (float[n,4] x) => (float[n,4] y) { y = Softmax <axis = 1> (x) }", True),
        ("g (float[n,4] x) => (float[n,4] y) { y = Softmax <axis = 0> (x) }", False),
        ("g (float[n,4] x) => (float[n,4] y) { k = Constant <value = int64 {0}> ()  y = CumSum(x, k) }", False),
        ("g (float[2,4] x) => (float[2,4] y) { y = Exp(x) }", False),
        ("g (float[n,4] x, float[4] v) => (float[n,4] y) { y = Add(x, v) }", False),
        ("g (float[n,n] x) => (float[n,n] y) { y = Exp(x) }", False),
        (
            "g (float[n,4] x) => (float[4] y) { k = Constant <value = int64[1] {0}> ()  y = ReduceSum <keepdims = 0> (x, k) }",
            False,
        ),
        ("g (int64[n] x) => (int64[n] y) { y = Neg(x) }", True),
    ],
)
def test_rows_are_joined_where_each_is_computed_alone(text: str, joined: bool) -> None:
    assert can_batch(occ.compile(model_of(text), "interp")) is joined


def test_requests_of_other_sizes_are_not_joined() -> None:
    session = occ.compile(model_of("g (float[n,k] x) => (float[n,k] y) { y = Softmax(x) }"), "interp")
    runs: list[int] = []
    requests = [{"x": RNG.standard_normal((1, k), dtype=np.float32)} for k in (4, 5, 4)]
    got = answers(Batcher(session, 8, runs.append), requests)
    assert sorted(runs) == [1, 2]
    assert [g["y"].shape[1] for g in got] == [4, 5, 4]


class Held:
    """A session whose runs wait until they may go on; counts them, and how many were under way at once."""

    def __init__(self, session: Any) -> None:
        self.session, self.runs, self.under_way, self.most = session, 0, 0, 0
        self.lock, self.go_on = threading.Lock(), threading.Event()

    def run(self, inputs: dict[str, np.ndarray]) -> Any:
        with self.lock:
            self.runs, self.under_way = self.runs + 1, self.under_way + 1
            self.most = max(self.most, self.under_way)
        self.go_on.wait(600)
        with self.lock:
            self.under_way -= 1
        return self.session.run(inputs)


def answers_one_by_one(
    batcher: Batcher, requests: list[dict[str, np.ndarray]], held: list[Held], at_once: int
) -> list[Any]:
    """What requests are answered with that arrive while the first runs are held."""

    async def arrive() -> list[Any]:
        tasks: list[asyncio.Task[Any]] = []
        for x in requests:
            tasks.append(asyncio.create_task(batcher(x)))
            for _ in range(100_000):  # of 1 ms; a run that never begins is counted below
                if sum(h.runs for h in held) >= min(at_once, len(tasks)):
                    break
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        for h in held:
            h.go_on.set()
        return await asyncio.gather(*tasks)

    return asyncio.run(arrive())


@pytest.mark.parametrize(("most", "rows"), [(1, [1, 1, 1, 1, 1]), (8, [1, 4])])
def test_a_lone_run_has_all_threads_and_two_that_share_none_half_each(session: Any, most: int, rows: list[int]) -> None:
    runs: list[int] = []
    whole, half = Held(session), Held(session)
    batcher = Batcher(whole, most, runs.append, half)  # pyright: ignore[reportArgumentType]
    requests = [{"x": RNG.standard_normal((1, 8), dtype=np.float32)} for _ in range(5)]
    got = answers_one_by_one(batcher, requests, [whole, half], 2 if most == 1 else 1)
    assert runs == rows, "what waits is a batch, if there may be one"
    assert (whole.runs, half.runs) == ((1, 4) if most == 1 else (2, 0))
    assert (whole.most, half.most <= 2) == (1, True), "no more than two at once"
    for request, answer in zip(requests, got, strict=True):
        np.testing.assert_allclose(answer["y"], session.run(request)["y"], rtol=1e-5, atol=1e-6)
    before = whole.runs
    answers(batcher, requests[:1])
    assert whole.runs == before + 1, "a lone request after them"


def test_half_of_the_threads_runs_the_same_model() -> None:
    session = occ.compile(mlp(), "cpu-jit", threads=4)
    half = on_half(session)
    assert half is not None
    assert half.threads == 2
    x = {"x": RNG.standard_normal((3, 8), dtype=np.float32)}
    np.testing.assert_array_equal(half.run(x)["y"], session.run(x)["y"])
    assert on_half(occ.compile(mlp(), "cpu-jit", threads=1)) is None
    assert on_half(occ.compile(mlp(), "interp")) is None

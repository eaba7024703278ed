"""A slice of the fuzzer of large sizes: graphs of billions of elements are inferred, lowered and planned as onnx says, and at once."""

from __future__ import annotations

from pathlib import Path

from occ.compiler.diagnostics import error
from tools.fuzz import large_sizes
from tools.fuzz.campaign import campaign, counts
from tools.fuzz.large_graphs import large
from tools.fuzz.large_sizes import LargeSizes, problems

SEEDS = range(3000, 3024)


def test_large_sizes_are_right(tmp_path: Path) -> None:
    made = campaign(LargeSizes(tmp_path), tmp_path / "s.json", [SEEDS], float("inf"), lambda *_: None)
    assert not made.faults, counts(made)
    assert made.outcomes["right: graph"] > len(SEEDS) / 2, "most are planned, not refused"


def test_graph_of_a_seed_is_always_the_same_and_large() -> None:
    graphs = [large(seed) for seed in SEEDS]
    assert [g.model(g.ends()) for g in graphs] == [g.model(g.ends()) for g in map(large, SEEDS)]
    assert max(max(s, default=0) for g in graphs for s in g.shapes.values()) >= 2**30
    assert len({n.op_type for g in graphs for n in g.nodes}) > 20


def test_another_shape_is_found(monkeypatch) -> None:
    """What onnx says of another graph is not what is inferred of this one."""
    g = next(g for g in map(large, SEEDS) if g.nodes)
    end = g.ends()[0]
    monkeypatch.setattr(large_sizes, "_known", lambda model: {end: [(5, 4, 3, 2, 1, 0)]})
    assert {kind.split(": ")[-1] for kind, _ in problems(g)} == {"another shape"}


def test_refusal_that_is_not_expected_is_found(monkeypatch) -> None:
    g = next(g for g in map(large, SEEDS) if g.nodes)

    def refused(*_: object) -> None:
        raise error("OCC0301", "there is no such operator")

    monkeypatch.setattr(large_sizes, "_planned", refused)
    codes: list[str] = []
    assert {kind.split(": ")[-1] for kind, _ in problems(g, codes)} == {"refused"}
    assert set(codes) == {"OCC0301"}


def test_internal_error_and_cost_are_found(monkeypatch) -> None:
    g = next(g for g in map(large, SEEDS) if g.nodes)

    def broken(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(large_sizes, "_planned", broken)
    monkeypatch.setattr(large_sizes, "SECONDS", -1)
    assert {kind.split(": ")[-1] for kind, _ in problems(g)} == {"OverflowError", "slow"}

"""Operators one at a time, with attributes as few files have them, against onnxruntime: a slice with fixed seeds; `make fuzz` has more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.fuzz.campaign import campaign
from tools.fuzz.generate import Graph, attempt
from tools.fuzz.graphs import Graphs, report
from tools.fuzz.patterns import SUITES

SEEDS = range(3000, 3150)  # of each suite


@pytest.mark.parametrize("suite", SUITES)
def test_operators_are_right(suite: str, tmp_path: Path) -> None:
    work = Graphs(tmp_path, (suite,), jit=3, cpu=10**6, passes=2)
    made = campaign(work, tmp_path / "summary.json", [SEEDS], float("inf"), lambda *_: None)
    print(report(made))
    assert not made.faults, report(made)
    assert made.cases.total() > 0.95 * len(SEEDS)


@pytest.mark.parametrize("name", [name for makers in SUITES.values() for name in makers])
def test_node_can_be_made(name: str) -> None:
    """A maker that is always rejected would go unnoticed."""
    maker = next(makers[name] for makers in SUITES.values() if name in makers)
    graphs = [Graph(np.random.default_rng(seed), 22, alone=True) for seed in range(12)]
    assert sum(attempt(g, maker, name) for g in graphs) >= 3

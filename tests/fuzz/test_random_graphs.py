"""A slice of the fuzzer of graphs: fixed seeds, on all targets but `cpu`, whose passes are interpreted. `make fuzz` does more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tools.fuzz import judge
from tools.fuzz.campaign import Summary, _wants_processor, campaign
from tools.fuzz.cover import UNIVERSE, Cover
from tools.fuzz.generate import Case, Graph, assemble, attempt, generate
from tools.fuzz.graphs import Graphs, read, report, steered, write
from tools.fuzz.oracle import model_of
from tools.fuzz.patterns import MAKERS, PATTERNS
from tools.fuzz.profiles import PROFILES
from tools.fuzz.run import Outcome, Runner, outcomes

SEEDS = range(1000, 1056)


def test_random_graphs_are_right(tmp_path: Path) -> None:
    work = Graphs(tmp_path, jit=4, cpu=10**6, passes=3)
    made = campaign(work, tmp_path / "summary.json", [SEEDS], float("inf"), lambda *_: None)
    print(report(made))
    assert not made.faults, report(made)
    assert made.cases.total() == len(SEEDS)
    assert made.outcomes["cpu passes: same"] > len(SEEDS) / 2


@pytest.mark.parametrize("profile", PROFILES)
def test_graph_of_a_seed_is_always_the_same(profile: str) -> None:
    first, second = (generate(7, profile, PROFILES[profile], MAKERS) for _ in range(2))
    assert first.model.SerializeToString() == second.model.SerializeToString()


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_can_be_made(name: str) -> None:
    """A maker that is always rejected would go unnoticed."""
    graphs = [Graph(np.random.default_rng(seed), 23) for seed in range(8)]
    assert any(attempt(g, PATTERNS[name], name) for g in graphs)
    assert any(g.nodes for g in graphs)


@pytest.mark.parametrize(("name", "rule"), [("trees", "sequential_folds"), ("stepped", "decode_attention")])
def test_pattern_reaches_a_rule_that_nothing_else_does(name: str, rule: str) -> None:
    cover = Cover()
    for seed in range(24):
        graph = Graph(np.random.default_rng(seed), 23)
        if attempt(graph, PATTERNS[name], name):
            (found,) = outcomes(Runner(assemble(seed, name, graph), [cover]), ["cpu passes"])
            assert found.kind in ("same", "refused"), found.text
        if ("schedule rules", rule) in cover.fired:
            return
    pytest.fail(f"no graph of 24 makes {rule} fire")


def test_steering_of_a_seed_is_kept() -> None:
    """What campaigns have seen by then decides it, so it cannot be made again from a seed."""
    summary = Summary(next=100)
    summary.cases["mixed"] = 1000
    assert steered(summary, 100) == {}
    rule = sorted(UNIVERSE["rewrite rules"])[0]
    summary.fired.update({f"rewrite rules: {rule}": 3, f"{rule} with Add": 3, "operators: Add": 3})
    factors = steered(summary, 150)
    assert factors["Add"] > 1
    summary.next, summary.fired = 300, Counter()
    assert [steered(summary, seed) for seed in (120, 150, 299)] == [{}, factors, factors]
    assert steered(summary, 300) == {}


def wrong_sum() -> Case:
    """A Softmax whose known result is not what it should be."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    model = model_of(helper.make_graph([node], "g", ends[:1], ends[1:]), 13)
    return Case(0, "made", model, {"x": x}, {"x": x, "y": np.full((2, 3), 1 / 3, np.float32)})


def test_wrong_result_is_found_and_the_other_oracle_asked() -> None:
    (found,) = outcomes(Runner(wrong_sum()), ["interp"])
    assert found.kind == "oracle"  # what is known here is wrong, and onnx.reference says so
    case = wrong_sum()
    analysis = judge.analyse(case)
    right = np.array(analysis.exact["y"], np.float32)
    assert judge.verdict({"y": right}, analysis, {"y": right}) == ""
    assert "6 of 6" in judge.verdict({"y": right * np.float32(1.001)}, analysis, {"y": right})


def test_other_oracle_is_asked_for_what_differs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have another output wrong, which onnxruntime has right."""
    case = wrong_sum()
    case.model.graph.node.append(helper.make_node("Neg", ["x"], ["z"]))
    case.model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3]))
    case.known["z"] = -case.feeds["x"]
    right = judge.run_other(case.model, case.feeds)
    monkeypatch.setattr(judge, "run_other", lambda model, feeds: right | {"z": case.feeds["x"]})
    monkeypatch.setattr(judge, "run_onnxruntime", lambda model, feeds: case.known)
    assert [o.kind for o in outcomes(Runner(case), ["interp"])] == ["oracle"]
    monkeypatch.setattr(judge, "run_other", lambda model, feeds: case.known)
    assert [o.kind for o in outcomes(Runner(case), ["interp"])] == ["differs"]


def test_number_where_nan_is_certain_is_wrong() -> None:
    x = np.array([-1, 4], np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    model = model_of(helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], "g", ends[:1], ends[1:]), 13)
    want = np.array([np.nan, 2], np.float32)
    analysis = judge.analyse(Case(0, "made", model, {"x": x}, {"x": x, "y": want}))
    assert "1 of 2" in judge.verdict({"y": np.array([1, 2], np.float32)}, analysis, {"y": want})
    assert judge.verdict({"y": np.array([np.nan, 2 + 2e-7], np.float32)}, analysis, {"y": want}) == ""


def test_nothing_finite_is_near_infinity() -> None:
    infinite, large = np.array([np.inf, 1], np.float32), np.array([3e38, 1], np.float32)
    assert judge.near(infinite, infinite)
    assert not judge.near(large, infinite)
    assert not judge.near(infinite, large)
    assert not judge.near(-infinite, infinite)
    assert not judge.near(np.array([np.nan, 1], np.float32), infinite)


def test_allowed_difference_grows_with_the_condition() -> None:
    """`(x + 1) - 1` loses what `x` alone does not."""
    one = numpy_helper.from_array(np.ones((), np.float32), "one")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y", "z")]
    nodes = [helper.make_node("Add", ["x", "one"], ["a"]), helper.make_node("Sub", ["a", "one"], ["y"]),
             helper.make_node("Mul", ["x", "x"], ["z"])]  # fmt: skip
    model = model_of(helper.make_graph(nodes, "g", ends[:1], ends[1:], [one]), 17)
    x = np.full(4, 1e-3, np.float32)
    made = judge.analyse(Case(0, "made", model, {"x": x}, {}))
    assert 1e-7 < made.allowed["y"].max() < 1e-5
    assert made.allowed["z"].max() < 1e-11


def test_written_case_is_read_again(tmp_path: Path) -> None:
    case = replace(generate(11, "rows", PROFILES["rows"], MAKERS), options={"resize": "exact"})
    write(case, [Outcome("interp", "differs", "so")], tmp_path)
    again = read(tmp_path / "rows-11")
    assert (again.model, again.options) == (case.model, case.options)
    for name, x in again.known.items():
        np.testing.assert_array_equal(x, case.known[name])


def test_no_position_of_a_resize_depends_on_rounding() -> None:
    """Before operator set 11 too: whether 11 / 1.1 is 10 or less depends on how it is computed."""
    case = generate(71000123, "corners", PROFILES["corners"], MAKERS)
    assert Runner(case).passes("cpu-jit").kind == "same"


def test_process_that_ends_is_a_fault_of_its_seed(tmp_path: Path) -> None:
    def work(first: int, last: int, say) -> None:
        for seed in range(first, last):
            say({"seed": seed, "cases": ["any"]})
            if seed == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    made = campaign(work, tmp_path / "s.json", [range(6)], float("inf"), lambda *_: None)
    assert made.faults["the process ended with SIGKILL"]["case"] == "3"
    assert made.cases["any"] == 6
    assert Summary.read(tmp_path / "s.json").next == 6


def test_process_that_waits_for_a_processor_is_not_silent() -> None:
    """Where others take all processors, a process may not say a word for long."""
    endless, rest = "while True: pass", "import sys; sys.stdin.read()"
    started = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    for command, wants in (([endless], True), ([started, endless], True), ([rest], False), ([started, rest], False)):
        with subprocess.Popen([sys.executable, "-c", *command], stdin=PIPE, process_group=0) as process:
            end = time.monotonic() + 300
            try:
                while _wants_processor(process.pid) != wants:
                    assert process.poll() is None
                    assert time.monotonic() < end
            finally:
                os.killpg(process.pid, signal.SIGKILL)

"""Schedule rules of users: tried first, checked, and named if they fail; `occ rules --schedule` prints the answers of all rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from building import model_of
from click.testing import CliRunner

from occ.cli.dump import command as dump
from occ.cli.rules import command
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.passes.lower.rule_list import NAMES
from occ.plugin import Declined, StageSchedule, reduce_axes, schedule_rule

NET = "g (float[64, 256] x, float[256, 8] w) => (float[64, 256] y, float[64, 8] z) { h = Sigmoid(x) y = Mul(x, h) z = MatMul(x, w) }"


@schedule_rule
def one_vector(f, machine):
    """Elementwise kernels: a vector at a time.

    More is said here.
    """
    if any(reduce_axes(s.expr) for s in f.stages):
        return Declined("it reduces")
    out = StageSchedule(f.stages[-1])
    _, lane = out.split(out.axes[-1], machine.lanes(32))
    out.vectorize(lane)
    return f.with_schedule(out.directives)


@schedule_rule(whole=True)
def serial(f, machine):
    out = StageSchedule(f.stages[-1])
    return f.with_schedule(out.reorder(*reversed(out.axes)).directives)


ROOT = Path(__file__).parents[2]


def schedules(*rules: object) -> dict[str, set[str]]:
    """The rules that made the schedules of the kernels of `NET`."""
    m = Compilation(model_of(NET), Settings("cpu", rules=rules, verify=True)).advance("scheduled")
    return {name.partition("_")[0]: {d.rule for d in f.schedule} for name, f in m.te.items()}


def test_a_rule_of_a_user_is_asked_first() -> None:
    assert schedules() == {"sigmoid": {"elementwise"}, "matmul": {"packed_contraction"}}
    assert schedules(one_vector) == {"sigmoid": {"one_vector"}, "matmul": {"packed_contraction"}}
    assert schedules(one_vector, serial)["matmul"] == {"serial"}
    assert one_vector.doc == "Elementwise kernels: a vector at a time."


def failing(f, machine):
    return 1 // 0


def nonsense(f, machine):
    return "a schedule"


def vectorises_nothing(f, machine):
    out = StageSchedule(f.stages[-1])
    return f.with_schedule(out.vectorize("nowhere").directives)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (failing, "ZeroDivisionError"),
        (nonsense, "it returned str"),
        (vectorises_nothing, "has nowhere where it takes a loop"),
    ],
)
def test_a_rule_that_fails_is_named(rule, text: str) -> None:
    with pytest.raises(CompileError) as e:
        schedules(schedule_rule(rule))
    assert "OCC0612" in str(e.value)
    assert f"`{rule.__name__}`" in str(e.value)
    assert text in str(e.value)
    assert __file__ in str(e.value)


def test_names_are_unique() -> None:
    def elementwise(f, machine):
        return None

    with pytest.raises(CompileError, match="two schedule rules are called `elementwise`"):
        schedules(schedule_rule(elementwise))
    with pytest.raises(CompileError, match="OCC0610"):
        schedule_rule(lambda f, machine: None)


def test_loops_have_names_of_their_own() -> None:
    f = Compilation(model_of(NET), Settings("cpu")).advance("scheduled").te.popitem()[1]
    out = StageSchedule(f.stages[-1])
    x = out.axes[-1]
    first, _ = out.split(x, 8)
    again, _ = out.split(first, 4, into="oo")
    assert len({first, *out.split(again, 2), out.fuse(out.axes[0], again, str(x))}) == 4
    assert all(len(set(d.args[:3])) == 3 for d in out.directives)
    with pytest.raises(AttributeError, match="schedules have no `vectorise`"):
        out.vectorise(x)


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "net.onnx"
    path.write_bytes(model_of(NET).SerializeToString())
    return str(path)


def rules(*words: str) -> list[dict[str, object]]:
    """What `occ rules --schedule --json` prints."""
    done = CliRunner().invoke(command, [*words, "--schedule", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_all_rules_are_listed_with_those_of_users(tmp_path: Path) -> None:
    assert [r["name"] for r in rules()] == [*NAMES]
    assert all(r["doc"] for r in rules())
    file = tmp_path / "mine.py"
    file.write_text("import occ.plugin\n\n@occ.plugin.schedule_rule\ndef mine(f, machine):\n    return None\n")
    listed = [r["name"] for r in rules("--rules", str(file))]
    assert listed.index("mine") == [r["kind"] for r in rules()].index("rule")


def test_each_rule_says_where_it_is() -> None:
    for rule in rules():
        file, line = str(rule["place"]).split(":")
        assert f"def {rule['name']}(" in "".join(
            (ROOT / file).read_text("utf-8").splitlines(keepends=True)[int(line) - 1 :][:3]
        )


def test_how_often_each_fired(net: str) -> None:
    fired = {r["name"]: r["fired"] for r in rules(net)}
    assert {n: k for n, k in fired.items() if k} == {
        "separate_reductions": 1,
        "elementwise": 1,
        "packed_contraction": 1,
    }


def test_why_says_what_each_rule_answered(net: str) -> None:
    answers = rules(net, "--why", "MatMul#3")
    assert {a["rule"] for a in answers if a["applies"]} == {"separate_reductions", "packed_contraction"}
    assert all(a["applies"] != bool(a["reason"]) for a in answers)
    assert "elementwise" not in {a["rule"] for a in answers}, "it comes later"
    kernel = str(answers[0]["kernel"])
    assert rules(net, "--why", kernel) == answers


def test_why_knows_layers_that_share_a_kernel(tmp_path: Path) -> None:
    text = """g (float[64,96] x) => (float[64,160] z) {
        h = MatMul(x, w0) y = Relu(h) i = MatMul(y, w1) z = Relu(i)
    }"""
    weights = {"w0": np.ones((96, 128), np.float32), "w1": np.ones((128, 160), np.float32)}
    path = tmp_path / "layers.onnx"
    path.write_bytes(model_of(text, weights).SerializeToString())
    first, second = (rules(str(path), "-O", "2", "--why", node) for node in ("MatMul#1", "MatMul#3"))
    (kernel,) = {a["kernel"] for a in (*first, *second)}
    assert "packed_contraction" in {a["rule"] for a in first if a["applies"]}
    dumped = CliRunner().invoke(dump, [str(path), "-t", "cpu", "-O", "2", "--stage", "scheduled"]).stdout
    assert f"te @{kernel}[" in dumped
    asked = rules(str(path), "-O", "2", "--why", str(kernel))
    assert {str(a) for a in asked} == {str(a) for a in (*first, *second)}
    assert len(asked) == len({str(a) for a in asked})
    assert len({a["kernel"] for n in ("MatMul#1", "MatMul#3") for a in rules(str(path), "-O", "3", "--why", n)}) == 2


@pytest.mark.parametrize(("words", "code"), [(["--why", "nothing"], "OCC0205"), (["-t", "cpu-jit"], "OCC0602")])
def test_what_cannot_be_said_is_an_error(net: str, words: list[str], code: str) -> None:
    done = CliRunner().invoke(command, [net, "--schedule", *words])
    assert code in (str(done.exception) + done.output)

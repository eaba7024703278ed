"""The measured tuner: no choice changes results, winners are remembered, and a build that does not ask for it stays as it is."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import machines
import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.te.expr import literal
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.passes.lower.schedule import scheduled
from occ.compiler.tuning import tune
from occ.compiler.tuning.isolated_call import isolated
from occ.compiler.tuning.measure import Bench, Operands
from occ.compiler.tuning.tune import TRIED, Tuned, Tuner
from occ.runtime.open import open_artifact

pytestmark = pytest.mark.toolchain


def tuner(seconds: float) -> Tuner:
    return Tuner.of(Settings("cpu"), seconds)


def tuned(model: onnx.ModelProto, seconds: float) -> tuple[Compilation, Tuner]:
    made = tuner(seconds)
    return Compilation(model, Settings("cpu", tune=made)), made


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember under keys of this test alone, and of this run of it."""
    own = uuid4().hex
    monkeypatch.setattr(Tuner, "_key", lambda _, f: digest([own, f.name]))


def unscheduled(model: onnx.ModelProto) -> list[TeFunc]:
    return list(Compilation(model, Settings("cpu", stop_after="lower-te")).advance("scheduled").te.values())


def candidates(f: TeFunc) -> list[TeFunc]:
    """The function under every choice that changes its schedule, the rules' own first."""
    hints = ["", *(f"{k}={v}" for k, values in TRIED.items() for v in values)]
    made = {
        (g.stages, g.schedule): g for g in (scheduled(replace(f, hint=h), machines.current()) for h in reversed(hints))
    }
    return [g.with_name(f"{f.name}_{k}") for k, g in enumerate(reversed(made.values()))]


def product_of(rows: int | str, batch: str = "") -> onnx.ModelProto:
    """rows x 96 by 96 x 80, and a bias."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.standard_normal((96, 80), dtype=np.float32), "b": rng.standard_normal(80, dtype=np.float32)}
    return model_of(
        f"g (float[{batch}{rows}, 96] x) => (float[{batch}{rows}, 80] y) {{ p = MatMul(x, w) y = Add(p, b) }}", weights
    )


def convolution(taps: int, groups: int, size: int | str = 20) -> onnx.ModelProto:
    w = np.random.default_rng(4).standard_normal((64, 64 // groups, taps, taps)).astype(np.float32)
    p = taps // 2
    text = f"""g (float[1, 64, {size}, 20] x) => (float[1, 64, {size}, 20] y) {{
        c = Conv<pads = [{p}, {p}, {p}, {p}], group = {groups}>(x, w)
        y = Relu(c)
    }}"""
    return model_of(text, {"w": w})


NETS = {
    "product": product_of(100),
    "product of symbolic rows": product_of("n"),
    "1x1": convolution(1, 1),
    "depthwise": convolution(3, 64),
    "winograd": convolution(3, 1),
    "symbolic 1x1": convolution(1, 1, "h"),
}


@pytest.mark.parametrize("name", ["product", *(pytest.param(n, marks=pytest.mark.slow) for n in list(NETS)[1:])])
def test_no_choice_changes_results(name: str) -> None:
    maker = tuner(1)
    for f in unscheduled(NETS[name]):
        made = candidates(f)
        code, names = maker.compiled(made)
        assert names == [g.name for g in made]
        assert Bench(code, names, Operands(made[0]), 2).names == names


def test_a_kernel_that_computes_something_else_cannot_win() -> None:
    maker = tuner(1)
    (f,) = unscheduled(model_of("g (float[500] x) => (float[500] y) { y = Relu(x) }"))
    (s,) = f.stages
    assert isinstance(s, TeStage)
    off = replace(f, stages=(replace(s, expr=s.expr + literal(0.001, s.dtype)),))
    right, wrong = (scheduled(g, machines.current()) for g in (f, off.with_name(f"{f.name}_off")))
    code, names = maker.compiled([right, wrong])
    assert names == [f.name, f"{f.name}_off"]
    assert Bench(code, names, Operands(right), 1).names == [f.name]


def test_a_kernel_that_ends_its_process_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = tuner(1)
    (f,) = unscheduled(product_of(100))
    made = candidates(f)[:4]
    code, names = maker.compiled(made)
    seconds = Bench.seconds

    def ends(self: Bench, name: str) -> float:
        if name == names[2]:
            os.kill(os.getpid(), signal.SIGKILL)
        return seconds(self, name)

    monkeypatch.setattr(Bench, "seconds", ends)
    assert list(maker.least(code, names, Operands(made[0]))) == [names[0], names[1], names[3]]
    assert maker.least(code, [names[2]], Operands(made[0])) == {}


def test_errors_of_an_isolated_function_are_those_of_the_call() -> None:
    assert isolated(lambda: [1, 2]) == [1, 2]
    assert isolated(lambda: os.kill(os.getpid(), signal.SIGKILL)) is None
    with pytest.raises(ZeroDivisionError):
        isolated(lambda: 1 // 0)


def test_winners_are_used_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setattr(tune, "_GAIN", -9.0)  # whatever is tried wins
    monkeypatch.setattr(tune, "TRIED", {"unroll": ("2",)})
    model = product_of("n")
    plain = Compilation(model, Settings("cpu")).artifact()
    first, looked = tuned(model, 60)
    session = open_artifact(first.artifact(), 1)
    (found,) = looked.done
    assert (found.hint, found.uses, found.remembered, looked.left) == ("unroll=2", 1, False, 0)
    assert [f.hint for f in first.module.te.values()] == ["unroll=2"]
    assert f"{found.kernel}: unroll=2: MatMul" in looked.table()
    assert "tuned 1 of 1 kernels (0 remembered, 0 not looked at)" in looked.table()
    for n in (1, 50):
        x = np.random.default_rng(n).standard_normal((n, 96), dtype=np.float32)
        (want,) = reference(model, {"x": x})
        assert np.abs(session(x)[0] - want).max() <= 1e-5 * np.abs(want).max()

    again, recalled = tuned(model, 0)
    assert again.artifact().code == first.artifact().code
    assert [t.remembered for t in recalled.done] == [True]
    assert "(1 remembered, 0 not looked at)" in recalled.table()
    assert Compilation(model, Settings("cpu")).artifact().code == plain.code != first.artifact().code


def test_nothing_is_measured_without_time_and_a_spoilt_entry_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget(monkeypatch)
    compilation, made = tuned(mlp(), 0)
    compilation.advance("scheduled")
    assert (made.done, made.left) == ([], 2)
    for f in unscheduled(mlp()):
        Cache().put("tuned", made._key(f), b'{"hint": 3', ".json")
    compilation, made = tuned(mlp(), 0)
    compilation.advance("scheduled")
    assert (made.done, made.left) == ([], 2)


def test_symbolic_sizes_are_typical_ones_and_within_a_cache() -> None:
    (f, *_) = unscheduled(convolution(1, 1, "h"))
    (size,) = Operands(f).sizes.values()
    assert size == 64
    (f,) = unscheduled(model_of("g (float[n, 3000, 100] x) => (float[n, 3000, 100] y) { y = Relu(x) }"))
    (size,) = Operands(f).sizes.values()
    assert size == 4  # 64 of them would be 150 MB


def test_the_table_adds_up_what_a_run_gains() -> None:
    made = Tuner("host", machines.current(), 1, Cache(), 2)
    made.done = [Tuned("a", ("A",), 3, "tile=2", 2e-3, 1e-3), Tuned("b", ("B\n",), 1, "", 1e-3, 1e-3)]
    lines = made.table().splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:4] == ["2.0000", "1.0000", "2.00", "3"]
    assert lines[2].endswith("3.000 of 7.000 ms less, threads: 2")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (["-t", "cpu-jit"], "target `cpu-jit` has no schedules to tune"),
        (["-O1"], "target `cpu-jit` has no schedules to tune"),
        (["-C", "schedule=fallback"], "`-C schedule=fallback` has no schedules to tune"),
        (["-C", "halide.target=arm-64-linux"], "cannot be measured on this machine"),
    ],
)
def test_what_cannot_be_measured_is_refused(occ_cli, tmp_path: Path, how: list[str], said: str) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    ran = occ_cli("build", tmp_path / "m.onnx", "-o", tmp_path / "m.occ", "--tune", "1", *how)
    assert ran.code == 2
    assert "OCC0603" in ran.err
    assert said in ran.err


def test_the_command_line_says_what_was_gained(occ_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setattr(tune, "TRIED", {"tile": ("2",)})
    onnx.save(product_of(64), tmp_path / "m.onnx")
    ran = occ_cli("build", tmp_path / "m.onnx", "-o", tmp_path / "m.occ", "--tune", "30", "--json")
    (kernel,) = json.loads(ran.out)["tuned"]
    assert kernel["kernel"].startswith("matmul_add")
    assert kernel["after"] <= kernel["before"]
    ran = occ_cli("build", tmp_path / "m.onnx", "-o", tmp_path / "m.occ", "--tune", "0")
    assert "(1 remembered, 0 not looked at)" in ran.err

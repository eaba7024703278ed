"""What code is made for where no option says it: this machine, or the processor in OCC_TARGET_CPU."""

from __future__ import annotations

from pathlib import Path

import machines
import numpy as np
import pytest
from building import mlp, model_of
from machines import TARGETS

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.objects.processors import PROCESSORS, default_target
from occ.compiler.targets.halide_targets import FEATURES, in_order
from occ.compiler.targets.registry import get_target

GIVEN = {"halide.target": TARGETS["x86-64-v2"]}


@pytest.mark.parametrize("name", TARGETS)
def test_processor_of_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCC_TARGET_CPU", {"arm-64": "neoverse-n1"}.get(name, name))
    assert default_target() == TARGETS[name]
    for target in ("cpu", "cpu-jit"):
        c = Compilation(mlp(), Settings(target))
        assert (c.options.halide_target, c.context.machine) == (TARGETS[name], machines.named(name))
    assert get_target("interp").options.machine == machines.named(name)
    assert occ.build(mlp(), "cpu-jit").manifest.machine == TARGETS[name]


def test_an_option_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCC_TARGET_CPU", "x86-64-v3")
    assert occ.build(mlp(), "cpu-jit", options=GIVEN).manifest.machine == TARGETS["x86-64-v2"]


def test_this_machine_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "host"):
        monkeypatch.delenv("OCC_TARGET_CPU", raising=False)
        if value is not None:
            monkeypatch.setenv("OCC_TARGET_CPU", value)
        assert default_target() == "host"


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_a_processor_that_is_none(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCC_TARGET_CPU", "z80")
    with pytest.raises(CompileError, match=r"OCC0603.*OCC_TARGET_CPU names `z80`, no known processor"):
        occ.build(mlp(), target)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_a_processor_in_the_place_of_a_halide_target(target: str) -> None:
    said = r"OCC0603.*names the processor `x86-64-v3`(.|\n)*--target-cpu x86-64-v3"
    with pytest.raises(CompileError, match=said):
        Compilation(mlp(), Settings(target, options={"halide.target": "x86-64-v3"}))


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("native", "is `native`, which does not name a machine(.|\n)*`host`"),
        ("arm-64", "is `arm-64`, which does not name a machine(.|\n)*x86-64-linux"),
        ("x86-64-linus-avx2", "is `x86-64-linus-avx2`, which does not name a machine"),
        ("x86-64-linux-avx22", "has no feature `avx22`(.|\n)*did you mean `avx2`"),
        ("host-", "has no feature ``"),
    ],
)
def test_a_halide_target_that_is_none(target: str, name: str, said: str) -> None:
    with pytest.raises(CompileError, match=f"OCC0603.*`halide.target` {said}"):
        Compilation(mlp(), Settings(target, options={"halide.target": name}))


@pytest.mark.parametrize("feature", FEATURES)
def test_halide_knows_each_feature_that_is_accepted(feature: str) -> None:
    """Whether it is one of the machine is left to Halide."""
    halide, said = pytest.importorskip("halide"), ""
    try:
        halide.Target(f"x86-64-linux-{feature}")
    except halide.HalideError as e:
        said = str(e)
    assert "Did not understand" not in said


@pytest.mark.parametrize("name", sorted(set(PROCESSORS.values())))
def test_targets_of_processors_are_accepted(name: str) -> None:
    assert in_order(name) == name
    pytest.importorskip("halide").Target(name)


@pytest.mark.parametrize("name", ["64-x86-linux-avx2-fma", "avx2-linux-fma-x86-64"])
def test_parts_of_a_target_come_in_any_order_as_halide_reads_them(name: str) -> None:
    halide, usual = pytest.importorskip("halide"), "x86-64-linux-avx2-fma"
    assert halide.Target(name).to_string() == halide.Target(usual).to_string()
    built = Compilation(mlp(), Settings("cpu", options={"halide.target": name})).artifact().manifest
    assert built == Compilation(mlp(), Settings("cpu", options={"halide.target": usual})).artifact().manifest


def test_what_a_run_compiles_is_for_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deferred operator, in a process that builds for another machine."""
    model = model_of("g (float[n, m] x, int64[k] axes) => (float[a, b] y) { y = ReduceSum(x, axes) }")
    occ.build(model, "cpu-jit", tmp_path / "m.occ", options={"halide.target": "host"})
    monkeypatch.setenv("OCC_TARGET_CPU", "neoverse-n1")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = occ.load(tmp_path / "m.occ")(x, np.int64([1]))
    np.testing.assert_array_equal(y, x.sum(1, keepdims=True))

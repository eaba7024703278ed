"""Specialised plans in addition to the general one: what artifacts share, and which plan a run uses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of, on_threads, reference
from c_library import Model, compile_c

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest
from occ.runtime.open import open_artifact

RNG = np.random.default_rng(0)
CONV = model_of(
    "g (float[n, 3, h, w] x) => (float[n, 8, h, w] y) { a = Conv <pads = [1, 1, 1, 1]> (x, k) y = Relu(a) }",
    {"k": RNG.standard_normal((8, 3, 3, 3), np.float32)},
)
RANKS = model_of(
    """g (float[t, n] x) => (y) {
        s = Shape <start = 0, end = 1> (x)
        one = Constant <value = int64[1] {1}> ()
        c = Equal(s, one)
        y = If (c) <
            then_branch = f () => (float[m] u) { axes = Constant <value = int64[1] {0}> () u = Squeeze(x, axes) },
            else_branch = e () => (float[t, n] v) { v = Relu(x) }
        >
    }"""
)
FOUND = model_of("g (float[n, m] x) => (float[n, m] r, int64[2, k] y) { r = Relu(x) y = NonZero(r) }")
STEPS = model_of(
    "g (float[t, b, 4] x) => (float[t, 1, b, 3] y, float[1, b, 3] h) { y, h = RNN <hidden_size = 3> (x, w, r) }",
    {"w": RNG.standard_normal((1, 3, 4), np.float32), "r": RNG.standard_normal((1, 3, 3), np.float32)},
)


def of(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize(
    ("model", "special", "shapes"),
    [
        (CONV, [(1, 3, 8, 8), (2, 3, 16, 4)], [(1, 3, 8, 8), (2, 3, 16, 4), (1, 3, 5, 7), (2, 3, 8, 8)]),
        (CONV, [("n", 3, 8, "w")], [(4, 3, 8, 9), (4, 3, 9, 8), (0, 3, 8, 8)]),
        (RANKS, [(1, 4), (3, 4)], [(1, 4), (3, 4), (1, 5), (2, 4)]),
        (FOUND, [(3, 4)], [(3, 4), (4, 3)]),
        (STEPS, [(1, 1, 4), (5, 2, 4)], [(1, 1, 4), (5, 2, 4), (3, 2, 4)]),
    ],
    ids=["fixed", "symbols", "ranks", "data", "functions"],
)
def test_all_plans_compute_what_the_model_says(model, special, shapes, target):
    artifact = occ.build(model, target, specialise=[{"x": s} for s in special])
    assert len(artifact.manifest.special) == len(special)
    for session in on_threads(artifact):
        for shape in (*shapes, *shapes):
            x = of(*shape)
            for got, want in zip(session(x), reference(model, {"x": x}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
                assert got.shape == want.shape


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """`y = x + 1`, and for three rows a plan that makes `y = x + 3` of it, which distinguishes it."""
    text = "g (float[n, 2] x) => (float[n, 2] y) {{ c = Constant <value_float = {}.0> () y = Add(x, c) }}"
    other = Compilation(model_of(text.format(3).replace("[n,", "[3,")), Settings("cpu-jit"))
    monkeypatch.setattr(
        Compilation, "specialised_modules", lambda self: [] if self is other else [other.advance("lowered")]
    )
    return occ.build(model_of(text.format(1)), "cpu-jit")


def test_inputs_of_such_extents_take_the_plan(telling):
    for session in on_threads(telling):
        for n in (2, 3, 4, 3, 0):
            np.testing.assert_array_equal(session(np.zeros((n, 2), np.float32))[0], np.full((n, 2), 3 if n == 3 else 1))


def test_a_profile_is_of_the_plan_that_runs(telling):
    session = open_artifact(telling, 1)
    kernels: list[str] = []
    session.engine.observer = lambda call, *_: kernels.append(call.step.name)
    session(np.zeros((3, 2), np.float32))
    session(np.zeros((4, 2), np.float32))
    assert kernels == [telling.manifest.special[0].plan.steps[0].name, telling.manifest.plan.steps[0].name]


@pytest.mark.toolchain
def test_programs_in_c_take_the_plan_too(telling, tmp_path: Path):
    path = telling.save(tmp_path / "m.occ")
    with Model(path) as model:
        for n in (3, 4, 3):
            (y,) = model.run(np.zeros((n, 2), np.float32))
            np.testing.assert_array_equal(y, np.full((n, 2), 3 if n == 3 else 1))


LINKED = """
#include "m.h"
#include <stdio.h>
int main(void) {
    occ_model *model;
    if (m_open(0, &model)) return 1;
    for (int n = 2; n < 5; n++) {
        float x[8] = {0}, y[8];
        m_ports p = {.n = n, .x = x, .y = y};
        if (m_run(model, &p)) return 2;
        printf("%.0f ", y[2 * n - 1]);
    }
    occ_close(model);
}
"""


@pytest.mark.toolchain
def test_linked_models_take_the_plan_too(telling, tmp_path: Path, monkeypatch, occ_cli):
    assert telling.manifest.special, "its fixture gives what is built here its plan as well"
    monkeypatch.chdir(tmp_path)
    onnx.save(
        model_of("g (float[n, 2] x) => (float[n, 2] y) { c = Constant <value_float = 1.0> () y = Add(x, c) }"), "m.onnx"
    )
    ran = occ_cli("build", "m.onnx", "-t", "cpu-jit", "--emit", "static", "--weights", "embed", "-o", "linked/")
    assert ran.code == 0, ran.err
    Path("main.c").write_text(LINKED)
    compile_c(Path("main.c"), Path("main"), ["linked/m.a"], "-Ilinked")
    assert subprocess.run(["./main"], capture_output=True, text=True, check=True).stdout.split() == ["1", "3", "1"]


def test_weights_and_kernels_are_shared(tmp_path: Path):
    plain, made = occ.build(mlp(), "cpu-jit"), occ.build(mlp(), "cpu-jit", specialise=[{"n": 4}, {"x": (8, 8)}])
    assert [w.tobytes() for w in made.weights] == [w.tobytes() for w in plain.weights]
    again = Artifact.load(made.save(tmp_path / "m.occ"))
    assert again.manifest.special == made.manifest.special
    assert [s.inputs[0].shape for s in again.manifest.special] == [[4, 8], [8, 8]]
    same = occ.build(mlp(), "cpu-jit", specialise=[{}])
    assert [s.name for s in same.manifest.special[0].plan.steps] == [s.name for s in same.manifest.plan.steps]


def test_artifacts_without_such_plans_have_the_digest_that_they_had():
    m = occ.build(mlp(), "cpu-jit").manifest
    record = json.loads(m.to_json())
    del record["special"]
    assert Manifest.from_json(json.dumps(record)).code_digest == m.code_digest


def test_a_plan_that_does_not_fit_its_model_is_refused():
    record = json.loads(occ.build(mlp(), "cpu-jit", specialise=[{"n": 4}]).manifest.to_json())
    record["special"][0]["inputs"][0]["name"] = "z"
    with pytest.raises(RunError, match="a specialised plan has other inputs"):
        Manifest.from_json(json.dumps(record))
    record["special"][0]["inputs"][0]["name"] = "x"
    record["special"][0]["plan"]["steps"][0]["reads"][0] = 99
    with pytest.raises(RunError, match="a step names a buffer that does not exist"):
        Manifest.from_json(json.dumps(record))


@pytest.mark.parametrize("target", ["interp", "ascend910b"])
def test_targets_with_one_plan_say_so(target):
    with pytest.raises(CompileError, match=f"OCC0603.*`{target}` has one plan for all shapes"):
        occ.build(mlp(), target, specialise=[{"n": 4}])


def test_a_text_cannot_be_compiled_for_several_shapes():
    text = occ.dump(mlp(), "canonical", "cpu-jit")
    with pytest.raises(CompileError, match=r"several shapes need the model itself"):
        occ.build(text, "cpu-jit", specialise=[{"n": 4}])


def test_build_takes_several_shapes(tmp_path: Path, occ_cli):
    path, out = tmp_path / "m.onnx", tmp_path / "m.occ"
    onnx.save(CONV, path)
    shapes = ["--shape", "x=1,3,8,8", "--shape", "x=n,3,16,16", "--dim", "w=8", "--dim", "w=16"]
    ran = occ_cli("build", path, "-t", "cpu-jit", *shapes, "-o", out)
    assert ran.code == 0, ran.err
    assert "special  x: f32[1,3,8,8], 2 steps" in ran.err
    assert "special  x: f32[n,3,16,16], 2 steps" in ran.err
    assert json.loads(occ_cli("inspect", out, "--json").out)["special"] == [
        "x: f32[1,3,8,8], 2 steps",
        "x: f32[n,3,16,16], 2 steps",
    ]
    assert occ_cli("run", out, "--dim", "h=8", "--dim", "w=8").code == 0
    assert occ_cli("run", out, "--dim", "h=9", "--dim", "w=7").code == 0


def test_sizes_in_turn_go_together(tmp_path: Path, occ_cli):
    path = tmp_path / "m.onnx"
    onnx.save(CONV, path)
    unlike = ["--dim", "h=8", "--dim", "h=16", "--dim", "n=1", "--dim", "n=2", "--dim", "n=3"]
    ran = occ_cli("build", path, "-t", "cpu-jit", *unlike)
    assert (ran.code, "per plan: --dim h has 2, --dim n has 3" in ran.err) == (2, True)
    ran = occ_cli("check", path, "-t", "cpu-jit", "--dim", "h=8", "--dim", "h=16")
    assert (ran.code, "only `occ build`, `run` and `bench` take several sizes" in ran.err) == (2, True)

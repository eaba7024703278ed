"""Fusions with kernels of users, and texts of stages that have such kernels."""

from __future__ import annotations

import subprocess

import numpy as np
import onnx
import pytest
from building import model_of, reference
from user_kernels import C_SOURCE, C_SWISH, HALIDE_SWISH, NET, rules, sample, swished

import occ

FUSION = """
@occ.fusion(kernel=occ.c_kernel("libuser.so", "int conv_relu(const float *x, const int64_t *x_shape, const float *w, "
            "const int64_t *w_shape, const float *b, int64_t g, float *y, const int64_t *y_shape)"))
def own_conv(p, x, w, b=None):
    return p.Relu(p.Conv(x, w, b, group=p.bind("g"), pads=p.bind("pads")))


@own_conv.when
def _(m):
    return not any(m.pads or ()) or m.reject("it has a border")
"""
CONVS = """g (float[n, 4, 9, 8] x) => (float[n, 6, p, q] y) {
    a = Conv (x, w1, b1)  b = Relu (a)
    c = Conv <group = 2> (b, w2)  d = Relu (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, w3)  y = Relu (e)
}"""


def convs() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    shapes = {"w1": (8, 4, 3, 3), "b1": (8,), "w2": (6, 4, 3, 2), "w3": (6, 6, 3, 3)}
    return model_of(CONVS, {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
def test_a_fusion_hands_its_region_to_a_function(target, folder, occ_cli, tmp_path) -> None:
    import onnxruntime

    path, model = rules(folder, "fusion", FUSION), tmp_path / "convs.onnx"
    onnx.save(convs(), model)
    x = sample(2, 4, 9, 8)
    (want,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    got = occ.compile(model, target, rules=[path]).run({"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if target == "interp":
        return
    fused = occ_cli("dump", model, "--stage", "fused", "-t", target, "--rules", path).out
    assert fused.count('kind="own_conv"') == 2
    assert fused.count('symbol="conv_relu"') == 2
    lowered = tmp_path / "lowered.occ"
    ran = occ_cli("dump", model, "--stage", "lowered", "-t", target, "--rules", path, "--validate", "-o", lowered)
    assert "validated after" in ran.err
    assert occ_cli("run", lowered, "-t", target, "--dim", "n=1").code == 0


def test_every_stage_with_kernels_reads_back(folder, tmp_path) -> None:
    from occ.compiler.driver.compilation import Compilation, Settings
    from occ.compiler.frontend.text import parse
    from occ.compiler.ir.printer import module_text
    from occ.compiler.ir.stages import STAGES

    for target, text in (("cpu", HALIDE_SWISH), ("cpu-jit", C_SWISH)):
        c = Compilation(
            onnx.parser.parse_model(NET), Settings(target, verify=True, rules=[rules(folder, "read", text)])
        )
        for stage in STAGES:
            text = module_text(c.advance(stage.name))
            assert module_text(parse(text, c.module.registry)) == text


SWISH_FUSION = """
@occ.fusion(kernel=occ.c_kernel("libuser.so", "int %s"))
def own_swish(p, x):
    return x * p.Sigmoid(x)
"""


def test_functions_of_fusions_and_rewrites_are_checked_against_what_they_replace(folder, occ_cli, tmp_path) -> None:
    right = (
        C_SWISH
        + """
@occ.rewrite
def to_swish(p, x):
    return x * p.Sigmoid(x)


@to_swish.into
def _(b, x):
    return b.op("com.example.Swish", x)
"""
    )
    checked = occ_cli("check-rules", rules(folder, "right", right.replace("libuser.so", "./libuser.so")))
    assert checked.out.startswith("ok        to_swish (rewrite)"), checked.out
    fine = SWISH_FUSION % "row_sums(const float *x, const int64_t *x_shape, int32_t x_rank, int64_t x_dim0, float *y)"
    wrong = occ_cli("check-rules", rules(folder, "sums", fine), "--out", tmp_path)
    assert wrong.out.startswith("WRONG     own_swish (fusion): element [")
    again = occ_cli("check-rules", tmp_path / "own_swish.counterexample.occ")
    assert again.out.startswith("DIFFERS")
    (folder / "plain.c").write_text(C_SOURCE.replace("float beta,", "").replace("beta *", ""))
    subprocess.run(["cc", "-shared", "-fPIC", "plain.c", "-o", "libplain.so", "-lm"], cwd=folder, check=True)
    text = (SWISH_FUSION % "swish(const float *x, int64_t x_size, float *y)").replace("libuser", "libplain")
    checked = occ_cli("check-rules", rules(folder, "plain", text))
    assert checked.out.startswith("ok        own_swish (fusion): 40 instances"), checked.out


def test_a_text_with_an_operator_that_is_not_loaded_is_refused(folder, tmp_path, occ_cli) -> None:
    model, path = tmp_path / "m.onnx", rules(folder, "swish_c", C_SWISH)
    onnx.save(onnx.parser.parse_model(NET), model)
    assert (
        occ_cli("dump", model, "--stage", "fused", "-t", "cpu-jit", "--rules", path, "-o", tmp_path / "m.occ").code == 0
    )
    assert occ_cli("build", model, "-t", "interp", "--rules", path, "-o", tmp_path / "i.occ").code == 0
    assert (
        occ_cli("build", tmp_path / "m.occ", "-t", "cpu-jit", "--rules", path, "-o", tmp_path / "again.occ").code == 0
    )
    for command in (("build", "m.occ", "-t", "cpu-jit"), ("run", "i.occ")):
        ran = occ_cli(command[0], tmp_path / command[1], *command[2:])
        assert ran.code == 1
        assert "error[OCC0601]: there is no operator `com.example.Swish`" in ran.err
        assert "--rules FILE" in ran.err
    assert occ_cli("run", tmp_path / "again.occ").code == 0  # it brings the kernel along


def test_an_ascend_device_leaves_the_function_to_the_host(folder, tmp_path) -> None:
    path = rules(folder, "swish_c", C_SWISH)
    made = occ.build(onnx.parser.parse_model(NET), "ascend310p", tmp_path / "m.occ", dims={"n": 3}, rules=[path])
    assert [p.name for p in made.manifest.parts]
    assert any(n.startswith("cpu_subgraphs/") and "/kernels/libuser-" in n for n in made.files)
    x = sample(3, 5)
    got = occ.load(tmp_path / "m.occ", simulate=True).run({"x": x})["y"]
    np.testing.assert_allclose(got, swished(x), rtol=1e-3, atol=1e-3)


def test_plans_for_certain_extents_bring_the_libraries_that_they_call(folder, tmp_path) -> None:
    """The fusion is for one row: the plan for all sizes has no foreign kernel."""
    one_row = FUSION.replace("return not any", "return m.x.type.shape[0] == 1 and not any")
    path = rules(folder, "one_row", one_row)
    occ.build(convs(), "cpu-jit", tmp_path / "m.occ", rules=[path], specialise=[{"n": 1}])
    session = occ.load(tmp_path / "m.occ")
    m = session.artifact.manifest
    assert [any(s.kind == "foreign" for s in p.steps) for p in (m.plan, m.special[0].plan)] == [False, True]
    for n in (1, 2):
        x = sample(n, 4, 9, 8)
        np.testing.assert_allclose(session(x)[0], reference(convs(), {"x": x})[0], rtol=1e-4, atol=1e-4)

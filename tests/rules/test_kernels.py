"""Kernels of users: te text, Halide C++ and functions in C libraries, for operators and for fusions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of

import occ

C_SOURCE = """
#include <math.h>
#include <stdint.h>
int swish(const float *x, int64_t x_size, float beta, float *y) {
    for (int64_t k = 0; k < x_size; k++) y[k] = x[k] / (1 + expf(-beta * x[k]));
    return 0;
}
int row_sums(const float *x, const int64_t *x_shape, int32_t x_rank, int64_t x_dim0, float *y) {
    int64_t width = x_rank == 2 ? x_shape[1] : 1;
    for (int64_t i = 0; i < x_dim0; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < width; j++) y[i] += x[i * width + j];
    }
    return 0;
}
void split(const float *x, int64_t x_size, const float *bias, bool_t twice, float *low, float *high) {
    for (int64_t k = 0; k < x_size; k++) {
        float v = (twice ? 2 : 1) * x[k] + (bias ? bias[0] : 0);
        low[k] = v < 0 ? v : 0;
        high[k] = v < 0 ? 0 : v;
    }
}
int fails(const float *x, float *y) { return 7; }
int conv_relu(const float *x, const int64_t *x_shape, const float *w, const int64_t *w_shape, const float *b, int64_t group,
              float *y, const int64_t *y_shape) {
    for (int64_t n = 0; n < y_shape[0]; n++)
        for (int64_t o = 0; o < y_shape[1]; o++)
            for (int64_t p = 0; p < y_shape[2]; p++)
                for (int64_t q = 0; q < y_shape[3]; q++) {
                    float sum = b ? b[o] : 0;
                    for (int64_t c = 0; c < w_shape[1]; c++)
                        for (int64_t k = 0; k < w_shape[2]; k++)
                            for (int64_t l = 0; l < w_shape[3]; l++)
                                sum += x[((n * x_shape[1] + o / (y_shape[1] / group) * w_shape[1] + c) * x_shape[2] + p + k)
                                         * x_shape[3] + q + l]
                                    * w[((o * w_shape[1] + c) * w_shape[2] + k) * w_shape[3] + l];
                    y[((n * y_shape[1] + o) * y_shape[2] + p) * y_shape[3] + q] = sum > 0 ? sum : 0;
                }
    return 0;
}
""".replace("bool_t", "_Bool")

HEAD = "import occ\n\n\n"
SWISH = """
@occ.operator("com.example.Swish")
class Swish:
    operands = ("x",)
    attributes = {"beta": 1.0}
    kernel = %s

    def infer(x, *, a):
        return x.type
"""
C_SWISH = SWISH % 'occ.c_kernel("libuser.so", "int swish(const float *x, int64_t x_size, float beta, float *y)")'
BODY = """
    def body(t, x, *, a):
        from occ.compiler.ir.te.expr import call

        return t.map(x.shape, lambda *i: x[i] / (call("exp", x[i] * -a.beta) + 1.0), name="swish")
"""
HALIDE_SWISH = (
    SWISH.replace('{"beta": 1.0}', "{}")
    % '''occ.halide_kernel("""
        Var i, j;
        y(i, j) = x(i, j) / (1 + exp(-x(i, j)));
        y.vectorize(i, 8, TailStrategy::GuardWithIf);
    """)'''
)
TE_SWISH = (
    HEAD
    + '''
@occ.operator("com.example.Swish")
class Swish:
    operands = ("x",)
    kernel = occ.te_kernel("""
        te @swish[n, c](%x: f32[n, c]) -> (y: f32[n, c]) {
            e[i<n, j<c] = exp(-1.0 * %x[i, j])
            y[i<n, j<c] = %x[i, j] / (e[i, j] + 1.0)
        }
    """)
'''
)
NET = """<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>
g (float[n, 5] x) => (float[n, 5] y) { a = Neg (x)  s = com.example.Swish (a)  y = Relu (s) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library of a user, `libuser.so`."""
    made = tmp_path_factory.mktemp("user")
    (made / "user.c").write_text(C_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "user.c", "-o", "libuser.so", "-lm"], cwd=made, check=True)
    return made


def rules(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(text if text.startswith(HEAD) else HEAD + text)
    return str(path)


def swished(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    x = -x.astype(np.float64)
    return np.maximum(x / (1 + np.exp(-beta * x)), 0)


def sample(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("kind", ["c", "te"])
def test_an_operator_computes_with_its_kernel(kind, target, folder) -> None:
    path = rules(folder, f"swish_{kind}", {"c": C_SWISH, "te": TE_SWISH}[kind])
    m = occ.compile(onnx.parser.parse_model(NET), target, rules=[path])
    for n in (7, 1, 0):
        x = sample(n, 5)
        np.testing.assert_allclose(m.run({"x": x})["y"], swished(x), rtol=1e-5, atol=1e-7)


@pytest.mark.toolchain
def test_halide_takes_a_kernel_in_cpp(folder) -> None:
    m = occ.compile(onnx.parser.parse_model(NET), "cpu", rules=[rules(folder, "swish_halide", HALIDE_SWISH)])
    x = sample(6, 5)
    np.testing.assert_allclose(m.run({"x": x})["y"], swished(x), rtol=1e-5, atol=1e-7)
    assert b"y.vectorize(i, 8" in m.artifact.files["src/user_kernels.cpp"]


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_other_targets_refuse_a_kernel_in_cpp(target, folder) -> None:
    path = rules(folder, "swish_halide", HALIDE_SWISH)
    with pytest.raises(occ.CompileError) as e:
        occ.compile(onnx.parser.parse_model(NET), target, rules=[path])
    (found,) = e.value.diagnostics
    assert found.code == "OCC0615"
    assert found.message == f"`-t {target}` cannot use the Halide C++ kernel of `com.example.Swish`"
    assert "Swish#2" in found.where
    assert "`-t cpu`" in found.helps[0]


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_other_targets_take_the_body_beside_a_kernel(target, folder) -> None:
    text = HALIDE_SWISH.replace("{}", '{"beta": 1.0}').partition("    def infer")[0] + BODY
    m = occ.compile(onnx.parser.parse_model(NET), target, rules=[rules(folder, "swish_both", text)])
    x = sample(3, 5)
    np.testing.assert_allclose(m.run({"x": x})["y"], swished(x), rtol=1e-5, atol=1e-7)


def test_an_artifact_brings_the_library_along(folder, tmp_path) -> None:
    there = tmp_path / "there"
    shutil.copytree(folder, there)
    path = rules(there, "swish_c", C_SWISH)
    occ.build(onnx.parser.parse_model(NET), "cpu-jit", tmp_path / "m.occ", rules=[path])
    shutil.rmtree(there)
    with zipfile.ZipFile(tmp_path / "m.occ") as z:
        manifest = json.loads(z.read("manifest.json"))
        (library,) = (n for n in z.namelist() if n.startswith("kernels/libuser-"))
    assert manifest["digests"][library]
    np.save(tmp_path / "x.npy", sample(4, 5))
    # Without the compiler: numpy and the runtime alone, in a process that has not seen the rules.
    code = "import sys, numpy as np; from occ.runtime.open import load; m = load('m.occ'); np.save('y.npy', m(np.load('x.npy'))[0]); assert not any(k.startswith('occ.compiler') for k in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=dict(os.environ))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), swished(sample(4, 5)), rtol=1e-5, atol=1e-7)


def test_a_damaged_library_in_an_artifact_is_noticed(folder, tmp_path) -> None:
    path = rules(folder, "swish_c", C_SWISH)
    occ.build(onnx.parser.parse_model(NET), "cpu-jit", tmp_path / "m", rules=[path], folder=True)
    (library,) = (tmp_path / "m/kernels").glob("libuser-*")
    library.write_bytes(library.read_bytes()[:-1] + b"?")
    with pytest.raises(occ.RunError, match=r"OCC0502.*kernels/libuser-.*digest"):
        occ.load(tmp_path / "m")
    library.unlink()
    with pytest.raises(occ.RunError, match=r"OCC0502.*kernels/libuser-.* is missing"):
        occ.load(tmp_path / "m")


SPLIT = """
@occ.operator("com.example.Split")
class Split:
    operands = ("x", "bias?")
    results = ("low", "high")
    attributes = {"twice": 0}
    kernel = occ.c_kernel("libuser.so", "void split(const float *x, int64_t x_size, const float *bias, bool twice, float *low, float *high)")

    def infer(x, bias=None, *, a):
        return x.type, x.type


@occ.operator("com.example.RowSums")
class RowSums:
    operands = ("x",)
    kernel = occ.c_kernel("libuser.so", "int row_sums(const float *x, const int64_t *x_shape, int32_t x_rank, int64_t x_dim0, float *y)")

    def infer(x, *, a):
        return x.type.with_shape(x.shape[:1])
"""
SPLIT_NET = """<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>
g (float[n, c] x) => (float[n, c] low, float[n, c] high, float[n] sums) {
    a, b = com.example.Split <twice = 1> (x, bias)
    c, high = com.example.Split (a)
    low = Neg (c)
    sums = com.example.RowSums (b)
}"""


@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
def test_functions_take_sizes_flags_absent_operands_and_give_several_results(target, folder) -> None:
    model = onnx.parser.parse_model(SPLIT_NET)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([0.25]), "bias"))
    m = occ.compile(model, target, rules=[rules(folder, "split", SPLIT)])
    x = sample(4, 3)
    got = m.run({"x": x})
    v = 2 * x + np.float32(0.25)
    np.testing.assert_array_equal(got["low"], -np.minimum(v, 0))
    np.testing.assert_array_equal(got["high"], np.zeros_like(x))
    np.testing.assert_allclose(got["sums"], np.maximum(v, 0).sum(1), rtol=1e-6)


def test_a_function_that_fails_is_an_error_of_the_run(folder) -> None:
    text = C_SWISH.replace(
        "int swish(const float *x, int64_t x_size, float beta, float *y)", "int fails(const float *x, float *y)"
    )
    path = rules(folder, "fails", text)
    for target in ("interp", "cpu-jit"):
        m = occ.compile(onnx.parser.parse_model(NET), target, rules=[path])
        with pytest.raises(occ.RunError, match=r"OCC0505.*node `Swish#2` failed: `fails` of `libuser.*so` returned 7"):
            m.run({"x": sample(2, 5)})


WRONG = [
    ("libother.so", "int swish(const float *x, float *y)", "there is no library `.*libother.so`"),
    ("user.c", "int swish(const float *x, float *y)", "the library `.*user.c` cannot be used"),
    ("libuser.so", "int swash(const float *x, float *y)", "has no function `swash`"),
    ("libuser.so", "float swish(float x)", "the prototype `float swish.*` is not understood"),
    ("libuser.so", "int swish(const quad *x, float *y)", r"the parameter `const quad \*x` is not understood"),
    ("libuser.so", "int swish(const float *z, float *y)", "the pointer `z` of `swish` stands for nothing"),
    (
        "libuser.so",
        "int swish(const float *x, float gamma, float *y)",
        "the value `gamma` of `swish` stands for nothing",
    ),
    (
        "libuser.so",
        "int swish(const float *x, float x_size, float *y)",
        "the value `x_size` of `swish` stands for nothing",
    ),
    ("libuser.so", "int swish(const float *x, const float *y)", "the pointer `y` of `swish` stands for nothing"),
    ("libuser.so", "int swish(const float *x)", "`swish` has no pointer for the result `y`"),
]


@pytest.mark.parametrize(("library", "prototype", "message"), WRONG)
def test_a_kernel_that_cannot_be_is_refused_where_it_is_written(library, prototype, message, folder) -> None:
    text = SWISH % f'occ.c_kernel("{library}", "{prototype}")'
    with pytest.raises(occ.CompileError, match=message) as e:
        occ.compile(onnx.parser.parse_model(NET), "cpu-jit", rules=[rules(folder, "wrong", text)])
    (found,) = e.value.diagnostics
    assert found.code == "OCC0615"
    assert found.where.endswith("wrong.py")


def test_operands_of_another_type_are_refused_at_the_node(folder) -> None:
    model = onnx.parser.parse_model(NET.replace("float[", "double["))
    with pytest.raises(occ.CompileError) as e:
        occ.compile(model, "cpu-jit", rules=[rules(folder, "swish_c", C_SWISH)])
    (found,) = e.value.diagnostics
    assert found.code == "OCC0615"
    assert found.message == "`swish` takes `x` as f32, and it is f64"
    assert "Swish#2" in found.where


def test_operands_that_a_te_function_does_not_take_are_refused_at_the_node(folder) -> None:
    path = rules(folder, "swish_te", TE_SWISH)
    for other in ("double[n, 5]", "float[n, 5, 1]"):
        model = onnx.parser.parse_model(NET.replace("float[n, 5]", other))
        with pytest.raises(occ.CompileError, match=r"OCC0615.*te `swish` takes x as f32\[n,c\], and it is f"):
            occ.compile(model, "cpu-jit", rules=[path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("te @f[](%x: f32[2]) -> (y: f32[2]) { y[i<2] = %z[i] }", "cannot be read.*`z` is not a parameter"),
        ("te @f[](%x: f32[2]) -> (y: f32[2]) { z[i<2] = %x[i] }", "no stage `y`"),
        ("te @f[m](%x: f32[2]) -> (y: f32[2]) { y[i<2] = %x[i] }", "a dim `m` that is no extent"),
        ("y[i<2] = %x[i]", "cannot be read: error.*unexpected text"),
    ],
)
def test_a_te_text_that_is_no_function_is_refused(text, message, folder) -> None:
    text = f"occ.te_kernel({text!r})"
    with pytest.raises(occ.CompileError, match=f"OCC0615.*{message}"):
        occ.compile(onnx.parser.parse_model(NET), "interp", rules=[rules(folder, "bad_te", text)])


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
    assert any(n.startswith("islands/") and "/kernels/libuser-" in n for n in made.files)
    x = sample(3, 5)
    got = occ.load(tmp_path / "m.occ", simulate=True).run({"x": x})["y"]
    np.testing.assert_allclose(got, swished(x), rtol=1e-3, atol=1e-3)

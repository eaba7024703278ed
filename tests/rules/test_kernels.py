"""Kernels of users: te text, Halide C++ and functions in C libraries, for operators and for fusions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import onnx
import pytest
from user_kernels import BODY, C_SWISH, HALIDE_SWISH, NET, SWISH, TE_SWISH, rules, sample, swished

import occ


@pytest.mark.thinned
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
    ("libuser.so", "float swish(float x)", "the prototype `float swish.*` is not recognised"),
    ("libuser.so", "int swish(const quad *x, float *y)", r"the parameter `const quad \*x` is not recognised"),
    ("libuser.so", "int swish(const float *z, float *y)", "the pointer `z` of `swish` has no meaning"),
    (
        "libuser.so",
        "int swish(const float *x, float gamma, float *y)",
        "the value `gamma` of `swish` has no meaning",
    ),
    (
        "libuser.so",
        "int swish(const float *x, float x_size, float *y)",
        "the value `x_size` of `swish` has no meaning",
    ),
    ("libuser.so", "int swish(const float *x, const float *y)", "the pointer `y` of `swish` has no meaning"),
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
        ("te @f[m](%x: f32[2]) -> (y: f32[2]) { y[i<2] = %x[i] }", "a dim `m` that is not an extent"),
        ("y[i<2] = %x[i]", "cannot be read: error.*unexpected text"),
    ],
)
def test_a_te_text_that_is_no_function_is_refused(text, message, folder) -> None:
    text = f"occ.te_kernel({text!r})"
    with pytest.raises(occ.CompileError, match=f"OCC0615.*{message}"):
        occ.compile(onnx.parser.parse_model(NET), "interp", rules=[rules(folder, "bad_te", text)])

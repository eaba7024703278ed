"""QuantizeLinear divides to the last digit: numbers around halves, of many scales, on processors with and without fused multiply-add."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from building import model_of
from machines import opened

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.objects.processors import PROCESSORS

MACHINES = {
    "cpu": {},
    "avx2": {"halide.target": "x86-64-linux-avx2-fma"},
    "sse": {"halide.target": "x86-64-linux-sse41"},
}
ODD = 2 - 2.0**-23  # a sum of two products has not the quotient's last digit where that decides
LAST_BIT = float.fromhex("0x1.47fffcp-7")  # of the second product decides whether -0x1.b10ffcp-1 is -84 or -85
SCALES = (0.02, 1 / 3, 0.0078125, 1.17e-3, 7.3e-19, 3.9e21, 1.0, ODD)


def around_halves(scale: np.float32) -> np.ndarray:
    """The numbers next to those whose quotient is a whole number and a half, and what is far from all codes."""
    halves = (np.arange(-400, 400) + 0.5) * np.float64(scale)
    near = halves.astype(np.float32)
    found = [near]
    for to in (np.float32(-np.inf), np.float32(np.inf)):
        step = near
        for _ in range(4):
            step = np.nextafter(step, to)
            found.append(step)
    rest = np.random.default_rng(3).normal(0, 100 * abs(float(scale)), 20_000)
    far = [0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-38, 1e-45]
    return np.concatenate([*found, rest.astype(np.float32), np.array(far, np.float32)])


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("options", list(MACHINES.values()), ids=list(MACHINES))
@pytest.mark.parametrize("zero", [0, 121])
def test_codes_around_halves(zero: int, options: dict[str, str]) -> None:
    names = [f"s{k}" for k in range(len(SCALES))]
    nodes = " ".join(f"y{k} = QuantizeLinear(x{k}, s{k}, z)" for k in range(len(SCALES)))
    given = ", ".join(f"float[n] x{k}" for k in range(len(SCALES)))
    made = ", ".join(f"uint8[n] y{k}" for k in range(len(SCALES)))
    weights = {name: np.array(s, np.float32) for name, s in zip(names, SCALES, strict=True)}
    model = model_of(f"g ({given}) => ({made}) {{ {nodes} }}", {"z": np.array(zero, np.uint8), **weights})
    session = opened(occ.build(model, "cpu", options=options))
    inputs = {f"x{k}": around_halves(weights[name]) for k, name in enumerate(names)}
    got = session.run(inputs)
    for k, name in enumerate(names):
        with np.errstate(over="ignore"):
            want = np.clip(np.rint(inputs[f"x{k}"] / weights[name]) + zero, 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(got[f"y{k}"], want, err_msg=str(SCALES[k]))


@pytest.mark.toolchain
@pytest.mark.skipif(not shutil.which("objdump") or platform.machine() != "x86_64", reason="needs objdump, on x86-64")
@pytest.mark.parametrize(("scale", "corrected"), [(0.02, False), (ODD, True)])
def test_a_quotient_is_a_sum_of_two_products_where_that_has_its_codes(
    scale: float, corrected: bool, tmp_path: Path
) -> None:
    """A product corrected twice took twelve instructions for a vector of numbers, this takes six."""
    weights = {"s": np.array(scale, np.float32), "z": np.array(128, np.uint8)}
    model = model_of("g (float[n] x) => (uint8[n] y) { y = QuantizeLinear(x, s, z) }", weights)
    made = Compilation(model, Settings("cpu", options={"halide.target": PROCESSORS["x86-64-v4"]})).artifact()
    (tmp_path / "model.so").write_bytes(made.code)
    command = ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "model.so")]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kernel = "".join(f for f in code.split("\n\n") if re.match(r"\w+ <quantizelinear", f))
    assert "vfmadd" in kernel or corrected
    assert bool(re.search("vfnm|vfms", kernel)) == corrected


@pytest.mark.toolchain
@pytest.mark.parametrize("scale", [0.2, -0.2])
def test_a_product_is_rounded_before_it_is_divided(scale: float) -> None:
    """LLVM multiplied a factor of the number by the reciprocal of the scale."""
    weights = {"f": np.array(0.1, np.float32), "s": np.array(scale, np.float32), "z": np.array(0, np.int8)}
    text = "g (float[n] x) => (int8[n] y) { p = Mul(x, f) y = QuantizeLinear(p, s, z) }"
    x = np.arange(1, 255, 2, dtype=np.float32)
    want = np.clip(np.rint(x * weights["f"] / weights["s"]), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(occ.compile(model_of(text, weights), "cpu").run({"x": x})["y"], want)


@pytest.mark.toolchain
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("scale", [0.02, -0.02, ODD, LAST_BIT])
def test_codes_of_numbers_whose_sign_is_known(scale: float, target: str) -> None:
    """LLVM dropped the bounds that keep both parts of the reciprocal apart, and multiplied by their sum."""
    weights = {"s": np.array(scale, np.float32), "z": np.array(121, np.uint8)}
    text = """g (float[n] x) => (uint8[n] a, uint8[n] b, uint8[n] c) {
        r = Relu(x) a = QuantizeLinear(r, s, z) p = Abs(x) b = QuantizeLinear(p, s, z) m = Neg(p) c = QuantizeLinear(m, s, z)
    }"""
    session = opened(occ.build(model_of(text, weights), "cpu", options={"halide.target": PROCESSORS[target]}))
    x = around_halves(weights["s"])
    got = session.run({"x": x})
    for name, numbers in {"a": np.maximum(x, 0), "b": np.abs(x), "c": -np.abs(x)}.items():
        with np.errstate(over="ignore"):
            want = np.clip(np.rint(numbers / weights["s"]) + 121, 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(got[name], want, err_msg=name)

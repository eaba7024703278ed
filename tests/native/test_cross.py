"""Builds for aarch64 on x86-64: artifacts and libraries run in an emulator, and are refused elsewhere before their code runs."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from arm_program import ARM, PROGRAM, check_program
from building import mlp, model_of, reference
from c_library import UNSUPPORTED, Failed, Model
from click.testing import CliRunner
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import occ
from occ.cli import cli
from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError
from occ.compiler.objects.processors import PROCESSORS, arch_of
from occ.compiler.standalone.emulated import Emulated, missing

pytestmark = [
    pytest.mark.toolchain,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build on x86-64 for another machine"),
    pytest.mark.skipif(bool(missing(ARM)), reason=f"apt install {missing(ARM)}"),
]
RNG = np.random.default_rng(0)
TARGET = {"halide.target": "arm-64-linux"}


def _numbers(low: int, high: int, count: int, end: str = "") -> str:
    return ", ".join(f"{x}{end}" for x in RNG.integers(low, high, count))


MODELS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "convolution": (
        "g (float[n, 3, 9, 9] x, float[5, 3, 3, 3] w) => (float[n, 5, 9, 9] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }",
        {"x": RNG.standard_normal((2, 3, 9, 9), np.float32), "w": RNG.standard_normal((5, 3, 3, 3), np.float32)},
    ),
    "half": (
        "g (float16[n, 40] x) => (float[n, 40] y) { c = Cast <to = 1> (x) y = Softmax(c) }",
        {"x": RNG.standard_normal((3, 40)).astype(np.float16)},
    ),
    "bytes": (
        "g (uint8[7, 24] x, int8[24, 33] w) => (int32[7, 33] y) { y = MatMulInteger(x, w) }",
        {"x": RNG.integers(0, 255, (7, 24), np.uint8), "w": RNG.integers(-128, 127, (24, 33), np.int8)},
    ),
    "scalar": (
        "g (float x, float[n, 4] v) => (float[n, 4] y) { y = Mul(x, v) }",
        {"x": np.array(3, np.float32), "v": RNG.standard_normal((4, 2), np.float32).T},
    ),
    "special": (
        "g (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }",
        {"x": np.array([np.nan, -np.nan, np.inf, -np.inf, 65519, 65520, -7e4, 6e-8, 2e-8, -0.0, 0.1], np.float32)},
    ),
    "choice": (
        "g (bool[n, 40] c, float16[n, 40] x, float16[n, 40] z) => (float16[n, 40] y) { y = Where(c, x, z) }",
        {"c": RNG.random((3, 40)) > 0.5, **{n: RNG.standard_normal((3, 40)).astype(np.float16) for n in "xz"}},
    ),
    "not": ("g (bool[n, 40] x) => (bool[n, 40] y) { y = Not(x) }", {"x": RNG.random((3, 40)) > 0.5}),
    "bits": ("g (int32[n, 40] x) => (int32[n, 40] y) { y = BitwiseNot(x) }", {"x": RNG.integers(-9, 9, (3, 40), np.int32)}),
    "mirror": (
        'g (float[n, m] x) => (float[a, b] y) { p = Constant <value = int64[4] {0, 2, 0, 5}> () y = Pad <mode = "reflect"> (x, p) }',
        {"x": RNG.standard_normal((3, 11), np.float32)},
    ),
    "pool": (
        "g (float[1, 3, 9, 9] x) => (float[1, 3, 5, 5] y) { y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) }",
        {"x": RNG.standard_normal((1, 3, 9, 9), np.float32)},
    ),
    "blocks": (
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[n, 64] x) => (float[n, 16] y) <uint8[16, 2, 16] b = {{{_numbers(0, 256, 512)}}}, float[32] s = {{{_numbers(1, 9, 32, ".0")}}}>
        {{ y = com.microsoft.MatMulNBits <K = 64, N = 16, bits = 4, block_size = 32> (x, b, s) }}""",
        {"x": RNG.standard_normal((5, 64), np.float32)},
    ),
    "recurrence": (
        "g (float[6, 2, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[6, 1, 2, 3] y) { y = LSTM <hidden_size = 3> (x, w, r) }",
        {n: RNG.standard_normal(s, np.float32) for n, s in (("x", (6, 2, 4)), ("w", (1, 12, 4)), ("r", (1, 12, 3)))},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("arm") / "mlp.occ"
    occ.build(mlp(), "cpu", str(path), options=TARGET)
    return path


@pytest.mark.thinned
@pytest.mark.parametrize("case", MODELS)
def test_results_are_those_of_onnxruntime_here(case: str):
    check(case, TARGET)


def check(case: str, options: dict[str, str]) -> None:
    text, feed = MODELS[case]
    model = model_of(text)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[:1]
    got = Emulated(occ.build(model, "cpu", options=options), Cache()).run(feed)
    np.testing.assert_allclose(got["y"], want, rtol=1e-4, atol=1e-5, strict=True)


def test_half_floats_become_bytes_where_no_instruction_knows_them():
    """LLVM calls `__truncsfhf2` on POWER8, which GCC's library has for other processors alone."""
    target = PROCESSORS["pwr8"]
    if lacks := missing(arch_of(target)):
        pytest.skip(f"apt install {lacks}")
    model = model_of("g (float16[n] x) => (float8e4m3fn[n] y) { y = Cast <to = 17> (x) }")
    feed = {"x": np.arange(0, 1 << 16, 3, np.uint16).view(np.float16)}
    got = Emulated(occ.build(model, "cpu", options={"halide.target": target}), Cache()).run(feed)["y"]
    with np.errstate(invalid="ignore"):
        (want,) = reference(model, feed)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32), strict=True)


@pytest.mark.parametrize(
    "case", ["convolution", "special", "bytes", "choice", "not", "bits", "mirror", "pool", "blocks", "recurrence"]
)
@pytest.mark.parametrize("processor", ["cortex-a9", "rv64gcv", "pwr8"])
def test_results_on_further_processors(processor: str, case: str):
    """Addresses of 32 bits; vectors with predicates; another C ABI."""
    target = PROCESSORS[processor]
    arch = arch_of(target)
    assert arch is not None
    if lacks := missing(arch):
        pytest.skip(f"apt install {lacks}")
    if (processor, case) == ("rv64gcv", "special"):
        pytest.skip("QEMU 7.2 fails an assertion of its own (decode_save_opc)")
    check(case, {"halide.target": target})


def test_an_artifact_of_another_machine_is_refused(artifact: Path):
    said = "was built for (aarch64), this machine is (x86_64|x86-64)"
    with pytest.raises(occ.RunError, match=said):
        occ.load(artifact)
    with pytest.raises(Failed, match=said) as caught:
        Model(artifact)
    assert caught.value.code == UNSUPPORTED


def test_there_an_artifact_of_this_machine_is_refused():
    foreign = Emulated(occ.build(mlp(), "cpu", options=TARGET), Cache())
    occ.build(mlp(), "cpu-jit").save(foreign._path)
    with pytest.raises(occ.RunError, match="was built for x86-64, this machine is aarch64"):
        foreign.run({"x": np.ones((3, 8), np.float32)})


@pytest.mark.parametrize(
    "graph",
    ["g (string[n] x) => (string[n] y) { y = Identity(x) }"],
)
def test_what_only_python_runs_is_refused(graph: str):
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="OCC0306"):
        occ.backend.prepare(model_of(graph), "CPU:arm-64")


@pytest.mark.thinned
@pytest.mark.parametrize("emit", ["static", "shared", "object"])
def test_everything_that_a_program_links_with(emit: str, tmp_path: Path):
    (tmp_path / "mlp.onnx").write_bytes(mlp().SerializeToString())
    (tmp_path / "main.c").write_text(PROGRAM)
    options = ["--target-cpu", "cortex-a72", "--emit", emit, "-o", str(tmp_path / "out"), "--json"]
    (tmp_path / "out").mkdir()
    done = CliRunner().invoke(cli, ["build", str(tmp_path / "mlp.onnx"), *options], standalone_mode=False)
    assert done.exception is None, done.output
    link = re.search(r'"link": "([^"]*)"', done.output)
    assert link is not None
    command = link[1].replace("main.c", str(tmp_path / "main.c")) + f" -o {tmp_path / 'main'}"
    assert command.startswith(f"{ARM.gnu}-gcc ")
    subprocess.run(command.split(), check=True, cwd=tmp_path)
    check_program(tmp_path / "main", tmp_path / "out/mlp.weights")


def test_processors_have_names():
    assert all(arch_of(target) is not None for target in PROCESSORS.values())
    done = CliRunner().invoke(cli, ["build", "m.onnx", "--target-cpu", "z80"], standalone_mode=False)
    assert "unknown processor 'z80'" in str(done.exception)


def test_without_a_cross_compiler_the_error_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("OCC_CXX_AARCH64", str(tmp_path / "none"))
    with pytest.raises(CompileError, match="of OCC_CXX_AARCH64 was not found"):
        occ.build(mlp(), "cpu", options=TARGET)
    monkeypatch.delenv("OCC_CXX_AARCH64")
    monkeypatch.setattr("occ.compiler.codegen_halide.build.cross_compiler", lambda _: None)
    with pytest.raises(CompileError, match=f"apt install g\\+\\+-{ARM.gnu}"):
        occ.build(mlp(), "cpu", options=TARGET)

"""`cpu-jit` for other machines than this one: LLVM's code, linked without a linker, runs in an emulator."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from arm_program import ARM, PROGRAM, check_program
from building import mlp, model_of, reference
from click.testing import CliRunner
from test_cross import MODELS

import occ
from occ.cli import cli
from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_llvm import machine
from occ.compiler.diagnostics import CompileError
from occ.compiler.objects.elf import LinkError, link
from occ.compiler.objects.processors import PROCESSORS, Arch, arch_of
from occ.compiler.standalone import emulated
from occ.compiler.standalone.emulated import Emulated

TARGET = {"halide.target": "arm-64-linux"}
HALVES = np.array([np.nan, -np.inf, 65519, 65520, 6e-8, 2e-8, -0.0, 0.1] * 5, np.float32)
needs_emulator = [
    pytest.mark.toolchain,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build on x86-64 for another machine"),
    pytest.mark.skipif(bool(emulated.missing(ARM)), reason=f"apt install {emulated.missing(ARM)}"),
]


class TestArm:
    pytestmark = needs_emulator

    @pytest.mark.thinned
    @pytest.mark.parametrize("case", MODELS)
    def test_results_are_those_of_onnxruntime_here(self, case: str):
        text, feed = MODELS[case]
        model = model_of(text)
        (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[:1]
        got = Emulated(occ.build(model, "cpu-jit", options=TARGET), Cache()).run(feed)
        np.testing.assert_allclose(got["y"], want, rtol=1e-4, atol=1e-5, strict=True)

    def test_functions_of_the_c_library_are_found(self):
        """By way of the table that the loader fills, and stubs."""
        model = model_of(
            "g (double[n] x, double[n] z) => (double[n] y) { a = Sin(x) b = Mod <fmod = 1> (a, z) c = Tanh(b) y = Pow(c, z) }"
        )
        x, z = np.random.default_rng(0).random((2, 37)) + 0.1
        got = occ.backend.prepare(model, "CPU:arm-64", target="cpu-jit").run({"x": x, "z": z})
        np.testing.assert_allclose(got[0], reference(model, {"x": x, "z": z})[0], rtol=1e-12)

    def test_a_library_for_programs(self, tmp_path: Path):
        (tmp_path / "mlp.onnx").write_bytes(mlp().SerializeToString())
        (tmp_path / "main.c").write_text(PROGRAM)
        options = ["-t", "cpu-jit", "--target-cpu", "cortex-a76", "--emit", "static", "-o", str(tmp_path)]
        done = CliRunner().invoke(cli, ["build", str(tmp_path / "mlp.onnx"), *options], standalone_mode=False)
        assert done.exception is None, done.output
        command = f"{ARM.gnu}-gcc -I. main.c mlp.a -ldl -lpthread -lm -o main"
        subprocess.run(command.split(), check=True, cwd=tmp_path)
        check_program(tmp_path / "main", tmp_path / "mlp.weights")


@pytest.mark.toolchain
@pytest.mark.parametrize(("cpu", "level"), [("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")])
def test_levels_of_x86(cpu: str, level: str, tmp_path: Path):
    """x86-64-v2 has no instruction for halves: the compiler's library has a function, which programs need not be linked with."""
    qemu, here = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64"), arch_of()
    if qemu is None or not isinstance(here, Arch) or here.kind != "x86-64":
        pytest.skip("apt install qemu-user-static")
    model = model_of("g (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }")
    path = tmp_path / "m.occ"
    occ.build(model, "cpu-jit", path, options={"halide.target": PROCESSORS[level]})
    command = [qemu, "-cpu", cpu, str(emulated._runner(here, Cache())), str(path)]
    done = subprocess.run(command, input=emulated._packed("f32", HALVES), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.errstate(over="ignore"):
        want = HALVES.astype(np.float16)
    np.testing.assert_array_equal(next(emulated._unpacked(done.stdout, 1)), want, strict=True)


def test_names_are_those_that_a_run_compares():
    assert occ.build(mlp(), "cpu-jit", options=TARGET).manifest.machine == "arm-64-linux"


def test_a_machine_with_aarch64_is_called_by_its_features(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "arch_of", lambda _: ARM)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    # An emulator on x86-64 shows the flags of that in /proc/cpuinfo.
    monkeypatch.setattr(machine, "flags", lambda: frozenset({"fp", "asimd", "asimddp", "sse4_1"}))
    assert machine.code_machine.__wrapped__("host", 128).name == "arm-64-linux-arm_dot_prod"


@pytest.mark.parametrize(
    "target", ["riscv-64-linux-rvv-vector_bits_128", "arm-32-linux", "x86-64-windows", "host-avx2"]
)
def test_others_are_refused(target: str):
    with pytest.raises(CompileError, match=f"OCC0403.*Linux on x86-64 and aarch64, not for `{target}`"):
        occ.build(mlp(), "cpu-jit", options={"halide.target": target})


def test_objects_of_several_machines_are_not_linked():
    here, there = (machine.code_machine(t, 128) for t in ("x86-64-linux", "arm-64-linux"))
    objects = [_object(m, f"define i32 @{n}() {{ ret i32 1 }}") for m, n in ((here, "f"), (there, "g"))]
    with pytest.raises(LinkError, match="objects of several machines"):
        link(*objects)


@pytest.mark.parametrize(
    ("target", "why"), [("x86-64-linux", "variable t of another"), ("arm-64-linux", "relocation type")]
)
def test_what_needs_a_real_linker_is_refused(target: str, why: str):
    m = machine.code_machine(target, 128)
    assert link(_object(m, "@v = global i32 1 define ptr @f() { ret ptr @v }"))
    with pytest.raises(LinkError, match=why):
        link(_object(m, "@t = external thread_local global i32 define ptr @f() { ret ptr @t }"))


def _object(m: machine.CodeMachine, text: str) -> bytes:
    import llvmlite.binding as llvm

    return machine.target_machine(m, 0).emit_object(llvm.parse_assembly(f'target triple = "{m.triple}"\n{text}'))

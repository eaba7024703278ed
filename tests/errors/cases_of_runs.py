"""The codes of runs."""

from __future__ import annotations

import numpy as np
from building import mlp
from scenes import RELU, Scene, case

import occ


@case("OCC0501")
def _(s: Scene):
    return ["run", s.model(RELU), "-t", "interp", s.array("x", np.zeros((2, 2), np.float64))]


@case("OCC0502")
def _(s: Scene):
    path = s.folder / "m.occ"
    occ.build(mlp(), "cpu-jit", path, folder=True)
    (path / "weights.bin").unlink()
    return ["run", str(path)]


@case("OCC0503")
def _(s: Scene):
    text = (
        "g (float[n, m] x, float[k, l] y) => (float[o] z) { a = Reshape(x, all)  b = Reshape(y, all)  z = Add(a, b) }"
    )
    x, y = s.array("x", np.zeros((2, 6), np.float32)), s.array("y", np.zeros((4, 4), np.float32))
    return ["run", s.model(text, {"all": np.array([-1])}), "-t", "interp", x, y]


@case("OCC0504")
def _(s: Scene):
    model = s.model("g (float[3] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }")
    return ["run", model, "-t", "interp", s.array("x", np.zeros(3, np.float32)), s.array("i", np.array([0, 3]))]


@case("OCC0505")
def _(s: Scene):
    """A library whose kernels all return an error code."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    from occ.compiler.codegen_llvm.machine import code_machine, target_machine
    from occ.compiler.native_entry.build import compile_entry
    from occ.compiler.native_entry.kernel_abi import KernelAbi
    from occ.compiler.objects.elf import link
    from occ.compiler.objects.processors import arch_of

    artifact, arch = occ.build(mlp(), "cpu-jit"), arch_of()
    assert arch is not None
    module = ir.Module("broken")
    module.triple = llvm.get_process_triple()
    i32, pointer = ir.IntType(32), ir.PointerType(ir.IntType(8))
    for name in {step.name for step in artifact.manifest.plan.steps}:
        f = ir.Function(module, ir.FunctionType(i32, [pointer, i32, i32]), name)
        ir.IRBuilder(f.append_basic_block()).ret(ir.Constant(i32, 7))
    machine = target_machine(code_machine("host", 128), 3)
    _, entry = compile_entry(artifact.manifest, arch, KernelAbi.RANGE)
    artifact.code = link(machine.emit_object(llvm.parse_assembly(str(module))), entry)
    return ["run", str(artifact.save(s.folder / "m.occ"))]


@case("OCC0508")
def _(s: Scene):
    return ["run", s.model(RELU), "-t", "interp", "--timeout", "1e-6"]


@case("OCC0506")
def _(s: Scene):
    return [
        "diff",
        s.model("g (float[99] x) => (float[99] y) { a = Exp(x)  y = Softmax(a) }"),
        "-t",
        "cpu-jit",
        "--tolerance",
        "1e-30",
        "--absolute",
        "0",
    ]

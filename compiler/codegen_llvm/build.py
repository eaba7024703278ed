"""te functions to a shared library, with llvmlite alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from occ.compiler.codegen_llvm.emit import KernelEmitter, with_approximations
from occ.compiler.codegen_llvm.loop_plan import plan_loops
from occ.compiler.diagnostics import error
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.native_entry.entry import emit_entry
from occ.compiler.objects.elf import link
from occ.runtime.manifest import Manifest


@cache
def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="default"
    )


@cache
def vector_bits() -> int:
    """Width of a vector register of this machine, in bits."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 512
    return 256 if features.get("avx2") else 128


def machine_name() -> str:
    """The machine that code is made for."""
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()}"


def tasks_of(f: TeFunc) -> Dim:
    """Extent of the parallel loop that a kernel leaves to its caller, in the dims of the function."""
    (stage,) = f.stages
    if not isinstance(stage, TeStage):
        return 1
    stage = TeStage(stage.name, stage.axes, with_approximations(stage.expr))
    return plan_loops(stage, f.shapes, vector_bits()).tasks(stage)


def emit_module(functions: Iterable[TeFunc], manifest: Manifest | None = None) -> ir.Module:
    """LLVM IR of kernels, and of the native entry of a model, before optimisation."""
    module = ir.Module("occ")
    module.triple = llvm.get_process_triple()
    for f in functions:
        KernelEmitter(f, module, vector_bits()).emit()
    if manifest is not None:
        emit_entry(module, manifest, ranged=True)
    return module


def optimised(module: ir.Module) -> Any:
    """The module through LLVM's pipeline; vectors are explicit already, so its own vectorisers stay off."""
    parsed = llvm.parse_assembly(str(module))
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(_machine(), options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


def build(functions: Iterable[TeFunc], manifest: Manifest | None = None) -> tuple[bytes, bytes]:
    """The object file of some kernels and of the native entry, and the shared library that it links to.

    Raises:
        CompileError: OCC0403 this machine is not x86-64 Linux.
    """
    triple = llvm.get_process_triple()
    if not triple.startswith("x86_64") or "linux" not in triple:
        raise error(
            "OCC0403",
            f"`cpu-jit` makes code for x86-64 Linux only, this machine is {triple}",
            help="build with `-t cpu`",
        )
    made = _machine().emit_object(optimised(emit_module(functions, manifest)))
    return made, link(made)

"""The target `cpu-jit`. LLVM takes most of a second to load, so it is loaded when code is generated."""

from __future__ import annotations

from occ.compiler.codegen_llvm.options import LlvmOptions
from occ.compiler.codegen_llvm.pipeline import cpu_jit
from occ.compiler.ir.module import Module
from occ.compiler.objects.archive import NativeCode, header
from occ.compiler.objects.relocations import is_linked
from occ.compiler.plan.plan import manifest
from occ.compiler.plan.specialised_plans import planned
from occ.compiler.targets.target import KERNEL_TYPES, Build, Generated, Target, Text
from occ.runtime.artifact import Artifact
from occ.runtime.members import LIBRARY


def _generate(c: Build, m: Module) -> Generated:
    from occ.compiler.codegen_llvm import build as llvm
    from occ.compiler.codegen_llvm.machine import code_machine

    machine = code_machine(c.options.halide_target, c.options.machine.vector_bits)
    p = planned(
        [m, *c.specialised_modules()],
        lambda m: manifest(m, library=LIBRARY, machine=machine.name, tasks=lambda f: llvm.tasks_of(f, machine)),
    )
    always, quick = c.options.optimize == "always", c.options.quick
    built = llvm.build(p.functions, p.manifest, c.cache, machine, always=always, quick=quick)
    native = NativeCode(built.objects, header(p.functions, ranged=True))
    return Generated(Artifact(p.manifest, p.weights, built.code), native, built.took)


def _module_text(c: Build, m: Module, _format: str) -> str:
    from occ.compiler.codegen_llvm.build import emit_module
    from occ.compiler.codegen_llvm.machine import code_machine

    return str(emit_module(m.te.values(), code_machine(c.options.halide_target, c.options.machine.vector_bits)))


CPU_JIT = Target(
    name="cpu-jit",
    doc="native CPU code through LLVM; needs no toolchain",
    pipeline=cpu_jit,
    generate=_generate,
    options=LlvmOptions(),
    texts={"llvm": Text(_module_text)},
    dtypes=KERNEL_TYPES,
    special=True,
    supports=lambda options: is_linked(options.halide_target),
)

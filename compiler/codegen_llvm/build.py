"""Builds a shared library from te functions with llvmlite, through the cache."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from threading import Lock

import llvmlite.binding as llvm
from llvmlite import ir

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest, version_of
from occ.compiler.codegen_llvm.emit import KernelEmitter, with_approximations
from occ.compiler.codegen_llvm.lane_steps import in_memory_order
from occ.compiler.codegen_llvm.loop_plan import plan_loops
from occ.compiler.codegen_llvm.machine import CodeMachine, target_machine
from occ.compiler.codegen_llvm.optimization_level import WHOLE, Effort, effort_for
from occ.compiler.diagnostics import error
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.ir.te.printer import te_text
from occ.compiler.native_entry.build import PACKAGES as ENTRY_PACKAGES
from occ.compiler.native_entry.build import compile_entry
from occ.compiler.native_entry.kernel_abi import KernelAbi
from occ.compiler.objects.elf import LinkError, link
from occ.compiler.objects.processors import arch_of
from occ.runtime.dataclass import dataclass
from occ.runtime.manifest import Manifest

PACKAGES = ("occ.compiler.codegen_llvm", *ENTRY_PACKAGES)  # packages whose sources decide what kernels are


def tasks_of(f: TeFunc, machine: CodeMachine) -> Dim:
    """Extent of the parallel loop that a kernel leaves to its caller, in terms of the function's dims."""
    f = in_memory_order(f)
    (stage,) = f.stages
    if not isinstance(stage, TeStage):
        return 1
    stage = TeStage(stage.name, stage.axes, with_approximations(stage.expr, machine))
    return plan_loops(stage, f.shapes, machine).tasks(stage)


def emit_module(functions: Iterable[TeFunc], machine: CodeMachine) -> ir.Module:
    """LLVM IR of kernels for a machine, before optimisation."""
    module = ir.Module("occ")
    module.triple = machine.triple
    for f in functions:
        KernelEmitter(f, module, machine).emit()
    return module


def _compile(f: TeFunc, to: CodeMachine, effort: Effort) -> bytes:
    """Compile a kernel with LLVM."""
    parsed = llvm.parse_assembly(str(emit_module([f], to)))
    machine = target_machine(to, effort.level)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False  # vectors are explicit already
    options.slp_vectorization = False
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager() if effort.passes else builder.getModulePassManager()
    for name in effort.passes:
        getattr(passes, f"add_{name}_pass")()
    passes.run(parsed, builder)
    return machine.emit_object(parsed)


@cache
def _identity(machine: CodeMachine) -> str:
    """The identity of the code generator for cache keys: its sources, LLVM, and the machine."""
    return digest([source_digest(*PACKAGES), version_of("llvmlite"), repr(machine)])


def kernel_key(f: TeFunc, machine: CodeMachine, effort: Effort) -> str:
    """The key of a kernel's object in the build cache."""
    return digest(["llvm kernel", _identity(machine), effort.name, te_text(f.without_notes())])


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Attributes:
        code: the shared library.
        objects: the kernels and the native entry before linking, by file name.
        took: seconds for each compiled kernel; the others came from the cache.
    """

    code: bytes
    objects: dict[str, bytes]
    took: dict[str, float]


class _Recent:
    """The most recently used kernel objects without a build cache, such as those compiled during runs."""

    def __init__(self, count: int) -> None:
        self._count, self._lock, self._kept = count, Lock(), dict[str, bytes]()

    def get(self, key: str) -> bytes | None:
        return self._kept.get(key)

    def keep(self, key: str, data: bytes) -> None:
        """Record a use; the least recently used one is dropped."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = data
            if len(self._kept) > self._count:
                del self._kept[next(iter(self._kept))]


_recent = _Recent(256)


def build(
    functions: Sequence[TeFunc], m: Manifest, store: Cache, machine: CodeMachine, *, always: bool, quick: bool = False
) -> Built:
    """Build the kernels of a model and its native entry.

    Args:
        functions: te functions; their names are the symbols.
        m: the manifest.
        store: the build cache. If it is disabled, the last few kernels are kept in memory.
        machine: the machine that code is generated for.
        always: whether all kernels, small ones too, use LLVM's whole pipeline.
        quick: whether the time to a first result matters more than the speed of kernels.

    Raises:
        CompileError: OCC0403 the code cannot be linked without a linker.
    """
    objects: dict[str, bytes] = {}
    took: dict[str, float] = {}
    repeated = {step.name for f in m.functions.values() for step in f.plan.steps if step.kind == "kernel"}
    for f in functions:
        effort = WHOLE if always else effort_for(f, repeated=f.name in repeated, quick=quick)
        key = kernel_key(f, machine, effort)
        known = store.get("kernel", key, ".o") if store.enabled else _recent.get(key)
        if known is None:
            start = time.perf_counter()
            known = _compile(f, machine, effort)
            took[f.name] = time.perf_counter() - start
            if store.enabled:
                with suppress(OSError):
                    store.put("kernel", key, known, ".o")
        if not store.enabled:
            _recent.keep(key, known)
        objects[f"{f.name}.o"] = known
    arch = arch_of(machine.name)
    assert arch is not None, "a machine that the artifact has code for"
    objects["entry.o"] = compile_entry(m, arch, KernelAbi.RANGE)[1]
    try:
        return Built(link(*objects.values()), objects, took)
    except LinkError as e:
        raise error("OCC0403", f"the code of this model cannot be linked: {e}", help="build with `-t cpu`") from e

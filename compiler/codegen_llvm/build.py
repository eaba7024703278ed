"""te functions to object files and a shared library, with llvmlite alone; objects of kernels are kept in the build cache."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest, version_of
from occ.compiler.codegen_llvm.effort import is_small
from occ.compiler.codegen_llvm.emit import KernelEmitter, with_approximations
from occ.compiler.codegen_llvm.loop_plan import plan_loops
from occ.compiler.diagnostics import error
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.printer import te_text
from occ.compiler.ir.te.function import TeFunc, TeStage
from occ.compiler.native_entry.build import PACKAGES as ENTRY_PACKAGES
from occ.compiler.native_entry.build import compile_entry
from occ.compiler.objects.elf import link
from occ.compiler.objects.processors import arch_of
from occ.runtime.machine import features_of, flags
from occ.runtime.manifest import Manifest

PACKAGES = ("occ.compiler.codegen_llvm", *ENTRY_PACKAGES)  # what kernels are made by lies in these


@cache
def _machine(level: int) -> Any:
    """This machine, for code generation at a level from 0 to 3."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=level, reloc="pic", codemodel="default"
    )


@cache
def vector_bits() -> int:
    """Width of a vector register of this machine, in bits."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 512
    return 256 if features.get("avx2") else 128


def machine_name() -> str:
    """The machine that code is made for, as Halide's targets are spelled: what `occ.runtime.machine` compares on opening."""
    if platform.machine() != "x86_64":
        return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()}"
    return "-".join(["x86-64-linux", *features_of(flags())])


def tasks_of(f: TeFunc) -> Dim:
    """Extent of the parallel loop that a kernel leaves to its caller, in the dims of the function."""
    (stage,) = f.stages
    if not isinstance(stage, TeStage):
        return 1
    stage = TeStage(stage.name, stage.axes, with_approximations(stage.expr))
    return plan_loops(stage, f.shapes, vector_bits()).tasks(stage)


def emit_module(functions: Iterable[TeFunc]) -> ir.Module:
    """LLVM IR of kernels, before optimisation."""
    module = ir.Module("occ")
    module.triple = llvm.get_process_triple()
    for f in functions:
        KernelEmitter(f, module, vector_bits()).emit()
    return module


def _compile(f: TeFunc, *, whole: bool) -> bytes:
    """A kernel through LLVM: its whole pipeline, or the fourth of its work that is enough for a small kernel."""
    parsed = llvm.parse_assembly(str(emit_module([f])))
    machine = _machine(3 if whole else 0)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False  # vectors are explicit already
    options.slp_vectorization = False
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    if whole:
        passes = builder.getModulePassManager()
    else:
        passes = llvm.create_new_module_pass_manager()
        passes.add_instruction_combine_pass()
    passes.run(parsed, builder)
    return machine.emit_object(parsed)


@cache
def _identity() -> str:
    """What kernels become objects by: the sources that emit them, LLVM, and the machine."""
    features = llvm.get_host_cpu_features().flatten()
    return digest(
        [source_digest(*PACKAGES), version_of("llvmlite"), machine_name(), llvm.get_host_cpu_name(), features]
    )


def kernel_key(f: TeFunc, *, whole: bool) -> str:
    """The key of the object of a kernel in the build cache; `whole`: it went through LLVM's whole pipeline."""
    return digest(["llvm kernel", _identity(), "whole" if whole else "small", te_text(f.without_notes())])


@dataclass(frozen=True)
class Built:
    """What a build makes.

    Attributes:
        code: the shared library.
        objects: the kernels and the native entry before linking, by file name.
        took: seconds for each kernel that was compiled; the others came from the cache.
    """

    code: bytes
    objects: dict[str, bytes]
    took: dict[str, float]


class _Recent:
    """Objects of the kernels that were used last without a build cache, such as those that are compiled during runs."""

    def __init__(self, count: int) -> None:
        self._count, self._lock, self._kept = count, Lock(), dict[str, bytes]()

    def get(self, key: str) -> bytes | None:
        return self._kept.get(key)

    def keep(self, key: str, data: bytes) -> None:
        """Note a use; what was not used for longest goes."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = data
            if len(self._kept) > self._count:
                del self._kept[next(iter(self._kept))]


_recent = _Recent(256)


def build(functions: Sequence[TeFunc], m: Manifest, store: Cache, *, always: bool) -> Built:
    """Build the kernels of a model and its native entry.

    Args:
        functions: te functions; their names are the symbols.
        m: the manifest.
        store: the build cache. Where it is not enabled, the last few kernels are remembered in memory.
        always: small kernels go through LLVM's whole pipeline too, as those that control flow may repeat always do.

    Raises:
        CompileError: OCC0403 this machine is not x86-64 Linux.
    """
    here = arch_of()
    if here is None or here.name != "x86_64":
        raise error(
            "OCC0403",
            f"`cpu-jit` makes code for x86-64 Linux only, this machine is {llvm.get_process_triple()}",
            help="build with `-t cpu`",
        )
    objects: dict[str, bytes] = {}
    took: dict[str, float] = {}
    repeated = {step.name for f in m.functions.values() for step in f.plan.steps if step.kind == "kernel"}
    for f in functions:
        whole = always or f.name in repeated or not is_small(f)
        key = kernel_key(f, whole=whole)
        known = store.get("kernel", key, ".o") if store.enabled else _recent.get(key)
        if known is None:
            start = time.perf_counter()
            known = _compile(f, whole=whole)
            took[f.name] = time.perf_counter() - start
            if store.enabled:
                with suppress(OSError):
                    store.put("kernel", key, known, ".o")
        if not store.enabled:
            _recent.keep(key, known)
        objects[f"{f.name}.o"] = known
    objects["entry.o"] = compile_entry(m, here, ranged=True)[1]
    return Built(link(*objects.values()), objects, took)

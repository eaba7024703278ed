"""Compiles the native entry of a model to an object file."""

from __future__ import annotations

from pathlib import Path

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.cache.sources import source_digest, version_of
from occ.compiler.diagnostics import error
from occ.compiler.native_entry.kernel_abi import KernelAbi
from occ.compiler.objects.processors import ARCHES, Arch, arch_of
from occ.runtime.dataclass import dataclass
from occ.runtime.manifest import Manifest

# modules that this folder imports
PACKAGES = ("occ.compiler.native_entry", "occ.compiler.objects", "occ.compiler.ir", "occ.runtime")


@dataclass(frozen=True)
class EntryCode:
    """The compiled native entry of a model: its object file and its LLVM IR."""

    object: Path
    text: Path


def entry_code(m: Manifest, store: Cache) -> EntryCode | None:
    """`occ_model_facts` of a model, and `occ_model_run` if possible; None for unsupported kinds of machines.

    Args:
        m: the manifest; its kernels are symbols that the linker resolves.
        store: the build cache.
    """
    arch = arch_of(m.machine)
    if arch is None:
        return None
    key = entry_key(m, arch)
    made = EntryCode(store.path("tool", key, ".o"), store.path("tool", key, ".ll"))
    if store.has("tool", key, ".o") and store.has("tool", key, ".ll"):
        return made
    text, compiled = compile_entry(m, arch, KernelAbi.HALIDE)
    store.put("tool", key, text.encode(), ".ll")
    store.put("tool", key, compiled, ".o")
    return made


def entry_object(m: Manifest) -> bytes:
    """The object file of the native entry of a model with a package's kernels: `int NAME(void **args)` each.

    It is linked with them into the artifact's library. It needs `memcpy`, `aligned_alloc` and `free` of the C library.

    Args:
        m: the manifest, for the machine that it names.

    Raises:
        CompileError: OCC0603 there is no code generator for that machine.
    """
    arch = arch_of(m.machine)
    if arch is None:
        known = ", ".join(a.name for a in ARCHES)
        raise error("OCC0603", f"there are no native entries for the machine `{m.machine}`", help=f"machines: {known}")
    return compile_entry(m, arch, KernelAbi.PLAIN)[1]


def compile_entry(m: Manifest, arch: Arch, abi: KernelAbi) -> tuple[str, bytes]:
    """LLVM IR of `occ_model_facts` and `occ_model_run`, and its object file.

    Args:
        m: the manifest.
        arch: the kind of machine.
        abi: of the kernels.
    """
    import llvmlite.binding as llvm
    from llvmlite import ir

    from occ.compiler.native_entry.entry import emit_entry

    module = ir.Module("occ")
    module.triple = arch.llvm
    emit_entry(module, m, abi, arch.bits)
    text = str(module)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # It runs once per run: six times the compile time would gain less than 0.1 us (Zen 4).
    machine = llvm.Target.from_triple(arch.llvm).create_target_machine(
        features=arch.features, abiname=arch.abi, opt=0, reloc="pic", codemodel="default"
    )
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    return text, machine.emit_object(parsed)


def entry_key(m: Manifest, arch: Arch) -> str:
    """The cache key of the object: the plan, the machine, the sources that emit it, LLVM."""
    facts = repr(
        (m.name, m.machine, m.weights, m.inputs, m.outputs, m.dims, m.constraints, m.plan, m.functions, m.special)
    )
    return digest(["entry", source_digest(*PACKAGES), version_of("llvmlite"), repr(arch), facts])

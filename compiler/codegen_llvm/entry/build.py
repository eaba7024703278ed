"""The native entry of a model as an object file, for kernels that another code generator makes."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from occ.compiler.cache.cache import Cache, digest
from occ.runtime.manifest import Manifest

_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


@dataclass(frozen=True)
class EntryCode:
    """The native entry of a model, in the build cache: its object file, and what that is compiled from, LLVM IR as text."""

    object: Path
    text: Path


def entry_code(m: Manifest, store: Cache) -> EntryCode | None:
    """`occ_model_facts` of a model, and `occ_model_run` if it can have one, for the machine that this runs on; None for
    machines of other kinds.

    Args:
        m: the manifest; its kernels are symbols that are found when the object is linked.
        store: the build cache.
    """
    triple = _TRIPLES.get(platform.machine())
    if triple is None or platform.system() != "Linux":
        return None
    facts = repr((m.name, m.machine, m.weights, m.inputs, m.outputs, m.dims, m.constraints, m.plan, m.functions))
    key = digest(["entry", _identity(), triple, facts])
    made = EntryCode(store.path("tool", key, ".o"), store.path("tool", key, ".ll"))
    if made.object.is_file() and made.text.is_file():
        return made
    text, compiled = _compile(m, triple)
    store.put("tool", key, text.encode(), ".ll")
    store.put("tool", key, compiled, ".o")
    return made


def _compile(m: Manifest, triple: str) -> tuple[str, bytes]:
    import llvmlite.binding as llvm
    from llvmlite import ir

    from occ.compiler.codegen_llvm.entry.entry import emit_entry

    module = ir.Module("occ")
    module.triple = triple
    emit_entry(module, m, ranged=False)
    text = str(module)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=1, reloc="pic", codemodel="default")
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    return text, machine.emit_object(parsed)


@cache
def _identity() -> str:
    """What the object depends on beside the plan: the sources that emit it."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), here.parent / "loops.py", here.parent / "values.py"])
    return digest(p.read_bytes() for p in files)

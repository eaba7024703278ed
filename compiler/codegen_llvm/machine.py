"""The LLVM target machine: this processor, or one that a Halide target names."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

from occ.compiler.diagnostics import error
from occ.compiler.objects.processors import arch_of
from occ.compiler.objects.relocations import is_linked
from occ.runtime.dataclass import dataclass
from occ.runtime.machine import TILES, features_of, flags

# LLVM's names for features of Halide targets.
_FEATURES = {
    "sse41": ("sse4.1",),
    "avx": ("avx",),
    "f16c": ("f16c",),
    "fma": ("fma",),
    "avx2": ("avx2",),
    "avx512": ("avx512f", "avx512cd"),
    "avx512_skylake": ("avx512vl", "avx512bw", "avx512dq"),
    "avx512_cannonlake": ("avx512ifma", "avx512vbmi"),
    "avx512_zen4": ("avx512vnni", "avx512bf16"),
    "avx512_sapphirerapids": ("avx512vnni", "avx512bf16", "avxvnni"),
    "avxvnni": ("avxvnni",),
    "arm_dot_prod": ("dotprod",),
    "arm_fp16": ("fullfp16",),
}


@dataclass(frozen=True)
class CodeMachine:
    """A machine for which code is generated.

    Attributes:
        name: in the spelling of Halide targets; `occ.runtime.machine` compares it when an artifact is opened.
        triple, cpu, features: of LLVM.
        vector_bits: width of a vector register.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int

    @property
    def registers(self) -> int:
        """Number of vector registers."""
        return 32 if self.vector_bits > 256 or not self.is_x86 else 16

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature, by LLVM's name."""
        return f"+{feature}" in self.features.split(",")

    @property
    def scales_by_powers(self) -> bool:
        """Whether vectors of floats are multiplied by powers of two in one instruction, of any exponent."""
        return self.has("avx512f")

    def multiplies_pairs(self, bits: int) -> bool:
        """Whether vectors of `bits` are multiplied as 16-bit integers and neighbours added, in one instruction."""
        needed = {512: "avx512bw", 256: "avx2"}.get(bits)
        return self.is_x86 and (bits == 128 if needed is None else self.has(needed))


@cache
def code_machine(target: str, vector_bits: int) -> CodeMachine:
    """The machine that a Halide target, or `host`, names.

    Args:
        target: Halide target, or `host`.
        vector_bits: width of its vector registers.

    Raises:
        CompileError: OCC0403 the built-in linker does not support its kind.
    """
    arch = arch_of(target)
    if arch is None or not is_linked(target):
        what = f"this machine is {llvm.get_process_triple()}" if target == "host" else f"not for `{target}`"
        raise error(
            "OCC0403",
            f"`cpu-jit` only compiles for Linux on x86-64 and aarch64, {what}",
            help="build with `-t cpu`",
        )
    if target == "host":
        here = [f for f in features_of(flags()) if f != TILES]  # which this target does not use
        name, features = "-".join([arch.halide, *here]), llvm.get_host_cpu_features().flatten()
        return CodeMachine(name, llvm.get_process_triple(), llvm.get_host_cpu_name(), features, vector_bits)
    named = [f"+{x}" for part in target.split("-") for x in _FEATURES.get(part, ())]
    cpu = "x86-64" if arch.kind == "x86-64" else "generic"
    return CodeMachine(target, arch.llvm, cpu, ",".join(named), vector_bits)


@cache
def target_machine(machine: CodeMachine, level: int) -> Any:
    """A machine for LLVM's code generation at a level from 0 to 3."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=level, reloc="pic", codemodel="default"
    )

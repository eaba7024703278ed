"""Processor kinds, and the usual processors by name."""

from __future__ import annotations

import os
import platform

from occ.compiler.diagnostics import error
from occ.runtime.dataclass import dataclass
from occ.runtime.machine import KINDS


@dataclass(frozen=True)
class Arch:
    """A kind of machine, with Linux or WASI.

    Attributes:
        name: in the spelling of `uname -m`.
        halide: prefix of its Halide targets.
        gnu: prefix of its GNU tools, or clang's name for it if there are none.
        llvm: the triple of LLVM.
        elf: `e_machine` of its object files; 0 if they have another format.
        bits: of an address.
        features, abi: of LLVM, where the triple does not say them.
        usual: features that Halide must assume of its processors, if nothing more is known.
    """

    name: str
    halide: str
    gnu: str
    llvm: str
    elf: int
    bits: int = 64
    features: str = ""
    abi: str = ""
    usual: str = ""

    @property
    def system(self) -> str:
        """`linux`, or `wasi` of WebAssembly."""
        return "linux" if self.elf else "wasi"

    @property
    def kind(self) -> str:
        """Its common name: `arm-64`."""
        return self.halide.rpartition("-")[0]

    @property
    def zig(self) -> str:
        """Zig's name of a target; Linux programs run with glibc 2.28 and later."""
        return f"{self.gnu}.2.28" if self.system == "linux" else self.gnu

    @property
    def target(self) -> str:
        """The Halide target of a typical processor of the kind."""
        return self.halide + self.usual

    @property
    def variable(self) -> str:
        """The environment variable that names its C++ compiler, with arguments if necessary."""
        return f"OCC_CXX_{self.name.upper()}"


_RVV = "-rvv-vector_bits_128"  # Halide has no code for RISC-V without vectors

ARCHES = (
    Arch("x86_64", "x86-64-linux", "x86_64-linux-gnu", "x86_64-unknown-linux-gnu", 62),
    Arch("aarch64", "arm-64-linux", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu", 183),
    Arch("arm", "arm-32-linux", "arm-linux-gnueabihf", "armv7-unknown-linux-gnueabihf", 40, 32),
    Arch(
        "riscv64",
        "riscv-64-linux",
        "riscv64-linux-gnu",
        "riscv64-unknown-linux-gnu",
        243,
        features="+m,+a,+f,+d,+c",
        abi="lp64d",
        usual=_RVV,
    ),
    Arch("ppc64le", "powerpc-64-linux", "powerpc64le-linux-gnu", "powerpc64le-unknown-linux-gnu", 21),
    Arch("wasm32", "wasm-32-wasmrt", "wasm32-wasi", "wasm32-unknown-wasi", 0, 32, usual="-wasm_simd128"),
)

_V2 = "x86-64-linux-sse41"
_V3 = f"{_V2}-avx-avx2-f16c-fma"
_V4 = f"{_V3}-avx512-avx512_skylake"
_SAPPHIRE = f"{_V4}-avx512_cannonlake-avx512_sapphirerapids-avxvnni"
_ARM = "arm-64-linux"
_ARM_82 = f"{_ARM}-arm_dot_prod-arm_fp16"
_ARM_32 = "arm-32-linux-armv7s"
_RISCV = f"riscv-64-linux{_RVV}"
_POWER = "powerpc-64-linux-vsx-power_arch_2_07"
_WASM = "wasm-32-wasmrt-wasm_simd128"

# Halide targets of processors, by their names in compilers.
PROCESSORS = {
    "x86-64": "x86-64-linux", "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4, "haswell": _V3, "skylake": _V3,
    "znver1": _V3, "znver2": _V3, "znver3": _V3, "skylake-avx512": _V4, "cascadelake": _V4,
    "znver4": f"{_V4}-avx512_cannonlake-avx512_zen4", "sapphirerapids": _SAPPHIRE,
    "armv8-a": _ARM, "cortex-a53": _ARM, "cortex-a72": _ARM,
    "cortex-a55": _ARM_82, "cortex-a76": _ARM_82, "neoverse-n1": _ARM_82,
    "armv7-a": _ARM_32, "cortex-a7": _ARM_32, "cortex-a9": _ARM_32, "rv64gcv": _RISCV, "pwr8": _POWER, "pwr9": _POWER,
    "wasm32": _WASM,
}  # fmt: skip


def default_target() -> str:
    """The default Halide target: of the processor in OCC_TARGET_CPU, or `host`.

    Raises:
        CompileError: OCC0603 the variable does not name a known processor.
    """
    name = os.environ.get("OCC_TARGET_CPU")
    target = PROCESSORS.get(name, name) if name else "host"
    if name and arch_of(target) is None:
        known = ", ".join(sorted(PROCESSORS))
        raise error("OCC0603", f"OCC_TARGET_CPU names `{name}`, no known processor", help=f"processors: {known}")
    return target


def arch_of(target: str = "host") -> Arch | None:
    """The kind of machine for a Halide target, `host`, or a name such as `uname -m` prints.

    None for one that whole artifacts are not built for.
    """
    if target.partition("-")[0] == "host":
        here = KINDS.get(platform.machine()) if platform.system() == "Linux" else None
        return next((a for a in ARCHES if a.halide == f"{here}-linux"), None)
    return next((a for a in ARCHES if target == a.name or f"{target}-".startswith(f"{a.halide}-")), None)

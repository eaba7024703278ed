"""Properties of the CPU that code is generated for, from the Halide target."""

from __future__ import annotations

import os
import platform
from functools import lru_cache

from occ.runtime.dataclass import dataclass
from occ.runtime.machine import FEATURES, TILES, flags, processors


@dataclass(frozen=True)
class Machine:
    """Facts of a CPU.

    Attributes:
        vector_bits: width of a vector register.
        registers: number of vector registers.
        cores: number of cores that a kernel may expect to use.
        has_f16c: whether f16 converts to f32 in one instruction.
        dots_bf16: whether pairs of bf16 are multiplied and added to f32 in one instruction.
        int8_dot_width: byte products summed in a lane at a time: four with VNNI, two if they are first widened to 16
            bits.
        tiles: whether products of bytes take tiles of 16 rows of 64 bytes (AMX), and the system allows it.
        signed_bytes: whether byte products take signed by signed bytes, as NEON's do (`sdot`, `smull`), not unsigned by
            signed ones as those of x86.
        multiplies_by_element: whether products take one element of a register, for all lanes, as an operand (NEON).
        has_horizontal_add: whether Halide adds neighbouring elements of a vector, as byte products need; Halide 21
            fails for the scalable vectors of RISC-V.
        separate_add_ports: whether vector additions run in parallel with multiply-adds, in separate units, as on Zen 4
            and 5.
        hw_prefetches_rows: whether the hardware prefetcher follows sequential rows, so that software prefetch only
            costs time, as on Zen 4.
        l1_bytes, l2_bytes: data caches of a core that blocks are made for, as most recent processors have.
        line: bytes of a cache line.
        fixed_lanes: elements of a vector whatever their width, if not 0.
        rows: positions computed together in addition to the lanes, if not 0.
    """

    vector_bits: int = 512
    registers: int = 32
    cores: int = 4
    has_f16c: bool = True
    dots_bf16: bool = False
    int8_dot_width: int = 4
    has_horizontal_add: bool = True
    separate_add_ports: bool = False
    hw_prefetches_rows: bool = False
    signed_bytes: bool = False
    tiles: bool = False
    multiplies_by_element: bool = False
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    line: int = 64
    fixed_lanes: int = 0
    rows: int = 0

    def lanes(self, bits: int, extent: object = None) -> int:
        """Elements of a vector.

        For a loop of constant `extent`, halved until it is no longer than that, but at least one.
        """
        lanes = self.fixed_lanes or max(self.vector_bits // max(bits, 8), 1)
        while isinstance(extent, int) and lanes > max(extent, 1):
            lanes //= 2
        return lanes

    @property
    def near_bytes(self) -> int:
        """Bytes that stay in L2 beside a core's other data: a quarter of it."""
        return self.l2_bytes // 4

    @property
    def accumulators(self) -> int:
        """Registers for a tile of sums; two vectors of weights and a broadcast element need the rest.

        Of 32 registers 14 hide the latency of multiply-adds on Zen 4, and 28 spill.
        """
        return 16 if self.registers >= 32 else 12


def machine_of(target: str) -> Machine:
    """The machine of a Halide target, or of the `host`."""
    return _host() if target.partition("-")[0] == "host" and "avx" not in target else _named(target)


def _named(target: str) -> Machine:
    parts = target.split("-")
    if parts[0] == "x86":
        bf16 = any(p.startswith(("avx512_zen4", "avx512_zen5", "avx512_sapphire")) for p in parts)
        fours = 4 if bf16 or "avxvnni" in parts else 2
        if any(p.startswith("avx512") for p in parts):
            zen4, zen5 = (any(p.startswith(name) for p in parts) for name in ("avx512_zen4", "avx512_zen5"))
            zen = zen4 or zen5
            # Halide's name of the generation, which may also name a Zen 5
            tiles = not zen and "avx512_sapphirerapids" in parts
            return Machine(
                512,
                32,
                dots_bf16=bf16,
                int8_dot_width=fours,
                separate_add_ports=zen,
                hw_prefetches_rows=zen4 and not zen5,
                tiles=tiles,
            )
        width = 256 if {"avx", "avx2"} & set(parts) else 128
        return Machine(width, 16, has_f16c="f16c" in parts, int8_dot_width=fours)
    wide = "64" in parts
    arm = parts[0] == "arm"
    return Machine(
        128,
        32 if wide else 16,
        has_f16c=wide,
        has_horizontal_add="rvv" not in parts,
        signed_bytes=arm,
        multiplies_by_element=arm and wide and "arm_dot_prod" in parts,
    )


@lru_cache
def _host() -> Machine:
    if platform.machine() not in ("x86_64", "AMD64"):
        arm = platform.machine() in ("aarch64", "arm64", "armv7l")
        return Machine(128, 32, signed_bytes=arm, multiplies_by_element=arm and "asimddp" in flags())
    seen = flags()
    cores = os.cpu_count() or 1
    if {"avx512f", "avx512dq", "avx512vl", "avx512bw"} <= seen:
        bf16, zen = "avx512_bf16" in seen, processors()[0].get("vendor_id") == "AuthenticAMD"
        fours, zen4 = 4 if bf16 else 2, zen and "avx_vnni" not in seen  # which Zen 5 has
        return Machine(
            512,
            32,
            cores,
            dots_bf16=bf16,
            int8_dot_width=fours,
            separate_add_ports=zen,
            hw_prefetches_rows=zen4,
            tiles=bf16 and seen.issuperset(FEATURES[TILES]),
        )
    # Halide only uses VNNI with bf16 or AVX-VNNI present too.
    fours = 4 if "avx_vnni" in seen else 2
    return Machine(256 if "avx" in seen else 128, 16, cores, "f16c" in seen, int8_dot_width=fours)

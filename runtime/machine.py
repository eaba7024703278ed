"""Whether this processor has what native code was compiled for; runtime/c/machine.cpp asks the same for programs in C."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

# Features by the names that Halide's targets have, and the flags of /proc/cpuinfo that they stand for.
FEATURES = {
    "sse41": ("sse4_1",),
    "avx": ("avx",),
    "f16c": ("f16c",),
    "fma": ("fma",),
    "avx2": ("avx2",),
    "avx512": ("avx512f", "avx512cd"),
    "avx512_skylake": ("avx512f", "avx512vl", "avx512bw", "avx512dq"),
    "avx512_cannonlake": ("avx512ifma", "avx512vbmi"),
    "avx512_zen4": ("avx512_vnni", "avx512_bf16"),
}


@lru_cache
def flags() -> frozenset[str]:
    """Flags of the processor; none where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def missing_feature(machine: str) -> str:
    """A feature that code needs and this processor lacks; empty if there is none, or nothing is known.

    Args:
        machine: what `Manifest.machine` says.
    """
    here = flags()
    if platform.machine() not in ("x86_64", "AMD64") or not here or not machine.startswith("x86"):
        return ""
    return next((f for f in machine.split("-") if not here.issuperset(FEATURES.get(f, ()))), "")


def features_of(found: frozenset[str]) -> list[str]:
    """The features whose flags are all there."""
    return [name for name, needed in FEATURES.items() if found.issuperset(needed)]

"""Checks that this processor can run native code; runtime/c/machine.cpp does the same."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy._core as numpy_core

# Features by their names in Halide's targets, and the flags of /proc/cpuinfo that they need.
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
    "avx512_sapphirerapids": ("avx512_vnni", "avx512_bf16", "avx_vnni"),
    "avxvnni": ("avx_vnni",),
    "amx_int8": ("amx_tile", "amx_int8"),
    "arm_dot_prod": ("asimddp",),
    "arm_fp16": ("asimdhp",),
}

# The feature that Linux grants a process on request. Halide's targets have no word for it: it is a part of
# avx512_sapphirerapids there.
TILES = "amx_int8"
_ASK, _TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM and its state, Linux: Documentation/arch/x86/xstate.rst
_ARCH_PRCTL = 158

# Kinds of machines, as prefixes of Halide's targets, by their names in `platform.machine`.
KINDS = {
    "x86_64": "x86-64", "AMD64": "x86-64", "aarch64": "arm-64", "arm64": "arm-64", "armv7l": "arm-32",
    "riscv64": "riscv-64",
    "ppc64le": "powerpc-64",
}  # fmt: skip
_TAIL = "-no_runtime"  # the rest says how kernels are called, not where they run


@lru_cache
def flags() -> frozenset[str]:
    """Flags of the processor; empty if the system does not report them."""
    first = next((p for p in processors() if "flags" in p or "Features" in p), {})
    found = frozenset(first.get("flags", first.get("Features", "")).split()) - _denied()
    return found if not found.issuperset(FEATURES[TILES]) or _tiles_allowed() else found.difference(FEATURES[TILES])


@lru_cache
def processors() -> tuple[dict[str, str], ...]:
    """What /proc/cpuinfo says of each processor, by name; empty if the system has no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    blocks = ((line.partition(":") for line in block.splitlines()) for block in text.strip().split("\n\n"))
    return tuple({name.strip(): value.strip() for name, _, value in block} for block in blocks)


def _tiles_allowed() -> bool:
    """Whether the system lets this process use tiles (AMX), with all its threads and children, on request."""
    try:
        return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILE_DATA) == 0
    except (AttributeError, OSError, TypeError):  # no such function here
        return False


def _denied() -> frozenset[str]:
    """Flags that the processor itself denies (CPUID, queried by numpy): in an emulator the file shows the host's."""
    asked = (
        {}
        if "NPY_DISABLE_CPU_FEATURES" in os.environ
        else getattr(getattr(numpy_core, "_multiarray_umath", None), "__cpu_features__", {})
    )
    named = {flag: "AVX512F" if flag.startswith("avx512") else flag.upper() for s in FEATURES.values() for flag in s}
    return frozenset(flag for flag, name in (named | {"fma": "FMA3"}).items() if asked.get(name) is False)


def kind_of(machine: str) -> str:
    """The kind of a machine, such as `arm-64`; empty if it is not in `KINDS`."""
    return next((k for k in KINDS.values() if machine.startswith(f"{k}-")), "")


def shown(machine: str) -> str:
    """A machine in readable form."""
    return machine.partition(_TAIL)[0]


def with_feature(machine: str, feature: str) -> str:
    """A machine that has a feature too."""
    head, tail, rest = machine.partition(_TAIL)
    return f"{head}-{feature}{tail}{rest}"


def missing_feature(machine: str) -> str:
    """A feature that code needs and this processor lacks; empty if there is none, or nothing is known.

    Args:
        machine: the value of `Manifest.machine`.
    """
    here = flags()
    if not here or kind_of(machine) != KINDS.get(platform.machine()):
        return ""
    return next((f for f in machine.split("-") if not here.issuperset(FEATURES.get(f, ()))), "")


def refused(feature: str) -> str:
    """What to add to a message about a missing feature that the processor may have all the same."""
    return " or its system does not allow" if feature == TILES else ""


def features_of(found: frozenset[str]) -> list[str]:
    """Features of this kind of machine whose flags are all present; emulators may show other flags."""
    arm = KINDS.get(platform.machine(), "").startswith("arm")
    return [n for n, needed in FEATURES.items() if n.startswith("arm_") == arm and found.issuperset(needed)]


def best_of(machines: Sequence[str]) -> int:
    """The most suitable of some machines for this one: the one that needs the most features.

    -1 if none is suitable.
    """
    here = KINDS.get(platform.machine(), "")
    usable = [k for k, m in enumerate(machines) if kind_of(m) in ("", here) and not missing_feature(m)]
    return max(usable, key=lambda k: sum(f in FEATURES for f in machines[k].split("-")), default=-1)

"""Measurements of this machine by small compiled kernels: latency of memory, bandwidth, peak of multiply-adds."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

SIZES = tuple(1 << k for k in range(13, 27))  # bytes, from 8 KiB to 64 MiB
_PAGE = 4096  # bytes of a page of memory
_LINE = 64  # bytes between the steps of a chain: a line of every processor that occ knows
_TIMES = 7  # the quickest counts: others have to share the core
_STEPS = 1 << 17  # of the longest chain
_SUMS = 12  # independent sums: more than latency times units of any of them, and they fit 16 registers

_CHASE = """
define i64 @chase(i64* %start, i64 %steps) {
entry:
  br label %loop
loop:
  %at = phi i64* [ %start, %entry ], [ %next, %loop ]
  %left = phi i64 [ %steps, %entry ], [ %less, %loop ]
  %address = load i64, i64* %at
  %next = inttoptr i64 %address to i64*
  %less = sub i64 %left, 1
  %more = icmp ne i64 %less, 0
  br i1 %more, label %loop, label %done
done:
  ret i64 %address
}
"""


@dataclass(frozen=True)
class Measured:
    """What was measured on one core.

    Attributes:
        latency: of a load that waits for the one before it, in ns, by the bytes that all of them are spread over.
        caches: data caches from the first level on, in bytes, as the system states them; empty if it does not.
        gflops: f32 multiply-adds in vectors, two operations each, 10**9 a second.
        gbytes: reads in order from the largest of `SIZES`, 10**9 bytes a second.
    """

    latency: dict[int, float]
    caches: tuple[int, ...]
    gflops: float
    gbytes: float

    def plateaus(self) -> list[tuple[int, float]]:
        """Latencies that differ by half, each with the largest size up to which it holds, smallest first."""
        found: list[tuple[int, float]] = []
        for size, ns in sorted(self.latency.items()):
            same = bool(found) and ns < 1.5 * found[-1][1]
            found[-1 if same else len(found) :] = [(size, found[-1][1] if same else ns)]
        return found

    def against(self, machine: Machine) -> list[str]:
        """Sentences on caches that differ from what the machine's record says, twofold or more."""
        known = zip(("L1", "L2"), self.caches, (machine.l1_bytes, machine.l2_bytes), strict=False)
        return [
            f"{name} has {here >> 10} KiB, tiles are for {there >> 10} KiB"
            for name, here, there in known
            if not there / 2 < here < there * 2
        ]


def measure(vector_bits: int, sizes: Sequence[int] = SIZES) -> Measured:
    """Measures this machine, in about two seconds.

    Args:
        vector_bits: width of a vector register.
        sizes: bytes over which loads are spread.

    Raises:
        ImportError: llvmlite is not installed.
    """
    lanes = vector_bits // 32
    engine = _compiled(_CHASE + _sums(lanes, fused=True) + _sums(lanes, fused=False))
    chase = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("chase"))
    multiply, read = (
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address(n)) for n in ("fma", "read")
    )
    latency = {size: _latency(chase, size) for size in sizes}
    small, large = (np.zeros(n, np.uint8) for n in (_SUMS * vector_bits // 8, max(sizes)))
    passes = 200_000
    spent = _least(lambda: multiply(small.ctypes.data, passes))
    steps = large.nbytes // small.nbytes
    moved = _least(lambda: read(large.ctypes.data, steps))
    return Measured(latency, _stated(), 2e-9 * passes * _SUMS * lanes / spent, 1e-9 * steps * small.nbytes / moved)


def _latency(chase: Callable[[int, int], int], size: int) -> float:
    """Nanoseconds of a step through the lines of a buffer in an order that no prefetcher follows."""
    count = size // _LINE
    held = np.zeros(size // 8 + _LINE // 8, np.uint64)
    held = held[-held.ctypes.data % _LINE // 8 :][: size // 8]
    # Pages follow each other, so that few steps miss the TLB.
    rng, page = np.random.default_rng(0), min(count, _PAGE // _LINE)
    lines = [p * page + rng.permutation(page) for p in rng.permutation(count // page)]
    order = np.concatenate(lines).astype(np.uint64) * np.uint64(_LINE)
    held[(order // np.uint64(8)).astype(np.int64)] = np.uint64(held.ctypes.data) + np.roll(order, -1)
    steps = min(max(count, 1 << 14), _STEPS)
    return 1e9 * _least(lambda: chase(held.ctypes.data, steps)) / steps


def _least(run: Callable[[], object]) -> float:
    """Seconds of processor time of the quickest of some runs."""
    spent: list[float] = []
    for _ in range(_TIMES):
        start = time.thread_time()
        run()
        spent.append(time.thread_time() - start)
    return min(spent)


def _sums(lanes: int, *, fused: bool) -> str:
    """A loop over independent sums of vectors: of products in registers (`fma`), or of memory in order (`read`)."""
    v, name = f"<{lanes} x float>", "fma" if fused else "read"
    intrinsic = f"llvm.fma.v{lanes}f32"
    each = range(_SUMS)
    phis = [f"%s{k} = phi {v} [ zeroinitializer, %entry ], [ %t{k}, %loop ]" for k in each]
    reads = [f"%p{k} = getelementptr {v}, {v}* %at, i64 {k}\n%x{k} = load {v}, {v}* %p{k}, align 4" for k in each]
    products = [f"%t{k} = call {v} @{intrinsic}({v} %s{k}, {v} %s{k}, {v} %first)" for k in each]
    added = [f"%t{k} = fadd {v} %s{k}, %x{k}" for k in each]
    total = [f"%u{k} = fadd {v} {f'%u{k - 1}' if k else 'zeroinitializer'}, %t{k}" for k in each]
    body = "\n".join(phis + (products if fused else reads + added))
    return f"""
{f"declare {v} @{intrinsic}({v}, {v}, {v})" if fused else ""}
define void @{name}({v}* %from, i64 %steps) {{
entry:
  %first = load {v}, {v}* %from, align 4
  br label %loop
loop:
  %at = phi {v}* [ %from, %entry ], [ %following, %loop ]
  %left = phi i64 [ %steps, %entry ], [ %less, %loop ]
  {body}
  %following = getelementptr {v}, {v}* %at, i64 {_SUMS}
  %less = sub i64 %left, 1
  %more = icmp ne i64 %less, 0
  br i1 %more, label %loop, label %done
done:
  {chr(10).join(total)}
  store {v} %u{_SUMS - 1}, {v}* %from, align 4
  ret void
}}
"""


def _compiled(text: str) -> Any:
    """The functions of LLVM assembly, for this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    return engine


def _stated() -> tuple[int, ...]:
    """Sizes of the data caches of the first core, smallest level first, by Linux."""
    found: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((index / n).read_text().strip() for n in ("type", "level", "size"))
        except OSError:
            continue
        if kind in ("Data", "Unified") and size.endswith("K"):
            found[int(level)] = int(size[:-1]) << 10
    return tuple(found[level] for level in sorted(found))

"""Blocks of tiles of Winograd convolutions, and tiles that are multiplied together."""

from __future__ import annotations

from math import ceil

from occ.compiler.ir.dim import Dim, floordiv, maximum
from occ.compiler.targets.machine import Machine

# With symbolic sizes, 5 tiles of a plane are computed together, since results of an incomplete last group are
# discarded. With 7 the sums are 3 % faster, but a whole 10x10 plane 1.3, 20x20 1.12 and 80x80 1.15 times as slow.
TOGETHER = 5
POINTS = 36  # of a tile with taps along both axes
PLANE = 30  # tiles of a plane that form one block, and of its rows: 20x20 has 25
# LLVM loads four vectors of weights at once, then an element for each tile; the rest of few registers holds sums. With
# 12 sums in 16 registers, one goes through the stack in each step: DNSMOS, x86-64-v3 on Zen 4, 223 --> 185 ms.
_NO_SUMS = 6
_LEAST_SUMS = 8  # they hide the latency of multiply-adds: 4 cycles of two units


def block_of(across: Dim, down: Dim, channels: int, points: int = POINTS) -> tuple[int, Dim]:
    """Tiles of a block along x and y: divisors of the counts, or whole planes if they are small.

    If counts are symbolic, a few times as many as are multiplied together. Tiles along one axis have fewer `points`, so
    more of them fit. Where no divisor is large enough, as of 41 tiles, the last block of a row has a few less: one tile
    alone would stream all weights (DNSMOS, planes of 900x161: 266 --> 158 ms, Zen 4).
    """
    if not isinstance(across, int) or not isinstance(down, int):
        most = TOGETHER * (6 if channels <= 128 else 3)
        rows = 1 if down == 1 else maximum(floordiv(PLANE, across), 1)
        return min(across, most) if isinstance(across, int) else most, rows
    most = 28 if channels <= 128 else 14
    if points < POINTS:
        return _along_one_axis(across, down, most * POINTS // points)
    if across <= 7 and down <= 7:
        return across, down
    width = max(k for k in range(1, most + 1) if across % k == 0)
    if width < 7:
        width = across if across <= 28 else ceil(across / ceil(across / most))
    return width, 1


def _along_one_axis(across: int, down: int, most: int) -> tuple[int, int]:
    """Blocks of about `most` tiles; the last one may have a few less."""
    width = ceil(across / ceil(across / most))
    return width, ceil(down / ceil(down / max(most // width, 1)))


def rows_of(extent: int, vectors: int, machine: Machine) -> int:
    """Tiles multiplied together that waste least of `extent`: rows of a tile of sums that is some vectors wide."""
    most = max(min(machine.accumulators, machine.registers - _NO_SUMS) // vectors, 1)
    if extent <= most:
        return extent
    least = max(most // 2 + 1, min(ceil(_LEAST_SUMS / vectors), most))
    return min(range(most, least - 1, -1), key=lambda t: (-(-extent // t) * t, -t))

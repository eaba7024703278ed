"""Software prefetch of weights larger than the cache."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from occ.compiler.ir.te.function import TeStage, loads
from occ.compiler.ir.te.stage_schedule import StageSchedule
from occ.compiler.passes.schedule.loops import Directives
from occ.compiler.passes.schedule.stage_facts import ScheduleFacts
from occ.compiler.targets.machine import Machine

# Bytes from what is read to what is prefetched into L1, and into L2, by bits of a vector and byte products in a lane.
# A token of a Llama of 300 million four-bit weights, x86-64-v3 on Zen 4: 9.0 ms without, 6.5 with both, 8.2 without the
# second, 7.8 without the first, 6.9 with 4 and 16 KB, 6.7 with 16 and 32. Two and four rows of [4096, 24576]: 3.2 to
# 2.6 and 6.9 to 4.9 ms; 128 rows, which read a panel again and again, unchanged. With 128 bits arithmetic dominates
# (0.97 of the speed), with 512 the hardware keeps up (0.87 to 1.07).
_STREAMED = {(256, 2): (8 << 10, 16 << 10)}


def fetch_ahead(
    acc: TeStage, source: str, panel_axes: int, facts: ScheduleFacts, together: int = 1, least: int | None = None
) -> Directives:
    """Prefetches a packed constant, panel by panel.

    A panel is used for all tiles of rows, and the first of them would wait for it: the hardware prefetcher starts only
    with that tile, and stops at each page. 128 rows by [768, 768] on Zen 5: 231 --> 250 GFLOP/s, 64 rows by [768,
    3072]: 216 --> 247, 16 rows: 150 --> 199; 1500 rows unchanged. With byte products, whole networks gain 1 to 5 %.

    Args:
        acc: the stage whose loops read the constant.
        source: the parameter that holds it.
        panel_axes: number of innermost memory axes that make up a panel.
        facts: of the function.
        together: panels used in turn before the next ones; each is prefetched while the one that many panels before it
            is used.
        least: bytes of the smallest constant that is prefetched; by default of those that leave a core's cache before
            the next run.
    """
    param = next((p for p in facts.f.params if p.name == source), None)
    if param is None or facts.skinny:
        return []
    least = facts.machine.near_bytes if least is None else least
    shape = [n for n in param.type.physical if isinstance(n, int)]
    whole, panel = (prod(part) * param.type.dtype.itemsize for part in (shape, shape[-panel_axes:]))
    if len(shape) < len(param.type.physical) or whole < least or panel % facts.machine.line:
        return []
    return StageSchedule(acc).fetch_ahead(source, panel, *([together * panel] if together > 1 else [])).directives


def fetch_streamed(reader: TeStage, sources: Iterable[str], machine: Machine) -> Directives:
    """Prefetches packed constants that a stage reads once, from beginning to end.

    Args:
        reader: the stage.
        sources: the parameters with the constants; those that the stage does not read are ignored.
        machine: decides how far ahead, if at all.
    """
    ahead = _STREAMED.get((machine.vector_bits, machine.int8_dot_width))
    if ahead is None:
        return []
    read = {n.source for n in loads(reader.expr)} & {*sources}
    return [d for name in sorted(read) for d in StageSchedule(reader).fetch_beyond(name, *ahead).directives]

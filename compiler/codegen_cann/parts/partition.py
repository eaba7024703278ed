"""Cuts a module into parts for the device and parts for the CPU.

Ops get a phase: device ops even ones, CPU ops odd ones, never before their operands. All ops of one phase are one part,
so parts never form a cycle, whatever side branches there are, and their number is the minimum that the dependencies
allow. Two choices remain: where ops without dependencies start, and on which side ops with slack go. All four
combinations are tried, and the one with the fewest parts, then the fewest bytes copied, is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.types import TensorType
from occ.runtime.dataclass import dataclass


@dataclass(eq=False)
class Part:
    """Ops that run on one side.

    Attributes:
        inputs: outside values, except constants, in order of first use.
        outputs: values with readers outside.
    """

    name: str
    on_device: bool
    ops: list[Op]
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)


def reads(op: Op) -> list[Value]:
    """The values that an op reads, including those that its regions capture."""
    found = dict.fromkeys(op.inputs)
    for region in op.regions:
        found |= dict.fromkeys(captured_values(region))
    return list(found)


def is_free(op: Op) -> bool:
    """Whether an op belongs to every part that reads it: sizes are recomputed in each."""
    return op.is_dims


def partition(m: Module, on_device: Callable[[Op], bool]) -> list[Part]:
    """The parts of the main function in an order in which they can run."""
    ops = [op for op in m.main.body.body if not is_free(op)]
    sides = {op: on_device(op) for op in ops}
    best: tuple[tuple[int, int], list[list[Op]]] | None = None
    for device_first in (True, False):
        for late in (False, True):
            phases = _phases(ops, sides, device_first, late)
            cost = len(phases), _copied(phases, sides, m)
            if best is None or cost < best[0]:
                best = cost, phases
    groups = [] if best is None else best[1]
    return make_parts(m, [(sides[g[0]], g) for g in groups])


def make_parts(m: Module, groups: Sequence[tuple[bool, list[Op]]]) -> list[Part]:
    """Parts of given ops, with the values that cross their borders."""
    parts: list[Part] = []
    counts = {True: 0, False: 0}
    for on_device, ops in groups:
        name = f"{'part' if on_device else 'cpu'}{counts[on_device]}"
        counts[on_device] += 1
        parts.append(Part(name, on_device, ops))
    for part in parts:
        _borders(part, set(m.main.results))
    return parts


def _borders(part: Part, results: set[Value]) -> None:
    inside = {r for op in part.ops for r in op.results}
    members = set(part.ops)
    found: dict[Value, None] = {}
    for op in part.ops:
        for value in _sources(op):
            if value not in inside and not isinstance(value, Weight):
                found[value] = None
    part.inputs = list(found)
    part.outputs = [
        r for op in part.ops for r in op.results if r in results or any(_holder(u, members) is None for u in r.users)
    ]


def _sources(op: Op) -> list[Value]:
    """The operands of an op except sizes, which parts compute themselves."""
    return [v for v in reads(op) if v.defining_op is None or not is_free(v.defining_op)]


def _holder(op: Op, members: set[Op]) -> Op | None:
    """The op of a part that is, or holds, an op."""
    found: Op | None = op
    while found is not None and found not in members:
        found = found.parent.owner if found.parent is not None else None
    return found


def _phases(ops: Sequence[Op], sides: Mapping[Op, bool], device_first: bool, late: bool) -> list[list[Op]]:
    """Ops by phase, in order; empty phases left out."""
    phase: dict[Op, int] = {}
    makers = {op: [v.defining_op for v in reads(op) if v.defining_op in sides] for op in ops}
    order: Iterable[Op] = ops
    if late:  # the same from the end: how long before the end an op may run
        users: dict[Op, list[Op]] = {op: [] for op in ops}
        for op in ops:
            for maker in makers[op]:
                if maker is not None:
                    users[maker].append(op)
        order, near = list(reversed(ops)), users
    else:
        near = {op: [m for m in makers[op] if m is not None] for op in ops}
    for op in order:
        start = 0 if sides[op] == device_first else 1
        for other in near[op]:
            start = max(start, phase[other] + (sides[other] != sides[op]))
        phase[op] = start
    last = max(phase.values(), default=0)
    groups: dict[int, list[Op]] = {}
    for op in ops:
        groups.setdefault(last - phase[op] if late else phase[op], []).append(op)
    return [groups[k] for k in sorted(groups)]


def _copied(phases: Sequence[Sequence[Op]], sides: Mapping[Op, bool], m: Module) -> int:
    """Bytes copied between host and device; a value that both sides read is copied once."""
    total = 0
    for value in {v for g in phases for op in g for v in reads(op)} | set(m.main.results):
        if isinstance(value, Weight) or not isinstance(value.type, TensorType) or not value.type.is_static:
            continue
        maker = value.defining_op
        made_on = sides.get(maker, False) if maker is not None else False
        read_on = {sides[u] for u in value.users if u in sides}
        read_on |= {False} if value in m.main.results else set()
        size = value.type.nbytes
        total += size if (not made_on) in read_on and isinstance(size, int) else 0
    return total


def split(ops: Sequence[Op], fits: Callable[[Sequence[Op]], bool]) -> list[list[Op]]:
    """Cut ops in order into the fewest runs that fit, each as long as possible.

    A single op is a run even if it does not fit.
    """
    runs: list[list[Op]] = []
    start = 0
    while start < len(ops):
        low, high = 1, len(ops) - start
        if not fits(ops[start : start + high]):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(ops[start : start + middle]) else (low, middle)
        else:
            low = high
        runs.append(list(ops[start : start + low]))
        start += low
    return runs

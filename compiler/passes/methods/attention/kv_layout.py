"""The memory layout of keys and values: head-major, or token-major (all heads of a key contiguous)."""

from __future__ import annotations

from occ.compiler.ir.te.expr import Axis, Binary, Cast, Index, Load
from occ.compiler.ir.te.function import Param, TeFunc, TeStage
from occ.compiler.ir.te.walks import replace_indices, walk
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Cache:
    """A parameter that holds keys or values.

    Attributes:
        param: the parameter.
        together: whether all heads of a key are contiguous (token-major, as in a growing cache), not all keys of a
            head.
    """

    param: Param
    together: bool


def caches_of(f: TeFunc, parts: dict[str, TeStage]) -> dict[str, Cache]:
    """Where keys and values of several heads are, by role; empty if one of them is not a parameter.

    Found from the stages that gather keys and values, whose last axes are heads and then keys, in their order.
    """
    found: dict[str, Cache] = {}
    for role, key in (("keys", -1), ("values", -2)):
        s = parts[role]
        read = _read(f, s)
        param = next((p for p in f.params if read is not None and p.name == read.source), None)
        if read is None or param is None:
            return {}
        place, head = (_place(read, s.axes[k]) for k in (key, -3))
        if head < 0:
            return {}
        found[role] = Cache(param, place < head)
    return found


def heads_interleaved(caches: dict[str, Cache]) -> bool:
    """Whether all heads of a key are contiguous, in keys and in values."""
    return bool(caches) and all(c.together for c in caches.values())


def _read(f: TeFunc, s: TeStage) -> Load | None:
    """The view of a parameter that a stage reads, perhaps of scaled codes; None if it does more."""
    if len(s.axes) < 3:
        return None
    named = {x.name: x for x in f.stages if isinstance(x, TeStage)}
    e = s.expr
    while isinstance(e, (Cast, Binary)) or (isinstance(e, Load) and e.source in named):
        if isinstance(e, Binary):  # codes times their scale
            if e.op != "mul":
                return None
            e = e.lhs
            continue
        if isinstance(e, Cast):
            e = e.arg
            continue
        inner = named[e.source]
        e = replace_indices(inner.expr, {a.name: i for a, i in zip(inner.axes, e.index, strict=True)})
    return e if isinstance(e, Load) else None


def _place(read: Load, axis: Axis) -> int:
    """The memory axis along which a stage's axis runs; -1 if there is none."""
    places = [k for k, i in enumerate(read.index) if any(isinstance(n, Index) and n.name == axis.name for n in walk(i))]
    return places[0] if places else -1

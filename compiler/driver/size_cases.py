"""Compiles the model again for input sizes that break an assumption of the plan.

A build assumes that two sizes are equal if a node broadcasts one to the other (`ir/shape.py`), or if axes share a name,
and so has one fast plan. If one extent turns out to be 1 and the other larger, or axes with one name differ, a session
compiles the model for that case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from threading import Lock

from occ.compiler.diagnostics import CompileError
from occ.compiler.frontend.signature import Overrides
from occ.compiler.ir.dim import Sym
from occ.compiler.ir.func import Broadcast
from occ.compiler.ir.module import Module
from occ.compiler.ir.symbol_names import symbol_name
from occ.compiler.ir.types import TensorType
from occ.runtime.dims import Assumption
from occ.runtime.session import Session

Place = tuple[str, int]  # an input and an axis
Places = Mapping[str, Sequence[Place]]
Shapes = Mapping[str, tuple[int, ...]]
_MOST = 4  # maximum plans in an artifact; a session creates those that it needs


def shown_at(m: Module) -> dict[str, list[Place]]:
    """The input axes with each symbol's extent in an imported model, by label."""
    places: dict[str, list[Place]] = {}
    for arg in m.main.args:
        for axis, d in enumerate(arg.type.shape or ()) if isinstance(arg.type, TensorType) else ():
            if isinstance(d, Sym) and d.is_symbol:
                places.setdefault(m.symbols[str(d)].label, []).append((arg.name, axis))
    return places


def assumptions(found: Mapping[str, Broadcast], places: Places) -> list[Assumption]:
    """The size assumptions recorded in a manifest."""
    return [Assumption(n, b.other, b.node, *p) for n, b in found.items() for p in places[n]]


def cases(found: Mapping[str, Broadcast], given: Overrides) -> Iterator[Overrides]:
    """Cases of sizes for which an artifact gets plans.

    Sizes assumed equal to other symbols and numbers: one of each pair, and several at once.
    """
    names = [n for n, b in found.items() if b.plain]
    sets = chain.from_iterable(combinations(names, k) for k in range(1, len(names) + 1))
    apart = (s for s in sets if not any(found[n].other in s for n in s))
    for _, fixed in zip(range(_MOST), apart, strict=False):
        yield replace(given, dims={**given.dims, **dict.fromkeys(fixed, 1)})


class SizeCases:
    """Sessions for input sizes that the general plan does not cover, created on first use.

    Thread-safe.

    Args:
        found: the sizes that were assumed equal to others.
        places: where inputs show each size.
        ranks: of inputs.
        given: extents fixed by the user.
        made: creates a session with other extents fixed or named.
    """

    def __init__(
        self, found: Mapping[str, Broadcast], places: Places, ranks: Mapping[str, int], given: Overrides,
        made: Callable[[Overrides], Session],
    ) -> None:  # fmt: skip
        self._found, self._places, self._ranks, self._given, self._made = found, places, ranks, given, made
        self._lock = Lock()
        self._known: dict[tuple[str, ...], Session | None] = {}

    def __call__(self, shapes: Shapes) -> Session | None:
        """The session for inputs with these extents; None if the general one applies, or it does not compile."""
        extents = {name: [n for p in at for n in _extent(shapes, p)] for name, at in self._places.items()}
        unlike = tuple(name for name, sizes in extents.items() if len(set(sizes)) > 1)
        ones = tuple(name for name in self._found if 1 in extents[name])
        if not unlike and not ones:
            return None
        with self._lock:
            key = ("unlike", *unlike) if unlike else ("ones", *ones)
            if key not in self._known:
                try:
                    self._known[key] = self._made(self._apart(unlike) if unlike else self._fixed(ones))
                except CompileError:
                    self._known[key] = None
            return self._known[key]

    def _fixed(self, ones: Sequence[str]) -> Overrides:
        return replace(self._given, dims={**self._given.dims, **dict.fromkeys(ones, 1)})

    def _apart(self, names: Sequence[str]) -> Overrides:
        """A separate name for each axis that shares one of these."""
        shapes = {k: list(v) for k, v in self._given.shapes.items()}
        for name in names:
            for tensor, axis in self._places[name]:
                shape = shapes.setdefault(tensor, [-1] * self._ranks[tensor])
                shape[axis] = symbol_name(f"{name}_{tensor}_{axis}")
        return replace(self._given, shapes={**self._given.shapes, **shapes})


def _extent(shapes: Shapes, place: Place) -> tuple[int, ...]:
    name, axis = place
    return shapes.get(name, ())[axis : axis + 1]

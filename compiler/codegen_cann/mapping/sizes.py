"""Sizes as nodes: integers that differ between gears, computed from the shapes of the inputs of the graph.

GE compiles a graph of its own for every gear, in which all shapes are known, and folds such nodes to constants there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from math import prod
from typing import NamedTuple

import numpy as np

from occ.compiler.codegen_cann.graph.formats import ge_type
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.ir.dtype import from_numpy

_DEGREE = 3  # of the products of extents that are tried


class _Extent(NamedTuple):
    """An extent that differs: an input, by position, its axis, and the value in each gear."""

    port: int
    axis: int
    values: tuple[int, ...]


def _differing_extents(parts: Sequence[Graph]) -> list[_Extent]:
    """The extents of inputs that differ between gears, one for each row of values."""
    found: dict[tuple[int, ...], _Extent] = {}
    for port, nodes in enumerate(zip(*(g.data for g in parts), strict=True)):
        for axis, values in enumerate(zip(*(n.outputs[0].shape for n in nodes), strict=True)):
            if len(set(values)) > 1:
                found.setdefault(values, _Extent(port, axis, values))
    return list(found.values())


class _Line(NamedTuple):
    """`(factor * product of extents + offset) // divisor`; the simplest compare least."""

    divisor: int
    is_moved: bool
    degree: int
    factor: int
    offset: int
    extents: tuple[_Extent, ...]


class Sizes:
    """Makes the nodes of sizes for a graph.

    Args:
        parts: the graph at each gear; the nodes are for the first.
        names: of the nodes of the model; new ones are added.
        bounded: as for `merge.merged`.
    """

    def __init__(self, parts: Sequence[Graph], names: set[str], *, bounded: bool = True) -> None:
        self.graph = parts[0]
        self._own = Graph(f"{self.graph.name}/sizes")
        self._e = Emitter(self._own, lambda *_: None, names=names)
        self._bounded = bounded
        self._extents = _differing_extents(parts)
        self._shapes: dict[int, Ref] = {}
        self._products: dict[tuple[_Extent, ...], Ref] = {}
        self._lines: dict[_Line, Ref] = {}

    def insert(self) -> None:
        """Put the nodes that were made in front of those that read them."""
        for node in self._own.nodes:
            node.name = node.name or self._e.unique(f"size/{node.type}")
        data = len(self.graph.data)
        assert self.graph.nodes[:data] == self.graph.data, "inputs come first"
        self.graph.nodes[data:data] = self._own.nodes

    def value(self, values: Sequence[np.ndarray]) -> Ref | None:
        """What has a given value in each gear; None if nothing is found.

        Integers of one shape are computed one by one. Ranges, and beginnings of the largest of the values, have the
        length that is computed.
        """
        kind = ge_type(from_numpy(values[0].dtype))
        if kind is None or len({v.ndim for v in values}) != 1:
            return None
        if all(v.shape == values[0].shape for v in values):
            is_small = values[0].dtype.kind in "iu" and values[0].size <= 64
            return self._elements(values, kind) if is_small else None
        return self._range(values, kind) or (self._beginning(values, kind) if self._bounded else None)

    def _elements(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        columns = np.stack([v.reshape(-1) for v in values], 1).tolist()
        parts = [self._number(tuple(c)) for c in columns]
        found = [p for p in parts if p is not None]
        if len(found) != len(parts):
            return None
        e, n = self._e, len(found)
        joined = found[0] if n == 1 else e.op("ConcatD", found, out=Desc("INT64", (n,)), concat_dim=0, N=n)
        return e.reshape(e.cast(joined, kind), values[0].shape)

    def _range(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        """`start, start + step, ...` of a length that differs."""
        longest = max(values, key=len)
        if values[0].ndim != 1 or longest.dtype.kind != "i" or len(longest) < 2:
            return None
        start, step = int(longest[0]), int(longest[1] - longest[0])
        if step == 0 or any(not np.array_equal(v, start + step * np.arange(len(v))) for v in values):
            return None
        limit = self._number(tuple(start + step * len(v) for v in values))
        if limit is None:
            return None
        e = self._e
        end = e.reshape(e.cast(limit, kind), ())
        return e.op("Range", e.scalar(start, kind), end, e.scalar(step, kind), out=Desc(kind, (-1,)))

    def _beginning(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        """The first elements along each axis of the largest value."""
        largest = max(values, key=lambda v: v.size)
        if not all(np.array_equal(largest[tuple(map(slice, v.shape))], v) for v in values):
            return None
        ends = self._elements([np.array(v.shape, np.int64) for v in values], "INT64")
        if ends is None:
            return None
        e, n = self._e, largest.ndim
        same = [all(v.shape[k] == d for v in values) for k, d in enumerate(largest.shape)]
        shape = tuple(d if s else -1 for s, d in zip(same, largest.shape, strict=True))
        axes, steps = e.ints(range(n)), e.ints([1] * n)
        return e.op("StridedSliceV2", e.constant(largest), e.ints([0] * n), ends, axes, steps, out=Desc(kind, shape))

    def _number(self, values: tuple[int, ...]) -> Ref | None:
        """An INT64 of rank 1 that has a given value in each gear."""
        if len(set(values)) == 1:
            return self._e.ints(values[:1])
        line = min(self._candidates(values), default=None)
        if line is None:
            return None
        if line not in self._lines:
            self._lines[line] = self._computed(line)
        return self._lines[line]

    def _candidates(self, values: tuple[int, ...]) -> Iterator[_Line]:
        """Lines through the values, over each product of extents."""
        for degree in range(1, _DEGREE + 1):
            for extents in combinations_with_replacement(self._extents, degree):
                at = [prod(row) for row in zip(*(x.values for x in extents), strict=True)]
                other = next((k for k in range(1, len(at)) if at[k] != at[0]), None)
                if other is None:
                    continue
                slope = Fraction(values[other] - values[0], at[other] - at[0])
                p, q = slope.numerator, slope.denominator
                offset = q * values[0] - p * at[0]
                if all((p * a + offset) // q == v for a, v in zip(at, values, strict=True)):
                    yield _Line(q, offset != 0, degree, p, offset, extents)

    def _computed(self, line: _Line) -> Ref:
        e, made = self._e, self._product(line.extents)
        if line.factor != 1:
            made = e.op("Mul", made, e.ints([line.factor]))
        if line.offset:
            made = e.op("Add", made, e.ints([line.offset]))
        return e.op("FloorDiv", made, e.ints([line.divisor])) if line.divisor != 1 else made

    def _product(self, extents: tuple[_Extent, ...]) -> Ref:
        if extents not in self._products:
            last, rest = self._extent(extents[-1]), extents[:-1]
            self._products[extents] = self._e.op("Mul", self._product(rest), last) if rest else last
        return self._products[extents]

    def _extent(self, extent: _Extent) -> Ref:
        """An extent of an input as the graph has it at run time."""
        e, k = self._e, extent.port
        if k not in self._shapes:
            data = Ref(self.graph.data[k])
            self._shapes[k] = e.op("Shape", data, out=Desc("INT64", (len(data.shape),)), dtype="INT64")
        at = e.constant(np.array(0, np.int32))
        return e.op("GatherV2", self._shapes[k], e.ints([extent.axis]), at, out=Desc("INT64", (1,)))

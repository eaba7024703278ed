"""Shape arithmetic as GE nodes: sizes that differ between gears, computed from input shapes.

GE compiles a separate graph for every gear, with all shapes known, and folds such nodes to constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from math import prod
from typing import Any, NamedTuple

import numpy as np

from occ.compiler.codegen_cann.graph.formats import ge_type
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.ir.dim import Atom, Dim, Sym, Symbol
from occ.compiler.ir.dtype import from_numpy

_MOST_ELEMENTS = 64  # computed one by one
_MOST_LOOKED_AT = 1 << 16  # to see which numbers a mask contains
_FUNCTIONS = {"floordiv": "FloorDiv", "min": "Minimum", "max": "Maximum"}
_DEGREE = 3  # products of extents that are tried
DECIDE = ("NonZero", "UniqueWithCountsAndSorting")  # operators with data-dependent result extents


class _Extent(NamedTuple):
    """An extent that differs between gears.

    The node that shows it, by position; its axis; its value in each gear; and the result.
    """

    port: int
    axis: int
    values: tuple[int, ...]
    result: int = 0


def _differing_extents(parts: Sequence[Graph]) -> list[_Extent]:
    """The data-dependent and input extents that differ between gears: one row of values each."""
    found: dict[tuple[int, ...], _Extent] = {}
    for port, nodes in enumerate(zip(*(g.nodes for g in parts), strict=True)):
        if nodes[0].type not in ("Data", *DECIDE):
            continue
        for result, descs in enumerate(zip(*(n.outputs for n in nodes), strict=True)):
            for axis, values in enumerate(zip(*(d.shape for d in descs), strict=True)):
                if len(set(values)) > 1:
                    found.setdefault(values, _Extent(port, axis, values, result))
    return list(found.values())


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """The nodes sorted so that each follows its operands, otherwise in order."""
    made: dict[Node, None] = {}
    for node in nodes:
        work = [node]
        while work:
            missing = [r.node for r in work[-1].inputs if r is not None and r.node not in made]
            if missing:
                work += missing
            else:
                made[work.pop()] = None
    return list(made)


def _end(flags: np.ndarray) -> int | None:
    """The `c` such that row `q` of flags may be true up to the key `q + c`.

    None if no row ends between two keys.
    """
    counts = flags.sum(1)
    ending = np.flatnonzero((counts > 0) & (counts < flags.shape[1]))
    return int(counts[ending[0]] - 1 - ending[0]) if len(ending) else None


def _factors(rows: np.ndarray, values: Sequence[int | None]) -> np.ndarray:
    """The integers closest to the coefficients with which the columns add up to the values."""
    return np.rint(np.linalg.lstsq(rows.astype(np.float64), np.array(values, np.float64), rcond=None)[0]).astype(
        np.int64
    )


def _stairs(shape: tuple[int, ...], end: int) -> np.ndarray:
    return np.arange(shape[1]) <= np.arange(shape[0])[:, None] + end


class _Line(NamedTuple):
    """`(factor * product of extents + offset) // divisor`; simpler ones compare less."""

    divisor: int
    is_moved: bool
    degree: int
    factor: int
    offset: int
    extents: tuple[_Extent, ...]


class Known(NamedTuple):
    """The extents of a model by symbol, each with its value in each gear.

    Attributes:
        values: of the extents of all its tensors, simplest first.
        places: where a symbol is an extent of an input: input position and axis.
    """

    values: Mapping[Sym, tuple[int, ...]]
    places: Mapping[str, tuple[int, int]]


class Sizes:
    """Creates the size nodes of a graph.

    Args:
        parts: the graph at each gear; the nodes are for the first.
        names: of the model's nodes; new ones are added.
        bounded: as for `merge.merged`.
        known: of the model, if the graph has its inputs.
    """

    def __init__(
        self, parts: Sequence[Graph], names: set[str], *, bounded: bool = True, known: Known | None = None
    ) -> None:
        self.graph = parts[0]
        self._nodes = list(self.graph.nodes)  # before constants are removed
        self._own = Graph(f"{self.graph.name}/sizes")
        self._e = Emitter(self._own, lambda *_: None, names=names)
        self._bounded = bounded
        self._known = known or Known({}, {})
        self._extents, self._count = _differing_extents(parts), len(parts)
        self._shapes: dict[tuple[int, int], Ref] = {}
        self._products: dict[tuple[_Extent, ...], Ref] = {}
        self._lines: dict[_Line, Ref] = {}
        self._dims: dict[Sym, Ref] = {}

    def insert(self) -> None:
        """Insert the new nodes before those that read them."""
        for node in self._own.nodes:
            node.name = node.name or self._e.unique(f"size/{node.type}")
        data = len(self.graph.data)
        assert self.graph.nodes[:data] == self.graph.data, "inputs come first"
        self.graph.nodes[data:data] = self._own.nodes
        self.graph.nodes = in_order(self.graph.nodes)

    def value(self, values: Sequence[np.ndarray]) -> Ref | None:
        """A node with a given value in each gear; None if none is found.

        Integers of one shape are computed one by one, or all shifted by one number. Progressions along an axis, masks
        that end or begin one key later in each row, and prefixes of the largest value have computed extents.
        """
        kind = ge_type(from_numpy(values[0].dtype))
        if kind is None or len({v.ndim for v in values}) != 1:
            return None
        if all(v.shape == values[0].shape for v in values):
            is_integer = values[0].dtype.kind in "iu"
            made = self._elements(values, kind) if is_integer and values[0].size <= _MOST_ELEMENTS else None
            return made or (self._moved(values, kind) if is_integer else self._staircase(values, kind))
        made = self._range(values, kind) or self._progression(values, kind) or self._staircase(values, kind)
        return made or (self._beginning(values, kind) if self._bounded else None)

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

    def _moved(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        """Integers of one shape, all shifted by the same number."""
        base = values[0] - values[0].reshape(-1)[0]
        firsts = tuple(int(v.reshape(-1)[0]) for v in values)
        if any(not np.array_equal(v, base + f) for v, f in zip(values, firsts, strict=True)):
            return None
        by = self._number(firsts)
        return None if by is None else self._e.op("Add", self._e.constant(base), self._e.cast(by, kind))

    def _progression(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        """`first + step * k` at position `k` of the one axis whose extent differs; with step 0, repeated elements."""
        largest = max(values, key=lambda v: v.size)
        axes = [k for k in range(largest.ndim) if any(v.shape[k] != largest.shape[k] for v in values)]
        if len(axes) != 1 or any(0 in v.shape for v in values):
            return None
        (axis,), is_integer = axes, largest.dtype.kind in "iu"
        first, second = (np.take(largest, [k], axis) for k in (0, 1))
        step = second - first if is_integer else np.zeros_like(first)
        places = np.arange(largest.shape[axis]).reshape([-1 if k == axis else 1 for k in range(largest.ndim)])
        line = first + step * places if is_integer else np.broadcast_to(first, largest.shape)
        if any(not np.array_equal(v, np.take(line, range(v.shape[axis]), axis)) for v in values):
            return None
        e, shape = self._e, tuple(-1 if k == axis else d for k, d in enumerate(largest.shape))
        if not np.any(step):
            counts = [np.array([v.shape[k] if k == axis else 1 for k in range(v.ndim)], np.int64) for v in values]
            times = self._elements(counts, "INT64")
            return None if times is None else e.op("Tile", e.constant(first), times, out=Desc(kind, shape))
        at = self._range([np.arange(v.shape[axis], dtype=largest.dtype) for v in values], kind)
        if at is None:
            return None
        along = tuple(-1 if k == axis else 1 for k in range(largest.ndim))
        wide = e.op("Reshape", at, e.ints(along), out=Desc(kind, along))
        moved = e.op("Mul", wide, e.constant(step), out=Desc(kind, shape))
        return e.op("Add", moved, e.constant(first), out=Desc(kind, shape))

    def _staircase(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        """Two numbers that change in row `q` between the keys `q + c` and `q + c + 1`: a causal mask, or a window."""
        numbers = np.unique(np.concatenate([v.reshape(-1)[:_MOST_LOOKED_AT] for v in values]))
        if values[0].ndim < 2 or len(numbers) != 2 or any(0 in v.shape or set(v.shape[:-2]) > {1} for v in values):
            return None
        for left, right in (numbers, numbers[::-1]):
            flags = [(v == left).reshape(v.shape[-2:]) for v in values]
            ends = self._fitted([_end(f) for f in flags])
            if ends is None or not all(
                np.array_equal(f, _stairs(f.shape, c)) and np.all(f | (v.reshape(f.shape) == right))
                for f, c, v in zip(flags, ends, values, strict=True)
            ):
                continue
            return self._parted([f.shape for f in flags], ends, (left, right), kind, values[0].ndim - 2)
        return None

    def _parted(
        self, shapes: Sequence[tuple[int, ...]], ends: tuple[int, ...], numbers: tuple[Any, Any], kind: str, lead: int
    ) -> Ref | None:
        """The nodes of `_staircase`, with leading axes of extent 1."""
        rows, keys = (self._counted([s[k] for s in shapes]) for k in (0, 1))
        end = self._number(ends)
        if keys is None or rows is None or end is None:
            return None
        e, grid = self._e, (*rows.shape, *keys.shape)
        column = e.op("Unsqueeze", rows, out=Desc("INT64", (*rows.shape, 1)), axes=[1])
        last = e.op("Add", column, end, out=column.desc)
        made = e.op("LessEqual", keys, last, out=Desc("BOOL", grid))
        if kind == "BOOL":
            made = made if numbers[0] else e.op("LogicalNot", made, out=made.desc)
        else:
            made = e.op("SelectV2", made, *(e.scalar(v, kind) for v in numbers), out=Desc(kind, grid))
        return (
            made if not lead else e.op("Unsqueeze", made, out=Desc(kind, (*(1,) * lead, *grid)), axes=list(range(lead)))
        )

    def _fitted(self, values: Sequence[int | None]) -> tuple[int, ...] | None:
        """A sum of multiples of extents that has the known values at each gear.

        None where there is none.
        """
        known = [k for k, v in enumerate(values) if v is not None]
        if not known:
            return None
        rows = self._rows()
        made = tuple((rows @ _factors(rows[known], [values[k] for k in known])).tolist())
        return made if all(made[k] == values[k] for k in known) else None

    def _rows(self) -> np.ndarray:
        """1 and the extents that differ, for each gear."""
        return np.array([[1] * self._count, *(x.values for x in self._extents)], np.int64).T

    def _counted(self, counts: Sequence[int]) -> Ref | None:
        """`0, 1, ...` of a given length."""
        if len(set(counts)) == 1:
            return self._e.ints(np.arange(counts[0]))
        return self._range([np.arange(n, dtype=np.int64) for n in counts], "INT64")

    def _beginning(self, values: Sequence[np.ndarray], kind: str) -> Ref | None:
        """A prefix along each axis of the largest value."""
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
        """An INT64 of rank 1 with a given value in each gear."""
        if len(set(values)) == 1:
            return self._e.ints(values[:1])
        line = min(self._candidates(values), default=None)
        if line is None:
            return self._combination(values)
        if line not in self._lines:
            self._lines[line] = self._computed(line)
        return self._lines[line]

    def _combination(self, values: tuple[int, ...]) -> Ref | None:
        """A sum of multiples of extents, such as keys of the past plus new ones."""
        factors = _factors(self._rows(), values)
        if tuple((self._rows() @ factors).tolist()) != values:
            return self._from_known(values)
        e, made = self._e, self._e.ints(factors[:1])
        for factor, extent in zip(factors[1:].tolist(), self._extents, strict=True):
            if factor:
                own = self._extent(extent)
                made = e.op("Add", made, own if factor == 1 else e.op("Mul", own, e.ints([factor])))
        return made

    def _from_known(self, values: tuple[int, ...]) -> Ref | None:
        """A multiple of an extent plus a constant, such as the start of the last window."""
        for d, at in self._known.values.items():
            other = next(k for k in range(len(at)) if at[k] != at[0])
            factor, rest = divmod(values[other] - values[0], at[other] - at[0])
            offset = values[0] - factor * at[0]
            if rest == 0 and all(factor * a + offset == v for a, v in zip(at, values, strict=True)):
                e, made = self._e, self._of_dim(d)
                made = made if factor == 1 else e.op("Mul", made, e.ints([factor]))
                return made if not offset else e.op("Add", made, e.ints([offset]))
        return self._clamped(values)

    def _clamped(self, values: tuple[int, ...]) -> Ref | None:
        """A multiple of an extent, clamped: the end of a slice that may exceed its operand."""
        most = max(values)
        for extent in self._extents:
            below = [(v, at) for v, at in zip(values, extent.values, strict=True) if v < most]
            factor = below[0][0] // max(below[0][1], 1)
            if factor > 0 and values == tuple(min(factor * at, most) for at in extent.values):
                e, own = self._e, self._extent(extent)
                return e.op("Minimum", own if factor == 1 else e.op("Mul", own, e.ints([factor])), e.ints([most]))
        return None

    def _of_dim(self, d: Dim) -> Ref:
        if isinstance(d, int):
            return self._e.ints([d])
        if d not in self._dims:
            self._dims[d] = self._sum(d)
        return self._dims[d]

    def _sum(self, d: Sym) -> Ref:
        e, total = self._e, None
        for mono, factor in d.terms:
            made = e.ints([factor]) if factor != 1 or not mono else None
            for base in (self._atom(atom) for atom, power in mono for _ in range(power)):
                made = base if made is None else e.op("Mul", base, made)
            total = made if total is None else e.op("Add", total, made)
        assert total is not None, "a dim has terms"
        return total

    def _atom(self, atom: Atom) -> Ref:
        if isinstance(atom, Symbol):
            return self._extent(_Extent(*self._known.places[atom.name], ()))
        return self._e.op(_FUNCTIONS[atom.name], *(self._of_dim(a) for a in atom.args))

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
        e, key = self._e, (extent.port, extent.result)
        if key not in self._shapes:
            shown = Ref(self._nodes[extent.port], extent.result)
            self._shapes[key] = e.op("Shape", shown, out=Desc("INT64", (len(shown.shape),)), dtype="INT64")
        at = e.constant(np.array(0, np.int32))
        return e.op("GatherV2", self._shapes[key], e.ints([extent.axis]), at, out=Desc("INT64", (1,)))

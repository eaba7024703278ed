"""Generalises a te function of fixed sizes to any sizes: extents become symbolic dims with known bounds and divisors.

The result is checked, not trusted: with the numbers substituted back it must equal the original function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import lcm
from operator import is_

from occ.compiler.ir.build_te import occurring
from occ.compiler.ir.dim import Dim, Sym, evaluate, monomial, substitute, symbol, symbols
from occ.compiler.ir.dtype import I64
from occ.compiler.ir.layout import ROW
from occ.compiler.ir.te.expr import COMPARISONS, Axis, Binary, Const, Expr, Index, Load, Reduce, wrap
from occ.compiler.ir.te.function import AnyStage, Param, TeFunc, TeStage, loads, reduce_axes
from occ.compiler.ir.te.index import axis_of, axis_symbol, axis_symbols, is_axis, to_dim
from occ.compiler.ir.te.schedule import Arg, Directive
from occ.compiler.ir.te.walks import of_kind, transform, walk
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.te.bind_dims import bind_dims, with_dims, without_whole_parts
from occ.compiler.passes.te.certain_reads import axes_of, uncertain_extents
from occ.compiler.passes.te.dim_names import named_by_role
from occ.compiler.passes.te.fetch_sizes import bytes_of_panels
from occ.compiler.passes.te.index_values import Border, IndexValues, index_values
from occ.compiler.passes.te.loop_facts import AxisFacts, LoopFacts, cut_short, loop_facts, multiple
from occ.compiler.passes.te.measured_extents import (
    SMALL,
    code_tables,
    measured_axes,
    short_parts,
    short_rows,
    uneven_channels,
)
from occ.compiler.passes.te.plane_sizes import plane_sizes
from occ.compiler.passes.te.scaled_dims import scaled
from occ.compiler.passes.te.uniform_loops import uniform_loops
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import MOST_COUNTED

_NEAR = 8  # how much a derived size may differ from a multiple of another one: borders of windows
_WINOGRAD, _PRODUCT = "winograd", "packed_contraction"  # kernels that find rows by a pitch, also of whole tensors
_TRIALS = 4  # attempts: each leaves those numbers alone with which the previous one failed

Slot = tuple[str, int]  # an axis of a tensor or stage, by name and position; or (name, -1), a loop over an axis


@dataclass(frozen=True)
class General:
    """A function for any sizes, and the arguments of one call.

    Attributes:
        function: its dims are those of the original one, followed by new ones.
        values: values of the new dims, in order, in terms of the old ones.
        factors: multipliers of the old dims' values, by name; mostly 1.
    """

    function: TeFunc
    values: tuple[Dim, ...]
    factors: Mapping[str, int] = field(default_factory=dict)

    def dims(self, given: Sequence[Dim]) -> tuple[Dim, ...]:
        """What a call passes, given what it passed before."""
        known = {n: d * self.factors.get(n, 1) for n, d in zip(self.function.dims, given, strict=False)}
        return (*known.values(), *(substitute(v, known) for v in self.values))


def generalized(f: TeFunc, rows: int = 1) -> General | None:
    """The function for any sizes, or None if no size becomes a dim or sizes are ambiguous.

    Args:
        f: scheduled, without checks.
        rows: as of `loop_facts`.
    """
    if f.halide or not all(isinstance(s, TeStage) for s in f.stages):
        return None
    f, factors = _scaled(uniform_loops(f))
    indices = plane_sizes(f) or index_values(f)
    found = _with_sizes(f, indices, rows) if indices.values else None
    found = found or _with_sizes(f, IndexValues(f), rows)
    if found is None:
        return General(f, (), factors) if factors else None
    return replace(found, factors=factors)


def _scaled(f: TeFunc) -> tuple[TeFunc, dict[str, int]]:
    """The function with dims instead of products of dims and numbers, if no fact is lost."""
    made, factors = scaled(f, SMALL)
    if not factors:
        return f, {}
    known = symbols(*occurring(f.params, f.stages, f.results, f.checks))
    back = {n: k * monomial((known[n], 1)) for n, k in factors.items()}
    if with_dims(made, lambda d: substitute(d, back)) != f or list(uncertain_extents(f, made)):
        return f, {}
    return made, factors


def _with_sizes(f: TeFunc, indices: IndexValues, rows: int) -> General | None:
    """The function with further dims instead of numbers."""
    kept: set[int] = set()
    for merged in (False, True):
        for _ in range(_TRIALS):
            made = _Sizes(indices, frozenset(kept), rows, merged=merged).general()
            known = dict(zip(made.function.dims[len(f.dims) :], made.values, strict=True))
            if without_whole_parts(bind_dims(made.function, known)) != f:
                break
            lost = set(uncertain_extents(f, made.function))
            if not lost:
                return made if made.values else None
            if merged:
                kept |= lost
            else:
                break
    return None


def _is_known(facts: Sequence[AxisFacts]) -> bool:
    """Whether a schedule relies on a size itself."""
    tiled = {s for x in facts for s in x.tiled}
    cut = {s for x in facts for s in x.cut}
    return any(x.known for x in facts) or bool(tiled and not cut - tiled)


def _number(n: Expr) -> int:
    """The number in index arithmetic that may be a size; 0 if a node is none."""
    return n.value if isinstance(n, Const) and n.dtype == I64 and isinstance(n.value, int) and n.value > SMALL else 0


class _Sizes:
    """The sizes of a function: classes of equal extents, each a number or a dim.

    A dim may depend on others.
    """

    def __init__(self, indices: IndexValues, kept: frozenset[int], rows: int, *, merged: bool) -> None:
        self.f, self.parts, self.borders, self.kept = indices.function, indices.read, indices.borders, kept
        f = self.f
        self.facts: LoopFacts = loop_facts(f, rows)
        self.of_parts = not (rules := {d.rule for d in f.schedule}).isdisjoint((_WINOGRAD, _PRODUCT))
        self.parent: dict[Slot, Slot] = {}
        self.number: dict[Slot, int] = {}  # by slot, if it has one
        self.size: dict[Slot, Dim] = {}  # by root of the class
        self.values = dict(indices.values)
        measured = uneven_channels(f) if _WINOGRAD in rules else (n for s in f.stages for n in measured_axes(s, self.f))
        self.measured: set[Slot] = {(name, -1) for name in measured}
        self.measured |= {slot for s in f.stages for slot in code_tables(s, f)}
        self.measured |= {(name, -1) for s in f.stages for name in short_parts(s, self.parts)}
        self.measured |= {(name, -1) for s in f.stages if rows > 1 for name in short_rows(s)}
        self.computed: dict[str, Dim] = {}  # by the call, of its other dims
        self.free = [*indices.values]  # new dims, in order
        self._slots()
        self._same()
        if merged:
            first: dict[int, Slot] = {}
            for slot, n in self.number.items():
                self._join(first.setdefault(n, slot), slot)
        self.root = {slot: self._root(slot) for slot in self.parent}
        self.members: dict[Slot, list[Slot]] = {}
        for slot, root in self.root.items():
            self.members.setdefault(root, []).append(slot)
        self.roots = list(dict.fromkeys(map(self.root.__getitem__, reversed(self.parent))))

    # classes

    def _slots(self) -> None:
        for p in self.f.params:
            for k, n in enumerate(p.type.dims):
                self._slot((p.name, k), n)
        for s in self.f.stages:
            for k, a in enumerate(s.axes):
                self._slot((s.name, k), a.extent)
                self._slot((a.name, -1), a.extent)
                self._join((s.name, k), (a.name, -1))
            for a in reduce_axes(*s.exprs[:1]):
                self._slot((a.name, -1), a.extent)

    def _slot(self, slot: Slot, extent: Dim) -> None:
        self.parent[slot] = slot
        if isinstance(extent, int):
            self.number[slot] = extent
        else:
            self.size[slot] = extent

    def _root(self, slot: Slot) -> Slot:
        while self.parent[slot] != slot:
            slot = self.parent[slot]
        return slot

    def _join(self, a: Slot, b: Slot) -> None:
        a, b = self._root(a), self._root(b)
        if a != b and a in self.number and self.number.get(b) == self.number[a]:
            self.parent[b] = a

    def _same(self) -> None:
        for s in self.f.stages:
            for n in loads(*s.exprs):
                for k, i in enumerate(n.index):
                    if isinstance(i, Index):
                        self._join((n.source, k), (i.name, -1))

    # dims

    def general(self) -> General:
        for s in reversed(self.f.stages):
            for a in s.axes:
                self._base((a.name, -1))
            for n in loads(*s.exprs):
                for k, i in enumerate(n.index):
                    self._of_index(s, n, k, i)
            for a in reduce_axes(*s.exprs[:1]):
                self._base((a.name, -1))
        for p in self.f.params:
            for k in range(p.type.rank):
                self._base((p.name, k))
        stages = tuple(self._stage(s) for s in self.f.stages)
        params = tuple(self._typed(p) for p in self.f.params)
        schedule = self._schedule(params)
        results = tuple(self._typed(r) for r in self.f.results)
        f = replace(self.f, params=params, stages=stages, results=results, schedule=schedule)
        f = replace(f, dims=(*f.dims, *self.free))
        return General(named_by_role(f, {*self.values}), tuple((self.values | self.computed)[n] for n in self.free))

    def _typed(self, p: Param) -> Param:
        layout, shape = p.type.layout, tuple(self._dim((p.name, k), d) for k, d in enumerate(p.type.dims))
        within = layout.within
        if layout == ROW and self.of_parts and len(shape) > 1 and isinstance(shape[-1], Sym):
            within = ((len(shape) - 1, p.type.dims[-1]),)
        around = tuple((k, n if self._is_own(n) else self._symbol(n, 0)) for k, n in within)  # 0 if it is empty
        return replace(p, type=TensorType(p.type.dtype, shape, replace(layout, within=around)))

    def _is_own(self, n: Dim) -> bool:
        """Whether a distance of rows, or the length of a block, is a dim of its own already."""
        extents = (d for p in (*self.f.params, *self.f.results) for d in p.type.dims)
        return isinstance(n, Sym) and n.is_symbol and not symbols(n).keys() & symbols(*extents).keys()

    def _dim(self, slot: Slot, extent: Dim) -> Dim:
        return self.size.get(self.root[slot], extent) if isinstance(extent, int) else extent

    def _symbol(self, value: Dim, least: int = 1) -> Sym:
        name = f"D{len(self.f.dims) + len(self.free)}"
        self.free.append(name)
        if isinstance(value, int):
            self.values[name] = value
        else:
            self.computed[name] = value
        return symbol(name, least)

    def _base(self, slot: Slot) -> None:
        """Make a class a dim of its own, unless it has a size already."""
        root = self.root[slot]
        if root in self.size or root not in self.number:
            return
        n = self.number[root]
        facts = [self.facts.axes[s] for (s, k) in self.members[root] if k < 0]
        measured = not self.measured.isdisjoint(self.members[root])
        if not SMALL < n <= MOST_COUNTED or n in self.kept or measured or _is_known(facts):
            self.size[root] = n  # beyond what kernels count: an axis of an empty tensor
            return
        by = lcm(multiple(facts), *(t for t in self._tiles(root) if n % t == 0))
        least = max((x.at_least for x in facts), default=1)
        self.size[root] = by * self._symbol(n // by, max(-(-least // by), 1))

    def _tiles(self, root: Slot) -> Iterator[int]:
        """Lengths of the tiles in which a class is stored."""
        for p in (*self.f.params, *self.f.results):
            for axis, length in p.type.layout.tiles:
                if self.root[p.name, axis] == root:
                    yield length

    def _of_index(self, s: AnyStage, n: Load, k: int, i: Expr) -> None:
        """Derive the extent that an index reads along from the sizes of its axes, if possible."""
        root, in_part = self.root[n.source, k], (n.source, k) in self.parts
        if root in self.size or root not in self.number or self.number[root] in self.kept:
            return
        if self.number[root] > MOST_COUNTED if in_part else self.number[root] <= SMALL:
            return
        if _is_known([self.facts.axes[m] for m, at in self.members[root] if at < 0]):
            return
        d = to_dim(self._lifted(i, s, n), self._axes(s))
        if d is None:
            return
        for name in symbols(d):
            if is_axis(name):
                self._base((axis_of(name), -1))
        d = to_dim(self._lifted(i, s, n), self._axes(s))
        assert d is not None
        last = {axis_symbol(a.name): self._extent(a) - 1 for a in axes_of(s)}
        top = substitute(d, last)
        more = self.number[root] - 1 - evaluate(top, self.values) if set(symbols(top)) <= set(self.values) else None
        if isinstance(top, int):
            self.size[root] = self.number[root]
        elif in_part and more is not None and more >= 0:
            self.size[root] = top + 1 + self._symbol(more, 0)
        elif more is not None and abs(more) <= _NEAR:
            self.size[root] = top + 1 + more

    def _extent(self, a: Axis) -> Dim:
        return self._dim((a.name, -1), a.extent)

    def _axes(self, s: AnyStage) -> Mapping[str, Dim]:
        return axis_symbols(Axis(a.name, self._extent(a)) for a in axes_of(s))

    # numbers in expressions

    def _stage(self, s: AnyStage) -> TeStage:
        assert isinstance(s, TeStage)

        def visit(n: Expr) -> Expr | None:
            match n:
                case Load():
                    index = tuple(self._lifted(i, s, n) for i in n.index)
                    return None if all(map(is_, index, n.index)) else Load(n.source, index, n.dtype)
                case Reduce():
                    return replace(n, axes=tuple(Axis(a.name, self._extent(a)) for a in n.axes))
                case Binary() if n.op in COMPARISONS and n.lhs.dtype == I64 and n not in self.facts.tests:
                    return replace(n, lhs=self._lifted(n.lhs, s, n), rhs=self._lifted(n.rhs, s, n))
                case _:
                    return None

        axes = tuple(Axis(a.name, self._extent(a)) for a in s.axes)
        return replace(s, axes=axes, expr=transform(s.expr, visit))

    def _lifted(self, e: Expr, s: AnyStage, near: Expr) -> Expr:
        """Index arithmetic with sizes instead of numbers that are sizes, of the axes that it uses where these have them."""
        if isinstance(e, Index) or not any(map(_number, walk(e))):
            return e
        own = [(n.name, -1) for n in of_kind(Index, e)]
        done = {id(m) for n in loads(e) for i in n.index for m in walk(i)}  # with sizes of their own already

        def visit(n: Expr) -> Expr | None:
            return self._named(value, s, near, own) if (value := _number(n)) and id(n) not in done else None

        return transform(e, visit)

    def _named(self, value: int, s: AnyStage, near: Expr, own: Sequence[Slot]) -> Expr | None:
        """The size that a number is, among the available ones: equal, or different by a border.

        Numbers in indices of axes whose extents stay numbers stay so too: other extents are near by chance.
        """
        if (border := self.borders.get(s.name)) is not None and (found := self._of_border(value, border)) is not None:
            return wrap(found)
        used = [(n.name, -1) for n in of_kind(Index, near)]
        own = [*own, *(() if isinstance(near, Load) else used)]
        of_source = [(near.source, k) for k in range(len(near.index))] if isinstance(near, Load) else []
        slots: list[Slot] = [*own, *of_source, *reversed(used)]
        slots += reversed([(a.name, -1) for a in axes_of(s)])
        slots += [(n.source, k) for n in loads(*s.exprs) for k in range(len(n.index))]
        roots = [*dict.fromkeys((*map(self.root.__getitem__, slots), *self.roots))]
        stays = any(self._is_number_near(slot, value) for slot in (*own, *of_source))
        for root in map(self.root.__getitem__, own) if stays else roots:
            if self.number.get(root) == value and isinstance(size := self.size.get(root), Sym):
                return wrap(size)
        if stays:
            return None
        for root in roots:
            n = self.number.get(root, 0)
            if n and value % n == 0 and value // n <= _NEAR and isinstance(size := self.size.get(root), Sym):
                return wrap(size * (value // n))
        for root in roots:
            n = self.number.get(root)
            if n is not None and abs(n - value) <= _NEAR and isinstance(size := self.size.get(root), Sym):
                return wrap(size + (value - n))
        return None

    def _of_border(self, value: int, border: Border) -> Dim | None:
        """The first position after a border, or the first one after the row within it."""
        root = self.root[border.source, 0]
        size = self.size.get(root)
        if isinstance(size, Sym) and value == self.number.get(root, 0) + border.length:
            return size + border.dim
        return border.dim if value == border.length else None

    def _is_number_near(self, slot: Slot, value: int) -> bool:
        """Whether a size that stays a number is a value, or differs from it by a border."""
        n = self.size.get(self.root[slot])
        return isinstance(n, int) and n > SMALL and abs(n - value) <= _NEAR

    # the schedule

    def _schedule(self, params: Sequence[Param]) -> tuple[Directive, ...]:
        factors = ((k, self.f.schedule[k].args[3]) for k in sorted(self.facts.blocks))
        lengths = {k: self._symbol(n, 1) for k, n in factors if isinstance(n, (int, Sym)) and not self._is_own(n)}

        def args(k: int, d: Directive) -> tuple[Arg, ...]:
            if d.call == "fetch_ahead":
                return (d.args[0], *bytes_of_panels(d, self.f, next(p.type for p in params if p.name == d.args[0])))
            return (*d.args[:3], lengths[k], *d.args[4:]) if k in lengths else d.args

        kept = [d.call != "fetch_ahead" or not cut_short(self.f, d.stage) for d in self.f.schedule]
        changed = ((d, args(k, d)) for k, d in enumerate(self.f.schedule) if kept[k])
        return tuple(d if new is d.args else replace(d, args=new) for d, new in changed)

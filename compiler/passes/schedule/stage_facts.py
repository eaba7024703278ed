"""Analysis of te stages that schedule rules share: contractions, windows, vector axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from operator import is_

from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I16, I32
from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.ir.te.expr import Axis, Binary, Cast, Expr, Index, Load, Reduce
from occ.compiler.ir.te.function import (
    AnyStage,
    Param,
    Scatter,
    TeFunc,
    TeStage,
    loads,
    product_in_pairs,
    reduce_axes,
)
from occ.compiler.ir.te.index import axis_symbols, step
from occ.compiler.ir.te.reductions import COMBINE
from occ.compiler.ir.te.roles import COLUMNS, PANELS
from occ.compiler.ir.te.schedule import Hint
from occ.compiler.ir.te.walks import children, walk
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.typical_sizes import nominal, nominal_count
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.gathered_rows import sampled_rows
from occ.compiler.passes.schedule.loops import TASKS, Directives
from occ.compiler.passes.te.inline import homes_of, materialised
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

FEW_ROWS = 2  # rows of a product up to which one at a time is faster than a tile of eight: each loads all weights


@dataclass(frozen=True)
class Part(TeFunc):
    """The prefix of a te function up to one of its stages in memory, which a rule is to schedule.

    Its results are that stage and the values that later stages read.

    Attributes:
        whole: the complete function.
    """

    whole: TeFunc | None = None

    @property
    def is_intermediate(self) -> bool:
        """Whether the function goes on after it."""
        return self.whole is not None and len(self.stages) < len(self.whole.stages)

    @classmethod
    def of(cls, whole: TeFunc, last: AnyStage) -> Part:
        """The prefix that ends with a stage."""
        k = whole.stages.index(last) + 1
        stages, later = whole.stages[:k], whole.stages[k:]
        types = {r.name: r for r in whole.results}
        read = {n.source for s in later for n in loads(*s.exprs)} | {last.name, *types}
        results = (types.get(s.name) or Param(s.name, TensorType(s.dtype, s.shape)) for s in stages if s.name in read)
        return cls(
            whole.name, whole.dims, whole.params, stages, tuple(results), whole.checks, hint=whole.hint, whole=whole
        )


@dataclass
class ScheduleFacts:
    """One te function under scheduling.

    Attributes:
        f: the function.
        machine: the CPU that it will run on.
        skinny: whether the schedule is for at most `FEW_ROWS` rows of a symbolic number.
        full_tile: whether it is for rows with at least as many positions as are computed together.
        full_vector: whether it is for rows with at least a full vector of elements.
    """

    f: TeFunc
    machine: Machine
    skinny: bool = False
    full_tile: bool = False
    full_vector: bool = False

    @cached_property
    def hint(self) -> Hint:
        """The user's choices for this kernel."""
        return Hint.parse(self.f.hint)

    @cached_property
    def roots(self) -> list[AnyStage]:
        """Stages that are computed into memory."""
        if (whole := self._whole) is not None:
            return [s for s in self.f.stages if s.name in whole.root_names]
        kept = self._stored | set(self.sampled)
        if self.hint.compute_root:
            kept |= self._apart(kept)
        return [s for s in self.f.stages if s.name in kept]

    @cached_property
    def _stored(self) -> set[str]:
        """Names of the stages that are `materialised`, whatever the schedule is."""
        done = (x for x in _recent if "_stored" in vars(x) and x.f.results == self.f.results)
        same = next(
            (x for x in done if len(x.f.stages) == len(self.f.stages) and all(map(is_, x.f.stages, self.f.stages))),
            None,
        )
        return materialised(self.f, shared=True) if same is None else same._stored

    def _apart(self, kept: set[str]) -> set[str]:
        """Stages that may be stored in addition to those `kept`: not reductions, and each used in one place."""
        sums = [
            s.name
            for s in self.f.stages
            if isinstance(s, TeStage) and isinstance(s.expr, Reduce) and s.name not in kept
        ]
        apart = {s.name for s in self.f.stages} - kept - {*sums}
        while several := {
            h for name in sums if len(homes := homes_of(self.f, name, kept | apart)) > 1 for h in homes & apart
        }:
            apart -= several
        return apart

    @property
    def root(self) -> AnyStage:
        """The stage that is to be scheduled."""
        return self.f.stages[-1]

    @cached_property
    def sampled(self) -> dict[str, str]:
        """Stages whose rows a gather such as Resize samples, each with the result that reads them."""
        return sampled_rows(self.f) if self._whole is None else self._whole.sampled

    @property
    def _whole(self) -> ScheduleFacts | None:
        """The facts of the complete function."""
        whole = self.f.whole if isinstance(self.f, Part) else None
        return None if whole is None else facts_of(whole, self.machine)

    def scheduled(self, made: Directives | Declined) -> TeFunc | Declined:
        """The function with these directives, or why there are none."""
        return made if isinstance(made, Declined) else self.f.with_schedule(made)

    @cached_property
    def root_names(self) -> set[str]:
        return {s.name for s in self.roots}

    def stage(self, name: str) -> AnyStage | None:
        return next((s for s in self.f.stages if s.name == name), None)

    def inlined_into(self, root: AnyStage) -> list[TeStage]:
        """Inlined stages that a root reads, directly or through others."""
        found: dict[str, TeStage] = {}
        todo = [n.source for e in root.exprs for n in walk(e) if isinstance(n, Load)]
        while todo:
            name = todo.pop()
            s = self.stage(name)
            if isinstance(s, TeStage) and name not in self.root_names and name not in found:
                found[name] = s
                todo += [n.source for n in walk(s.expr) if isinstance(n, Load)]
        return list(found.values())

    def reductions(self, root: AnyStage) -> list[TeStage]:
        """The reductions among them."""
        return [s for s in self.inlined_into(root) if isinstance(s.expr, Reduce) and s.expr.kind in COMBINE]


_recent: list[ScheduleFacts] = []  # last first


def facts_of(f: TeFunc, machine: Machine) -> ScheduleFacts:
    """The facts of a function, the same object for all rules tried on it."""
    found = next((x for x in _recent if x.f is f and x.machine == machine), None) or ScheduleFacts(f, machine)
    _recent[:] = [found, *(x for x in _recent if x is not found)][:4]
    return found


def stages_by_role(f: TeFunc, roles: Mapping[str, str]) -> dict[str, TeStage] | None:
    """The stages of a method by their role; None if one is missing.

    Args:
        f: the function.
        roles: the role of each part, a table of `ir/te/roles.py`.
    """
    found = f.by_role
    return {part: found[role] for part, role in roles.items()} if found.keys() >= {*roles.values()} else None


def same_axes(s: TeStage, acc: TeStage) -> bool:
    """Whether two stages have axes of the same extents."""
    return len(s.axes) == len(acc.axes) and all(a.extent == b.extent for a, b in zip(s.axes, acc.axes, strict=True))


def element_bits(s: AnyStage) -> int:
    """Width of the elements that a stage computes with.

    Positions do not count; they are 32 bits wide whatever they are computed from.
    """
    found: list[int] = []
    todo = list(s.exprs)
    seen: set[int] = set()
    while todo:
        n = todo.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        if isinstance(n, (Load, Reduce)):
            found.append(min(n.dtype.bits, 64))
        todo += () if isinstance(n, Load) else children(n)
    return max(found, default=32)


@dataclass(frozen=True)
class Contraction:
    """Axis roles of a sum of products `A * B` in which vectors run along an axis of `B` only.

    Attributes:
        lanes: axis of the stage that only `B` has, along which `B` is contiguous.
        tile: innermost axis of the stage that only `A` has, or empty.
        outer: the other axes that only `A` has, outermost first.
        batch: axes that both have, outermost first.
        panel: width of the panels in which `B` is packed, or 0.
        a, b: the loads.
        order: the reduced axes, innermost first, so that `B` is read in memory order.
        dot: a reduced axis of four bytes or two bf16 whose products one instruction adds within a lane, not in `order`;
            or empty.
    """

    lanes: str
    tile: str
    outer: tuple[str, ...]
    batch: tuple[str, ...]
    panel: int
    a: Load
    b: Load
    order: tuple[str, ...]
    dot: str = ""

    def with_rows_as_loop(self) -> Contraction:
        """The contraction tiled along the next axis of `A` instead, if it has one.

        Its innermost one becomes an ordinary loop.
        """
        *outer, tile = *self.outer, self.tile
        return replace(self, tile=outer[-1] if outer else "", outer=(*outer[:-1], tile) if tile else ())


def contraction(s: TeStage, f: TeFunc) -> Contraction | None:
    """The contraction that a stage computes, or None; without elements or products there is nothing to tile."""
    r = s.expr
    if not isinstance(r, Reduce) or r.kind != "sum" or not r.axes or 0 in [a.extent for a in (*s.axes, *r.axes)]:
        return None
    pair = factors(r)
    if pair is None:
        return None
    x, y = map(_bare, pair)
    if x is None or y is None:
        return None
    for a, b in ((x, y), (y, x)):
        found = _roles(s, a, b, f)
        if found is not None:
            return found
    return None


def crossed_product(r: Expr) -> Binary | None:
    """The first factor, `x + w` in i16, of a sum in i32 of products `(x + w) * (y + v)`, or None."""
    body = r.body if isinstance(r, Reduce) and r.kind == "sum" and r.dtype == I32 else None
    first = body.lhs.arg if isinstance(body, Binary) and body.op == "mul" and isinstance(body.lhs, Cast) else None
    return first if isinstance(first, Binary) and first.op == "add" and first.dtype == I16 else None


def factors(r: Reduce) -> tuple[Expr, Expr] | None:
    """What a sum multiplies, those that a crossed product adds, or whose difference it squares: in the same loops."""
    if (crossed := crossed_product(r)) is not None:
        return crossed.lhs, crossed.rhs
    body = product_in_pairs(r) or r.body
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    of = body.lhs
    if body.lhs == body.rhs and isinstance(of, Binary) and of.op == "sub":
        return of.lhs, of.rhs
    return body.lhs, body.rhs


def _bare(e: Expr) -> Load | None:
    inner = e.arg if isinstance(e, Cast) else e
    return inner if isinstance(inner, Load) else None


def _roles(s: TeStage, a: Load, b: Load, f: TeFunc) -> Contraction | None:
    in_a, in_b = ({n.name for i in x.index for n in walk(i) if isinstance(n, Index)} for x in (a, b))
    mine = [ax.name for ax in s.axes]
    only_b = [n for n in mine if n in in_b and n not in in_a]
    param = next((p for p in f.params if p.name == b.source), None)
    if not only_b:
        return None
    panel: Dim = 0
    dot = ""
    if param is not None and param.type.layout.tiles:
        (axis, panel), *rest = param.type.layout.tiles
        index = b.index[axis]
        if not isinstance(index, Index) or index.name not in only_b:
            return None
        lanes = index.name
        four = rest[0][0] if rest else None
        dot = next((n.name for n in walk(b.index[four]) if isinstance(n, Index)), "") if four is not None else ""
    elif (made := f.by_role.get(PANELS)) is not None and made.name == b.source:
        *_, panel, _ = made.shape
        lanes, dot = only_b[0], next(n.name for n in walk(b.index[-1]) if isinstance(n, Index))
    elif (made := f.by_role.get(COLUMNS)) is not None and made.name == b.source:
        panel = made.shape[-1]
        lanes = next(n.name for n in walk(b.index[-1]) if isinstance(n, Index))
    else:
        symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
        lanes = next((n for n in only_b if step(b, n, symbols, f.shapes) == 1), "")
        if not lanes:
            return None
    only_a = [n for n in mine if n in in_a and n not in in_b]
    tile = only_a[-1] if only_a else ""
    batch = tuple(n for n in mine if n != lanes and n not in only_a)
    order = tuple(n for n in _reduction_order(s, b, param) if n != dot)
    assert isinstance(panel, int), "panels are tiles of a layout, or made as wide as vectors are"
    return Contraction(lanes, tile, tuple(only_a[:-1]), batch, panel, a, b, order, dot)


def _reduction_order(s: TeStage, b: Load, param: Param | None) -> tuple[str, ...]:
    """Reduced axes from the innermost out, in the order of `B` in memory."""
    order = param.type.layout.order if param is not None else ()
    dims = order or range(len(b.index))
    place = {n.name: k for k, d in enumerate(dims) for n in walk(b.index[d]) if isinstance(n, Index)}
    reduced = [a.name for a in reduce_axes(s.expr)]
    return tuple(sorted(reduced, key=lambda name: -place.get(name, 0)))


def extent_of(s: AnyStage, axis: str) -> Dim:
    """Extent of an axis of a stage or of its reduction."""
    inner = () if isinstance(s, Scatter) else reduce_axes(s.expr)
    return next(a.extent for a in (*s.axes, *inner) if a.name == axis)


def work(s: AnyStage, facts: ScheduleFacts) -> int:
    """Approximate operations to compute a stage, with what is inlined into it; symbolic dims at typical values."""
    if facts.hint.parallel is False:
        return 0  # not worth a second thread
    size = nominal_count(s.shape)
    total = sum(len(list(walk(e))) for e in s.exprs)
    for inner in facts.inlined_into(s):
        total += len(list(walk(inner.expr))) * nominal_count(a.extent for a in reduce_axes(inner.expr))
    if isinstance(s, TeStage):
        total *= nominal_count(a.extent for a in reduce_axes(s.expr))
    return max(size * max(total, 1), SERIAL if facts.hint.parallel else 0)


def rows_of_task(s: AnyStage, elements: int) -> int:
    """Rows of a task that has some elements.

    A task for each short row, as the channels of a pixel are, would take longer than the row. A convolution of
    bytes, 32 to 16 channels of 112x112, whose operand is widened first: 146 --> 135 us (Zen 4, AVX2).
    """
    return min(elements // max(nominal(s.shape[-1]), 1), nominal(s.shape[0]) // TASKS)


def contiguous(r: TeStage, axis: str, facts: ScheduleFacts) -> bool:
    """Whether every load of a reduction moves by at most a few elements along an axis."""
    symbols = axis_symbols((*r.axes, *reduce_axes(r.expr)))
    steps = [step(n, axis, symbols, facts.f.shapes) for n in walk(r.expr) if isinstance(n, Load)]
    return all(isinstance(d, int) and abs(d) <= 4 for d in steps)


def fixed(axis: Axis) -> int:
    """The extent of an axis that only weights define."""
    assert isinstance(axis.extent, int)
    return axis.extent

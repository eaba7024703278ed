"""Emits an LLVM function for a te stage: explicit vectors, unrolled rows, reductions in registers.

The function is `int kernel(void **args, int begin, int end)`, with arguments as in runtime/native/library.py; it
computes positions `begin` to `end` of the stage's parallel loop (see `plan_loops`).
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.expressions import EXPONENTIALS
from occ.compiler.codegen_llvm.loop_plan import LoopPlan, lanes_of, plan_loops, row_parts
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.memory import Env
from occ.compiler.codegen_llvm.reductions import Reductions
from occ.compiler.ir.dim import Dim, is_multiple
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.approx import APPROXIMATIONS
from occ.compiler.ir.te.expr import Axis, Call, Carried, Expr, Index, Load, Reduce, cast
from occ.compiler.ir.te.function import Scatter, TeStage, reduce_axes
from occ.compiler.ir.te.index import axis_symbols
from occ.compiler.ir.te.scatter_rows import passed_on, place_before, running
from occ.compiler.ir.te.walks import children, transform, walk, with_shared_parts
from occ.compiler.native_entry.builder import number
from occ.compiler.native_entry.loops import Body, for_loop
from occ.compiler.native_entry.types import I32, I64


def with_approximations(e: Expr, machine: CodeMachine) -> Expr:
    """The expression with functions of f32 and narrower floats as te arithmetic, and equal parts as one.

    Exponentials stay where the machine has an instruction for their last step.
    """

    def visit(n: Expr) -> Expr | None:
        if not isinstance(n, Call) or n.fn not in APPROXIMATIONS or not n.dtype.is_float or n.dtype.bits > 32:
            return None
        x = cast(F32, n.args[0])
        if n.fn in EXPONENTIALS and machine.scales_by_powers:
            return cast(n.dtype, Call(n.fn, (x,), F32))
        return cast(n.dtype, APPROXIMATIONS[n.fn](x))

    return transform(with_shared_parts(e), visit)


def _is_one(extent: Any, w: int) -> bool:
    """Whether one lane is left: LLVM stores an i32 for narrowed lanes with a constant mask of one lane."""
    known = number(extent)
    return known is not None and known % w == 1


class KernelEmitter(Reductions):
    """Emits one te function of one stage into a module."""

    def emit(self) -> None:
        """Emit the body."""
        if isinstance(self.stage, Scatter):
            self._scatter(self.stage)
        else:
            self._stage(self.stage)
        self.b.ret(I32(0))

    # stages

    def _stage(self, s: TeStage, *, whole: bool = False) -> None:
        """A stage: the range of positions of its parallel loop that the caller names, or the whole of it."""
        s = TeStage(s.name, s.axes, with_approximations(s.expr, self.machine))
        self.symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
        plan = plan_loops(s, self.f.shapes, self.machine)
        begin, end = (self.b.sext(a, I64) for a in self.fn.args[1:])
        if whole or plan.tasks(s) in (0, 1):  # so that its bounds are constants
            begin, end = I64(0), self.size(plan.tasks(s), {})
        if plan.block and not whole and plan.tasks(s) != 1:  # a range of blocks of the only axis
            extent = self.size(s.axes[0].extent, {})
            low = self.b.mul(begin, I64(plan.block))
            high = self.b.mul(end, I64(plan.block))
            high = self.b.select(self.b.icmp_signed("<", high, extent), high, extent)
            self._vector_loop(s, plan, [Env({}, memo=self._invariant(s, plan, {}))], low, high)
            return
        ranges = {plan.parallel: (begin, end)} if plan.parallel else {}
        self._outer_loops(s, plan, [a for a in s.axes if a.name not in (plan.vector, plan.tile)], {}, ranges)

    def _outer_loops(
        self, s: TeStage, plan: LoopPlan, axes: list[Axis], at: dict[str, Any], ranges: dict[str, Any]
    ) -> None:
        if not axes:
            if plan.columns > 1:
                self._columns_first(s, plan, at, ranges)
            else:
                self._tile_loop(s, plan, ranges, lambda rows: self._row_loop(s, plan, at, rows))
            return
        first, *rest = axes
        low, high = ranges.get(first.name, (I64(0), self.size(first.extent, {})))

        def body(i: Any, _: list[Any]) -> list[Any]:
            self._outer_loops(s, plan, rest, at | {first.name: i}, ranges)
            return []

        for_loop(self.b, low, high, 1, [], body)

    def _tile_loop(
        self, s: TeStage, plan: LoopPlan, ranges: dict[str, Any], body: Callable[[list[dict[str, Any]]], None]
    ) -> None:
        """`body` for positions on the axis of a tile, several at a time."""
        if not plan.tile:
            body([{}])
            return
        axis = next(a for a in s.axes if a.name == plan.tile)
        extent = self.size(axis.extent, {})
        low, high = ranges.get(axis.name, (I64(0), extent))
        if plan.parallel == plan.tile:  # a range of tiles
            low, high = self.b.mul(low, I64(plan.rows)), self.b.mul(high, I64(plan.rows))
            high = self.b.select(self.b.icmp_signed("<", high, extent), high, extent)

        def some(count: int) -> Body:
            def step(i: Any, _: list[Any]) -> list[Any]:
                body([{axis.name: self.b.add(i, I64(k))} for k in range(count)])
                return []

            return step

        whole = self.b.add(low, self._multiple(self.b.sub(high, low), plan.rows))
        for_loop(self.b, low, whole, plan.rows, [], some(plan.rows))
        if not isinstance(axis.extent, int):
            if not is_multiple(axis.extent, plan.rows):
                for_loop(self.b, whole, high, 1, [], some(1))
        elif rest := axis.extent % plan.rows:  # the last tile of all
            for_loop(self.b, I64(axis.extent - rest), high, rest, [], some(rest))

    def _columns_first(self, s: TeStage, plan: LoopPlan, at: dict[str, Any], ranges: dict[str, Any]) -> None:
        """Several vectors of columns, and for these all rows: what the columns read stays in cache."""
        w = plan.width
        axis = next(a for a in s.axes if a.name == plan.vector)
        high = self.size(axis.extent, {})
        many, whole = (self._multiple(high, n) for n in (w * plan.columns, w))

        def chunk(i: Any, count: int, stop: Any = None, *, scalar: bool = False) -> None:
            """`count` vectors of columns from `i` on, with those below `stop`."""
            starts = [self.b.add(i, I64(k * w)) for k in range(count)]
            tails = [None if stop is None else self._tail(n, stop, w) for n in starts]

            def rows(listed: list[dict[str, Any]]) -> None:
                places = [
                    (at | row | {axis.name: n}, tail) for row in listed for n, tail in zip(starts, tails, strict=True)
                ]
                self._rows(s, plan, [Env(p) if scalar else Env(p, axis.name, w, tail) for p, tail in places])

            self._tile_loop(s, plan, ranges, rows)

        def loop(low: Any, stop: Any, count: int, *, cut: bool = False) -> None:
            def each(i: Any, _: list[Any]) -> list[Any]:
                chunk(i, count, stop if cut else None)
                return []

            for_loop(self.b, low, stop, w * count, [], each)

        loop(I64(0), many, plan.columns)
        if not isinstance(high, ir.Constant):
            if not is_multiple(axis.extent, w * plan.columns):
                loop(many, whole, 1)
                loop(whole, high, 1, cut=True)
            return
        end = whole if _is_one(high, w) else high
        if rest := end.constant - many.constant:
            chunk(many, -(-rest // w), end)
        if end.constant < high.constant:
            chunk(whole, 1, scalar=True)

    def _tail(self, start: Any, stop: Any, w: int) -> Any:
        """The mask of a vector from `start` to at most `stop`, or None for all lanes."""
        known = number(self.b.sub(stop, start))
        return None if known is not None and known >= w else self._lanes_below(self.b.sub(stop, start), w)

    def _row_loop(self, s: TeStage, plan: LoopPlan, at: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        """Positions of several rows: one by one, or vectors along the last axis in its parts."""
        if not plan.vector or plan.vector not in {a.name for a in s.axes}:
            self._rows(s, plan, [Env(at | row) for row in rows])
            return
        symbols, axis = self.symbols, s.axes[-1]
        for part in row_parts(s, plan):
            here = TeStage(s.name, (*s.axes[:-1], Axis(axis.name, part.extent)), part.expr)
            if part.expr is not s.expr:
                self._enter(axis_symbols(here.axes), {axis.name: part.start})
            envs = [Env(at | row, memo=self._invariant(here, plan, at | row)) for row in rows]
            self._vector_loop(here, plan, envs, I64(0), self.size(part.extent, {}))
        self._enter(symbols, {})

    def _enter(self, symbols: dict[str, Dim], starts: dict[str, Dim]) -> None:
        """Evaluate expressions for other ranges of axes, which start at `starts` of the stage."""
        self.symbols, self.starts = symbols, starts
        self._safe.clear()

    def _invariant(self, s: TeStage, plan: LoopPlan, at: dict[str, Any]) -> dict[int, tuple[Expr, Any]]:
        """Values that do not move along a row: LLVM cannot tell that its stores do not change what these load."""
        env = Env(at)
        seen: dict[int, bool] = {}  # by expression: a part of several is visited once

        def visit(e: Expr) -> bool:
            if id(e) not in seen:
                seen[id(e)] = is_fixed(e)
            return seen[id(e)]

        def is_fixed(e: Expr) -> bool:
            """Whether an expression is the same for the whole row; the largest parts of others are evaluated."""
            if isinstance(e, Index):
                return e.name != plan.vector
            if isinstance(e, (Reduce, Carried)):
                return False
            same = [visit(c) for c in children(e)]
            if all(same) and self._is_safe(e):
                return True
            for child, fixed in zip(children(e), same, strict=True):
                if fixed and (children(child) or isinstance(child, Load)):
                    self.value(child, env)
            return False

        if visit(s.expr):
            self.value(s.expr, env)
        return dict(env.memo)

    def _vector_loop(self, s: TeStage, plan: LoopPlan, rows: list[Env], low: Any, high: Any) -> None:
        w = plan.width
        whole = self.b.add(low, self._multiple(self.b.sub(high, low), w))

        def placed(i: Any) -> list[Env]:
            """Each row at a position, alone."""
            return [replace(e, axes=e.axes | {plan.vector: i}, memo=dict(e.memo)) for e in rows]

        def chunk(i: Any, tail: Any) -> None:
            self._rows(s, plan, [replace(e, vector=plan.vector, width=w, tail=tail) for e in placed(i)])

        def full(i: Any, _: list[Any]) -> list[Any]:
            chunk(i, None)
            return []

        def last(i: Any, _: list[Any]) -> list[Any]:
            if _is_one(self.b.sub(high, low), w):
                self._rows(s, plan, placed(i))
            else:
                chunk(i, self._lanes_below(self.b.sub(high, i), w))
            return []

        for_loop(self.b, low, whole, w, [], full)
        for_loop(self.b, whole, high, w, [], last)

    def _rows(self, s: TeStage, plan: LoopPlan, envs: list[Env]) -> None:
        """Evaluate and store several positions that share their loads."""
        if plan.transposed and len(envs) > 1 and envs[0].vector:
            self._load_transposed(s, plan.tile, envs)
        for r in [n for n in walk(s.expr) if isinstance(n, Reduce)]:
            for env, value in zip(envs, self._reduce(r, plan, envs), strict=True):
                env.reduced[id(r)] = value
        for env in envs:
            place = [self.symbols[a.name] + self.starts.get(a.name, 0) for a in s.axes]
            self._store(s.name, place, self.value(s.expr, env), env)

    # scatters

    def _scatter(self, s: Scatter) -> None:
        """Initial values, then the updates one after another: order matters if targets repeat."""
        if s.base is None and not running(s):
            self._stage(TeStage(s.name, s.axes, s.init), whole=True)
        s = replace(s, value=with_approximations(s.value, self.machine))
        self.symbols = axis_symbols((*s.axes, *s.over))
        *outer, last = s.over or (Axis("", 1),)
        if passed_on(s).get(last.name) != s.axes[-1].name if s.axes else True:
            self._nest(s.over, {}, lambda at: self._update(s, Env(at)))
            return
        # Elements along the last axis are written once each: vectors of them.
        width = lanes_of([s.init, s.value], self.machine)
        stop = self.size(last.extent, {})
        whole = self._multiple(stop, width)

        def row(at: dict[str, Any]) -> None:
            def vector(i: Any, tail: Any = None) -> list[Any]:
                one = tail is not None and _is_one(stop, width)
                env = Env(at | {last.name: i})
                self._update(s, env if one else replace(env, vector=last.name, width=width, tail=tail))
                return []

            for_loop(self.b, I64(0), whole, width, [], lambda i, _: vector(i))
            for_loop(
                self.b, whole, stop, width, [], lambda i, _: vector(i, self._lanes_below(self.b.sub(stop, i), width))
            )

        self._nest(outer, {}, row)

    def _nest(self, axes: Sequence[Axis], at: dict[str, Any], body: Callable[[dict[str, Any]], None]) -> None:
        """`body` at each position of some axes, in order."""
        if not axes:
            body(at)
            return
        first, *rest = axes

        def step(i: Any, _: list[Any]) -> list[Any]:
            self._nest(rest, at | {first.name: i}, body)
            return []

        for_loop(self.b, I64(0), self.size(first.extent, {}), 1, [], step)

    def _update(self, s: Scatter, env: Env) -> None:
        """One update, or a vector of them along the last axis of both."""
        address = self._target(s, s.target, env)
        value = self.o.splat(self.value(s.value, env), env.width)
        if how := running(s):
            old = self._load_at(self._target(s, place_before(s), env), s.dtype, env)
            later = self.b.icmp_signed(">", env.axes[s.over[0].name], I64(0))
            value = self.b.select(later, self.o.binary(how, old, value, s.dtype), value)
        elif s.combine not in ("set", "into"):
            value = self.o.binary(s.combine, self._load_at(address, s.dtype, env), value, s.dtype)
        self._store_at(address, value, s.dtype, env)

    def _target(self, s: Scatter, target: Sequence[Expr], env: Env) -> Any:
        """The address of an updated element, or of the one in lane 0."""
        offset, first = I64(0), Env(env.axes)
        for e, n in zip(target, s.shape, strict=True):
            extent = self.size(n, {})
            offset = self.b.add(self.b.mul(offset, extent), self._inside(self.value(e, first), extent))
        return self._address(s.name, offset)

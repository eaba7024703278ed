"""Emits an LLVM function for a te stage: explicit vectors, unrolled rows, reductions in registers.

The function is `int kernel(void **args, int begin, int end)`, with arguments as in runtime/native/library.py; it
computes positions `begin` to `end` of the stage's parallel loop (see `plan_loops`).
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from occ.compiler.codegen_llvm.expressions import Env, Expressions
from occ.compiler.codegen_llvm.loop_plan import LoopPlan, plan_loops
from occ.compiler.codegen_llvm.values import iota, lanes, undefined
from occ.compiler.ir.dim import upper
from occ.compiler.ir.dtype import F32, DType
from occ.compiler.ir.dtype import I64 as I64_TYPE
from occ.compiler.ir.te.approx import APPROXIMATIONS
from occ.compiler.ir.te.expr import FOLDS, Axis, Call, Expr, Reduce, cast
from occ.compiler.ir.te.function import Scatter, TeStage, reduce_axes
from occ.compiler.ir.te.index import axis_symbols
from occ.compiler.ir.te.reductions import BLOCK, COMBINE, max_steps, neutral
from occ.compiler.ir.te.scatter_rows import place_before, running
from occ.compiler.ir.te.walks import transform, walk
from occ.compiler.native_entry.builder import number
from occ.compiler.native_entry.loops import Body, for_loop, while_loop
from occ.compiler.native_entry.types import I1, I32, I64


def with_approximations(e: Expr) -> Expr:
    """The expression with functions of f32 and narrower floats as te arithmetic."""

    def visit(n: Expr) -> Expr | None:
        if not isinstance(n, Call) or n.fn not in APPROXIMATIONS or not n.dtype.is_float or n.dtype.bits > 32:
            return None
        return cast(n.dtype, APPROXIMATIONS[n.fn](cast(F32, n.args[0])))

    return transform(e, visit)


class Span(NamedTuple):
    """A loop of a reduction: `range(start, stop, step)`.

    Attributes:
        most: maximum steps of the loop.
        inner: maximum total steps of nested loops in one step.
    """

    start: Any
    stop: Any
    step: int
    most: float
    inner: float


class KernelEmitter(Expressions):
    """Emits one te function of one stage into a module."""

    def emit(self) -> None:
        """Emit the body."""
        if isinstance(self.stage, Scatter):
            self._scatter(self.stage)
        else:
            self._stage(self.stage)
        self.b.ret(I32(0))

    # stages

    def _stage(self, s: TeStage) -> None:
        s = TeStage(s.name, s.axes, with_approximations(s.expr))
        self.symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
        plan = plan_loops(s, self.f.shapes, self.vector_bits)
        begin, end = (self.b.sext(a, I64) for a in self.fn.args[1:])
        if plan.tasks(s) in (0, 1):  # the whole range, so that its bounds are constants
            begin, end = I64(0), I64(plan.tasks(s))
        if plan.block:  # a range of blocks of the only axis
            extent = self.size(s.axes[0].extent, {})
            low = self.b.mul(begin, I64(plan.block))
            high = self.b.mul(end, I64(plan.block))
            high = self.b.select(self.b.icmp_signed("<", high, extent), high, extent)
            self._vector_loop(s, plan, {}, [{}], low, high)
            return
        ranges = {plan.parallel: (begin, end)} if plan.parallel else {}
        self._outer_loops(s, plan, [a for a in s.axes if a.name not in (plan.vector, plan.tile)], {}, ranges)

    def _outer_loops(
        self, s: TeStage, plan: LoopPlan, axes: list[Axis], at: dict[str, Any], ranges: dict[str, Any]
    ) -> None:
        if not axes:
            self._tile_loop(s, plan, at, ranges)
            return
        first, *rest = axes
        low, high = ranges.get(first.name, (I64(0), self.size(first.extent, {})))

        def body(i: Any, _: list[Any]) -> list[Any]:
            self._outer_loops(s, plan, rest, at | {first.name: i}, ranges)
            return []

        for_loop(self.b, low, high, 1, [], body)

    def _tile_loop(self, s: TeStage, plan: LoopPlan, at: dict[str, Any], ranges: dict[str, Any]) -> None:
        if not plan.tile:
            self._row_loop(s, plan, at, [{}])
            return
        axis = next(a for a in s.axes if a.name == plan.tile)
        low, high = ranges.get(axis.name, (I64(0), self.size(axis.extent, {})))
        whole = self.b.add(low, self._multiple(self.b.sub(high, low), plan.rows))

        def many(i: Any, _: list[Any]) -> list[Any]:
            self._row_loop(s, plan, at, [{axis.name: self.b.add(i, I64(k))} for k in range(plan.rows)])
            return []

        def one(i: Any, _: list[Any]) -> list[Any]:
            self._row_loop(s, plan, at, [{axis.name: i}])
            return []

        for_loop(self.b, low, whole, plan.rows, [], many)
        for_loop(self.b, whole, high, 1, [], one)

    def _multiple(self, n: Any, of: int) -> Any:
        """The largest multiple of `of` that is at most `n`."""
        if isinstance(n, ir.Constant):
            return I64(n.constant // of * of)
        return self.b.sub(n, self.b.srem(n, I64(of)))

    def _row_loop(self, s: TeStage, plan: LoopPlan, at: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        if plan.vector and plan.vector in {a.name for a in s.axes}:
            axis = next(a for a in s.axes if a.name == plan.vector)
            self._vector_loop(s, plan, at, rows, I64(0), self.size(axis.extent, {}))
        else:
            self._rows(s, plan, [Env(at | row) for row in rows])

    def _vector_loop(
        self, s: TeStage, plan: LoopPlan, at: dict[str, Any], rows: list[dict[str, Any]], low: Any, high: Any
    ) -> None:
        w = plan.width
        whole = self.b.add(low, self._multiple(self.b.sub(high, low), w))

        def chunk(i: Any, tail: Any) -> None:
            self._rows(s, plan, [Env(at | row | {plan.vector: i}, plan.vector, w, tail) for row in rows])

        def full(i: Any, _: list[Any]) -> list[Any]:
            chunk(i, None)
            return []

        def last(i: Any, _: list[Any]) -> list[Any]:
            if (
                isinstance(low, ir.Constant)
                and isinstance(high, ir.Constant)
                and (high.constant - low.constant) % w == 1
            ):
                # LLVM stores an i32 if a store of narrowed lanes has a constant one-lane mask.
                self._rows(s, plan, [Env(at | row | {plan.vector: i}) for row in rows])
            else:
                chunk(i, self._lanes_below(self.b.sub(high, i), w))
            return []

        for_loop(self.b, low, whole, w, [], full)
        for_loop(self.b, whole, high, w, [], last)

    def _lanes_below(self, count: Any, w: int) -> Any:
        """Lanes 0 to count - 1."""
        if (known := number(count)) is not None:
            return ir.Constant(ir.VectorType(I1, w), [I1(int(k < known)) for k in range(w)])
        return self.b.icmp_signed("<", iota(w), self.o.splat(count, w))

    def _rows(self, s: TeStage, plan: LoopPlan, envs: list[Env]) -> None:
        """Evaluate and store several positions that share their loads."""
        for r in [n for n in walk(s.expr) if isinstance(n, Reduce)]:
            for env, value in zip(envs, self._reduce(r, plan, envs), strict=True):
                env.reduced[id(r)] = value
        for env in envs:
            self._store(s.name, [self.symbols[a.name] for a in s.axes], self.value(s.expr, env), env)

    # reductions

    def _reduce(self, r: Reduce, plan: LoopPlan, envs: list[Env]) -> list[Any]:
        """A reduction for several positions at once, which share loads that do not depend on the row."""
        along = plan.vector if plan.vector in {a.name for a in r.axes} else ""
        state = self._start(r, envs, plan.width if along else envs[0].width)
        outer = [a for a in r.axes if a.name != along]
        flat = [v for row in state for v in row]

        def nest(axes: list[Axis], at: dict[str, Any], carried: list[Any]) -> list[Any]:
            if axes:
                first, *rest = axes
                stop = self.size(first.extent, {})
                if r.kind == "settle":
                    return self._until_settled(r, first.name, stop, envs, carried)
                inner = max_steps(a.extent for a in r.axes if a in rest or a.name == along)
                span = Span(I64(0), stop, 1, upper(first.extent), inner)
                return self._steps(r, span, carried, flat, lambda i, c: nest(rest, at | {first.name: i}, c))
            if not along:
                return self._accumulate(r, [e.inner(axes=e.axes | at) for e in envs], carried)
            return self._along(r, along, plan.width, at, envs, carried, flat)

        final = nest(outer, {}, flat)
        count = len(state[0])
        results: list[Any] = []
        for k in range(len(envs)):
            parts = final[k * count : (k + 1) * count]
            results.append(self._across(r, parts[0]) if along else parts[-1])
        return results

    def _until_settled(self, r: Reduce, axis: str, stop: Any, envs: list[Env], carried: list[Any]) -> list[Any]:
        """The steps of a fold, up to the first that changes none of several positions."""

        def step(i: Any, state: list[Any]) -> list[Any]:
            *old, _ = state
            new = self._accumulate(r, [e.inner(axes=e.axes | {axis: i}) for e in envs], old)
            moved = self.b.icmp_signed("==", i, I64(0))
            for before, after in zip(old, new, strict=True):
                moved = self.b.or_(moved, self.b.icmp_signed("!=", before, after))
            return [*new, moved]

        def holds(i: Any, state: list[Any]) -> Any:
            return self.b.and_(self.b.icmp_signed("<", i, stop), state[-1])

        return while_loop(self.b, I64(0), 1, [*carried, I1(1)], holds, step)[1][:-1]

    def _start(self, r: Reduce, envs: list[Env], width: int) -> list[list[Any]]:
        """Initial values of each row: the neutral element, and for argmax and argmin the position too."""
        rows: list[list[Any]] = []
        for _ in envs:
            if r.kind in ("argmax", "argmin"):
                best = r.body.dtype.lowest if r.kind == "argmax" else r.body.dtype.highest
                rows.append([self.o.constant(best, r.body.dtype, width), self.o.constant(-1, I64_TYPE, width)])
            else:
                rows.append([self.o.constant(neutral(r.kind, r.dtype), r.dtype, width)])
        return rows

    def _accumulate(self, r: Reduce, envs: list[Env], carried: list[Any]) -> list[Any]:
        count = len(carried) // len(envs)
        following: list[Any] = []
        for k, env in enumerate(envs):
            old = carried[k * count : (k + 1) * count]
            if r.kind in FOLDS:
                following.append(self.o.splat(self.value(r.body, env.inner(carried=old[0])), env.width))
                continue
            value = self.o.splat(self.value(r.body, env), env.width)
            if count == 1:
                following.append(self._combine(r.kind, old[0], value, r.dtype))
                continue
            position = env.axes[r.axes[0].name]
            following += self._better(r, old[0], old[1], value, self.o.splat(position, env.width))
        return following

    def _better(self, r: Reduce, best: Any, at: Any, value: Any, position: Any) -> list[Any]:
        """The first extreme element; NaN beats every number, as in numpy."""
        low, high = (best, value) if r.kind == "argmax" else (value, best)
        beats = self.o.binary("lt", low, high, r.body.dtype)
        unset = self.b.icmp_signed("<", at, self.o.constant(0, I64_TYPE, lanes(at)))
        if r.body.dtype.is_float:
            new_nan = self.b.fcmp_unordered("uno", value, value)
            old_nan = self.b.fcmp_unordered("uno", best, best)
            beats = self.b.and_(self.b.or_(beats, new_nan), self.b.not_(old_nan))
        beats = self.b.or_(beats, unset)
        return [self.b.select(beats, value, best), self.b.select(beats, position, at)]

    def _along(
        self, r: Reduce, along: str, w: int, at: dict[str, Any], envs: list[Env], carried: list[Any], fresh: list[Any]
    ) -> list[Any]:
        """Lanes along a reduced axis: whole vectors, then a masked remainder."""
        extent = next(a.extent for a in r.axes if a.name == along)
        stop = self.size(extent, {})
        whole = self._multiple(stop, w)

        def step(i: Any, carried: list[Any], tail: Any) -> list[Any]:
            inner = [e.inner(axes=e.axes | at | {along: i}, vector=along, width=w, tail=tail) for e in envs]
            following: list[Any] = []
            for env, old in zip(inner, carried, strict=True):
                value = self.o.splat(self.value(r.body, env), w)
                if tail is not None:
                    value = self.b.select(tail, value, self.o.constant(neutral(r.kind, r.dtype), r.dtype, w))
                following.append(self._combine(r.kind, old, value, r.dtype))
            return following

        span = Span(I64(0), whole, w, upper(extent) / w, 1)
        carried = self._steps(r, span, carried, fresh, lambda i, c: step(i, c, None))
        return for_loop(
            self.b,
            whole,
            stop,
            w,
            carried,
            lambda i, c: step(i, c, self._lanes_below(self.b.sub(stop, i), w)),
        )

    def _steps(self, r: Reduce, span: Span, carried: list[Any], fresh: list[Any], body: Body) -> list[Any]:
        """A loop of a reduction.

        A possibly long sum consists of blocks that start from `fresh` (see `sums_in_blocks`).
        """

        def apart(i: Any, old: list[Any], inner: Body) -> list[Any]:
            return [self._combine(r.kind, x, y, r.dtype) for x, y in zip(old, inner(i, fresh), strict=True)]

        blocked = r.kind == "sum" and r.dtype.is_float
        each = (lambda i, c: apart(i, c, body)) if blocked and span.inner > BLOCK else body
        block = BLOCK if span.inner > BLOCK else max(int(BLOCK / max(span.inner, 1)), 1)
        if not blocked or span.most <= block:
            return for_loop(self.b, span.start, span.stop, span.step, carried, each)

        def one(i: Any, c: list[Any]) -> list[Any]:
            end = self.b.add(i, I64(block * span.step), flags=("nsw",))
            end = self.b.select(self.b.icmp_signed("<", end, span.stop), end, span.stop)
            return for_loop(self.b, i, end, span.step, c, each)

        return for_loop(self.b, span.start, span.stop, block * span.step, carried, lambda i, c: apart(i, c, one))

    def _combine(self, kind: str, old: Any, value: Any, dtype: DType) -> Any:
        return self.o.binary(COMBINE[kind], old, value, dtype)

    def _across(self, r: Reduce, v: Any) -> Any:
        """All lanes combined into one value, by halves."""
        while lanes(v) > 1:
            half = lanes(v) // 2
            low, high = (
                self.b.shuffle_vector(
                    v, undefined(v.type), ir.Constant(ir.VectorType(I32, half), [I32(k) for k in part])
                )
                for part in (range(half), range(half, 2 * half))
            )
            v = self._combine(r.kind, low, high, r.dtype)
        return self.b.extract_element(v, I32(0))

    # scatters

    def _scatter(self, s: Scatter) -> None:
        """Initial values, then the updates one after another: order matters if targets repeat."""
        self.symbols = axis_symbols((*s.axes, *s.over))
        at: dict[str, Any] = {}

        def nest(axes: list[Axis], at: dict[str, Any], body: Any) -> None:
            if not axes:
                body(Env(at))
                return
            first, *rest = axes

            def step(i: Any, _: list[Any]) -> list[Any]:
                nest(rest, at | {first.name: i}, body)
                return []

            for_loop(self.b, I64(0), self.size(first.extent, {}), 1, [], step)

        def start(env: Env) -> None:
            self._store(
                s.name, [self.symbols[a.name] for a in s.axes], self.value(with_approximations(s.init), env), env
            )

        def place(target: Sequence[Expr], env: Env) -> Any:
            offset = I64(0)
            for e, n in zip(target, s.shape, strict=True):
                extent = self.size(n, {})
                offset = self.b.add(self.b.mul(offset, extent), self._inside(self.value(e, env), extent))
            return self._address(s.name, offset)

        def update(env: Env) -> None:
            address = place(s.target, env)
            value = self.value(with_approximations(s.value), env)
            if how := running(s):
                old = self.o.from_memory(self.b.load(place(place_before(s), env)), s.dtype)
                later = self.b.icmp_signed(">", env.axes[s.over[0].name], I64(0))
                value = self.b.select(later, self.o.binary(how, old, value, s.dtype), value)
            elif s.combine not in ("set", "into"):
                old = self.o.from_memory(self.b.load(address), s.dtype)
                value = self.o.binary(s.combine, old, value, s.dtype)
            self.b.store(self.o.to_memory(value, s.dtype), address)

        if s.base is None and not running(s):
            nest(list(s.axes), at, start)
        nest(list(s.over), at, update)

"""Emits the reductions of te stages, for several positions at once, in registers."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from occ.compiler.codegen_llvm.dot_products import Dot, add_dot, dot_of
from occ.compiler.codegen_llvm.lane_steps import flat_offset, lane_step
from occ.compiler.codegen_llvm.loop_plan import LoopPlan
from occ.compiler.codegen_llvm.memory import Env
from occ.compiler.codegen_llvm.transposed_loads import TransposedLoads
from occ.compiler.codegen_llvm.values import iota, lanes, memory_type, undefined
from occ.compiler.ir.dim import upper
from occ.compiler.ir.dtype import I16 as I16_TYPE
from occ.compiler.ir.dtype import I32 as I32_TYPE
from occ.compiler.ir.dtype import I64 as I64_TYPE
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.te.expr import FOLDS, Axis, Load, Reduce
from occ.compiler.ir.te.index import to_dim
from occ.compiler.ir.te.reductions import BLOCK, COMBINE, max_steps, neutral
from occ.compiler.ir.te.walks import walk
from occ.compiler.native_entry.builder import number
from occ.compiler.native_entry.loops import Body, for_loop, while_loop
from occ.compiler.native_entry.types import I1, I32, I64

_CHAINS = 8  # vectors that are combined apart: as many as an addition has cycles, twice
_LONGEST = 800  # nodes of the expressions of a step, whose code grows with them


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


class Reductions(TransposedLoads):
    """Expressions with their reductions."""

    def _reduce(self, r: Reduce, plan: LoopPlan, envs: list[Env]) -> list[Any]:
        """A reduction for several positions at once, which share loads that do not depend on the row."""
        along = plan.vector if plan.vector in {a.name for a in r.axes} else ""
        dot = None
        if envs[0].vector and not along:
            dot = dot_of(r, plan.vector, plan.width, self.symbols, self.f.shapes)
        count = self._chains(r, along, plan.width, len(envs)) if along else 1
        state = [row * count for row in self._start(r, envs, plan.width if along else envs[0].width)]
        outer = [a for a in r.axes if a.name != along and (dot is None or a != dot.axis)]
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
            if dot is not None:
                return [
                    self._add_dot(dot, e.inner(axes=e.axes | at), old) for e, old in zip(envs, carried, strict=True)
                ]
            if not along:
                return self._accumulate(r, [e.inner(axes=e.axes | at) for e in envs], carried)
            return self._along(r, along, plan.width, at, envs, carried, flat)

        final = nest(outer, {}, flat)
        count = len(state[0])
        rows = [final[k * count : (k + 1) * count] for k in range(len(envs))]
        return [self._across(r, parts) if along else parts[-1] for parts in rows]

    def _chains(self, r: Reduce, along: str, w: int, rows: int) -> int:
        """Vectors of a row that are combined apart, since each combination waits for the one before."""
        extent = next(a.extent for a in r.axes if a.name == along)
        most = min(_CHAINS // rows, _LONGEST // (rows * sum(1 for _ in walk(r.body))), upper(extent) // w)
        return next((n for n in (4, 2) if n <= most), 1)

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

    def _add_dot(self, d: Dot, env: Env, acc: Any) -> Any:
        """Add the products of narrow integers, several in each lane, at a position of the other axes."""
        env = env.inner(axes=env.axes | {d.axis.name: I64(0)})
        vectors = {d.moving: self._moving(d.moving, env), d.still: self._still(d.still, d.some, env)}
        each = {e: self.b.bitcast(v, ir.VectorType(memory_type(e.dtype), d.some * d.width)) for e, v in vectors.items()}
        return add_dot(self.o, d, acc, each[d.codes], each[d.weights], self.machine)

    def _moving(self, e: Load, env: Env) -> Any:
        """Integers along the last axis of a tensor as one wide integer, for each lane."""
        *shape, some = self._shape(e.source)
        word = {16: I16_TYPE, 32: I32_TYPE}[e.dtype.bits * int(str(some))]
        words = Load(f"{e.source} as {word.name}", e.index[:-1], word)
        if words.source not in self.pointers:
            entry = self.pointers[e.source]
            with self.at_start():
                self.pointers[words.source] = self.b.bitcast(entry, memory_type(word).as_pointer())
        flat = flat_offset([d for i in words.index if (d := to_dim(i, self.symbols)) is not None], shape)
        step = lane_step(flat, env.vector, env.width)
        assert step is not None, "as `dot_of` has it"
        return self._load_in_steps(words, self._at_lane_0(flat, env), step, env)

    def _still(self, e: Load, some: int, env: Env) -> Any:
        """Adjacent integers as one wide integer, the same for all lanes."""
        flat = flat_offset([d for i in e.index if (d := to_dim(i, self.symbols)) is not None], self._shape(e.source))
        kind = ir.IntType(some * e.dtype.bits)
        pointer = self.b.bitcast(self._address(e.source, self._at_lane_0(flat, env)), kind.as_pointer())
        return self.o.splat(self.b.load(pointer, align=e.dtype.itemsize), env.width)

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

        count = len(carried) // len(envs)

        def step(i: Any, carried: list[Any], tail: Any = None, *, chains: int = 1) -> list[Any]:
            """A step of some vectors of each row, from position `i` on."""
            following = list(carried)
            for k, at_k in enumerate(self.b.add(i, I64(n * w)) for n in range(chains)):
                for row, e in enumerate(envs):
                    env = e.inner(axes=e.axes | at | {along: at_k}, vector=along, width=w, tail=tail)
                    value = self.o.splat(self.value(r.body, env), w)
                    if tail is not None:
                        value = self.b.select(tail, value, self.o.constant(neutral(r.kind, r.dtype), r.dtype, w))
                    place = row * count + k
                    following[place] = self._combine(r.kind, following[place], value, r.dtype)
            return following

        many = self._multiple(stop, count * w)
        span = Span(I64(0), many, count * w, upper(extent) / (count * w), 1)
        carried = self._steps(r, span, carried, fresh, lambda i, c: step(i, c, chains=count))
        if count > 1:
            carried = for_loop(self.b, many, whole, w, carried, step)
        return for_loop(
            self.b, whole, stop, w, carried, lambda i, c: step(i, c, self._lanes_below(self.b.sub(stop, i), w))
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
        if dtype.is_float and kind in ("max", "min"):
            return self.o.rounded(self.o.extremum_of_terms(kind, old, value), dtype)
        return self.o.binary(COMBINE[kind], old, value, dtype)

    def _across(self, r: Reduce, parts: list[Any]) -> Any:
        """All lanes of several vectors combined into one value, by halves."""
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._combine(r.kind, x, y, r.dtype) for x, y in zip(parts[:half], parts[half:], strict=True)]
        (v,) = parts
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

    # counts

    def _multiple(self, n: Any, of: int) -> Any:
        """The largest multiple of `of` that is at most `n`."""
        if isinstance(n, ir.Constant):
            return I64(n.constant // of * of)
        return self.b.sub(n, self.b.srem(n, I64(of)))

    def _lanes_below(self, count: Any, w: int) -> Any:
        """Lanes 0 to count - 1."""
        if (known := number(count)) is not None:
            return ir.Constant(ir.VectorType(I1, w), [I1(int(k < known)) for k in range(w)])
        return self.b.icmp_signed("<", iota(w), self.o.splat(count, w))

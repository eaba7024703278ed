"""One te stage to one LLVM function: explicit vectors over one axis, a few rows at a time, reductions in registers.

The function is `int kernel(void **args, int begin, int end)`, with arguments as runtime/library.py states them; it
computes positions `begin` to `end` of the stage's parallel loop (see `plan_loops`).
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from llvmlite import ir
from occ.compiler.codegen_llvm.functions import emit_call
from occ.compiler.codegen_llvm.loops import for_loop
from occ.compiler.codegen_llvm.schedule import LoopPlan, plan_loops
from occ.compiler.codegen_llvm.values import I1, I32, I64, PTR, Ops, lanes, memory_type, register_type
from occ.compiler.ir import dim
from occ.compiler.ir.approx import APPROXIMATIONS
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import F32, DType
from occ.compiler.ir.dtype import I64 as I64_TYPE
from occ.compiler.ir.expr import Axis, Binary, Bitcast, Call, Cast, Const, Expr, Index, Load, Reduce, Select, Size, cast
from occ.compiler.ir.index import axis_symbols, to_dim
from occ.compiler.ir.te import Param, Scatter, Stage, TeFunc, reduce_axes
from occ.compiler.ir.walks import rewrite, walk

_HOST_OFFSET = 16  # of the data pointer in halide_buffer_t


def with_approximations(e: Expr) -> Expr:
    """The expression with functions of f32 and narrower floats as te arithmetic."""

    def visit(n: Expr) -> Expr | None:
        if not isinstance(n, Call) or n.fn not in APPROXIMATIONS or not n.dtype.is_float or n.dtype.bits > 32:
            return None
        return cast(n.dtype, APPROXIMATIONS[n.fn](cast(F32, n.args[0])))

    return rewrite(e, visit)


@dataclass
class Env:
    """Where an expression is evaluated.

    Attributes:
        axes: position on each axis; on the vector axis, that of lane 0.
        vector: the axis that the lanes run along, or empty.
        width: number of lanes.
        tail: which lanes are inside of the box, or None for all.
        guard: condition under which loads may happen, or None.
        reduced: values of reductions that are done.
        memo: values emitted in this place.
    """

    axes: dict[str, Any]
    vector: str = ""
    width: int = 0
    tail: Any = None
    guard: Any = None
    reduced: dict[int, Any] = field(default_factory=dict)
    memo: dict[int, tuple[Expr, Any]] = field(default_factory=dict)

    def inner(self, **changes: Any) -> Env:
        """A copy for a place where other values are visible."""
        return replace(self, **{"memo": {}, **changes})


class KernelEmitter:
    """Emits one te function of one stage into a module."""

    def __init__(self, f: TeFunc, module: ir.Module, vector_bits: int) -> None:
        (self.stage,) = f.stages
        self.f, self.vector_bits = f, vector_bits
        fn_type = ir.FunctionType(I32, [PTR.as_pointer(), I32, I32])
        self.fn = ir.Function(module, fn_type, f.name)
        self.fn.attributes.add("nounwind")
        self.b = ir.IRBuilder(self.fn.append_basic_block("entry"))
        self.o = Ops(self.b)
        self.symbols: dict[str, Dim] = {}
        self.pointers: dict[str, Any] = {}
        self.sizes: dict[str, Any] = {}
        self._read_arguments()

    def _read_arguments(self) -> None:
        args = self.fn.args[0]
        count = len(self.f.params)
        for k, p in enumerate(self.f.params):
            self._read_buffer(p, self.b.load(self.b.gep(args, [I32(k)])))
        for k, name in enumerate(self.f.dims):
            address = self.b.bitcast(self.b.load(self.b.gep(args, [I32(count + k)])), I32.as_pointer())
            self.sizes[name] = self.b.sext(self.b.load(address), I64)
        count += len(self.f.dims)
        for k, r in enumerate(self.f.results):
            self._read_buffer(r, self.b.load(self.b.gep(args, [I32(count + k)])))

    def _read_buffer(self, p: Param, buffer: Any) -> None:
        host = self.b.bitcast(self.b.gep(buffer, [I32(_HOST_OFFSET)]), PTR.as_pointer())
        self.pointers[p.name] = self.b.bitcast(self.b.load(host), memory_type(p.type.dtype).as_pointer())

    def emit(self) -> None:
        """Emit the body."""
        if isinstance(self.stage, Scatter):
            self._scatter(self.stage)
        else:
            self._stage(self.stage)
        self.b.ret(I32(0))

    # sizes

    def size(self, d: Dim, axes: dict[str, Any]) -> Any:
        """A dim over sizes and axis positions as an i64."""
        if isinstance(d, int):
            return I64(d)
        total = None
        for mono, coeff in d.terms:
            value = None
            for atom, power in mono:
                base = self._atom(atom, axes)
                for _ in range(power):
                    value = base if value is None else self.b.mul(value, base, flags=("nsw",))
            if value is None:
                value = I64(coeff)
            elif coeff != 1:
                value = self.b.mul(value, I64(coeff), flags=("nsw",))
            total = value if total is None else self.b.add(total, value, flags=("nsw",))
        return total

    def _atom(self, atom: dim.Atom, axes: dict[str, Any]) -> Any:
        if isinstance(atom, dim.Symbol):
            return axes[atom.name[:-1]] if atom.name.endswith("'") else self.sizes[atom.name]
        a, b = (self.size(x, axes) for x in atom.args)
        return self.o.binary({"floordiv": "floordiv"}.get(atom.name, atom.name), a, b, I64_TYPE)

    # stages

    def _stage(self, s: Stage) -> None:
        s = Stage(s.name, s.axes, with_approximations(s.expr))
        self.symbols = axis_symbols((*s.axes, *reduce_axes(s.expr)))
        plan = plan_loops(s, self.f.sources, self.vector_bits)
        begin, end = (self.b.sext(a, I64) for a in self.fn.args[1:])
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
        self, s: Stage, plan: LoopPlan, axes: list[Axis], at: dict[str, Any], ranges: dict[str, Any]
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

    def _tile_loop(self, s: Stage, plan: LoopPlan, at: dict[str, Any], ranges: dict[str, Any]) -> None:
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

        for_loop(self.b, _known(low), _known(whole), plan.rows, [], many)
        for_loop(self.b, _known(whole), _known(high), 1, [], one)

    def _multiple(self, n: Any, of: int) -> Any:
        """The largest multiple of `of` that is at most `n`."""
        if isinstance(n, ir.Constant):
            return I64(n.constant // of * of)
        return self.b.sub(n, self.b.srem(n, I64(of)))

    def _row_loop(self, s: Stage, plan: LoopPlan, at: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        if plan.vector and plan.vector in {a.name for a in s.axes}:
            axis = next(a for a in s.axes if a.name == plan.vector)
            self._vector_loop(s, plan, at, rows, I64(0), self.size(axis.extent, {}))
        else:
            self._rows(s, plan, [Env(at | row) for row in rows])

    def _vector_loop(
        self, s: Stage, plan: LoopPlan, at: dict[str, Any], rows: list[dict[str, Any]], low: Any, high: Any
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
                # LLVM stores an i32 where a store of narrowed lanes has a constant mask of one lane.
                self._rows(s, plan, [Env(at | row | {plan.vector: i}) for row in rows])
            else:
                chunk(i, self._lanes_below(self.b.sub(high, i), w))
            return []

        for_loop(self.b, _known(low), _known(whole), w, [], full)
        for_loop(self.b, _known(whole), _known(high), w, [], last)

    def _lanes_below(self, count: Any, w: int) -> Any:
        """Lanes 0 to count - 1."""
        iota = ir.Constant(ir.VectorType(I64, w), [I64(k) for k in range(w)])
        return self.b.icmp_signed("<", iota, self.o.splat(count, w))

    def _rows(self, s: Stage, plan: LoopPlan, envs: list[Env]) -> None:
        """Evaluate and store a few positions that share their loads."""
        for r in [n for n in walk(s.expr) if isinstance(n, Reduce)]:
            for env, value in zip(envs, self._reduce(r, plan, envs), strict=True):
                env.reduced[id(r)] = value
        for env in envs:
            self._store(s.name, [self.symbols[a.name] for a in s.axes], self.value(s.expr, env), env)

    def _store(self, name: str, index: list[Dim], value: Any, env: Env) -> None:
        flat = self._flat_dim(index, self._shape(name))
        dtype = next(r.type.dtype for r in self.f.results if r.name == name)
        address = self._address(name, self._at_lane_0(flat, env))
        if not env.vector:
            self.b.store(self.o.to_memory(value, dtype), address)
            return
        stored = self.o.to_memory(self.o.splat(value, env.width), dtype)
        pointer = self.b.bitcast(address, stored.type.as_pointer())
        if env.tail is None:
            self.b.store(stored, pointer, align=dtype.itemsize)
        else:
            self.o.call(
                f"llvm.masked.store.{_suffix(stored.type)}.p0",
                ir.VoidType(),
                [stored, pointer, I32(dtype.itemsize), env.tail],
            )

    def _shape(self, name: str) -> tuple[Dim, ...]:
        return self.f.sources[name]

    # reductions

    def _reduce(self, r: Reduce, plan: LoopPlan, envs: list[Env]) -> list[Any]:
        """A reduction for a few positions at once, so that they share the loads that do not depend on the row."""
        along = plan.vector if plan.vector in {a.name for a in r.axes} else ""
        state = self._start(r, envs, plan.width if along else envs[0].width)
        outer = [a for a in r.axes if a.name != along]

        def nest(axes: list[Axis], at: dict[str, Any], carried: list[Any]) -> list[Any]:
            if axes:
                first, *rest = axes
                stop = self.size(first.extent, {})
                return for_loop(self.b, I64(0), stop, 1, carried, lambda i, c: nest(rest, at | {first.name: i}, c))
            if not along:
                return self._accumulate(r, [e.inner(axes=e.axes | at) for e in envs], carried)
            return self._along(r, along, plan.width, at, envs, carried)

        final = nest(outer, {}, [v for row in state for v in row])
        count = len(state[0])
        results: list[Any] = []
        for k in range(len(envs)):
            parts = final[k * count : (k + 1) * count]
            results.append(self._across(r, parts[0]) if along else parts[-1])
        return results

    def _start(self, r: Reduce, envs: list[Env], width: int) -> list[list[Any]]:
        """Start values of each row: the neutral element, and for argmax and argmin the position too."""
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
            value = self.o.splat(self.value(r.body, env), env.width)
            if count == 1:
                following.append(self._combine(r.kind, old[0], value, r.dtype))
                continue
            position = env.axes[r.axes[0].name]
            following += self._better(r, old[0], old[1], value, self.o.splat(position, env.width))
        return following

    def _better(self, r: Reduce, best: Any, at: Any, value: Any, position: Any) -> list[Any]:
        """The first extreme element; a NaN beats every number, as in numpy."""
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
        self, r: Reduce, along: str, w: int, at: dict[str, Any], envs: list[Env], carried: list[Any]
    ) -> list[Any]:
        """Lanes along a reduced axis: whole vectors, then a masked rest."""
        stop = self.size(next(a.extent for a in r.axes if a.name == along), {})
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

        carried = for_loop(self.b, I64(0), _known(whole), w, carried, lambda i, c: step(i, c, None))
        return for_loop(
            self.b,
            _known(whole),
            _known(stop),
            w,
            carried,
            lambda i, c: step(i, c, self._lanes_below(self.b.sub(stop, i), w)),
        )

    def _combine(self, kind: str, old: Any, value: Any, dtype: DType) -> Any:
        op = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}[kind]
        return self.o.binary(op, old, value, dtype)

    def _across(self, r: Reduce, v: Any) -> Any:
        """One value of all lanes, by halves."""
        while lanes(v) > 1:
            half = lanes(v) // 2
            undefined = ir.Constant(v.type, ir.Undefined)
            low, high = (
                self.b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(I32, half), [I32(k) for k in part]))
                for part in (range(half), range(half, 2 * half))
            )
            v = self._combine(r.kind, low, high, r.dtype)
        return self.b.extract_element(v, I32(0))

    # expressions

    def value(self, e: Expr, env: Env) -> Any:
        """The value of an expression: a scalar, or a vector where it depends on the vector axis."""
        found = env.memo.get(id(e))
        if found is None:
            found = env.memo[id(e)] = (e, self._compute(e, env))
        return found[1]

    def _compute(self, e: Expr, env: Env) -> Any:
        match e:
            case Const():
                return self.o.constant(e.value, e.dtype)
            case Size():
                return self.size(e.dim, {})
            case Index():
                return self._index(e.name, env)
            case Load():
                return self._load(e, env)
            case Binary():
                return self.o.binary(e.op, self.value(e.lhs, env), self.value(e.rhs, env), e.lhs.dtype)
            case Call():
                return emit_call(self.o, e.fn, [self.value(a, env) for a in e.args], e.args[0].dtype)
            case Select():
                return self._select(e, env)
            case Cast():
                return self.o.cast(self.value(e.arg, env), e.arg.dtype, e.dtype)
            case Bitcast():
                v = self.value(e.arg, env)
                return self.b.bitcast(v, register_type(e.dtype, lanes(v)))
            case Reduce():
                return env.reduced[id(e)]
            case _:
                raise AssertionError(type(e))

    def _index(self, name: str, env: Env) -> Any:
        if name != env.vector:
            return env.axes[name]
        iota = ir.Constant(ir.VectorType(I64, env.width), [I64(k) for k in range(env.width)])
        return self.b.add(self.o.splat(env.axes[name], env.width), iota)

    def _select(self, e: Select, env: Env) -> Any:
        cond = self.value(e.cond, env)
        sides: list[Any] = []
        for side, holds in ((e.then, cond), (e.other, None)):
            guard = self.b.not_(cond) if holds is None else holds
            needs_guard = any(isinstance(n, Load) for n in walk(side))
            both = guard if env.guard is None else self._and(env.guard, guard)
            sides.append(self.value(side, env.inner(guard=both)) if needs_guard else self.value(side, env))
        a, b = sides
        if lanes(cond):
            cond, a, b = self.o.match(cond, a, b)
        elif lanes(a) or lanes(b):
            a, b = self.o.match(a, b)
        return self.b.select(cond, a, b)

    def _and(self, a: Any, b: Any) -> Any:
        a, b = self.o.match(a, b)
        return self.b.and_(a, b)

    # loads

    def _load(self, e: Load, env: Env) -> Any:
        shape = self._shape(e.source)
        index = [to_dim(i, self.symbols) for i in e.index]
        if all(d is not None for d in index):
            flat = self._flat_dim([d for d in index if d is not None], shape)
            step = self._step(flat, env)
            if step == 0:
                return self._scalar_load(e, self._at_lane_0(flat, env), env)
            if step == 1:
                return self._vector_load(e, self._at_lane_0(flat, env), env)
            if step is not None:
                first = self.o.splat(self._at_lane_0(flat, env), env.width)
                iota = ir.Constant(ir.VectorType(I64, env.width), [I64(k) for k in range(env.width)])
                offsets = self.b.add(first, self.b.mul(iota, self.o.splat(self.size(step, {}), env.width)))
                return self._gather(e, offsets, env)
        offset = self._computed_offset(e, index, shape, env)
        return self._gather(e, offset, env) if lanes(offset) else self._scalar_load(e, offset, env)

    def _flat_dim(self, index: list[Dim], shape: tuple[Dim, ...]) -> Dim:
        flat: Dim = 0
        for i, n in zip(index, shape, strict=True):
            flat = flat * n + i
        return flat

    def _step(self, flat: Dim, env: Env) -> Dim | None:
        """By how much an offset grows from lane to lane; None if not evenly."""
        if not env.vector:
            return 0
        mark = f"{env.vector}'"
        if mark not in dim.symbols(flat):
            return 0
        axis = self.symbols[env.vector]
        linear = all(
            isinstance(atom, dim.Symbol) or mark not in dim.symbols(dim.Sym(((((atom, 1),), 1),)))
            for mono, _ in dim.terms_of(flat)
            for atom, _ in mono
        )
        if not linear or not isinstance(axis, dim.Sym):
            return None
        step = dim.substitute(flat, {mark: axis + 1}) - flat
        return None if mark in dim.symbols(step) else step

    def _at_lane_0(self, flat: Dim, env: Env) -> Any:
        return self.size(flat, env.axes)

    def _computed_offset(self, e: Load, index: list[Dim | None], shape: tuple[Dim, ...], env: Env) -> Any:
        """An offset from data or with quotients; what comes from data is kept inside of the source."""
        total = I64(0)
        for i, d, n in zip(e.index, index, shape, strict=True):
            extent = self.size(n, {})
            at = self.value(i, env)
            if d is None:
                at = self._inside(at, extent)
            total, at, extent = self.o.match(total, at, extent)
            total = self.b.add(self.b.mul(total, extent), at)
        return total

    def _inside(self, at: Any, extent: Any) -> Any:
        at, extent = self.o.match(at, extent)
        zero = self.o.constant(0, I64_TYPE, lanes(at))
        last = self.b.sub(extent, self.o.constant(1, I64_TYPE, lanes(at)))
        low = self.b.select(self.b.icmp_signed("<", at, zero), zero, at)
        high = self.b.select(self.b.icmp_signed(">", low, last), last, low)
        return self.b.select(self.b.icmp_signed("<", high, zero), zero, high)  # an empty source

    def _address(self, source: str, offset: Any) -> Any:
        return self.b.gep(self.pointers[source], [offset], inbounds=True)

    def _scalar_load(self, e: Load, offset: Any, env: Env) -> Any:
        guard = env.guard
        if guard is not None and lanes(guard):
            guard = self._any_lane(guard)
        if guard is not None:
            offset = self.b.select(guard, offset, I64(0))
        return self.o.from_memory(self.b.load(self._address(e.source, offset)), e.dtype)

    def _any_lane(self, mask: Any) -> Any:
        return self.o.call(f"llvm.vector.reduce.or.v{lanes(mask)}i1", I1, [mask])

    def _mask(self, env: Env) -> Any:
        if env.guard is None:
            return env.tail
        guard = self.o.splat(env.guard, env.width)
        return guard if env.tail is None else self.b.and_(guard, env.tail)

    def _vector_load(self, e: Load, offset: Any, env: Env) -> Any:
        kind = ir.VectorType(memory_type(e.dtype), env.width)
        pointer = self.b.bitcast(self._address(e.source, offset), kind.as_pointer())
        mask = self._mask(env)
        if mask is None:
            loaded = self.b.load(pointer, align=e.dtype.itemsize)
        else:
            zero = ir.Constant(kind, None)
            loaded = self.o.call(
                f"llvm.masked.load.{_suffix(kind)}.p0", kind, [pointer, I32(e.dtype.itemsize), mask, zero]
            )
        return self.o.from_memory(loaded, e.dtype)

    def _gather(self, e: Load, offsets: Any, env: Env) -> Any:
        """Lanes from anywhere; lanes that may not load read element 0 instead, which every buffer has."""
        kind = memory_type(e.dtype)
        mask = self._mask(env)
        if mask is not None:
            offsets = self.b.select(mask, offsets, self.o.constant(0, I64_TYPE, env.width))
        loaded = ir.Constant(ir.VectorType(kind, env.width), ir.Undefined)
        for k in range(env.width):
            one = self.b.load(self._address(e.source, self.b.extract_element(offsets, I32(k))))
            loaded = self.b.insert_element(loaded, one, I32(k))
        return self.o.from_memory(loaded, e.dtype)

    # scatters

    def _scatter(self, s: Scatter) -> None:
        """Start values, then the updates one after another: order matters when targets repeat."""
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

        def update(env: Env) -> None:
            offset = I64(0)
            for e, n in zip(s.target, s.shape, strict=True):
                extent = self.size(n, {})
                offset = self.b.add(self.b.mul(offset, extent), self._inside(self.value(e, env), extent))
            address = self._address(s.name, offset)
            value = self.value(with_approximations(s.value), env)
            if s.combine != "set":
                old = self.o.from_memory(self.b.load(address), s.dtype)
                value = self.o.binary(s.combine, old, value, s.dtype)
            self.b.store(self.o.to_memory(value, s.dtype), address)

        nest(list(s.axes), at, start)
        nest(list(s.over), at, update)


def neutral(kind: str, dtype: DType) -> Any:
    """The start value of a reduction."""
    match kind:
        case "sum" | "any":
            return 0
        case "prod" | "all":
            return 1
        case "max":
            return dtype.lowest
        case _:
            return dtype.highest


def _known(v: Any) -> Any:
    return v


def _suffix(t: Any) -> str:
    from occ.compiler.codegen_llvm.values import mangled

    return mangled(t)

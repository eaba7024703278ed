"""Emits te expressions as LLVM values: arithmetic, loads and stores."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.functions import emit_call
from occ.compiler.codegen_llvm.lane_steps import NEAR, flat_offset, lane_offsets, lane_step
from occ.compiler.codegen_llvm.memory import Env, Memory
from occ.compiler.codegen_llvm.values import iota, lanes, memory_type, register_type, undefined
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.dtype import I64 as I64_TYPE
from occ.compiler.ir.te.approx import exp, exp_parts
from occ.compiler.ir.te.expr import Binary, Bitcast, Call, Carried, Cast, Const, Expr, Index, Load, Reduce, Select, Size
from occ.compiler.ir.te.index import axis_of, is_axis, to_dim, within
from occ.compiler.ir.te.walks import children
from occ.compiler.native_entry.types import I1, I32, I64

EXPONENTIALS = frozenset({"exp", "decay"})


class Expressions(Memory):
    """The values of expressions in a te function of one stage."""

    # sizes

    def size(self, d: Dim, axes: dict[str, Any]) -> Any:
        """A dim over sizes and axis positions as an i64; sizes alone are computed once, at the start."""
        if isinstance(d, int):
            return I64(d)
        if (known := self.known.get(d)) is not None:
            return known
        if not all(s.name in self.sizes for s in d.symbols):
            return self._sum(d, axes)
        with self.at_start():
            made = self.known[d] = self._sum(d, axes)
        return made

    def _sum(self, d: dim.Sym, axes: dict[str, Any]) -> Any:
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
            return axes[axis_of(atom.name)] if is_axis(atom.name) else axes.get(atom.name, self.sizes.get(atom.name))
        a, b = (self.size(x, axes) for x in atom.args)
        return self.o.binary({"floordiv": "floordiv"}.get(atom.name, atom.name), a, b, I64_TYPE)

    # expressions

    def value(self, e: Expr, env: Env) -> Any:
        """The value of an expression: a scalar, or a vector if it depends on the vector axis."""
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
            case Binary() if e.dtype == I64_TYPE and (at := self._spread(e, env)) is not None:
                return at
            case Binary():
                return self.o.binary(e.op, self.value(e.lhs, env), self.value(e.rhs, env), e.lhs.dtype)
            case Call() if e.fn in EXPONENTIALS and e.dtype == F32:
                return self._exponential(e.args[0], env)
            case Call():
                return emit_call(self.o, e.fn, [self.value(a, env) for a in e.args], e.args[0].dtype)
            case Select():
                return self._select(e, env)
            case Cast():
                return self.o.cast(self.value(e.arg, env), e.arg.dtype, e.dtype)
            case Bitcast():
                v = self.value(e.arg, env)
                return self.b.bitcast(v, register_type(e.dtype, lanes(v)))
            case Carried():
                return env.carried
            case Reduce():
                return env.reduced[id(e)]
            case _:
                raise AssertionError(type(e))

    def _exponential(self, x: Expr, env: Env) -> Any:
        """`e**x` of f32: as te arithmetic, but for vectors whose exponents one instruction adds to."""
        bits = env.width * F32.bits
        if not lanes(self.value(x, env)) or not self.machine.scales_by_powers or bits != 512:
            return self.value(exp(x), env)
        factor, _, n = exp_parts(x)
        values = [self.value(factor, env), self.value(n, env)]
        every, rounded = ir.Constant(ir.IntType(16), -1), I32(4)  # all lanes, as the current mode rounds
        kind = values[0].type
        return self.o.call("llvm.x86.avx512.mask.scalef.ps.512", kind, [*values, undefined(kind), every, rounded])

    def _spread(self, e: Expr, env: Env) -> Any | None:
        """A position that differs between lanes by numbers; None if it does not."""
        d = to_dim(e, self.symbols) if env.vector else None
        apart = None if d is None else lane_offsets(d, env.vector, env.width)
        if d is None or apart is None or not any(apart):
            return None
        known = ir.Constant(ir.VectorType(I64, env.width), [I64(n) for n in apart])
        return self.b.add(self.o.splat(self.size(d, env.axes), env.width), known)

    def _index(self, name: str, env: Env) -> Any:
        if name != env.vector:
            return env.axes[name]
        return self.b.add(self.o.splat(env.axes[name], env.width), iota(env.width))

    def _select(self, e: Select, env: Env) -> Any:
        cond = self.value(e.cond, env)
        sides: list[Any] = []
        for side, holds in ((e.then, cond), (e.other, None)):
            guard = self.b.not_(cond) if holds is None else holds
            if self._is_safe(side):
                sides.append(self.value(side, env))
                continue
            both = guard if env.guard is None else self._and(env.guard, guard)
            sides.append(self.value(side, env.guarded(both)))
        a, b = sides
        if lanes(cond):
            cond, a, b = self.o.match(cond, a, b)
        elif lanes(a) or lanes(b):
            a, b = self.o.match(a, b)
        return self.b.select(cond, a, b)

    def _is_safe(self, e: Expr) -> bool:
        """Whether all loads stay within their tensors wherever the expression is evaluated: none needs a guard."""
        if id(e) not in self._safe:
            safe = all(map(self._is_safe, children(e))) and (not isinstance(e, Load) or self._stays_within(e))
            self._safe[id(e)] = (e, safe)
        return self._safe[id(e)][1]

    def _stays_within(self, e: Load) -> bool:
        """Whether a load is known to; positions that come from data are kept inside by `_computed_offset`."""
        return all(
            to_dim(i, self.symbols) is None or within(i, n, self.symbols)
            for i, n in zip(e.index, self._shape(e.source), strict=True)
        )

    def _and(self, a: Any, b: Any) -> Any:
        a, b = self.o.match(a, b)
        return self.b.and_(a, b)

    # loads

    def _load(self, e: Load, env: Env) -> Any:
        shape = self._shape(e.source)
        index = [to_dim(i, self.symbols) for i in e.index]
        given = {
            f"_{k}": at
            for k, (i, d, n) in enumerate(zip(e.index, index, shape, strict=True))
            if d is None and dim.is_positive(n) and not lanes(at := self.value(i, env))
        }
        if all(d is not None or f"_{k}" in given for k, d in enumerate(index)):
            given = {name: self._inside(at, self.size(shape[int(name[1:])], {})) for name, at in given.items()}
            flat = flat_offset([dim.symbol(f"_{k}") if d is None else d for k, d in enumerate(index)], shape)
            step = lane_step(flat, env.vector, env.width) if env.vector else 0
            if step is not None:
                return self._load_in_steps(e, self.size(flat, env.axes | given), step, env)
            if (places := self._repeats(flat, env)) is not None:
                return self._repeated_load(e, self.size(flat, env.axes | given), places, env)
        offset = self._computed_offset(e, index, shape, env)
        return self._gather(e, offset, env) if lanes(offset) else self._scalar_load(e, offset, env)

    def _load_in_steps(self, e: Load, first: Any, step: Dim, env: Env) -> Any:
        """A load whose lanes are `step` apart, from the offset of lane 0 on."""
        if step == 0:
            return self._scalar_load(e, first, env)
        if step == 1:
            return self._vector_load(e, first, env)
        if isinstance(step, int) and -NEAR <= step <= NEAR:
            return self._strided_load(e, first, step, env)
        apart = self.o.splat(self.size(step, env.axes), env.width)
        offsets = self.b.add(self.o.splat(first, env.width), self.b.mul(iota(env.width), apart))
        return self._gather(e, offsets, env)

    def _repeats(self, flat: Dim, env: Env) -> list[int] | None:
        """Each lane's place among half a vector of elements, or fewer; None if one is farther.

        None too where the last place does not end a vector: a load of a whole one may pass the tensor's end.
        """
        places = lane_offsets(flat, env.vector, env.width)
        if places is None or min(places) != 0 or (env.guard is not None and lanes(env.guard)):
            return None
        last = max(places)
        return places if last < env.width // 2 and last.bit_count() == last.bit_length() else None

    def _repeated_load(self, e: Load, offset: Any, places: list[int], env: Env) -> Any:
        """Lanes of which several have the same element."""
        count = 1 << max(places).bit_length()
        mask = self._mask(env)
        if mask is not None:
            mask = self._lanes_from(mask, {at: k for k, at in reversed(list(enumerate(places)))}, count)
        elements = self._vector(e, offset, mask, count)
        chosen = ir.Constant(ir.VectorType(I32, env.width), [I32(p) for p in places])
        return self.o.from_memory(self.b.shuffle_vector(elements, undefined(elements.type), chosen), e.dtype)

    def _at_lane_0(self, flat: Dim, env: Env) -> Any:
        return self.size(flat, env.axes)

    def _computed_offset(self, e: Load, index: list[Dim | None], shape: tuple[Dim, ...], env: Env) -> Any:
        """An offset from data or with quotients; data-dependent ones are clamped to the source."""
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

    def _scalar_load(self, e: Load, offset: Any, env: Env) -> Any:
        guard = env.guard
        if guard is not None and lanes(guard):
            guard = self._any_lane(guard)
        if guard is not None:
            offset = self.b.select(guard, offset, I64(0))
        return self.o.from_memory(self.b.load(self._address(e.source, offset)), e.dtype)

    def _any_lane(self, mask: Any) -> Any:
        return self.o.call(f"llvm.vector.reduce.or.v{lanes(mask)}i1", I1, [mask])

    def _vector_load(self, e: Load, offset: Any, env: Env) -> Any:
        return self.o.from_memory(self._vector(e, offset, self._mask(env), env.width), e.dtype)

    def _vector(self, e: Load, offset: Any, mask: Any, width: int) -> Any:
        """Adjacent elements from an offset on, as they are in memory."""
        return self._vector_at(self._address(e.source, offset), e.dtype, mask, width)

    def _strided_load(self, e: Load, offset: Any, step: int, env: Env) -> Any:
        """Lanes a few elements apart, or backwards: chosen from vectors that end where the last lane is."""
        n, apart, mask = env.width, abs(step), self._mask(env)
        span = (n - 1) * apart + 1
        first = offset if step > 0 else self.b.sub(offset, I64(span - 1))
        places = [k * apart if step > 0 else (n - 1 - k) * apart for k in range(n)]  # of lanes, from `first` on
        loaded = None
        for p in range(apart):
            start = min(p * n, span - n)
            mine = {k: at - start for k, at in enumerate(places) if min(at // n, apart - 1) == p}
            part = mask if mask is None else self._lanes_from(mask, {at: k for k, at in mine.items()}, n)
            vector = self._vector(e, self.b.add(first, I64(start)), part, n)
            old = undefined(vector.type) if loaded is None else loaded
            chosen = ir.Constant(ir.VectorType(I32, n), [I32(n + mine[k] if k in mine else k) for k in range(n)])
            loaded = self.b.shuffle_vector(old, vector, chosen)
        return self.o.from_memory(loaded, e.dtype)

    def _gather(self, e: Load, offsets: Any, env: Env) -> Any:
        """Lanes gathered from anywhere; masked lanes read element 0 instead, which every buffer has."""
        kind = memory_type(e.dtype)
        mask = self._mask(env)
        if mask is not None:
            offsets = self.b.select(mask, offsets, self.o.constant(0, I64_TYPE, env.width))
        loaded = undefined(ir.VectorType(kind, env.width))
        for k in range(env.width):
            one = self.b.load(self._address(e.source, self.b.extract_element(offsets, I32(k))))
            loaded = self.b.insert_element(loaded, one, I32(k))
        return self.o.from_memory(loaded, e.dtype)

    # stores

    def _store(self, name: str, index: list[Dim], value: Any, env: Env) -> None:
        flat = flat_offset(index, self._shape(name))
        dtype = next(r.type.dtype for r in self.f.results if r.name == name)
        self._store_at(self._address(name, self._at_lane_0(flat, env)), value, dtype, env)

"""Emits te expressions as LLVM values: arithmetic, loads and stores."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.functions import emit_call
from occ.compiler.codegen_llvm.lane_steps import NEAR, flat_offset, in_memory_order, lane_step
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.values import Ops, iota, lanes, mangled, memory_type, register_type, undefined
from occ.compiler.ir import dim
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I64 as I64_TYPE
from occ.compiler.ir.te.expr import Binary, Bitcast, Call, Carried, Cast, Const, Expr, Index, Load, Reduce, Select, Size
from occ.compiler.ir.te.function import Param, TeFunc
from occ.compiler.ir.te.index import axis_of, is_axis, to_dim, within
from occ.compiler.ir.te.walks import children
from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.types import FLOAT, I1, I32, I64, PTR

_FLOAT_SIZE = 4
_HOST_OFFSET = 16  # of the data pointer in halide_buffer_t


@dataclass
class Env:
    """The context in which an expression is evaluated.

    Attributes:
        axes: position on each axis; for the vector axis, the position of lane 0.
        vector: the axis along which the lanes run, or empty.
        width: number of lanes.
        tail: mask of the lanes inside the box, or None for all.
        guard: condition under which loads are allowed, or None.
        reduced: values of finished reductions.
        memo: values already emitted in this context.
        carried: in the body of a fold, the previous step's result.
    """

    axes: dict[str, Any]
    vector: str = ""
    width: int = 0
    tail: Any = None
    guard: Any = None
    reduced: dict[int, Any] = field(default_factory=dict)
    memo: MutableMapping[int, tuple[Expr, Any]] = field(default_factory=dict)
    carried: Any = None

    def inner(self, **changes: Any) -> Env:
        """A copy for a context in which other values are visible."""
        return replace(self, **{"memo": {}, **changes})

    def guarded(self, guard: Any) -> Env:
        """A copy for a branch of a select, whose loads need an additional condition.

        It sees existing values, but not the other way round.
        """
        return replace(self, guard=guard, memo=ChainMap({}, self.memo))


class Expressions:
    """The function of a te function of one stage, its arguments, and the values of expressions in it."""

    def __init__(self, f: TeFunc, module: ir.Module, machine: CodeMachine) -> None:
        f = in_memory_order(f)
        (self.stage,) = f.stages
        self.f, self.machine = f, machine
        fn_type = ir.FunctionType(I32, [PTR.as_pointer(), I32, I32])
        self.fn = ir.Function(module, fn_type, f.name)
        self.fn.attributes.add("nounwind")
        self.b = Builder(self.fn.append_basic_block("entry"))
        self.o = Ops(self.b)
        self.symbols: dict[str, Dim] = {}
        self.starts: dict[str, Dim] = {}  # of the part of an axis that is computed
        self._safe: dict[int, tuple[Expr, bool]] = {}
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
            case Carried():
                return env.carried
            case Reduce():
                return env.reduced[id(e)]
            case _:
                raise AssertionError(type(e))

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
        return self.o.from_memory(self._vector(e, offset, self._mask(env), env.width), e.dtype)

    def _vector(self, e: Load, offset: Any, mask: Any, width: int) -> Any:
        """Adjacent elements from an offset on, as they are in memory."""
        kind = ir.VectorType(memory_type(e.dtype), width)
        pointer = self.b.bitcast(self._address(e.source, offset), kind.as_pointer())
        if mask is None:
            return self.b.load(pointer, align=e.dtype.itemsize)
        zero = ir.Constant(kind, None)
        loaded = self.o.call(f"llvm.masked.load.{mangled(kind)}.p0", kind, [pointer, I32(e.dtype.itemsize), mask, zero])
        return self._kept_apart(loaded, width * e.dtype.itemsize)

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

    def _lanes_from(self, mask: Any, lane: dict[int, int], n: int) -> Any:
        """The mask of a vector whose elements are some lanes of another one, and of which no others are read."""
        chosen = ir.Constant(ir.VectorType(I32, n), [I32(lane.get(k, n)) for k in range(n)])
        return self.b.shuffle_vector(mask, ir.Constant(mask.type, None), chosen)

    def _kept_apart(self, loaded: Any, size: int) -> Any:
        """Lanes of `size` bytes whose masked load LLVM may not fold into an operation under the same mask.

        LLVM 22 folds such loads for AVX-512, also into operations of which each lane reads others
        (llvm/llvm-project, pull request 178411), and unfolds them without the mask: they read past the end of
        a tensor. Other processors have no such fold.
        """
        if not self.fn.module.triple.startswith("x86_64") or size % _FLOAT_SIZE:
            return loaded
        kind = ir.VectorType(FLOAT, size // _FLOAT_SIZE)
        fenced = self.o.call(f"llvm.arithmetic.fence.{mangled(kind)}", kind, [self.b.bitcast(loaded, kind)])
        return self.b.bitcast(fenced, loaded.type)

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
                f"llvm.masked.store.{mangled(stored.type)}.p0",
                ir.VoidType(),
                [stored, pointer, I32(dtype.itemsize), env.tail],
            )

    def _shape(self, name: str) -> tuple[Dim, ...]:
        return self.f.shapes[name]

"""Checks that a lowered plan stays within its memory: offsets, sizes and lifetimes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from random import Random
from typing import Any

from occ.compiler.ir.dim import Dim, Sym, evaluate, lower, symbols
from occ.compiler.ir.dtype import U8, DType
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.printer import op_text
from occ.compiler.ir.te.bounds_check import out_of_bounds_read
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.te.storage import is_stored
from occ.compiler.ir.te.verify import sizes_of
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.verify_routines import host_problems, is_place

STEPS = ("kernel", "host", "foreign")  # ops of the `lowered` stage that are steps of the plan
_SIZES = (1, 2, 3, 7, 64, 1000)  # extents at which sizes are compared if nothing is proved
_COUNTABLE = 1 << 62  # bytes: native code uses 64-bit counts
_CALLS = 12  # calls of a te function with symbolic dims that are checked


def plan_problems(m: Module) -> Iterator[str]:
    """Accesses of a plan outside of its buffers; the module is otherwise well formed."""
    held = m.held_constraints()
    for func in m.funcs.values():
        yield from (f"in @{func.name}: {text}" for text in _Plan(m, func, held[func.name]).problems())


class _Plan:
    def __init__(self, m: Module, func: Func, held: Sequence[Constraint]) -> None:
        self.m, self.func, self.held = m, func, held
        self.root: dict[Value, Value] = {}  # a view -> the value whose bytes it shares
        self.start: dict[Value, Dim] = {}  # bytes of that before the view
        self.steps = [op for op in func.body.body if op.name in STEPS]
        self.used: dict[Value, list[int]] = {}  # steps that use a value, by position
        self.called: dict[tuple[str, tuple[Dim, ...]], str] = {}  # errors of calls of a te function with dims

    def problems(self) -> Iterator[str]:
        for op in self.func.body.body:
            check = {"alloc": self._alloc, "view": self._view, "kernel": self._kernel}.get(op.name, self._step)
            yield from (f"{op_text(op)} {text}" for text in check(op))
        for k, op in enumerate(self.steps):
            for value in op.inputs:
                self.used.setdefault(self.root.get(value, value), []).append(k)
            if "checks" in op.attrs and op.inputs:
                self.used[self.root.get(op.inputs[-1], op.inputs[-1])].append(len(self.steps))
        yield from self._lifetimes()
        yield from self._outputs()

    def _alloc(self, op: Op) -> Iterator[str]:
        type_ = op.result.type
        if "host" in op.attrs:
            return
        if not isinstance(type_, TensorType) or type_.shape is None:
            yield "has an unknown size"
            return
        unknown = [name for d in type_.dims for name in symbols(d) if name not in self.m.symbols]
        if unknown:
            yield f"has the size {unknown[0]}, which is not declared"
        if any(isinstance(d, int) and d < 0 for d in type_.dims):
            yield "has a negative size"
        elif not unknown and max(lower(_reach(type_)) + _offset(op), _laid_out(type_)) > _COUNTABLE:
            yield "has more bytes than native code can count"
        if "output" in op.attrs:
            k, results = op.attrs["output"], self.func.results
            if not isinstance(k, int) or not 0 <= k < len(results):
                yield f"is output {k} of {len(results)}"
        elif any(not is_place(op.attrs.get(key)) for key in ("first", "last")):
            yield "does not define its first and last step"
        elif "offset" in op.attrs and not is_place(op.attrs["offset"]):
            yield f"lies at {op.attrs['offset']}"

    def _view(self, op: Op) -> Iterator[str]:
        source = op.operands[0] if op.operands else None
        if source is None:
            yield "shows nothing"
            return
        kind, start = op.result.type, op.attrs.get("start", 0)
        self.root[op.result] = self.root.get(source, source)
        if not isinstance(kind, TensorType) or kind.shape is None:
            return
        if not isinstance(start, (int, Sym)):
            yield f"starts at {start}"
            return
        self.start[op.result] = self.start.get(source, 0) + start * kind.dtype.itemsize
        if not self._holds(start, 0):
            yield "starts before its storage"
        if not self._fits(op.result, kind):
            yield f"reaches past the end of %{self.root[op.result].name}"

    def _kernel(self, op: Op) -> Iterator[str]:
        f = self.m.te.get(op.attrs.get("te", ""))
        if f is None:
            return  # the stage guarantees it
        dims = op.attrs.get("dims", ())
        formal = (*f.params, *f.results)
        if len(dims) != len(f.dims) or len(op.operands) != len(formal) or op.attrs.get("writes") != len(f.results):
            yield f"does not fit te @{f.name}"
            return
        given = dict(zip(f.dims, dims, strict=True))
        for p, value in zip(formal, op.operands, strict=True):
            if value is None or not isinstance(value.type, TensorType):
                yield f"has no tensor for {p.name} of te @{f.name}"
                continue
            taken = p.type.substituted(given)
            if _in_memory(value.type.dtype) != _in_memory(taken.dtype):
                yield f"has %{value.name} for {p.name} : {taken} of te @{f.name}, which is {value.type.dtype}"
            elif not self._fits(value, taken):
                yield f"reaches past the end of %{value.name} : {value.type}, as {p.name} : {taken} of te @{f.name}"
        known = all(name in f.dims for name in symbols(*sizes_of(f)))  # otherwise the function itself is wrong
        if known and (text := self._inside(f, dims)):
            yield f"runs te @{f.name}, where {text}"
        yield from self._writes(op)

    def _inside(self, f: TeFunc, dims: Sequence[Dim]) -> str:
        """An out-of-bounds access of a call, as far as samples show; empty if there is none."""
        key = f.name, tuple(dims)
        if key not in self.called:
            names = symbols(*dims)
            envs = [*self._samples([*names])] if all(n in self.m.symbols for n in names) else []
            given = [dict(zip(f.dims, (evaluate(d, env) for d in dims), strict=True)) for env in envs]
            unlike = list({str(g): g for g in given}.values())
            # Evenly spaced samples may all have the same value for one of the sizes.
            few = [unlike[k] for k in sorted(Random(0).sample(range(len(unlike)), min(_CALLS, len(unlike))))]
            self.called[key] = next(filter(None, (out_of_bounds_read(f, g) for g in few)), "")
        return self.called[key]

    def _step(self, op: Op) -> Iterator[str]:
        if op.name not in STEPS:
            return
        found = list(self._writes(op))
        yield from found
        if op.name == "host" and not found:
            yield from host_problems(op, self.m)

    def _writes(self, op: Op) -> Iterator[str]:
        count = op.attrs.get("writes")
        if not isinstance(count, int) or not 0 <= count <= len(op.operands):
            yield f"writes {count} of {len(op.operands)} operands"
            return
        for value in op.operands[len(op.operands) - count :]:
            root = None if value is None else self.root.get(value, value)
            if root is not None and (root.defining_op is None or root.defining_op.name != "alloc"):
                yield f"writes {'@' if isinstance(root, Weight) else '%'}{root.name}, which is not its own"

    def _lifetimes(self) -> Iterator[str]:
        arena = [
            op for op in self.func.body.body
            if op.name == "alloc" and not {"host", "output"} & op.attrs.keys() and is_place(op.attrs.get("first"))
            and is_place(op.attrs.get("last")) and isinstance(op.result.type, TensorType)
        ]  # fmt: skip
        for op in arena:
            used = self.used.get(op.result, [])
            if used and not (op.attrs["first"] <= min(used) and max(used) <= op.attrs["last"]):
                yield f"{op_text(op)} is used from step {min(used)} to step {max(used)}"
        fixed = [op for op in arena if is_place(op.attrs.get("offset"))]
        if fixed and len(fixed) < len(arena):
            yield f"{op_text(next(op for op in arena if op not in fixed))} has no offset, but others have one"
        for a, b in combinations(fixed, 2):
            if _overlap(a, b):
                yield f"{op_text(a)} and {op_text(b)} have the same bytes at the same time"

    def _outputs(self) -> Iterator[str]:
        """Check that an output buffer has the bytes of its result, which comes first in it."""
        claimed = [
            op
            for op in self.func.body.body
            if op.name == "alloc" and {"output"} == {"host", "output"} & op.attrs.keys()
        ]
        for op in claimed:
            k, memory = op.attrs["output"], op.result.type
            if not isinstance(k, int) or not 0 <= k < len(self.func.results) or not isinstance(memory, TensorType):
                continue  # reported at the alloc
            result = self.func.results[k]
            shown = result.type
            if self.root.get(result, result) is not op.result or self.start.get(result, 0) != 0:
                yield f"{op_text(op)} does not begin with output {k}, %{result.name}"
            elif not isinstance(shown, TensorType) or None in (memory.shape, shown.shape):
                yield f"{op_text(op)} and output {k}, %{result.name} : {shown}, are of unknown sizes"
            elif not self._holds(_reach(shown), _reach(memory)):
                yield f"{op_text(op)} reaches past the end of output {k}, %{result.name} : {shown}"

    def _fits(self, value: Value, shown: TensorType) -> bool:
        """Whether the memory of a value covers all bytes that a type accesses."""
        whole = self.root.get(value, value).type
        if not isinstance(whole, TensorType) or whole.shape is None:
            return shown.shape is None
        return self._holds(_reach(whole), self.start.get(value, 0) + _reach(shown))

    def _holds(self, most: Dim, least: Dim) -> bool:
        """Whether `least <= most` for all sizes that the held constraints allow, as far as samples show."""
        gap = most - least
        if isinstance(gap, int):
            return gap >= 0
        names = symbols(gap)
        if any(name not in self.m.symbols for name in names):
            return False
        return all(evaluate(gap, env) >= 0 for env in self._samples([*names]))

    def _samples(self, names: Sequence[str]) -> Iterator[Mapping[str, int]]:
        all_names = list(dict.fromkeys([*names, *(n for c in self.held for d in (c.lhs, c.rhs) for n in symbols(d))]))
        asked = [d for c in self.held for d in (c.lhs, c.rhs) if isinstance(d, int)]
        sizes = {name: _sizes(self.m.symbols[name].symbol, asked) for name in all_names if name in self.m.symbols}
        choices = product(*sizes.values()) if len(sizes) <= 3 else zip(*sizes.values(), strict=False)
        for values in choices:
            env = dict(zip(sizes, values, strict=True))
            if all(_at(c.lhs, env) == _at(c.rhs, env) for c in self.held):
                yield env


def _laid_out(t: TensorType) -> int:
    """Bytes of a tensor, with at least one element along each axis, as the layout computes it."""
    least = {name: max(s.lo, 1) for name, s in symbols(*t.dims).items()}
    return prod(max(evaluate(d, least), 1) for d in t.dims) * t.dtype.itemsize


def _sizes(s: Any, asked: Sequence[int]) -> list[int]:
    hi = s.hi if isinstance(s.hi, int) else None
    found = [max(s.lo, n) // s.divisible_by * s.divisible_by or s.divisible_by for n in (s.lo, *_SIZES, *asked)]
    return [n for n in found if n >= s.lo and (hi is None or n <= hi)] or [max(s.lo, 1)]


def _at(d: Dim, env: Mapping[str, int]) -> int | None:
    return evaluate(d, env) if all(n in env for n in symbols(d)) else None


def _in_memory(dtype: DType) -> Any:
    """The storage of elements: types without machine arithmetic are stored as codes in bytes."""
    return U8.numpy if is_stored(dtype) else dtype.numpy


def _offset(op: Op) -> int:
    offset: Any = op.attrs.get("offset")
    return offset if is_place(offset) else 0


def _reach(t: TensorType) -> Dim:
    """Bytes from the first element of a tensor to the end of its last one.

    0 of a tensor without elements.
    """
    sizes, strides = t.physical, t.strides
    if any(n == 0 for n in sizes):
        return 0
    if not t.layout.within:
        return t.nbytes
    last: Dim = 1
    for n, step in zip(sizes, strides, strict=True):
        last = last + (n - 1) * step
    return last * t.dtype.itemsize


def _overlap(a: Op, b: Op) -> bool:
    x, y = a.attrs, b.attrs
    size = [n for n in (a.result.tensor.nbytes, b.result.tensor.nbytes) if isinstance(n, int)]
    if len(size) < 2 or not all(size) or x["last"] < y["first"] or y["last"] < x["first"]:
        return False
    return x["offset"] < y["offset"] + size[1] and y["offset"] < x["offset"] + size[0]

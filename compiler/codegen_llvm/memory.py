"""The arguments of a kernel, and its loads and stores of elements and vectors."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections import ChainMap
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.lane_steps import in_memory_order
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.values import Ops, in_lanes, lanes, mangled, memory_type
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.te.expr import Expr
from occ.compiler.ir.te.function import Param, TeFunc
from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.types import FLOAT, I1, I32, I64, PTR
from occ.runtime.dataclass import dataclass

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


class Memory:
    """The function of a te function of one stage, and its operands and results in memory."""

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
        self.known: dict[Dim, Any] = {}  # what is computed from sizes alone
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

    @contextmanager
    def at_start(self) -> Generator[None]:
        """Emit what all of the function may use."""
        if self.b.block is self.fn.entry_basic_block:
            yield
            return
        with self.b.goto_entry_block():
            yield

    def _address(self, source: str, offset: Any) -> Any:
        return self.b.gep(self.pointers[source], [offset], inbounds=True)

    def _mask(self, env: Env) -> Any:
        if env.guard is None:
            return env.tail
        guard = self.o.splat(env.guard, env.width)
        return guard if env.tail is None else self.b.and_(guard, env.tail)

    def _load_at(self, address: Any, dtype: DType, env: Env) -> Any:
        """The element at an address, or a vector from there on."""
        if not env.vector:
            return self.o.from_memory(self.b.load(address), dtype)
        return self.o.from_memory(self._vector_at(address, dtype, self._mask(env), env.width), dtype)

    def _vector_at(self, address: Any, dtype: DType, mask: Any, width: int) -> Any:
        kind = ir.VectorType(memory_type(dtype), width)
        pointer = self.b.bitcast(address, kind.as_pointer())
        if mask is None:
            return self.b.load(pointer, align=dtype.itemsize)
        zero = in_lanes(ir.Constant(kind.element, 0), width)
        loaded = self.o.call(f"llvm.masked.load.{mangled(kind)}.p0", kind, [pointer, I32(dtype.itemsize), mask, zero])
        return self._kept_apart(loaded, width * dtype.itemsize)

    def _lanes_from(self, mask: Any, lane: dict[int, int], n: int) -> Any:
        """The mask of a vector whose elements are some lanes of another one, and of which no others are read."""
        chosen = ir.Constant(ir.VectorType(I32, n), [I32(lane.get(k, lanes(mask))) for k in range(n)])
        return self.b.shuffle_vector(mask, in_lanes(I1(0), lanes(mask)), chosen)

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

    def _store_at(self, address: Any, value: Any, dtype: DType, env: Env) -> None:
        """Store an element at an address, or the lanes of a vector from there on."""
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

"""Code shared by all routines: memory access, kernel calls, completing frames.

Functions are emitted on first use: most entries are small, and compiling them would take longer than their kernels.
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from llvmlite import ir

from occ.compiler.ir.te.cost import SERIAL
from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.kernel_abi import KernelAbi
from occ.compiler.native_entry.layout import Layout
from occ.compiler.native_entry.loops import for_loop
from occ.compiler.native_entry.sizes import Size, i64
from occ.compiler.native_entry.types import I1, I8, I32, I64, PTR
from occ.runtime.buffers import ALIGNMENT
from occ.runtime.native.call import BEGIN, END

_WHOLE = ir.FunctionType(I32, [PTR.as_pointer()])
_RANGED = ir.FunctionType(I32, [PTR.as_pointer(), I32, I32])
_PARALLEL = ir.FunctionType(I32, [PTR])
_SEEN = [I32, I32, I64, I64]
_GUARDED = ir.FunctionType(I32, [PTR, PTR.as_pointer()])
Seen = Sequence[Any]  # of a kernel: its plan number, step, operations, and bytes of tensors

RunKernel = Callable[[Builder, Any, Sequence[Any]], Any]  # emits the run of a kernel on what is given: its error code


class Support:
    """The module under construction.

    Args:
        module: contains or declares the kernels.
        layout: of the structures that it shares with C.
        abi: of the kernels.
    """

    def __init__(self, module: ir.Module, layout: Layout, abi: KernelAbi) -> None:
        self.module, self.layout, self.abi = module, layout, abi
        self._word = ir.IntType(8 * layout.pointer)

    def internal(self, name: str, kind: ir.FunctionType, *, straight: bool = False) -> ir.Function:
        """A function with internal linkage.

        Args:
            name: its symbol.
            kind: its type.
            straight: whether it is long and has no loops; optimising it would cost far more than it gains.
        """
        made = ir.Function(self.module, kind, name)
        made.linkage = "internal"
        for attribute in ("nounwind", *(("noinline", "optnone") if straight else ())):
            made.attributes.add(attribute)
        return made

    def external(self, name: str, kind: ir.FunctionType) -> Any:
        """A function of this module, or one that the linker resolves."""
        known = self.module.globals.get(name)
        return known if known is not None else ir.Function(self.module, kind, name)

    def constant(self, name: str, data: bytes) -> Any:
        """Address of bytes."""
        made = self.exported(f"occ_{name}", data)
        made.linkage = "internal"
        return made.bitcast(PTR)

    def exported(self, name: str, data: bytes) -> ir.GlobalVariable:
        """Bytes that other libraries see."""
        kind = ir.ArrayType(I8, len(data))
        made = ir.GlobalVariable(self.module, kind, name)
        made.global_constant = True
        setattr(made, "align", 8)  # noqa: B010 - its type is declared as None
        made.initializer = ir.Constant(kind, bytearray(data))  # pyright: ignore[reportAttributeAccessIssue]
        return made

    # memory

    def at(self, b: ir.IRBuilder, p: Any, offset: Size) -> Any:
        """An address offset by some bytes."""
        return p if isinstance(offset, int) and offset == 0 else b.gep(p, [i64(offset)])

    def load(self, b: ir.IRBuilder, p: Any, offset: int, kind: ir.Type = PTR) -> Any:
        return b.load(b.bitcast(self.at(b, p, offset), kind.as_pointer()))

    def store(self, b: ir.IRBuilder, value: Any, p: Any, offset: Size) -> None:
        b.store(value, b.bitcast(self.at(b, p, offset), value.type.as_pointer()))

    def memcpy(self, b: ir.IRBuilder, target: Any, source: Any, size: Size) -> None:
        count = i64(size) if self.layout.pointer == 8 else b.trunc(i64(size), self._word)
        b.call(self.external("memcpy", ir.FunctionType(PTR, [PTR, PTR, self._word])), [target, source, count])

    def allocate(self, b: ir.IRBuilder, size: Any) -> Any:
        """Aligned bytes from the heap; null if there are none. C's `free` releases them."""
        words = [self._word(ALIGNMENT), size if self.layout.pointer == 8 else b.trunc(size, self._word)]
        return b.call(self.external("aligned_alloc", ir.FunctionType(PTR, [self._word] * 2)), words)

    def builder(self, fn: ir.Function) -> Builder:
        """Where a function begins."""
        return Builder(fn.append_basic_block("entry"))

    def count_callback(self, b: ir.IRBuilder, call: Any) -> None:
        """Mark a pending callback; the callback clears the mark: see `Callback`."""
        asked = self.load(b, call, self.layout.call["detail"], I32)
        self.store(b, b.add(asked, I32(1)), call, self.layout.call["detail"])

    # kernels

    def run_kernel(
        self, b: ir.IRBuilder, call: Any, name: str, args: Any, tasks: Size | None, operations: Size, seen: Seen
    ) -> Any:
        """Call a kernel; returns its error code.

        One with few operations in this run, such as a single row, stays on this thread; if operations are constant, its
        schedule has decided that.
        """
        kernel = self.external(name, _RANGED if self.abi is KernelAbi.RANGE else _WHOLE)
        if self.abi is KernelAbi.PLAIN:
            return self._observed(b, call, [b.bitcast(kernel, PTR), args], seen, _run_plain)
        few = None if isinstance(operations, int) else b.icmp_signed("<", operations, I64(SERIAL))
        if self.abi is KernelAbi.HALIDE:  # it may lack scratch memory
            guarded = self.external("occ_run_kernel", _GUARDED)
            if few is not None:
                guarded = b.select(few, self.external("occ_run_kernel_alone", _GUARDED), guarded)
            return self._observed(b, call, [b.bitcast(guarded, PTR), b.bitcast(kernel, PTR), args], seen, _run_guarded)
        count = I32(tasks) if isinstance(tasks, int) else b.trunc(tasks, I32)
        given = [b.bitcast(kernel, PTR), args, count, I1(0) if few is None else few]
        return self._observed(b, call, given, seen, lambda b, call, given: b.call(self._range, [call, *given]))

    def _observed(self, b: ir.IRBuilder, call: Any, given: Sequence[Any], seen: Seen, run: RunKernel) -> Any:
        """Call `i32 occ_kernel(call, given.., plan, step, operations, bytes)`, which runs a kernel; of one ABI in a module."""
        fn = self.module.globals.get("occ_kernel")
        if fn is None:
            fn = self.internal("occ_kernel", ir.FunctionType(I32, [PTR, *(v.type for v in given), *_SEEN]))
            inner, (whole, *rest) = self.builder(fn), fn.args
            self._observe(inner, whole, rest[len(given) :], lambda: run(inner, whole, rest[: len(given)]))
        return b.call(fn, [call, *given, *seen])

    def _observe(self, b: Builder, call: Any, seen: Seen, run: Callable[[], Any]) -> None:
        """Run a kernel, and return its code; the host records its begin and end, on request."""
        observed = self.load(b, call, self.layout.call["observed"], I32)
        with b.if_then(b.icmp_signed("==", observed, I32(0)), likely=True):
            b.ret(run())
        host = b.bitcast(self.load(b, call, self.layout.call["host"]), _PARALLEL.as_pointer())
        code = None
        for request in (BEGIN, END):
            for field, value in zip(("plan", "step", "got", "wanted"), seen, strict=True):
                self.store(b, value, call, self.layout.call[field])
            self.store(b, I32(request), call, self.layout.call["request"])
            self.count_callback(b, call)
            b.call(host, [call])
            code = run() if code is None else code
        b.ret(code)

    @cached_property
    def _range(self) -> ir.Function:
        """`i32 range(call, kernel, args, tasks, few)`: a kernel on the caller's threads, or directly."""
        fn = self.internal("occ_run_tasks", ir.FunctionType(I32, [PTR, PTR, PTR, I32, I1]))
        call, kernel, args, tasks, few = fn.args
        b = Builder(fn.append_basic_block("entry"))
        threads = self.load(b, call, self.layout.call["threads"], I32)
        parallel = self.load(b, call, self.layout.call["parallel"])
        several = b.and_(b.icmp_signed(">", threads, I32(1)), b.icmp_signed(">", tasks, I32(1)))
        lent = b.icmp_signed("!=", b.ptrtoint(parallel, I64), I64(0))
        with b.if_then(b.and_(b.and_(several, lent), b.not_(few))):
            for field, value in (("kernel", kernel), ("arguments", args), ("tasks", tasks)):
                self.store(b, value, call, self.layout.call[field])
            self.count_callback(b, call)
            said = b.call(b.bitcast(parallel, _PARALLEL.as_pointer()), [call])
            b.ret(b.sub(said, I32(1)))
        whole = b.bitcast(kernel, _RANGED.as_pointer())
        b.ret(b.call(whole, [b.bitcast(args, PTR.as_pointer()), I32(0), tasks]))
        return fn

    # frames

    @cached_property
    def _inside(self) -> ir.Function:
        return self._emit_fill("occ_add_frame", 1, self._add_frame)

    @cached_property
    def _sizes(self) -> ir.Function:
        return self._emit_fill("occ_fill_sizes", 2, self._fill_size)

    @cached_property
    def _hosts(self) -> ir.Function:
        return self._emit_fill("occ_fill_hosts", 2, self._fill_host)

    def complete(
        self, b: ir.IRBuilder, frame: Any, name: str, inside: Sequence[int], sizes: Sequence[tuple[int, Size]],
        hosts: Sequence[tuple[int, Any]],
    ) -> None:  # fmt: skip
        """Fill in what a frame template leaves open; see `frame.Frame`."""
        nothing = ir.Constant(PTR, None)
        table = self.constant(f"inside_{name}", struct.pack(f"<{len(inside)}I", *inside))
        b.call(self._inside, [frame, table, I64(len(inside)), nothing])
        for what, rows in (("sizes", sizes), ("hosts", hosts)):
            if not rows:
                continue
            fill = self._sizes if what == "sizes" else self._hosts
            values = list({id(v): v for _, v in rows}.values())
            place = {id(v): k for k, v in enumerate(values)}
            given = b.bitcast(b.alloca(I64, I32(len(values))), PTR)
            for k, v in enumerate(values):
                self.store(b, v, given, 8 * k)
            flat = [n for at, v in rows for n in (at, place[id(v)])]
            b.call(
                fill,
                [frame, self.constant(f"{what}_{name}", struct.pack(f"<{len(flat)}I", *flat)), I64(len(rows)), given],
            )

    def _emit_fill(self, name: str, columns: int, body: Callable[[ir.IRBuilder, Any, list[Any], Any], None]) -> Any:
        """`void fill(frame, table, rows, values)`: something for each row of a table of u32."""
        fn = self.internal(name, ir.FunctionType(ir.VoidType(), [PTR, PTR, I64, PTR]))
        frame, table, rows, values = fn.args
        b = Builder(fn.append_basic_block("entry"))

        def row(i: Any, _: list[Any]) -> list[Any]:
            cells = [
                b.zext(self.load(b, b.gep(table, [b.mul(i, I64(4 * columns))]), 4 * c, I32), I64)
                for c in range(columns)
            ]
            body(b, frame, cells, values)
            return []

        for_loop(b, I64(0), rows, 1, [], row)
        b.ret_void()
        return fn

    def _add_frame(self, b: ir.IRBuilder, frame: Any, cells: list[Any], _: Any) -> None:
        place = b.bitcast(b.gep(frame, cells), self._word.as_pointer())
        b.store(b.add(b.load(place), b.ptrtoint(frame, self._word)), place)

    def _fill_size(self, b: ir.IRBuilder, frame: Any, cells: list[Any], values: Any) -> None:
        at, slot = cells
        value = self.load(b, b.gep(values, [b.mul(slot, I64(8))]), 0, I64)
        b.store(b.trunc(value, I32), b.bitcast(b.gep(frame, [at]), I32.as_pointer()))

    def _fill_host(self, b: ir.IRBuilder, frame: Any, cells: list[Any], values: Any) -> None:
        at, slot = cells
        value = self.load(b, b.gep(values, [b.mul(slot, I64(8))]), 0)
        b.store(value, b.bitcast(b.gep(frame, [at]), PTR.as_pointer()))


def _run_plain(b: Builder, _: Any, given: Sequence[Any]) -> Any:
    """A kernel that is called directly."""
    kernel, args = given
    return b.call(b.bitcast(kernel, _WHOLE.as_pointer()), [b.bitcast(args, PTR.as_pointer())])


def _run_guarded(b: Builder, _: Any, given: Sequence[Any]) -> Any:
    """A kernel with its own parallel loop."""
    guarded, kernel, args = given
    return b.call(b.bitcast(guarded, _GUARDED.as_pointer()), [kernel, b.bitcast(args, PTR.as_pointer())])

"""Run-time allocation in the native entry, for tensors whose size is known only during the run.

A caller provides memory before a run. If a step produces an unbounded size, tensors of that size are allocated once it
is known.
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.sizes import Size, i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import I64, PTR
from occ.runtime.buffers import ALIGNMENT

_FIRST_ROOM = 4096  # initial bytes of a growing buffer


class LateMemory:
    """The heap allocations of a routine, freed when it ends.

    Args:
        support: what all routines share.
        head: the start of the routine.
        count: maximum number of allocations.
    """

    def __init__(self, support: Support, head: ir.IRBuilder, count: int) -> None:
        self._support = support
        self._cells = [head.bitcast(head.alloca(PTR), PTR) for _ in range(count)]
        self._taken = 0
        for cell in self._cells:
            support.store(head, ir.Constant(PTR, None), cell, 0)

    def take(self, b: ir.IRBuilder, call: Any, here: Any, size: Size, room: Size) -> tuple[Any, Any, int]:
        """Memory from `here` on if the caller provided enough, with `room` after it, otherwise from the heap.

        Returns:
            The address, null if there is none; the start of the remaining memory; the index of the allocation.
        """
        cell, self._taken = self._cells[self._taken], self._taken + 1
        size = b.add(i64(size), I64(ALIGNMENT))  # vectors may read past the last tensor
        got = b.call(self._taking(), [call, here, size, i64(room), cell])
        rest = b.select(b.icmp_unsigned("==", got, here), b.gep(here, [size]), here)
        return got, rest, self._taken - 1

    def growing(self, head: ir.IRBuilder) -> GrowingBuffer:
        """A buffer that grows as it is filled, empty at `head`."""
        self._taken += 1
        return GrowingBuffer(self._support, head, self._cells[self._taken - 1])

    def give_back(self, b: ir.IRBuilder, piece: int) -> None:
        """Free an allocation, if it is from the heap."""
        free = self._support.external("free", ir.FunctionType(ir.VoidType(), [PTR]))
        b.call(free, [self._support.load(b, self._cells[piece], 0)])
        self._support.store(b, ir.Constant(PTR, None), self._cells[piece], 0)

    def give_all_back(self, b: ir.IRBuilder) -> None:
        """Free all allocations."""
        for piece in range(len(self._cells)):
            self.give_back(b, piece)

    def _taking(self) -> ir.Function:
        """`ptr take(call, here, size, room, cell)`; a heap allocation is recorded in the cell, and in `call.needed`."""
        s = self._support
        if (known := s.module.globals.get("occ_take")) is not None:
            return known
        fn = s.internal("occ_take", ir.FunctionType(PTR, [PTR, PTR, I64, I64, PTR]))
        call, here, size, room, cell = fn.args
        b = s.builder(fn)
        end = b.add(
            b.ptrtoint(s.load(b, call, s.layout.call["memory"]), I64), s.load(b, call, s.layout.call["capacity"], I64)
        )
        with b.if_then(b.icmp_signed("<=", b.add(b.ptrtoint(here, I64), b.add(size, room)), end)):
            b.ret(here)
        needed = s.load(b, call, s.layout.call["needed"], I64)
        s.store(b, b.add(needed, size), call, s.layout.call["needed"])
        made = s.allocate(b, size)
        s.store(b, made, cell, 0)
        b.ret(made)
        return fn


class GrowingBuffer:
    """A heap buffer that doubles when it is full.

    Args:
        support: what all routines share.
        head: where it is empty.
        cell: of the address, null at first; its owner frees the memory.
    """

    def __init__(self, support: Support, head: ir.IRBuilder, cell: Any) -> None:
        self._support, self._cell = support, cell
        self._capacity = head.bitcast(head.alloca(I64), PTR)
        support.store(head, I64(0), self._capacity, 0)

    def room(self, b: ir.IRBuilder, used: Any, size: Size) -> Any:
        """Address of space for bytes after the used ones; null if there is none."""
        return b.call(self._growing(), [self._cell, self._capacity, used, i64(size)])

    def release(self, b: ir.IRBuilder, target: Any, used: Any) -> None:
        """Copy its contents to other memory, and free it."""
        s = self._support
        s.memcpy(b, target, s.load(b, self._cell, 0), used)
        b.call(s.external("free", ir.FunctionType(ir.VoidType(), [PTR])), [s.load(b, self._cell, 0)])
        s.store(b, ir.Constant(PTR, None), self._cell, 0)

    def _growing(self) -> ir.Function:
        """`ptr grow(cell, capacity, used, size)`: doubles the capacity if necessary."""
        s = self._support
        if (known := s.module.globals.get("occ_grow")) is not None:
            return known
        fn = s.internal("occ_grow", ir.FunctionType(PTR, [PTR, PTR, I64, I64]))
        cell, capacity, used, size = fn.args
        b = s.builder(fn)
        old, has = s.load(b, cell, 0), s.load(b, capacity, 0, I64)
        end = b.add(used, size)
        with b.if_then(b.icmp_signed(">=", end, has), likely=False):  # an empty one also allocates for zero bytes
            larger = b.select(b.icmp_signed(">", end, b.mul(has, I64(2))), end, b.mul(has, I64(2)))
            larger = b.and_(b.add(larger, I64(_FIRST_ROOM + ALIGNMENT - 1)), I64(-ALIGNMENT))
            made = s.allocate(b, larger)
            with b.if_then(b.icmp_unsigned("==", made, ir.Constant(PTR, None)), likely=False):
                b.ret(made)
            s.memcpy(b, made, old, used)
            b.call(s.external("free", ir.FunctionType(ir.VoidType(), [PTR])), [old])
            s.store(b, made, cell, 0)
            s.store(b, larger, capacity, 0)
        b.ret(s.at(b, s.load(b, cell, 0), used))
        return fn

"""Emits requests of a native entry to its host (docs/native.md)."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.plan import is_handle, nbytes
from occ.compiler.native_entry.routine import HostCalls, RoutineEmitter
from occ.compiler.native_entry.sizes import i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import I32, I64, PTR
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Step
from occ.runtime.native.call import FIND, HOST, OUTPUT, RUN, STORE, UNKNOWN

_CONTROL = ("if", "loop", "scan", "map")


def emit_host(e: RoutineEmitter, k: int, step: Step) -> dict[str, Any]:
    """Ask the host to run a step.

    If it produces sizes, the host keeps its results until there is memory for them.
    """
    listed = step.reads if step.binds else [*step.reads, *step.writes]
    found = e.head.bitcast(e.head.alloca(I64, I32(max(len(step.binds), 1))), PTR)
    symbols = _symbols(e) if step.kind in _CONTROL else None
    _ask(e, FIND if step.binds else RUN, k, listed, found, symbols)
    if step.binds:
        e.once_sized(lambda: _ask(e, STORE, k, step.writes, None, None))
    return {name: e.support.load(e.b, found, 8 * at, I64) for at, (_, _, name) in enumerate(step.binds)}


def emit_output(e: RoutineEmitter, k: int) -> None:
    """Ask the host to allocate an output of previously unbounded extents, unless the caller provided enough."""
    b = e.r.plan.buffers[e.r.plan.outputs[k]]
    shape = [upper(n, e.r.bounds) for n in b.shape]
    size = i64(e.sizes.of(nbytes(shape, b.dtype)))
    said = e.b.call(_output(e.support), [e.call, I32(e.index), I32(k), size, _numbers(e, shape)])
    e.fail_if(e.b.icmp_signed("!=", said, I32(1)), HOST, k, I32(OUTPUT))


def _ask(e: RoutineEmitter, request: int, k: int, listed: Sequence[int], found: Any, symbols: Any) -> None:
    buffers = e.r.plan.buffers
    nothing = ir.Constant(PTR, None)
    pointers = e.listed([nothing if b < 0 else e.buffer(b) for b in listed])
    shown = [buffers[b] for b in listed if b >= 0 and not buffers[b].opaque]
    sizes = _numbers(e, [n for b in shown for n in (*b.shape, *(() if is_handle(b) else b.strides))])
    _call(e, request, k, pointers, sizes, found, symbols)


def _call(e: RoutineEmitter, request: int, k: int, values: Any, sizes: Any, found: Any, symbols: Any) -> None:
    given = [ir.Constant(PTR, None) if p is None else p for p in (values, sizes, found, symbols)]
    said = e.b.call(_asking(e.support), [e.call, I32(request), I32(e.index), I32(k), *given])
    e.fail_if(e.b.icmp_signed("!=", said, I32(1)), HOST, k, I32(request))


def _numbers(e: RoutineEmitter, exprs: Sequence[DimExpr]) -> Any:
    made = e.head.bitcast(e.head.alloca(I64, I32(max(len(exprs), 1))), PTR)
    for at, n in enumerate(exprs):
        e.support.store(e.head, i64(e.sizes.of(n)), made, 8 * at)
    return made


def _symbols(e: RoutineEmitter) -> Any:
    """Values of all symbols of the model, for functions that the host runs; `UNKNOWN` if there are none."""
    made = e.head.bitcast(e.head.alloca(I64, I32(max(len(e.names), 1))), PTR)
    for at, name in enumerate(e.names):
        e.support.store(e.head, i64(e.sizes.known(name, UNKNOWN)), made, 8 * at)
    return made


def _asking(support: Support) -> ir.Function:
    """`i32 ask(call, request, plan, step, values, sizes, found, symbols)`: 1 where the host has done it."""
    if (known := support.module.globals.get("occ_ask")) is not None:
        return known
    fn = support.internal("occ_ask", ir.FunctionType(I32, [PTR, I32, I32, I32, PTR, PTR, PTR, PTR]))
    call, *given = fn.args
    b = support.builder(fn)
    host = support.load(b, call, support.layout.call["host"])
    with b.if_then(b.icmp_signed("==", b.ptrtoint(host, I64), I64(0))):
        b.ret(I32(0))
    for field, value in zip(("request", "plan", "step", "values", "sizes", "found", "symbols"), given, strict=True):
        support.store(b, value, call, support.layout.call[field])
    support.count_callback(b, call)
    b.ret(b.call(b.bitcast(host, ir.FunctionType(I32, [PTR]).as_pointer()), [call]))
    return fn


def _output(support: Support) -> ir.Function:
    """`i32 output(call, plan, number, bytes, sizes)`: 1 if there is memory for an output."""
    if (known := support.module.globals.get("occ_output")) is not None:
        return known
    fn = support.internal("occ_output", ir.FunctionType(I32, [PTR, I32, I32, I64, PTR]))
    call, plan, number, size, sizes = fn.args
    b, nothing = support.builder(fn), ir.Constant(PTR, None)
    room = support.load(b, call, support.layout.call["room"])
    with b.if_then(b.icmp_unsigned("!=", room, nothing)):
        foreseen = support.load(b, b.gep(room, [b.mul(b.zext(number, I64), I64(8))]), 0, I64)
        enough = b.icmp_signed(">=", foreseen, size)
        with b.if_then(b.and_(enough, b.icmp_signed(">", foreseen, I64(0)))):
            b.ret(I32(1))
    b.ret(b.call(_asking(support), [call, I32(OUTPUT), plan, number, nothing, sizes, nothing, nothing]))
    return fn


HOST_CALLS = HostCalls(emit_host, emit_output)

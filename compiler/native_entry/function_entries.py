"""Entries of single functions, for control flow run by the host: `int32_t occ_model_call(struct occ_call *)`."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.kernel_abi import KernelAbi
from occ.compiler.native_entry.routine import RoutineEmitter
from occ.compiler.native_entry.sizes import Sizes, i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import I32, I64, PTR
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.native.call import CALL, INPUTS, MEMORY, UNKNOWN


def run_routine(b: Any, support: Support, call: Any, emitted: RoutineEmitter, given: Sequence[Any]) -> Any:
    """Run a routine on the inputs, outputs and memory of a call; returns its code, or `MEMORY` immediately."""
    at, load = support.layout.call, support.load
    needed = b.call(emitted.size_fn, given)
    support.store(b, needed, call, at["needed"])
    with b.if_then(b.icmp_signed("<", load(b, call, at["capacity"], I64), needed), likely=False):
        b.ret(I32(MEMORY))
    pointers = [load(b, call, at[f]) for f in ("inputs", "outputs", "memory")]
    # It counts callbacks, and a plan for other extents may have rejected these.
    support.store(b, I32(0), call, at["detail"])
    before = None
    if support.abi is KernelAbi.HALIDE:
        enter = support.external("occ_enter", ir.FunctionType(I32, [I32]))
        before = b.call(enter, [load(b, call, at["threads"], I32)])
    code = b.call(emitted.fn, [call, *pointers, *given])
    if before is not None:
        b.call(support.external("occ_leave", ir.FunctionType(ir.VoidType(), [I32])), [before])
    return code


def emit_functions(support: Support, found: Sequence[RoutineEmitter]) -> None:
    """`occ_model_call`: runs function number `call.plan`.

    `call.extents` holds the values of all symbols, and `call.results` receives all known extents of outputs: upper
    bounds before it runs.
    """
    fn = ir.Function(support.module, ir.FunctionType(I32, [PTR]), CALL)
    (call,) = fn.args
    b = support.builder(fn)
    number = support.load(b, call, support.layout.call["plan"], I32)
    other = fn.append_basic_block("other")
    switch = b.switch(number, other)
    b.position_at_end(other)
    b.ret(I32(INPUTS))
    for e in found:
        block = fn.append_basic_block("function")
        switch.add_case(I32(e.index), block)
        b.position_at_end(block)
        b.ret(b.call(_function(support, e), [call]))


def _function(support: Support, e: RoutineEmitter) -> ir.Function:
    fn = support.internal(f"occ_function_{e.index}", ir.FunctionType(I32, [PTR]))
    (call,) = fn.args
    b, at = support.builder(fn), support.layout.call
    values = support.load(b, call, at["extents"])
    known = {s: support.load(b, values, 8 * e.names.index(s), I64) for s in e.r.symbols}
    sizes, outputs = Sizes(b, known), support.load(b, call, at["outputs"])
    shapes = [e.r.plan.buffers[k].shape for k in e.r.plan.outputs]
    most = [[upper(n, e.r.bounds) for n in shape] for shape in shapes]
    _store_results(support, b, call, sizes, most, e.r.open)
    returned = {s: b.bitcast(b.alloca(I64), PTR) for s in e.r.returned_sizes}
    with b.if_then(b.icmp_signed("!=", b.ptrtoint(outputs, I64), I64(0))):
        for k, p in enumerate(returned.values()):
            support.store(b, p, outputs, support.layout.pointer * (len(shapes) + k))
    code = run_routine(b, support, call, e, [i64(sizes.of(s)) for s in e.r.symbols])
    with b.if_then(b.icmp_signed("==", code, I32(0))):
        found = {s: support.load(b, p, 0, I64) for s, p in returned.items()}
        _store_results(support, b, call, sizes.at(b, found), shapes, set())
    b.ret(code)
    return fn


def _store_results(
    support: Support, b: Any, call: Any, sizes: Sizes, shapes: Sequence[Sequence[DimExpr]], open_: set[str]
) -> None:
    results = support.load(b, call, support.layout.call["results"])
    for at, n in enumerate(n for shape in shapes for n in shape):
        value = UNKNOWN if symbols(n) & open_ else sizes.of(n)
        support.store(b, i64(value), results, 8 * at)

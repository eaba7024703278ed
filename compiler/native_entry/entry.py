"""The native entry of a model: its plan as one function, `int32_t occ_model_run(struct occ_call *)` (docs/native.md).

Sizes, checks, memory, argument blocks, kernels, If, Scan and Loop are compiled code. The rest, such as operators on
sequences, is run by the host on a callback.
"""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from llvmlite import ir

from occ.compiler.native_entry.bounds import upper
from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.conditions import bound_symbols, conditions
from occ.compiler.native_entry.control import CONTROL_STEPS
from occ.compiler.native_entry.data_sized_steps import HOST_STEPS
from occ.compiler.native_entry.function_entries import emit_functions, run_routine
from occ.compiler.native_entry.host_calls import HOST_CALLS
from occ.compiler.native_entry.kernel_abi import KernelAbi
from occ.compiler.native_entry.layout import Layout
from occ.compiler.native_entry.model_metadata import model_facts
from occ.compiler.native_entry.output_shapes import Cases
from occ.compiler.native_entry.plan import Routine, special_name
from occ.compiler.native_entry.read_routines import Unsuitable, routines, without_host
from occ.compiler.native_entry.routine import RoutineEmitter
from occ.compiler.native_entry.sizes import Sizes, i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import I32, I64, PTR
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Manifest
from occ.runtime.native.call import ABI, ENTRY, INPUTS, MOST_AXES, RANK_OF_VALUE, UNKNOWN, VERSION, symbol_names

_COMPARED = {"==": "!=", ">=": "<", "<=": ">"}  # the kind of a condition, and when it is violated


def emit_entry(module: ir.Module, m: Manifest, abi: KernelAbi, bits: int = 64) -> None:
    """Emit the metadata of a model, and its entry if possible.

    Args:
        module: the destination; missing kernels are declared.
        m: the manifest.
        abi: of the kernels.
        bits: of an address.
    """
    support = Support(module, Layout.of(bits), abi)
    refusal = without_host(m)
    with suppress(Unsuitable):
        _emit(support, m, routines(m))
    support.exported("occ_model_facts", model_facts(m, refusal=refusal, abi=abi))


def _emit(support: Support, m: Manifest, found: Sequence[Routine]) -> None:
    special = [special_name(k) for k in range(len(m.special))]
    numbers = {name: k for k, name in enumerate(["", *sorted(m.functions), *special])}
    made: dict[str, RoutineEmitter] = {}
    names = symbol_names(m)
    for r in found:
        dims = m.at(special.index(r.name)).dims if r.name in special else m.dims
        made[r.name] = RoutineEmitter(
            support, r, numbers[r.name], dims, made, {**CONTROL_STEPS, **HOST_STEPS}, HOST_CALLS, names
        )  # fmt: skip
    functions = [
        _Entry(support, m.at(k), made[name], support.internal(f"occ_special_{k}", ir.FunctionType(I32, [PTR]))).emit([])
        for k, name in enumerate(special)
    ]
    function = ir.Function(support.module, ir.FunctionType(I32, [PTR]), ENTRY)
    _Entry(support, m, made[""], function).emit(functions)
    if by_host := [made[r.name] for r in found if r.by_host]:
        emit_functions(support, by_host)


class _Entry:
    """A function that binds sizes, checks them, and runs a routine: the exported one, or one for specific extents."""

    def __init__(self, support: Support, m: Manifest, emitted: RoutineEmitter, fn: ir.Function) -> None:
        self.support, self.m, self.main, self.emitted, self.fn = support, m, emitted.r, emitted, fn
        self.call = self.fn.args[0]
        self.b = Builder(self.fn.append_basic_block("entry"))
        self.symbols: dict[str, Any] = {}
        self.sizes = Sizes(self.b, self.symbols)
        self._extents: dict[tuple[int, int], Any] = {}

    def emit(self, special: Sequence[ir.Function]) -> ir.Function:
        """Emit it; the functions in `special` are tried first, and return `INPUTS` if extents are not theirs."""
        b, load = self.b, self.support.load
        self._return_if(
            b.icmp_signed("!=", load(b, self.call, self.support.layout.call["abi"], I32), I32(ABI)), VERSION
        )
        for other in special:
            code = b.call(other, [self.call])
            with b.if_then(b.icmp_signed("!=", code, I32(INPUTS))):
                b.ret(code)
        self._bind()
        self._check()
        self._store_results()
        b.ret(run_routine(b, self.support, self.call, self.emitted, [i64(self.sizes.of(s)) for s in self.main.symbols]))
        return self.fn

    def _bind(self) -> None:
        """Symbols are extents of inputs."""
        extents = self.support.load(self.b, self.call, self.support.layout.call["extents"])
        tensors = [(k, info) for k, info in enumerate(self.m.inputs) if info.kind == "tensor"]
        places = [(k, axis) for k, info in tensors for axis in range(len(info.shape))]
        self._extents = {p: self.support.load(self.b, extents, 8 * at, I64) for at, p in enumerate(places)}
        self.symbols.update((name, self._extents[p]) for name, p in bound_symbols(self.m).items())

    def _check(self) -> None:
        """Reject extents that the model does not accept; `detail` is the number of the condition, from 1."""
        b = self.b
        for number, c in enumerate(conditions(self.m), 1):
            left = i64(self._extents[c.input, c.axis] if c.left is None else self.sizes.of(c.left))
            right = i64(self.sizes.of(c.right))
            if c.kind == "%":
                fails = b.icmp_signed("!=", b.srem(left, right), I64(0))
            else:
                fails = b.icmp_signed(_COMPARED[c.kind], left, right)
            self._return_if(fails, INPUTS, number)

    def _store_results(self) -> None:
        results = self.support.load(self.b, self.call, self.support.layout.call["results"])
        for k, b in enumerate(self.main.plan.outputs):
            cases, row = self.main.cases.get(k), self.main.rows[k]
            shape = [upper(e, self.main.bounds) for e in self.main.plan.buffers[b].shape]
            row_values = self._of_cases(cases) if cases else [self._most(e) for e in shape]
            if row.ranked and (cases is None or cases.ranked):
                row_values = [
                    RANK_OF_VALUE if self.main.plan.buffers[b].opaque and cases is None else len(shape),
                    *row_values,
                ]
            for at, n in enumerate(row_values, row.at):
                self.support.store(self.b, i64(n), results, 8 * at)

    def _most(self, e: DimExpr) -> Any:
        """The upper bound of an extent; `UNKNOWN` if there is none."""
        return UNKNOWN if symbols(e) & self.main.open else self.sizes.of(e)

    def _of_cases(self, c: Cases) -> list[Any]:
        """The extents of one of two shapes.

        If their ranks differ, the rank comes first, then space for the largest.
        """
        left, right = (i64(self.sizes.of(e)) for e in c.when)
        holds = self.b.icmp_signed("==", left, right)
        rows: list[list[Any]] = [list(map(self.sizes.of, shape)) for shape in (c.then, c.otherwise)]
        if not c.ranked:
            rows = [[len(row), *row, *[0] * (MOST_AXES - len(row))] for row in rows]
        return [self.b.select(holds, i64(a), i64(b)) for a, b in zip(*rows, strict=True)]

    def _return_if(self, cond: Any, code: int, detail: int = 0) -> None:
        with self.b.if_then(cond, likely=False):
            self.support.store(self.b, I32(detail), self.call, self.support.layout.call["detail"])
            self.b.ret(I32(code))

"""The native entry of a model: its plan as one function, `int32_t occ_model_run(struct occ_call *)` (docs/native.md).

What a run does in Python step by step (runtime/native/program.py), this does in compiled code: sizes, checks, memory, argument
blocks, kernels, If, Scan and Loop. The Python runner stays for what the entry does not take.
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
from occ.compiler.native_entry.layout import Layout
from occ.compiler.native_entry.model_metadata import model_facts
from occ.compiler.native_entry.output_shapes import Cases
from occ.compiler.native_entry.plan import Routine, special_name
from occ.compiler.native_entry.read_routines import Unsuitable, routines
from occ.compiler.native_entry.routine import RoutineEmitter
from occ.compiler.native_entry.sizes import Sizes, i64
from occ.compiler.native_entry.support import Support
from occ.compiler.native_entry.types import I32, I64, PTR
from occ.runtime.manifest import Manifest
from occ.runtime.native.entry import ABI, BEGIN, INPUTS, MEMORY, MOST_AXES, RUN, VERSION
from occ.runtime.native.last_steps import without_last_steps

_COMPARED = {"==": "!=", ">=": "<", "<=": ">"}  # what a condition is, and when it does not hold


def emit_entry(module: ir.Module, m: Manifest, *, ranged: bool, bits: int = 64) -> None:
    """Emit the facts of a model, and its entry if it can have one.

    Else that of the model without its last steps, as `occ_model_begin`, which is for those alone who run the steps
    after it.

    Args:
        module: where to; kernels that it does not have are declared.
        m: the manifest.
        ranged: kernels leave their parallel loop to their caller.
        bits: of an address.
    """
    support = Support(module, Layout.of(bits), ranged=ranged)
    refusal = ""
    try:
        _emit(support, m, routines(m), RUN)
    except Unsuitable as why:
        refusal = str(why)
        if (parts := without_last_steps(m)) is not None:
            with suppress(Unsuitable):
                _emit(support, parts[0], routines(parts[0]), BEGIN)
    support.exported("occ_model_facts", model_facts(m, refusal=refusal, ranged=ranged))


def _emit(support: Support, m: Manifest, found: Sequence[Routine], exported: str) -> None:
    special = [special_name(k) for k in range(len(m.special))]
    numbers = {name: k for k, name in enumerate(["", *sorted(m.functions), *special])}
    made: dict[str, RoutineEmitter] = {}
    for r in found:
        dims = m.at(special.index(r.name)).dims if r.name in special else m.dims
        made[r.name] = RoutineEmitter(support, r, numbers[r.name], dims, made, {**CONTROL_STEPS, **HOST_STEPS})
    functions = [
        _Entry(support, m.at(k), made[name], support.internal(f"occ_special_{k}", ir.FunctionType(I32, [PTR]))).emit([])
        for k, name in enumerate(special)
    ]
    function = ir.Function(support.module, ir.FunctionType(I32, [PTR]), exported)
    _Entry(support, m, made[""], function).emit(functions)


class _Entry:
    """A function that binds sizes, checks them, and runs a routine: that which is exported, or one for certain extents."""

    def __init__(self, support: Support, m: Manifest, emitted: RoutineEmitter, fn: ir.Function) -> None:
        self.support, self.m, self.main, self.emitted, self.fn = support, m, emitted.r, emitted, fn
        self.call = self.fn.args[0]
        self.b = Builder(self.fn.append_basic_block("entry"))
        self.symbols: dict[str, Any] = {}
        self.sizes = Sizes(self.b, self.symbols)
        self._extents: dict[tuple[int, int], Any] = {}

    def emit(self, special: Sequence[ir.Function]) -> ir.Function:
        """Emit it; those of `special` are asked first, and answer `INPUTS` where extents are not theirs."""
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
        self._tell_results()
        given = [i64(self.sizes.of(s)) for s in self.main.symbols]
        needed = b.call(self.emitted.size_fn, given)
        self.support.store(b, needed, self.call, self.support.layout.call["needed"])
        room = load(b, self.call, self.support.layout.call["capacity"], I64)
        self._return_if(b.icmp_signed("<", room, needed), MEMORY)
        pointers = [load(b, self.call, self.support.layout.call[f]) for f in ("inputs", "outputs", "memory")]
        before = None
        if self.support.ranged:  # loops are counted in it, and a plan for other extents may have refused these
            self.support.store(b, I32(0), self.call, self.support.layout.call["detail"])
        else:
            enter = self.support.external("occ_enter", ir.FunctionType(I32, [I32]))
            before = b.call(enter, [load(b, self.call, self.support.layout.call["threads"], I32)])
        code = b.call(self.emitted.fn, [self.call, *pointers, *given])
        if before is not None:
            b.call(self.support.external("occ_leave", ir.FunctionType(ir.VoidType(), [I32])), [before])
        b.ret(code)
        return self.fn

    def _bind(self) -> None:
        """Symbols are extents of inputs."""
        extents = self.support.load(self.b, self.call, self.support.layout.call["extents"])
        places = [(k, axis) for k, info in enumerate(self.m.inputs) for axis in range(len(info.shape))]
        self._extents = {p: self.support.load(self.b, extents, 8 * at, I64) for at, p in enumerate(places)}
        self.symbols.update((name, self._extents[p]) for name, p in bound_symbols(self.m).items())

    def _check(self) -> None:
        """Refuse extents that the model does not take; `detail` is the number of the condition, from 1 on."""
        b = self.b
        for number, c in enumerate(conditions(self.m), 1):
            left = i64(self._extents[c.input, c.axis] if c.left is None else self.sizes.of(c.left))
            right = i64(self.sizes.of(c.right))
            if c.kind == "%":
                fails = b.icmp_signed("!=", b.srem(left, right), I64(0))
            else:
                fails = b.icmp_signed(_COMPARED[c.kind], left, right)
            self._return_if(fails, INPUTS, number)

    def _tell_results(self) -> None:
        results = self.support.load(self.b, self.call, self.support.layout.call["results"])
        for k, b in enumerate(self.main.plan.outputs):
            cases, row = self.main.cases.get(k), self.main.rows[k]
            shape = [upper(e, self.main.bounds) for e in self.main.plan.buffers[b].shape]
            told = self._of_cases(cases) if cases else list(map(self.sizes.of, shape))
            if row.ranked and (cases is None or cases.ranked):
                told = [len(shape), *told]
            for at, n in enumerate(told, row.at):
                self.support.store(self.b, i64(n), results, 8 * at)

    def _of_cases(self, c: Cases) -> list[Any]:
        """The extents of one of two shapes.

        Where their ranks differ the rank, then room for as many as there can be.
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

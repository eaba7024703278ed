"""Elementwise functions of one 8-bit tensor as lookup tables of 256 entries."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from occ.compiler.ir.build_te import build_te
from occ.compiler.ir.dtype import I8
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.ir.te.expr import Call
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.compiler.passes.canonical.quantised import BYTES
from occ.compiler.passes.fuse.fuse import MAP, FusionFacts
from occ.runtime.dataclass import dataclass

_QUICK = {"neg", "abs", "not", "nearest", "round_even", "floor", "ceil", "fma", "isnan", "isinf", "sqrt"}


@dataclass(frozen=True)
class UseCodeTables(Pass):
    """Replaces elementwise ops from one 8-bit tensor to an 8-bit result by a lookup table.

    A look-up takes a cycle, an Erf between two quantisations ten. `fold` computes the tables.

    `%q = saturate(Erf(DequantizeLinear(%x, @s)))` -->
    `%t = saturate(Erf(DequantizeLinear(@codes, @s)))  %q = code_table(%t, %x)`
    """

    name: ClassVar[str] = "use-code-tables"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        made = sum(_rewrite(func, rw) for func in m.funcs.values())
        erase_dead(m)
        rw.hits["use-code-tables"] += made
        return finish(rw, ctx, made)


def _rewrite(func: Func, rw: Rewriter) -> int:
    sources = _sources(func)
    inside = _inside_tables(func, sources)
    place = {op: k for k, op in enumerate(func.body.body)}
    found = [v for v in sources if v.tensor.dtype in BYTES and _is_read_as_such(v, sources, inside)]
    chains = {v: chain for v in found if _is_slow(chain := _chain(v, sources[v], place), sources[v], v)}
    for v, chain in chains.items():
        _replace(v, chain, sources[v], rw)
    return len(chains)


def _sources(func: Func) -> dict[Value, Value]:
    """The one tensor of bytes from which a value is computed elementwise, if there is one."""
    found: dict[Value, Value] = {}
    for op in func.body.body:
        given = [v for v in op.inputs if not _is_number(v)]
        sources = {found.get(v, v) for v in given}
        if len(sources) != 1 or len(op.results) != 1 or isinstance(source := sources.pop(), Weight):
            continue
        if _has_bytes(source) and _is_elementwise(op, given):
            found[op.result] = source
    return found


def _is_number(v: Value) -> bool:
    return isinstance(v, Weight) and v.data.size == 1


def _has_bytes(v: Value) -> bool:
    return isinstance(v.type, TensorType) and v.tensor.shape is not None and v.tensor.dtype in BYTES


def _is_elementwise(op: Op, given: list[Value]) -> bool:
    facts = FusionFacts.of(op)
    return facts.kind == MAP and all(v in facts.pointwise for v in given)


def _inside_tables(func: Func, sources: dict[Value, Value]) -> dict[Op, Value]:
    """The ops that tables replace, with the source of each table."""
    found: dict[Op, Value] = {}
    for op in reversed(func.body.body):  # users come before what they use
        if len(op.results) != 1 or (source := sources.get(op.result)) is None:
            continue
        users = op.result.users
        if op.result.tensor.dtype in BYTES or (users and all(found.get(u) is source for u in users)):
            found[op] = source
    return found


def _is_read_as_such(v: Value, sources: dict[Value, Value], inside: dict[Op, Value]) -> bool:
    """Whether an op reads a value that is not part of another table with the same source."""
    return any(inside.get(u) is not sources[v] for u in v.users)


def _chain(v: Value, source: Value, place: dict[Op, int]) -> list[Op]:
    """The ops between a source and a value computed from it, in order."""
    found, waiting = set[Op](), [v]
    while waiting:
        x = waiting.pop()
        maker = x.defining_op
        if x is not source and not _is_number(x) and maker is not None and maker not in found:
            found.add(maker)
            waiting += maker.inputs
    return sorted(found, key=place.__getitem__)


def _is_slow(chain: list[Op], source: Value, v: Value) -> bool:
    weights = [w for op in chain for w in op.inputs if isinstance(w, Weight)]
    f = build_te("probe", chain, list(dict.fromkeys([source, *weights])), [v])
    return any(isinstance(n, Call) and n.fn not in _QUICK for s in f.stages for e in s.exprs for n in walk(e))


def _replace(v: Value, chain: list[Op], source: Value, rw: Rewriter) -> None:
    b = rw.builder(chain[-1])
    first = -128 if source.tensor.dtype == I8 else 0
    codes = b.constant(np.arange(first, first + 256).astype(source.tensor.dtype.numpy))
    made: dict[Value, Value] = {source: codes}
    for op in chain:
        operands = [None if x is None else made.get(x, x) for x in op.operands]
        made[op.result] = b.op(op.name, *operands, **op.attrs)
    table = b.Reshape(made[v], b.constant(np.array([256], np.int64)))
    rw.replace(chain[-1], [b.code_table(table, source)])

"""Ops and fused regions become calls of te functions."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.dim import symbol
from occ.compiler.ir.meaning import build_te, dims_of
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, outer_values
from occ.compiler.ir.printer import te_text
from occ.compiler.ir.rewriter import erase_dead
from occ.compiler.ir.storage import to_bytes
from occ.compiler.ir.te import Param, TeFunc
from occ.compiler.ir.types import TensorType
from occ.compiler.ir.value import Value, Weight
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.likeness import likeness
from occ.compiler.passes.te_canonical import FLAG, canonical, checks_to_stage, split
from occ.compiler.passes.te_collapse import collapse
from occ.compiler.passes.te_inline import inline, materialised
from occ.compiler.passes.te_physical import physical


@dataclass(frozen=True)
class LowerTe(Pass):
    """Replaces each op and each fused region by a call of a te function; equal functions are kept once.

    `%y = fuse(%x) do (%a) { %c = Conv(%a, @w)  %r = Relu(%c)  yield %r }` --> `%y = call(%x, @w) {te="conv_relu_..."}`

    With `split`, every stage that is computed into memory becomes a function of its own, and all others are
    substituted: that is the form that codegen_llvm takes.
    """

    split: bool = False

    name: ClassVar[str] = "lower-te"

    def run(self, m: Module, ctx: Context) -> bool:
        lowering = _Lowering(m, self.split)
        waiting = any(not _is_lowered(op) for func in m.funcs.values() for op in func.body.body)
        for op in [op for func in m.funcs.values() for op in func.body.body]:
            if op.name != "dims":
                lowering.op(op)
        erase_dead(m)
        for op in [op for func in m.funcs.values() for op in func.body.body]:
            if op.name == "dims":  # last: the shapes above were read off these ops
                lowering.op(op)
        m.drop_unused_weights()
        _check_types(m, ctx)
        ctx.hits["lower-te"] += len(m.te) if waiting else 0
        return waiting


def _is_lowered(op: Op) -> bool:
    """Whether an op stays as it is: it is a call already, or no kernel of the compiler computes it."""
    foreign = op.name == "foreign" and op.attrs["kernel"] != "halide"
    return foreign or op.name in ("call", "view", "late") or bool(op.spec.host) or "control" in op.spec.tags


def _check_types(m: Module, ctx: Context) -> None:
    """Report every node that computes with an element type that the target has no kernels for.

    Raises:
        CompileError: OCC0302.
    """
    for op in [op for func in m.funcs.values() for op in func.body.body]:
        f = m.te.get(op.attrs.get("te", ""))
        if f is None or not ctx.target.dtypes:
            continue
        used = dict.fromkeys(t.name for t in (*(p.type.dtype for p in f.params), *(s.dtype for s in f.stages)))
        if wrong := [t for t in used if t not in ctx.target.dtypes]:
            ctx.sink.error(
                "OCC0302",
                f"target `{ctx.target.name}` has no kernels for the element type {' or '.join(wrong)}",
                where=f"{shorten(ctx.source or m.name)}: {shorten(str(op.loc))}",
                help="`-t interp` takes every element type",
            )
    ctx.sink.raise_errors()


class _Lowering:
    def __init__(self, m: Module, split_stages: bool) -> None:
        self.m, self.split_stages = m, split_stages
        self.names: dict[str, str] = {}  # text of a te function without its name -> its name
        self.built: dict[Hashable, TeFunc] = {}

    def op(self, op: Op) -> None:
        if op.name == "foreign" and op.attrs["kernel"] == "halide":
            self._halide(op)
            return
        if _is_lowered(op):
            return
        if "view" in op.spec.tags:
            assert op.operands[0] is not None
            self._replace(op, [self._insert(Op("view", [op.operands[0]], {}, [op.result.type], loc=op.loc), op).result])
            return
        if op.name == "fuse":
            (region,) = op.regions
            args = [*region.args, *(v for v in outer_values(region) if isinstance(v, Weight))]
            f = self._build(op.attrs["kind"], region.body, args, region.yields)
            given = dict(zip(region.args, op.operands, strict=True))
            actual = [given.get(a, a) for a in args]
        else:
            args = actual = list(dict.fromkeys(op.inputs))
            f = self._build(op.name.rpartition(".")[2].lower(), [op], args, op.results)
        loaded = [v for v, a in zip(actual, args, strict=True) if not _inlined(a)]
        operands = {f"p{k}": v for k, v in enumerate(loaded) if v is not None}
        messages = tuple(c.message for c in f.checks)
        f = to_bytes(checks_to_stage(f))
        if self.split_stages:
            self._calls(op, inline(f, materialised(f)), operands, messages)
        else:
            self._call(op, f, operands, op.results, messages)

    def _halide(self, op: Op) -> None:
        """A kernel in C++ is a te function without stages."""
        names: tuple[str, ...] = op.attrs["names"]
        (region,) = op.regions
        params = tuple(Param(n, v.tensor) for n, v in zip(names, op.inputs, strict=False))
        results = tuple(Param(n, r.tensor) for n, r in zip(names[len(params) :], region.yields, strict=True))
        dims = dims_of(params, (), results, ())
        made = TeFunc(op.attrs["kind"], dims, params, (), results, source=op.attrs["source"])
        attrs: dict[str, Any] = {"te": self._name(made.name, made)}
        if dims:
            attrs["dims"] = tuple(self.m.symbols[d].dim for d in dims)
        types, names = [r.type for r in op.results], tuple(r.name for r in op.results)
        call = Op("call", op.operands, attrs, types, result_names=names, loc=op.loc)
        self._replace(op, self._insert(call, op).results)

    def _build(self, kind: str, ops: Sequence[Op], args: Sequence[Value], results: Sequence[Value]) -> TeFunc:
        """The te function of some ops, or of a group that is alike; checks name their node, so those are not shared."""
        key = (kind, likeness(ops, args, results))
        if key not in self.built or self.built[key].checks:
            self.built[key] = build_te(kind, ops, args, results)
        return self.built[key]

    def _calls(self, op: Op, f: TeFunc, operands: dict[str, Value], messages: Sequence[str]) -> None:
        """One call for each stage."""
        results = dict(zip((r.name for r in f.results), op.results, strict=False))
        known = dict(operands)
        for part in split(f):
            (made,) = part.results
            is_flag = made.name == FLAG
            known[made.name] = self._emit(op, part, known, [made.type], messages if is_flag else ())[0]
        self._replace(op, [known[name] for name in results])

    def _call(
        self, op: Op, f: TeFunc, operands: dict[str, Value], results: Sequence[Value], messages: Sequence[str]
    ) -> None:
        types = [r.type for r in f.results]
        made = self._emit(op, f, operands, types, messages)
        self._replace(op, made[: len(results)])

    def _emit(
        self, op: Op, f: TeFunc, operands: dict[str, Value], types: Sequence[TensorType], checks: Sequence[str]
    ) -> tuple[Value, ...]:
        collapsed, dims, params = canonical(collapse(physical(f)))
        name = self._name(f.name, collapsed)
        attrs: dict[str, Any] = {"te": name}
        if dims:
            attrs["dims"] = tuple(self.m.symbols[d].dim if d in self.m.symbols else symbol(d) for d in dims)
        if checks:
            attrs["checks"] = tuple(checks)
        names = [r.name for r in op.results] + ["t"] * (len(types) - len(op.results))
        call = Op("call", [operands[p] for p in params], attrs, types, result_names=names[: len(types)], loc=op.loc)
        return self._insert(call, op).results

    def _name(self, stem: str, f: TeFunc) -> str:
        bare = replace(f, name="f", stages=tuple(replace(s, note="") for s in f.stages))
        text = te_text(bare)
        if text not in self.names:
            digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
            self.names[text] = f"{stem}_{digest}"
            self.m.te[self.names[text]] = f.with_name(self.names[text])
        return self.names[text]

    def _insert(self, op: Op, before: Op) -> Op:
        assert before.parent is not None
        return before.parent.insert(op, before)

    def _replace(self, op: Op, values: Sequence[Value]) -> None:
        for old, new in zip(op.results, values, strict=False):
            new.name, new.type = old.name, old.type
            for user, k in list(old.uses):
                user.set_operand(k, new)
        for inner in op.walk():
            inner.set_operands(())
        assert op.parent is not None
        op.parent.remove(op)


def _inlined(value: Value | None) -> bool:
    return isinstance(value, Weight) and value.data.size == 1 and value.tensor.dtype.kind in "fiub"

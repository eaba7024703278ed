"""Lowers ops and fused regions to calls of te functions."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.build_te import build_te, dims_of, is_literal
from occ.compiler.ir.dim import Dim, substitute, symbol
from occ.compiler.ir.liveness import captured_values
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.ir.te.function import Param, TeFunc
from occ.compiler.ir.te.printer import te_text
from occ.compiler.ir.te.storage import to_bytes
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.fuse.structural_key import structural_key
from occ.compiler.passes.schedule.normalise.split_argmax import in_two_reductions
from occ.compiler.passes.te.canonical import FLAG, canonical, checks_to_stage, split
from occ.compiler.passes.te.collapse import collapse
from occ.compiler.passes.te.inline import inline, materialised
from occ.compiler.passes.te.physical import physical
from occ.compiler.passes.te.product_operands import arrange_operands
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class LowerTe(Pass):
    """Replaces each op and each fused region by a call of a te function; equal functions are kept once.

    `%y = fuse(%x) do (%a) { %c = Conv(%a, @w)  %r = Relu(%c)  yield %r }` --> `%y = call(%x, @w) {te="conv_relu_..."}`

    With `split`, every stage computed into memory becomes a function of its own, and all others are inlined: the form
    that codegen_llvm requires.
    """

    split: bool = False

    name: ClassVar[str] = "lower-te"

    def run(self, m: Module, ctx: Context) -> bool:
        lowering = _Lowering(m, self.split)
        waiting = any(not _is_lowered(op) for func in m.funcs.values() for op in func.body.body)
        for op in [op for func in m.funcs.values() for op in func.body.body]:
            if not op.is_dims:
                lowering.op(op)
        erase_dead(m)
        for op in [op for func in m.funcs.values() for op in func.body.body]:
            if op.is_dims:  # last: the shapes above were read from these ops
                lowering.op(op)
        m.drop_unused_weights()
        _check_types(m, ctx)
        ctx.hits["lower-te"] += len(m.te) if waiting else 0
        return waiting


def _is_lowered(op: Op) -> bool:
    """Whether an op stays as it is: it is a call already, or no compiled kernel computes it."""
    foreign = op.name == "foreign" and op.attrs["kernel"] != "halide"
    return foreign or op.name in ("call", "view", "join", "deferred") or bool(op.spec.host) or "control" in op.spec.tags


def _check_types(m: Module, ctx: Context) -> None:
    """Report every node with an element type for which the target has no kernels.

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


@dataclass(frozen=True)
class _Kernel:
    """A te function of the module as its callers see it.

    Attributes:
        name: its name in the module.
        dims: arguments for its symbolic dims, in terms of the original function's dims.
        params: names of its parameters in the original function.
        results: names of its results in the original function, with types.
    """

    name: str
    dims: tuple[Dim, ...]
    params: tuple[str, ...]
    results: tuple[Param, ...]


@dataclass(frozen=True)
class _Lowered:
    """An op or a group as kernels, in order; `results` names their results, and `checks` are their messages."""

    kernels: tuple[_Kernel, ...]
    results: tuple[str, ...]
    checks: tuple[str, ...]


class _Lowering:
    def __init__(self, m: Module, split_stages: bool) -> None:
        self.m, self.split_stages, self.rw = m, split_stages, Rewriter(m)
        self.names: dict[str, str] = {}  # text of a te function without its name -> its name
        self.known: dict[Hashable, _Lowered] = {}

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
            args = [*region.args, *(v for v in captured_values(region) if isinstance(v, Weight))]
            ops = region.body
            made = self._lowered(op.attrs["kind"], ops, args, region.yields, op.attrs.get("schedule", ""))
            given = dict(zip(region.args, op.operands, strict=True))
            actual = [given.get(a, a) for a in args]
        else:
            args = actual = list(dict.fromkeys(op.inputs))
            ops = [op]
            made = self._lowered(op.name.rpartition(".")[2].lower(), ops, args, op.results)
        loaded = [v for v, a in zip(actual, args, strict=True) if not is_literal(a, ops)]
        self._call(op, made, {f"p{k}": v for k, v in enumerate(loaded) if v is not None})

    def _halide(self, op: Op) -> None:
        """In C++, a kernel is a te function without stages."""
        names: tuple[str, ...] = op.attrs["names"]
        (region,) = op.regions
        params = tuple(Param(n, v.tensor) for n, v in zip(names, op.inputs, strict=False))
        results = tuple(Param(n, r.tensor) for n, r in zip(names[len(params) :], region.yields, strict=True))
        dims = dims_of(params, (), results, ())
        f = TeFunc(op.attrs["kind"], dims, params, (), results, halide=op.attrs["source"])
        kernel = _Kernel(self._name(f.name, f), tuple(map(symbol, dims)), names[: len(params)], results)
        self._call(op, _Lowered((kernel,), names[len(params) :], ()), dict(zip(names, op.inputs, strict=False)))

    def _lowered(
        self, kind: str, ops: Sequence[Op], args: Sequence[Value], results: Sequence[Value], hint: str = ""
    ) -> _Lowered:
        """The kernels of some ops, shared by equal groups.

        Checks name their node, so those are not shared.
        """
        key = (kind, hint, structural_key(ops, args, results))
        if key not in self.known or self.known[key].checks:
            f = build_te(kind, ops, args, results)
            messages = tuple(c.message for c in f.checks)
            f = to_bytes(checks_to_stage(f))
            parts = _parts(f) if self.split_stages else [f]
            names = tuple(r.name for r in f.results if r.name != FLAG)
            self.known[key] = _Lowered(tuple(self._kernel(p, hint) for p in parts), names, messages)
        return self.known[key]

    def _kernel(self, f: TeFunc, hint: str) -> _Kernel:
        collapsed, dims, params = canonical(collapse(physical(f)))
        if not self.split_stages:  # only Halide has schedules
            collapsed = replace(collapsed, hint=hint)
        return _Kernel(self._name(f.name, collapsed), tuple(dims), tuple(params), f.results)

    def _call(self, op: Op, made: _Lowered, operands: Mapping[str, Value]) -> None:
        """The kernel calls that replace `op`."""
        known = dict(operands)
        for kernel in made.kernels:
            attrs: dict[str, Any] = {"te": kernel.name}
            if kernel.dims:
                known_dims = {name: info.dim for name, info in self.m.symbols.items()}
                attrs["dims"] = tuple(substitute(d, known_dims) for d in kernel.dims)
            if made.checks and any(r.name == FLAG for r in kernel.results):
                attrs["checks"] = made.checks
            names = [r.name for r in op.results] + ["t"] * len(kernel.results)
            types = [r.type for r in kernel.results]
            read = [known[p] for p in kernel.params]
            call = Op("call", read, attrs, types, result_names=names[: len(types)], loc=op.loc)
            known |= zip((r.name for r in kernel.results), self._insert(call, op).results, strict=True)
        self._replace(op, [known[name] for name in made.results])

    def _name(self, stem: str, f: TeFunc) -> str:
        name, text = kernel_name(stem, f)
        if text not in self.names:
            self.names[text] = name
            self.m.te[name] = f.with_name(name)
        return self.names[text]

    def _insert(self, op: Op, before: Op) -> Op:
        assert before.parent is not None
        return before.parent.insert(op, before)

    def _replace(self, op: Op, values: Sequence[Value]) -> None:
        for old, new in zip(op.results, values, strict=False):
            new.name, new.type = old.name, old.type
            old.replace_uses(new)
        self.rw.erase(op)


def _parts(f: TeFunc) -> list[TeFunc]:
    """Functions of one stage each, with some more for operands of products."""
    made: list[TeFunc] = []
    for part in split(inline(f, materialised(f))):
        g = in_two_reductions(part)
        made += split(arrange_operands(part)) if g is part else split(inline(g, materialised(g)))
    return made


def kernel_name(stem: str, f: TeFunc) -> tuple[str, str]:
    """The name of a te function, which describes it, and the text that the name's digest is of."""
    text = te_text(f.with_name("f").without_notes())
    return f"{stem}_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}", text

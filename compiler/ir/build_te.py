"""Builds the te function of an op from its operator's `body`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.dim import Dim, symbols
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.te.expr import Expr, Size, literal
from occ.compiler.ir.te.function import AnyStage, Builder, Check, Param, Scatter, TeFunc, Tensor, loads, reduce_axes
from occ.compiler.ir.te.index import simplify_stage
from occ.compiler.ir.te.walks import walk
from occ.compiler.ir.types import TensorType

Elements = tuple[Dim | float | None, ...]
Known = Callable[[Value], Elements | None]
LARGEST_KNOWN = 1024  # elements of an integer tensor that may define a shape


_ARITHMETIC = {"Add", "Sub", "Mul"}  # as fast with a scalar that is loaded once; division is not
_LEARNED = 5  # significant digits from which a number counts as trained, not written by people or formulas


class ConstTensor(Tensor):
    """A one-element constant: loads of it become literals, so it needs no parameter."""

    __slots__ = ("const",)

    def __init__(self, weight: Weight) -> None:
        super().__init__(weight.name, weight.tensor)
        self.const = literal(weight.data.reshape(-1)[0].item(), weight.tensor.dtype)

    def __getitem__(self, index: Any) -> Expr:
        return self.const


def is_literal(value: Value | None, ops: Sequence[Op]) -> bool:
    """Whether a value is a one-element constant that becomes a literal in the te function of `ops`.

    A trained number, such as a scale of 0.63296586, becomes a parameter instead if `ops` add or multiply it: layers
    that differ only in it share a kernel.
    """
    if not isinstance(value, Weight) or value.data.size != 1 or value.tensor.dtype.kind not in "fiub":
        return False
    if value.tensor.dtype != F32 or not _is_learned(value.data.reshape(-1)[0]):
        return True
    return any(op.name not in _ARITHMETIC for op in ops if value in op.operands)


def _is_learned(x: np.floating) -> bool:
    digits, _, _ = np.format_float_scientific(abs(x), unique=True, trim="-").partition("e")
    return bool(np.isfinite(x)) and len(digits.replace(".", "")) > _LEARNED


def static_elements(value: Value) -> Elements | None:
    """The elements of a value known at its definition: a small constant, or a `dims` op."""
    if isinstance(value, Weight):
        if value.tensor.dtype.kind in "fiub" and value.data.size <= LARGEST_KNOWN:
            return tuple(x if isinstance(x, float) else int(x) for x in value.data.reshape(-1).tolist())
        return None
    op = value.defining_op
    return op.attrs["values"] if op is not None and op.is_dims else None


def attributes(op: Op) -> SimpleNamespace:
    """The attributes of an op with defaults, and the number of its results as `n_results`."""
    a = op.a
    a.n_results = len(op.results)
    return a


def tensor_of(value: Value | None, name: str, known: Known, *, static: bool) -> Any:
    """An operand as an operator's functions see it.

    With its elements if they are known and it is `static`.
    """
    if value is None:
        return None
    if not isinstance(value.type, TensorType):
        return value
    return Tensor(name, value.type, known(value) if static else None)


def typed_operands(op: Op) -> list[Any]:
    """The operands as an operator's functions see them if values do not matter; None for absent ones."""
    return [tensor_of(v, op.spec.operand_name(k), static_elements, static=False) for k, v in enumerate(op.operands)]


def build_te(
    name: str, ops: Sequence[Op], inputs: Sequence[Value], outputs: Sequence[Value], known: Known = static_elements
) -> TeFunc:
    """The te function of several ops: their bodies run in order in one builder.

    Args:
        name: of the function.
        ops: in topological order, all with a te body.
        inputs: values that become parameters, in order; literals (`is_literal`) need not be named.
        outputs: values that become results.
        known: elements of static operands.
    """
    t = Builder()
    env: dict[Value, Tensor] = {}
    params: list[Param] = []
    for value in inputs:
        if is_literal(value, ops):
            assert isinstance(value, Weight)
            env[value] = ConstTensor(value)
        else:
            params.append(Param(t.fresh(f"p{len(params)}"), value.tensor))
            env[value] = Tensor(params[-1].name, value.tensor)
    for op in ops:
        _run_body(op, t, env, known)
    results: list[Param] = []
    for value in outputs:
        tensor = env[value]
        if not any(s.name == tensor.name for s in t.stages) or any(r.name == tensor.name for r in results):
            tensor = t.map(tensor.shape, lambda *i, x=tensor: x[i], name="out")  # a parameter or a repeated result
        results.append(Param(tensor.name, value.tensor))
    return finish(TeFunc(name, (), tuple(params), tuple(t.stages), tuple(results), tuple(t.checks)))


def parameters(inputs: Iterable[Value], ops: Sequence[Op]) -> dict[str, Value]:
    """The values behind the parameters of `build_te`, by name; `finish` drops those that nothing loads."""
    return {f"p{k}": v for k, v in enumerate(v for v in inputs if not is_literal(v, ops))}


def _run_body(op: Op, t: Builder, env: dict[Value, Tensor], known: Known) -> None:
    spec = op.spec
    assert spec.body is not None, f"{op.name} has no te body"
    t.note = f'{op.name} "{op.loc}"' if op.loc.nodes else op.name
    operands: list[Tensor | None] = []
    for k, value in enumerate(op.operands):
        if value is None:
            operands.append(None)
            continue
        tensor = env[value] if value in env else Tensor(value.name, value.tensor)
        if spec.operand_name(k) in spec.static:
            tensor = tensor.with_value(known(value))
        operands.append(tensor)
    checks = len(t.checks)
    results = spec.body(t, *operands, a=attributes(op))
    t.checks[checks:] = [
        Check(c.axes, c.cond, f"node `{shorten(str(op.loc))}`: {c.message}") for c in t.checks[checks:]
    ]
    listed = results if isinstance(results, tuple) else (results,)
    env.update(zip(op.results, listed, strict=False))


def finish(f: TeFunc) -> TeFunc:
    """Drop stages that no result needs and parameters that nothing loads, and list the symbolic dims."""
    needed = {r.name for r in f.results} | {ld.source for c in f.checks for ld in loads(c.cond)}
    kept: list[AnyStage] = []
    for stage in reversed(f.stages):
        if stage.name in needed:
            kept.append(stage)
            needed |= {ld.source for ld in loads(*stage.exprs)}
    kept = [simplify_stage(s) for s in reversed(kept)]
    params = tuple(p for p in f.params if p.name in needed)
    return TeFunc(
        f.name, dims_of(params, kept, f.results, f.checks), params, tuple(kept), f.results, f.checks, f.schedule
    )


def dims_of(
    params: Sequence[Param], stages: Sequence[AnyStage], results: Sequence[Param], checks: Sequence[Check]
) -> tuple[str, ...]:
    """Names of the symbolic dims that occur, in order of appearance."""
    return tuple(symbols(*occurring(params, stages, results, checks)))


def occurring(
    params: Sequence[Param], stages: Sequence[AnyStage], results: Sequence[Param], checks: Sequence[Check]
) -> list[Dim]:
    """All extents and sizes that occur, in order of appearance."""
    dims: list[Dim] = [d for p in (*params, *results) for d in p.type.dims]
    dims += [n for p in (*params, *results) for _, n in p.type.layout.within]
    exprs = [e for s in stages for e in s.exprs] + [c.cond for c in checks]
    for s in stages:
        dims += s.shape
        if isinstance(s, Scatter):
            dims += [a.extent for a in s.over]
    for c in checks:
        dims += [a.extent for a in c.axes]
    for e in exprs:
        dims += [a.extent for a in reduce_axes(e)]
        dims += [n.dim for n in walk(e) if isinstance(n, Size)]
    return dims

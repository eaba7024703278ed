"""Inlines the stages of a te function into a builder, on other operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim, Sym, substitute
from occ.compiler.ir.shape import equal_dims
from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, Size, wrap
from occ.compiler.ir.te.function import AnyStage, Builder, Scatter, TeFunc, Tensor, TeStage, reduce_axes
from occ.compiler.ir.te.walks import transform
from occ.compiler.ir.types import TensorType

CODE = "OCC0615"


def splice(t: Builder, f: TeFunc, operands: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Append the stages of `f` to those of `t`, with new names; returns the results.

    Args:
        t: the builder.
        f: the function; each of its dims is an extent of a parameter.
        operands: arguments for its parameters.

    Raises:
        Invalid: an operand does not have the type of its parameter.
    """
    return _Splice(t, f, operands).results()


class _Splice:
    def __init__(self, t: Builder, f: TeFunc, operands: Sequence[Tensor]) -> None:
        self.t, self.f = t, f
        self.dims: dict[str, Dim] = _bind(f, operands)
        self.sources = {p.name: x.name for p, x in zip(f.params, operands, strict=True)}
        self.axes: dict[str, str] = {}

    def results(self) -> Tensor | tuple[Tensor, ...]:
        made = {s.name: self._stage(s) for s in self.f.stages}
        for c in self.f.checks:
            axes = self._fresh(c.axes)
            self.t.checks.append(replace(c, axes=axes, cond=self._expr(c.cond)))
        listed = tuple(made[r.name] for r in self.f.results)
        return listed[0] if len(listed) == 1 else listed

    def _stage(self, s: AnyStage) -> Tensor:
        axes = self._fresh(s.axes)
        inner = self._fresh(
            s.over if isinstance(s, Scatter) else reduce_axes(s.expr), "u" if isinstance(s, Scatter) else "r"
        )
        if isinstance(s, Scatter):
            made: AnyStage = Scatter(
                self.t.fresh(s.name), axes, self._expr(s.init), inner, tuple(map(self._expr, s.target)),
                self._expr(s.value), s.combine, self.t.note,
            )  # fmt: skip
        else:
            made = TeStage(self.t.fresh(s.name), axes, self._expr(s.expr), self.t.note, s.role)
        self.sources[s.name] = made.name
        self.t.stages.append(made)
        return Tensor(made.name, TensorType(made.dtype, made.shape))

    def _fresh(self, axes: Sequence[Axis], letter: str = "i") -> tuple[Axis, ...]:
        made = self.t.axes([substitute(a.extent, self.dims) for a in axes], letter)
        self.axes |= {old.name: new.name for old, new in zip(axes, made, strict=True)}
        return made

    def _expr(self, e: Expr) -> Expr:
        def visit(n: Expr) -> Expr | None:
            match n:
                case Index():
                    return Index(self.axes[n.name])
                case Size():
                    return wrap(substitute(n.dim, self.dims))
                case Load():
                    return Load(self.sources[n.source], n.index, n.dtype)
                case Reduce():
                    axes = tuple(Axis(self.axes[a.name], substitute(a.extent, self.dims)) for a in n.axes)
                    return Reduce(n.kind, axes, n.body, n.dtype)
                case _:
                    return None

        return transform(e, visit)


def _bind(f: TeFunc, operands: Sequence[Tensor]) -> dict[str, Dim]:
    """The dims of a function, computed from its operands."""
    if len(operands) != len(f.params):
        raise Invalid(f"te `{f.name}` takes {len(f.params)} operands, not {len(operands)}", code=CODE)
    dims: dict[str, Dim] = {}
    for p, x in zip(f.params, operands, strict=True):
        if x.dtype != p.type.dtype or x.rank != len(p.type.dims):
            raise Invalid(f"te `{f.name}` takes {p.name} as {p.type}, and it is {x.type}", code=CODE)
        for d, n in zip(p.type.dims, x.shape, strict=True):
            if isinstance(d, Sym) and d.is_symbol:
                dims.setdefault(str(d), n)
    for p, x in zip(f.params, operands, strict=True):
        for want, n in zip(p.type.dims, x.shape, strict=True):
            equal_dims(substitute(want, dims), n, f"te `{f.name}` takes {p.name} as {p.type}, and it is {x.type}")
    return dims

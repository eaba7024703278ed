"""te functions: stages of expressions over index boxes, and the builder of operator bodies.

A te function is a straight-line list of stages. A `TeStage` computes each element of its box from an expression; a
`Scatter` starts from one and then writes at computed positions; a `Check` is a run-time condition on the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import field, replace
from functools import cached_property

from occ.compiler.ir.dim import Dim, upper
from occ.compiler.ir.dtype import BOOL, I16, I32, I64, DType
from occ.compiler.ir.te.expr import (
    CALLS,
    REDUCTIONS,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Operand,
    Reduce,
    Select,
    literal,
    where,
    wrap,
)
from occ.compiler.ir.te.roles import PAD
from occ.compiler.ir.te.schedule import Directive
from occ.compiler.ir.te.walks import children, of_kind
from occ.compiler.ir.types import TensorType
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class TeStage:
    """`name[axes] = expr`.

    Attributes:
        name: of the stage, without meaning to the compiler.
        axes: the box that it computes.
        expr: the element at a position.
        note: the ONNX nodes that it came from, not part of its identity.
        role: the stage's function in a schedule, one of `ROLES`; empty for most.
    """

    name: str
    axes: tuple[Axis, ...]
    expr: Expr
    note: str = field(default="", compare=False)
    role: str = ""

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All expressions of the stage."""
        return (self.expr,)


@dataclass(frozen=True)
class Scatter:
    """`name[axes] = init`, then in order of `over`: `name[target] = name[target] combine value`.

    `combine` is `set`, `add`, `mul`, `max` or `min`; or `into`, which is `set` if `init` reads each element of a
    parameter at its own position, and the caller gives that parameter the memory of the result: native code does not
    touch the rest. `running_add` and `running_mul` combine each value with the element that was written one step before
    along the first axis of `over`, if there is one; their targets cover the box, so `init` is never seen. A target
    outside the box is the caller's error (see `Check`).
    """

    name: str
    axes: tuple[Axis, ...]
    init: Expr
    over: tuple[Axis, ...]
    target: tuple[Expr, ...]
    value: Expr
    combine: str = "set"
    note: str = field(default="", compare=False)

    @property
    def dtype(self) -> DType:
        return self.init.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.init, *self.target, self.value)

    @property
    def base(self) -> str | None:
        """The parameter that shares memory with the result, if there is one."""
        if self.combine != "into":
            return None
        assert isinstance(self.init, Load), "existing values are read unchanged"
        return self.init.source


AnyStage = TeStage | Scatter


@dataclass(frozen=True)
class Check:
    """`cond` must hold at every position of the box; otherwise the run fails with `message`."""

    axes: tuple[Axis, ...]
    cond: Expr
    message: str


@dataclass(frozen=True)
class Param:
    """A tensor parameter."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class TeFunc:
    """A te function.

    Attributes:
        name: symbol of the function.
        dims: names of its symbolic dims, in call order.
        params: tensor parameters, in call order.
        stages: in order of computation.
        results: (stage, layout-carrying type) of each result, in order.
        checks: conditions on the inputs.
        schedule: how the stages are computed; empty before the `scheduled` stage.
        hint: the user's preferences for its schedule, see `Hint`.
        halide: the body of a user's Halide generator, instead of stages and schedule.
    """

    name: str
    dims: tuple[str, ...]
    params: tuple[Param, ...]
    stages: tuple[AnyStage, ...]
    results: tuple[Param, ...]
    checks: tuple[Check, ...] = ()
    schedule: tuple[Directive, ...] = ()
    halide: str = ""
    hint: str = ""

    def stage(self, name: str) -> AnyStage:
        """The stage with that name."""
        return next(s for s in self.stages if s.name == name)

    @property
    def by_role(self) -> dict[str, TeStage]:
        """The stage of each role; if several, the last one, which reads the others."""
        return {s.role: s for s in self.stages if isinstance(s, TeStage) and s.role}

    @cached_property
    def shapes(self) -> dict[str, tuple[Dim, ...]]:
        """Logical shape of everything that can be loaded: parameters and stages."""
        return {p.name: p.type.dims for p in self.params} | {s.name: s.shape for s in self.stages}

    def with_name(self, name: str) -> TeFunc:
        return replace(self, name=name)

    def with_schedule(self, directives: Iterable[Directive]) -> TeFunc:
        return replace(self, schedule=tuple(directives))

    def without_notes(self) -> TeFunc:
        """The function without its ONNX node notes."""
        return replace(self, stages=tuple(replace(s, note="") for s in self.stages))


def position(axes: Sequence[Axis]) -> tuple[Expr, ...]:
    """The current position on axes as simplified indices: 0 if the extent is 1."""
    return tuple(literal(0, I64) if a.extent == 1 else Index(a.name) for a in axes)


def loads(*exprs: Expr) -> list[Load]:
    """All loads in the expressions, each node once."""
    return [n for e in exprs for n in of_kind(Load, e)]


def certain_loads(*exprs: Expr) -> set[Load]:
    """The loads that occur at every position.

    A load in only one branch of a select may be out of bounds wherever the other branch is selected.
    """
    found: set[Load] = set()
    seen: set[int] = set()
    todo = list(exprs)
    while todo:
        n = todo.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        if isinstance(n, Load):
            found.add(n)
        todo += (n.cond,) if isinstance(n, Select) else children(n)
    return found


def product_in_pairs(r: Reduce) -> Binary | None:
    """The product in i16 of a sum in i32, or None: each two of such products sum within i16, too."""
    body = r.body.arg if r.kind == "sum" and isinstance(r.body, Cast) and r.dtype == I32 else None
    return body if isinstance(body, Binary) and body.op == "mul" and body.dtype == I16 else None


def reduce_axes(e: Expr) -> tuple[Axis, ...]:
    """The axes of all reductions inside `e`."""
    found = of_kind(Reduce, e)
    return tuple(a for n in found for a in n.axes) if found else ()


class Tensor:
    """An operand in an operator's `infer` and `body`: its type, known value, and loads of it.

    Attributes:
        name: the parameter or stage that it stands for.
        type: tensor type with a known rank.
        value: the elements in row-major order if they are known at compile time (ints, dims, floats), otherwise None.
    """

    __slots__ = ("name", "type", "value")

    def __init__(self, name: str, type: TensorType, value: tuple[Dim | float | None, ...] | None = None) -> None:  # noqa: A002
        self.name, self.type, self.value = name, type, value

    def with_value(self, value: tuple[Dim | float | None, ...] | None) -> Tensor:
        """A copy of the tensor with known elements."""
        same = copy(self)
        same.value = value
        return same

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.dims

    @property
    def rank(self) -> int:
        return self.type.rank

    def __getitem__(self, index: Operand | tuple[Operand, ...]) -> Expr:
        index = index if isinstance(index, tuple) else (index,)
        assert len(index) == self.rank, f"{self.name} has rank {self.rank}, not {len(index)}"
        return Load(self.name, tuple(wrap(i) for i in index), self.dtype)

    def at(self, index: Sequence[Expr]) -> Expr:
        """The element that numpy-style broadcasting pairs with `index` (aligned at the last axis)."""
        mine = index[len(index) - self.rank :]
        return self[tuple(literal(0, I64) if upper(n) == 1 else i for i, n in zip(mine, self.shape, strict=True))]


_WORDS = "carried rem shl shr dim loc role check schedule halide hint true false inf nan"
RESERVED = frozenset({*REDUCTIONS, *CALLS, *_WORDS.split()})


class Builder:
    """Collects the stages of one operator or of a fused group. Passed to every `body` as `t`."""

    def __init__(self) -> None:
        self.stages: list[AnyStage] = []
        self.checks: list[Check] = []
        self.note = ""
        self._names: dict[str, int] = {}  # each with the last number appended to it
        self._axis_count = 0

    def fresh(self, hint: str) -> str:
        """An unused stage or parameter name."""
        hint = f"{hint}_of" if hint in RESERVED else hint
        name, n = hint, self._names.get(hint, 0)
        while name in self._names:
            n += 1
            name = f"{hint}{n}"
        self._names[hint] = max(n, 1)
        self._names.setdefault(name, 1)
        return name

    def axes(self, extents: Sequence[Dim], letter: str = "i") -> tuple[Axis, ...]:
        """Fresh axes, unique in the function."""
        start = self._axis_count
        self._axis_count += len(extents)
        return tuple(Axis(f"{letter}{start + k}", e) for k, e in enumerate(extents))

    def map(
        self,
        shape: Sequence[Dim],
        fn: Callable[..., Operand],
        *,
        name: str = "",
        dtype: DType | None = None,
        role: str = "",
    ) -> Tensor:
        """A stage whose element at `i, j, ...` is `fn(i, j, ...)`; `dtype` is only needed for bare numbers.

        A stage with a role (`ROLES`) is named after it unless `name` is given.
        """
        axes = self.axes(shape)
        expr = wrap(fn(*(Index(a.name) for a in axes)), dtype or I64)
        return self._add(TeStage(self.fresh(name or role or "m"), axes, expr, self.note, role))

    def reduce(
        self,
        kind: str,
        shape: Sequence[Dim],
        over: Sequence[Dim],
        fn: Callable[..., Expr],
        *,
        name: str = "",
        role: str = "",
    ) -> Tensor:
        """A stage that reduces `fn(*position, *reduced)` over a box of extents `over`; name and role as in `map`."""
        axes, inner = self.axes(shape), self.axes(over, "r")
        body = fn(*(Index(a.name) for a in axes + inner))
        dtype = I64 if kind in ("argmax", "argmin") else body.dtype
        expr = Reduce(kind, inner, body, dtype)
        return self._add(TeStage(self.fresh(name or role or kind), axes, expr, self.note, role))

    def sum(
        self, shape: Sequence[Dim], over: Sequence[Dim], fn: Callable[..., Expr], *, name: str = "", role: str = ""
    ) -> Tensor:
        """A `reduce` of kind sum."""
        return self.reduce("sum", shape, over, fn, name=name or role or "acc", role=role)

    def scatter(
        self,
        shape: Sequence[Dim],
        init: Callable[..., Operand],
        over: Sequence[Dim],
        target: Callable[..., Sequence[Operand]],
        value: Callable[..., Expr],
        *,
        combine: str = "set",
    ) -> Tensor:
        """A `Scatter` stage; `target` and `value` are functions of the positions of `over`."""
        axes, inner = self.axes(shape), self.axes(over, "u")
        where_to = tuple(wrap(e) for e in target(*(Index(a.name) for a in inner)))
        what = value(*(Index(a.name) for a in inner))
        start = wrap(init(*(Index(a.name) for a in axes)), what.dtype)
        return self._add(Scatter(self.fresh("scatter"), axes, start, inner, where_to, what, combine, self.note))

    def check(self, shape: Sequence[Dim], fn: Callable[..., Expr], message: str) -> None:
        """Add a check that `fn` holds at every position; `message` completes "the node ...: "."""
        axes = self.axes(shape, "k")
        cond = fn(*(Index(a.name) for a in axes))
        assert cond.dtype == BOOL, "a check is a condition"
        if not (isinstance(cond, Const) and cond.value):
            self.checks.append(Check(axes, cond, message))

    def pad(self, x: Tensor, before: Sequence[Dim], after: Sequence[Dim], value: Operand) -> Tensor:
        """`x` with a border of `value`; negative pads crop. `x` itself if nothing is added."""
        if all(p == 0 for p in (*before, *after)):
            return x
        shape = [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)]

        def element(*i: Expr) -> Expr:
            inside: Expr = literal(True, BOOL)
            for k, b, n, a in zip(i, before, x.shape, after, strict=True):
                if b != 0:
                    inside = inside & (k >= b)
                if a != 0:
                    inside = inside & (k < b + n)
            return where(inside, x[tuple(k - b for k, b in zip(i, before, strict=True))], value)

        return self.map(shape, element, role=PAD)

    def _add(self, stage: AnyStage) -> Tensor:
        self.stages.append(stage)
        return Tensor(stage.name, TensorType(stage.dtype, stage.shape))

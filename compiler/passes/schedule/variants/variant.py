"""A variant of a stage: a second schedule for runs whose sizes satisfy a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from occ.compiler.ir.te.expr import Axis, Expr, Index, Load, Reduce, binary, where, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage, reduce_axes
from occ.compiler.ir.te.schedule import AtMost, Directive
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.rules.schedule_rule import Declined
from occ.compiler.passes.schedule.loops import Directives

Loops = Callable[[TeStage, TeFunc], Directives | Declined]


def with_variant(
    f: TeFunc, s: TeStage, between: Sequence[TeStage], test: AtMost, loops: Loops, *,
    onto: TeFunc | None = None, suffix: str = "few",
) -> TeFunc:  # fmt: skip
    """The function with a second schedule of one stage, used at run time if sizes satisfy a condition.

    It replaces the first one if all sizes do; the function is unchanged if none do or the rule does not apply.

    Args:
        f: a scheduled function.
        s: the stage, in memory.
        between: stages through which it reads its operands; the variant gets copies of them.
        test: the condition on sizes.
        loops: takes the stage and the function with that one alone; returns the directives of the stage and its copies.
        onto: `f` with variants that cover more sizes and come after this one; `f` itself by default.
        suffix: of the names of its own stages.
    """
    test, onto = test.simplest, f if onto is None else onto
    if test.never:
        return onto
    if test.always:
        made = loops(s, replace(f, schedule=()))
        own = {s.name, *(x.name for x in between)}
        rest = [d for d in f.schedule if d.stage not in own]
        return onto if isinstance(made, Declined) else replace(f, schedule=(*made, *rest))
    copies = {x.name: copied(x, {y.name for y in between}, suffix) for x in between}
    again = replace(s, expr=reading(s.expr, set(copies), suffix))
    stages = [again if x is s else copies.get(x.name, x) for x in f.stages]
    made = loops(again, replace(f, stages=tuple(stages), schedule=()))
    if isinstance(made, Declined):
        return onto
    mine = [replace(d, variant=1) if d.stage == s.name else d for d in made]
    others = [replace(d, variant=d.variant + 1) if d.stage == s.name and d.variant else d for d in onto.schedule]
    merged: list[AnyStage] = []
    for x in onto.stages:
        if isinstance(x, TeStage) and x.name == s.name:
            x = replace(x, expr=where(binary("le", wrap(test.left), wrap(test.right)), again.expr, x.expr))
        merged += [copies[x.name], x] if x.name in copies else [x]
    return replace(onto, stages=tuple(merged), schedule=(Directive(s.name, "specialize", (test,)), *mine, *others))


def copied(s: TeStage, names: set[str], suffix: str = "few") -> TeStage:
    """A stage under another name, with axes of its own, reading other stages in `names` under their new names."""
    inner = {a.name: f"{a.name}{suffix[0]}" for a in reduce_axes(s.expr)}
    outer = {a.name: f"{a.name}{suffix[0]}" for a in s.axes}

    def rename(n: Expr) -> Expr | None:
        if isinstance(n, Index):
            return Index((outer | inner).get(n.name, n.name))
        if isinstance(n, Reduce):
            return Reduce(n.kind, tuple(Axis(inner[a.name], a.extent) for a in n.axes), n.body, n.dtype)
        return None

    axes = tuple(Axis(outer[a.name], a.extent) for a in s.axes)
    return replace(s, name=f"{s.name}{suffix}", axes=axes, expr=reading(transform(s.expr, rename), names, suffix))


def reading(e: Expr, names: set[str], suffix: str = "few") -> Expr:
    return transform(
        e,
        lambda n: Load(f"{n.source}{suffix}", n.index, n.dtype) if isinstance(n, Load) and n.source in names else None,
    )

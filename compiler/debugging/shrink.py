"""Reduces a failing model while the failure persists (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from occ.compiler.frontend.text import parse
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Weight
from occ.compiler.ir.printer import module_text, weight_offsets
from occ.compiler.ir.rewriter import Rewriter, erase_dead
from occ.compiler.ir.types import TensorType

Fails = Callable[[Module], bool]
Change = Callable[[Module], bool]  # makes one change; false if there is none with that number
Tell = Callable[[str], None]


def copy_of(m: Module) -> Module:
    """A copy of a module that shares the data of its weights."""
    copied = parse(module_text(m), m.registry, weights=[m.weights[n].data for n in weight_offsets(m)])
    copied.stage = m.stage
    return copied


def reduce(m: Module, fails: Fails, tell: Tell = lambda _: None) -> Module:
    """The smallest module found for which `fails` holds; it must hold for `m`, which is not changed.

    Raises:
        ValueError: it does not hold for `m`.
    """
    if not fails(copy_of(m)):
        raise ValueError("the model does not fail")
    best = m
    size = _size(best)
    while True:
        for smaller in _candidates(best):
            if _size(smaller) < size and fails(copy_of(smaller)):
                best, size = smaller, _size(smaller)
                tell(f"{sum(1 for _ in best.walk())} ops, {len(best.main.args)} inputs, {len(best.weights)} weights")
                break
        else:
            return best


def _size(m: Module) -> tuple[int, int, int]:
    ops = sum(1 for _ in m.walk())
    return (ops, len(m.main.results), len(m.main.args) + sum(w.data.size > 16 for w in m.weights.values()))


def _candidates(m: Module) -> Iterator[Module]:
    """Smaller modules: large cuts first."""
    count = len(m.main.body.body)
    step = max(count // 2, 1)
    while True:
        for k in range(0, count, step):
            yield from _changed(m, lambda c, k=k: _end_at(c, k))
            yield from _changed(m, lambda c, k=k, n=step: _begin_behind(c, k, k + n))
        if step == 1:
            break
        step //= 2
    for k in range(len(m.main.results) if len(m.main.results) > 1 else 0):
        yield from _changed(m, lambda c, k=k: _drop_output(c, k))
    for k in range(count):
        yield from _changed(m, lambda c, k=k: _bypass(c, k))


def _changed(m: Module, change: Change) -> Iterator[Module]:
    made = copy_of(m)
    if change(made):
        erase_dead(made)
        made.main.body.args[:] = [a for a in made.main.args if a.uses]
        yield made


def _end_at(m: Module, k: int) -> bool:
    """Make the results of the k-th op the outputs, and drop everything after it."""
    body = m.main.body
    ops = body.body
    if k >= len(ops) - 1 or not ops[k].results:
        return False
    Rewriter(m).replace_operands(body.terminator, [r for r in ops[k].results if isinstance(r.type, TensorType)])
    m.main.result_names = [r.name for r in ops[k].results if isinstance(r.type, TensorType)]
    return bool(m.main.result_names)


def _begin_behind(m: Module, first: int, last: int) -> bool:
    """Turn the results that a range of ops passes to others into inputs."""
    ops = m.main.body.body[first:last]
    for op in ops:
        for r in op.results:
            if all(u in ops for u, _ in r.uses) or not isinstance(r.type, TensorType) or r.type.shape is None:
                continue
            r.replace_uses(m.main.body.add_arg(r.type, f"{r.name}.in"), outside=ops)
    return bool(ops)


def _drop_output(m: Module, k: int) -> bool:
    body = m.main.body
    Rewriter(m).replace_operands(body.terminator, [v for j, v in enumerate(body.yields) if j != k])
    m.main.result_names = [n for j, n in enumerate(m.main.result_names) if j != k]
    return True


def _bypass(m: Module, k: int) -> bool:
    """Replace the k-th op by an operand of the same type."""
    ops = m.main.body.body
    op: Op | None = ops[k] if k < len(ops) else None
    if op is None or len(op.results) != 1:
        return False
    same = [v for v in op.inputs if v.type == op.result.type and not isinstance(v, Weight)]
    if not same:
        return False
    op.result.replace_uses(same[0])
    return True

"""The rewriter, through which every mutation of a module goes; it keeps uses and locations correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dim import Dim, Sym, substitute, symbols
from occ.compiler.ir.liveness import data_symbols, defined_sizes, is_live, parameter_sizes
from occ.compiler.ir.location import fuse
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType

OpRule = Callable[[Op, "Rewriter"], bool]
_LIMIT = 64  # rewrites starting from one op; two rules that undo each other hit this limit


class Rewriter:
    """Changes a module.

    Attributes:
        module: the module.
        hits: how often each rule changed something, by rule name.
        renamed: replacements of sizes since the start, by their original names.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.hits: Counter[str] = Counter()
        self.renamed: dict[str, Dim] = {}
        self._touched: list[Op] = []

    def builder(self, before: Op) -> GraphBuilder:
        """A builder that inserts before an op and gives new ops its location."""
        assert before.parent is not None
        return GraphBuilder(before.parent, before, before.loc, self.module)

    def replace(self, op: Op, values: Sequence[Value]) -> None:
        """Replace the results of `op` by `values`, and erase it; its names and locations move to the replacement."""
        for old, new in zip(op.results, values, strict=True):
            self.replace_value(old, new)
        self.erase(op)

    def replace_value(self, old: Value, new: Value) -> None:
        """Redirect all readers of one value to another one; its name and location move along.

        The old value's data-dependent sizes equal the new one's: the old size symbols no longer have a definition.
        """
        assert old is not new
        if told := _renamed_extents(old, new):
            self.module.substitute(told)
            self.renamed = {**told, **{name: substitute(d, told) for name, d in self.renamed.items()}}
        maker, op = new.defining_op, old.defining_op
        if maker is not None and op is not None:
            if maker.loc != op.loc:
                maker.loc = fuse([maker.loc, op.loc])
            if maker.parent is op.parent:
                new.name = old.name
        if maker is not None:
            self._touched.append(maker)
        self._touched += [user for user, _ in old.uses]
        old.replace_uses(new)

    def erase(self, op: Op) -> None:
        """Remove an op whose results have no readers."""
        assert not any(r.uses for r in op.results), f"{op} is still read"
        assert op.parent is not None
        self._touched += [v.defining_op for v in op.inputs if v.defining_op is not None]
        unlink(op)
        op.parent.remove(op)

    def exchange(self, op: Op, made: Op) -> Op:
        """Replace an op by another one with as many results, or with none that are read; returns it.

        Names and locations stay: this is for passes after `fused`, where an op keeps its meaning.
        """
        assert op.parent is not None
        op.parent.insert(made, op)
        for old, new in zip(op.results, made.results, strict=False):
            old.replace_uses(new)
        self.erase(op)
        return made

    def replace_operand(self, op: Op, k: int, value: Value | None) -> None:
        """Replace an op's k-th operand."""
        op.set_operand(k, value)
        self._touched.append(op)

    def replace_operands(self, op: Op, values: Iterable[Value | None]) -> None:
        """Replace all operands of an op, by any number of values."""
        op.set_operands(values)
        self._touched.append(op)

    def map_operands(self, op: Op, values: Mapping[Value, Value | None]) -> None:
        """Replace the operands of an op for which `values` has an entry."""
        self.replace_operands(op, [v if v is None else values.get(v, v) for v in op.operands])

    def move(self, ops: Iterable[Op], region: Region, before: Op | None = None) -> None:
        """Move ops to another region, before an op of it or at its end."""
        for op in ops:
            assert op.parent is not None
            op.parent.remove(op)
            region.insert(op, before)

    def apply(self, rules: Mapping[str, Sequence[OpRule]]) -> int:
        """Apply rules, by name of their root op, until none changes anything; returns the number of changes.

        Raises:
            AssertionError: rules undo each other.
        """
        changes = 0
        work = list(self.module.walk())
        work.reverse()
        counts = Counter(dict.fromkeys(work, 0))  # number of changes at an op, and at the ops that replaced it
        while work:
            op = work.pop()
            if op.parent is None or not (_has_ranks(op) or op.name == "Identity"):  # a no-op
                continue
            for rule in rules.get(op.name, ()):
                self._touched = []
                if rule(op, self):
                    changes += 1
                    self.hits[rule.__name__] += 1
                    counts[op] += 1
                    assert counts[op] < _LIMIT, f"the rules on {op.name} do not terminate"
                    counts.update({t: counts[op] for t in self._touched if t not in counts})
                    work += [t for t in self._touched if t.parent is not None]
                    if op.parent is not None:
                        work.append(op)
                    break
        return changes


def _renamed_extents(old: Value, new: Value) -> dict[str, Dim]:
    """Substitution of the symbols of a value by the equal extents of another one."""
    shapes = [
        _finds(v) or (v.type.shape if isinstance(v.type, TensorType) and v.type.shape else ()) for v in (old, new)
    ]
    differing = [
        (a, b)
        for a, b in zip(*shapes, strict=False)
        if a != b and isinstance(a, Sym) and a.is_symbol and depends_on_data(a)
    ]
    return {str(a): b for a, b in differing if str(a) not in symbols(b)}


def _finds(value: Value) -> tuple[Dim, ...]:
    return value.defining_op.attrs.get("defines", ()) if value.defining_op is not None else ()


def _has_ranks(op: Op) -> bool:
    """Whether no operand or result of an op has unknown rank; rules look at shapes."""
    types = (v.type for v in (*op.inputs, *op.results))
    return all(t.shape is not None for t in types if isinstance(t, TensorType))


def erase_dead(m: Module) -> int:
    """Erase ops without effects whose results have no readers; returns their number.

    A kernel of checks has an effect.
    """
    rw = Rewriter(m)
    erased = 0
    sizes = {func.name: {s for op in func.body.walk() for s in data_symbols(op)} for func in m.funcs.values()}
    for func in m.funcs.values():
        elsewhere = {s for name, found in sizes.items() if name != func.name for s in found}
        erased += _erase_dead(func.body, rw, elsewhere)
    erased += m.drop_unused_funcs()
    m.drop_unused_weights()
    if erased:
        drop_undefined_sizes(m)
    return erased


def drop_undefined_sizes(m: Module) -> None:
    """Drop assumptions about data-dependent sizes whose defining ops have been erased or replaced."""
    names = {info.symbol.name for info in m.symbols.values() if info.is_data}
    held = [c for c in m.constraints if c.lhs != c.rhs]
    if any(symbols(c.lhs, c.rhs).keys() & names for c in held):
        defined = {name for func in m.funcs.values() for name in defined_sizes(func).keys() | parameter_sizes(func)}
        held = [c for c in held if symbols(c.lhs, c.rhs).keys() & names <= defined]
    m.constraints = held


def _erase_dead(region: Region, rw: Rewriter, sizes: set[str]) -> int:
    """Erase dead ops of a region.

    `sizes` are the data symbols that later ops read; those of the region are added.
    """
    erased = 0
    for op in reversed(region):
        if not is_live(op, sizes):
            rw.erase(op)
            erased += 1
        else:
            erased += sum(_erase_dead(inner, rw, sizes) for inner in op.regions)
            sizes |= data_symbols(op)
    return erased


def unlink(op: Op) -> None:
    """Remove the operands of an op and of those in its regions, as of one that is dropped.

    Regions that another op has taken over are left alone.
    """
    op.set_operands(())
    for region in op.regions:
        if region.owner is op:
            for inner in region:
                unlink(inner)

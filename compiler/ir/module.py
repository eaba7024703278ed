"""Modules: the functions, weights and te functions of one model at one stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np

from occ.compiler.ir.dim import Dim, Sym, Symbol, substitute, symbols
from occ.compiler.ir.func import Broadcast, Constraint, Func, SymbolInfo
from occ.compiler.ir.op import FuncRef, Op, Region, Weight
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.shape import DATA_SYMBOL
from occ.compiler.ir.spill_file import SpillFile
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.types import TensorType, Type
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DATA_LABEL
from occ.runtime.mapped_arrays import release

_SHOWN = 400  # lines of a module shown in a notebook


@dataclass(eq=False)
class Module:
    """A model at one stage.

    Attributes:
        name: name of the model.
        stage: name of the stage whose invariant holds.
        funcs: by name; `main` is the model.
        weights: constants by name, in order of appearance.
        te: te functions by name, from the `scheduled` stage on.
        symbols: symbolic dims by name.
        constraints: equalities of dims that the runtime checks.
        broadcasts: symbols assumed equal to other sizes although they may be 1, by label.
        target: the target of the compilation, from the `fused` stage on.
        files: external data files of the model that it was imported from.
        registry: the available operators.
    """

    name: str
    stage: str = "imported"
    funcs: dict[str, Func] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    te: dict[str, TeFunc] = field(default_factory=dict)
    symbols: dict[str, SymbolInfo] = field(default_factory=dict)
    constraints: list[Constraint] = field(default_factory=list)
    broadcasts: dict[str, Broadcast] = field(default_factory=dict)
    target: str = ""
    files: tuple[Path, ...] = ()
    registry: Registry = field(default_factory=Registry, repr=False)
    _spill: SpillFile = field(default_factory=SpillFile, repr=False)

    @property
    def main(self) -> Func:
        """The function that is the model."""
        return self.funcs["main"]

    def _repr_html_(self) -> str:
        """HTML for notebooks: the text without its weights, truncated if it is long."""
        from html import escape  # imported here, since its table of entities takes 2 ms

        lines = module_text(self, weights="none").splitlines()
        left = f"\n... {len(lines) - _SHOWN} more lines" if len(lines) > _SHOWN else ""
        return f"<pre>{escape(chr(10).join(lines[:_SHOWN]) + left)}</pre>"

    def walk(self) -> Iterator[Op]:
        """All ops of all functions."""
        for func in self.funcs.values():
            yield from func.body.walk()

    def add_weight(self, hint: str, data: np.ndarray, type: TensorType | None = None) -> Weight:  # noqa: A002
        """A new constant under a name like `hint`."""
        name, n = hint, 1
        while name in self.weights:
            n += 1
            name = f"{hint}.{n}"
        weight = self.weights[name] = Weight(name, self._spill.keep(data), type)
        return weight

    def exchange_weight(self, old: Weight, new: Weight) -> None:
        """Redirect all readers of one constant to another one, and remove the first."""
        old.replace_uses(new)
        self.release_weight(old)

    def release_weight(self, weight: Weight) -> None:
        """Release the memory of a replaced constant, and remove it if nothing reads it.

        Passes call this one constant at a time, because a model's weights may be most of its memory.
        """
        release([weight.data])
        if not weight.uses:
            self.weights.pop(weight.name, None)

    def drop_unused_weights(self) -> int:
        """Remove the weights that nothing reads; returns their number."""
        unused = [name for name, w in self.weights.items() if not w.uses]
        for name in unused:
            del self.weights[name]
        return len(unused)

    def unused_func(self, stem: str) -> str:
        """A name like `stem` that no function has."""
        name, n = stem, 1
        while name in self.funcs:
            n += 1
            name = f"{stem}.{n}"
        return name

    def called(self, op: Op) -> Iterator[Func]:
        """The functions that an op runs."""
        for value in op.attrs.values():
            if isinstance(value, FuncRef):
                yield self.funcs[value]

    def held_constraints(self) -> dict[str, list[Constraint]]:
        """Equalities of sizes that hold in each function: what it needs itself, and what all its callers have checked.

        Symbols belong to the module, and a function checks its constraints before it calls another one.
        """
        callers: dict[str, set[str]] = {name: set() for name in self.funcs}
        for func in self.funcs.values():
            for f in (f for op in func.body.walk() for f in self.called(op)):
                callers[f.name].add(func.name)
        held: dict[str, dict[Constraint, None]] = {}
        for name in TopologicalSorter(callers).static_order():
            above = [held[c] for c in callers[name]]
            shared = (c for c in (above[0] if above else ()) if all(c in other for other in above))
            held[name] = dict.fromkeys([*(c for c in self.constraints if c.func == name), *shared])
        return {name: [*found] for name, found in held.items()}

    def drop_unused_funcs(self) -> int:
        """Remove the functions that no op runs; returns their number."""
        reached: dict[str, None] = {}
        work = [self.main]
        while work:
            func = work.pop()
            if func.name not in reached:
                reached[func.name] = None
                work += [f for op in func.body.walk() for f in self.called(op)]
        unused = [f for name, f in self.funcs.items() if name not in reached]
        for func in unused:
            for op in func.body.walk():
                op.set_operands(())
            del self.funcs[func.name]
        return len(unused)

    def fresh_symbol(
        self, hint: str, lo: int = 0, hi: int | None = None, divisible_by: int = 1, *, label: str = ""
    ) -> Sym:
        """A new symbolic dim under a name like `hint`."""
        name, n = hint, 1
        while name in self.symbols:
            n += 1
            name = f"{hint}_{n}"
        info = self.symbols[name] = SymbolInfo(Symbol(name, lo, hi, divisible_by), label or name)
        return info.dim

    def data_symbol(self, hint: str = f"{DATA_SYMBOL}0") -> Sym:
        """A new symbolic dim that no input has, for a data-dependent size."""
        return self.fresh_symbol(hint, label=DATA_LABEL)

    def substitute(self, values: Mapping[str, Dim]) -> None:
        """Replace symbols, by name, in the types, attributes and constraints of the whole module."""
        for func in self.funcs.values():
            _substitute(func.body, values)
        for name, value in values.items():
            info = self.symbols.pop(name, None)
            if info is not None and name in symbols(value):  # the same symbol with tighter bounds
                self.symbols[name] = SymbolInfo(symbols(value)[name], info.label)
            for back in symbols(value).values():  # one that was replaced before may come back, with its name
                self.symbols.setdefault(back.name, SymbolInfo(back, info.label if info else back.name))
        self.constraints = [
            replace(c, lhs=substitute(c.lhs, values), rhs=substitute(c.rhs, values)) for c in self.constraints
        ]


def _substitute(region: Region, values: Mapping[str, Dim]) -> None:
    for v in region.args:
        v.type = _substituted(v.type, values)
    for op in region:
        for r in op.results:
            r.type = _substituted(r.type, values)
        for key, value in op.attrs.items():
            if isinstance(value, tuple) and any(isinstance(d, Sym) for d in value):
                op.attrs[key] = tuple(substitute(d, values) if isinstance(d, Sym) else d for d in value)
        for inner in op.regions:
            _substitute(inner, values)


def _substituted(t: Type | None, values: Mapping[str, Dim]) -> Type | None:
    return t.substituted(values) if isinstance(t, TensorType) else t


def nodes_of(m: Module) -> dict[str, list[str]]:
    """The ONNX nodes that each te function computes."""
    nodes: dict[str, list[str]] = {}
    for op in m.walk():
        if "te" in op.attrs:
            nodes.setdefault(op.attrs["te"], []).append(str(op.loc))
    return nodes

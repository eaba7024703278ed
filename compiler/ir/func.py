"""Functions of a module, its symbolic dims, and the assumptions on these."""

from __future__ import annotations

from dataclasses import field

from occ.compiler.ir.dim import Dim, Sym, Symbol, monomial
from occ.compiler.ir.op import Region, Value
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DATA_LABEL


@dataclass(eq=False)
class Func:
    """A function: a body, and the names of its results as callers know them."""

    name: str
    body: Region
    result_names: list[str] = field(default_factory=list)

    @property
    def args(self) -> list[Value]:
        return self.body.args

    @property
    def results(self) -> tuple[Value, ...]:
        return self.body.yields


@dataclass(frozen=True)
class SymbolInfo:
    """A symbolic dim of the module: its bounds, and the name the model gives it."""

    symbol: Symbol
    label: str

    @property
    def is_data(self) -> bool:
        """Whether no input has it: an op defines it at run time."""
        return self.label == DATA_LABEL

    @property
    def dim(self) -> Sym:
        return monomial((self.symbol, 1))


@dataclass(frozen=True)
class Constraint:
    """Two dims that must be equal when a function runs, and the node that requires it."""

    lhs: Dim
    rhs: Dim
    node: str
    func: str = "main"


@dataclass(frozen=True)
class Broadcast:
    """The assumption that a symbol equals another size although it may be 1, with the broadcasting node.

    Attributes:
        plain: whether the other size is a symbol or a number, not a formula.
    """

    other: str
    node: str
    plain: bool

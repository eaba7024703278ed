"""What has fired: passes, rewrite rules, schedule rules, and forms of tensor expressions."""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.ir.module import Module
from occ.compiler.ir.te.expr import BINARY, CALLS, REDUCTIONS, Binary, Bitcast, Call, Cast, Expr, Reduce, Select
from occ.compiler.ir.te.function import Scatter
from occ.compiler.ir.te.walks import walk
from occ.compiler.passes.base import Pass
from occ.compiler.passes.canonical import canonicalize, fold_affine, use_block_weights, use_integers
from occ.compiler.passes.lower.rule_list import NAMES
from occ.compiler.passes.manager import Ran
from occ.compiler.passes.methods.int8 import use_byte_products
from occ.compiler.passes.registry import PASSES
from occ.compiler.targets.machine import Machine

_TABLES = {
    "canonicalize": canonicalize.table(), "fold-affine": fold_affine.RULES, "use-integers": use_integers.RULES,
    "use-block-weights": use_block_weights.RULES, "use-byte-products": {**use_byte_products.integer_rules(Machine()), **use_byte_products.BF16_RULES},
}  # fmt: skip
_OF_USERS = ("apply-rewrites", "fuse-patterns", "use-kernels", "fold-empty")  # need rules of users, or a device
KINDS = ("bool", "int", "uint", "float", "half")
UNIVERSE: dict[str, frozenset[str]] = {
    "passes": frozenset(PASSES) - set(_OF_USERS),
    "rewrite rules": frozenset(f"{p}:{r.__name__}" for p, t in _TABLES.items() for rules in t.values() for r in rules),
    "schedule rules": frozenset(NAMES),
    "te forms": frozenset([*BINARY, *CALLS, *(f"{r} over" for r in REDUCTIONS), "select", "bitcast", "scatter",
                           *(f"{a} to {b}" for a in KINDS for b in KINDS if a != "bool" or b != "bool")]),
}  # fmt: skip


class Cover:
    """Listens to passes.

    Attributes:
        fired: kinds and names of `UNIVERSE`.
    """

    def __init__(self) -> None:
        self.fired = set[tuple[str, str]]()

    def __call__(self, p: Pass, m: Module, ran: Ran | None) -> None:
        """Called by the pass manager."""
        if ran is None:
            return
        found = {("passes", p.name)} if ran.changed else set()
        found |= {("rewrite rules", f"{p.name}:{n}") for n in ran.hits} | {("schedule rules", n) for n in ran.hits}
        if p.name == "schedule" or (p.name == "lower-te" and m.te):
            found |= {("te forms", n) for n in _forms(m)}
        self.fired |= {(kind, n) for kind, n in found if n in UNIVERSE[kind]}


def _forms(m: Module) -> Iterator[str]:
    for f in m.te.values():
        for s in f.stages:
            if isinstance(s, Scatter):
                yield "scatter"
            for e in s.exprs:
                yield from (form for n in walk(e) if (form := _form(n)))


def _form(n: Expr) -> str:
    match n:
        case Binary():
            return n.op
        case Call():
            return n.fn
        case Reduce():
            return f"{n.kind} over"
        case Select():
            return "select"
        case Bitcast():
            return "bitcast"
        case Cast():
            return f"{_kind(n.arg)} to {_kind(n)}"
        case _:
            return ""


def _kind(e: Expr) -> str:
    if e.dtype.name in ("f16", "bf16"):
        return "half"
    return {"b": "bool", "i": "int", "u": "uint", "f": "float"}.get(e.dtype.kind, "")

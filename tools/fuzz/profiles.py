"""Kinds of graphs: which operators they have most of."""

from __future__ import annotations

from collections.abc import Iterable

from tools.fuzz.generate import Profile
from tools.fuzz.movement import MOVERS
from tools.fuzz.operators import ROWS
from tools.fuzz.patterns import PATTERNS, SUITES
from tools.fuzz.products import CONTROL, PRODUCTS, QUANTISED

_JOINS = ("Concat", "Split", "Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze")
_COMMON = ("Add", "Mul", "Relu", "Sigmoid", "Sub", "Tanh", "Cast", "Clip")
_LAYERS = ("Conv", "MatMul", "Gemm")
_FOUND = ("NonZero", "Compress", "Range", "ConstantOfShape", "Size")
_CHAINS = ("Gather", "Concat", "Reshape", "Expand", "Slice")


def _weights(*groups: tuple[Iterable[str], float]) -> dict[str, float]:
    """Weights of operators by group; a later group counts."""
    return {name: weight for names, weight in groups for name in names}


PROFILES: dict[str, Profile] = {
    "mixed": Profile(),
    "shapes": Profile(_weights((MOVERS, 3), (_JOINS, 12)), rest=0.6, nodes=16),
    "products": Profile(_weights((PRODUCTS, 3), (_LAYERS, 15), (_COMMON, 6), (["Concat"], 6)), rest=0.2),
    "rows": Profile(_weights((ROWS, 5), (_COMMON, 4), (["Transpose", "Reshape"], 4)), rest=0.4),
    "control": Profile(_weights((CONTROL, 40), (_COMMON, 4)), rest=0.6, nodes=8),
    "quantised": Profile(
        _weights((QUANTISED, 8), (["qdq"], 30), (_JOINS, 2), (["Relu", "Clip"], 4)), rest=0.1, nodes=8
    ),
    "patterns": Profile(
        _weights((PATTERNS, 30), (["of_quarters", "streamed"], 4), (_COMMON, 6), (_JOINS, 4)), rest=0.2, nodes=8
    ),
    "lone": Profile(_weights((PATTERNS, 0), (CONTROL, 0.2)), nodes=60, alone=True),
    "sizes": Profile(_weights((["Shape"], 30), (_FOUND, 4), (_CHAINS, 8)), rest=0.6),
    **{name: Profile(_weights((makers, 1)), rest=0, nodes=3, alone=True) for name, makers in SUITES.items()},
}

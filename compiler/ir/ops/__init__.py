"""The operators: each is defined once, in the module of its family."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from occ.compiler.ir.ops.spec import OpSpec

FAMILIES = (
    "elementwise", "reduce", "contraction", "window", "own.winograd", "own.strassen", "movement", "index", "shape_of",
    "normalize", "resize", "quantize", "attention", "own.attend", "linear_attention", "loss", "prefix", "recurrent",
    "sampling", "einsum", "signal", "blocks", "training", "control", "select", "sequence", "string", "random", "image",
    "ml", "contrib.operators", "contrib.quantized", "contrib.blocks", "contrib.attention", "contrib.recurrent", "own.legacy",
    "own.internal", "own.quantised_codes", "own.block_products",
)  # fmt: skip


@cache
def registry() -> dict[str, OpSpec]:
    """Every operator by name.

    Raises:
        ValueError: two families define the same operator.
    """
    table: dict[str, OpSpec] = {}
    for family in FAMILIES:
        for spec in import_module(f"{__name__}.{family}").ALL:
            if spec.name in table:
                raise ValueError(f"operator {spec.name} is defined twice")
            table[spec.name] = spec
    return table


_ADDED: dict[str, str] = {}  # operators that were added -> where they come from


def register(spec: OpSpec, origin: str) -> None:
    """Add an operator; one from the same origin is replaced.

    Raises:
        ValueError: another operator has its name.
    """
    if spec.name in registry() and _ADDED.get(spec.name) != origin:
        raise ValueError(f"operator `{spec.name}` is defined by {_ADDED.get(spec.name, 'occ')} already")
    registry()[spec.name] = spec
    _ADDED[spec.name] = origin

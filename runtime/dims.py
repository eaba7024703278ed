"""Size expressions over symbolic dims, as JSON data, evaluated at run time.

An expression is an int, the name of a symbol, or a list `[op, a, b, ...]` with op one of `+ * // min max`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

DimExpr = Any  # int | str | list
MOST_COUNTED = 2**31 - 2**16  # limit of 32-bit counts in kernels, with a margin for windows and tails past the end


@dataclass(frozen=True)
class Assumption:
    """An input size that a build assumed equal to another one, although it may be 1.

    Attributes:
        dim: its name in the model.
        other: the other size, as text.
        node: the node.
        input, axis: where an input shows it.
    """

    dim: str
    other: str
    node: str
    input: str
    axis: int


def evaluate(e: DimExpr, env: Mapping[str, int]) -> int:
    """The value of an expression.

    Raises:
        RunError: OCC0502 a symbol has no value; complete artifacts define all.
    """
    if isinstance(e, int):
        return e
    if isinstance(e, str):
        try:
            return env[e]
        except KeyError:
            text = f"the manifest is damaged: the size `{e}` is not defined"
            raise RunError("OCC0502", text, "build the artifact again") from None
    op, *args = e
    values = [evaluate(a, env) for a in args]
    match op:
        case "+":
            return sum(values)
        case "*":
            return prod(values)
        case "//":
            return values[0] // (values[1] or 1)  # as in native code; wrong sizes are rejected afterwards
        case "min":
            return min(values)
        case "max":
            return max(values)
        case _:
            raise ValueError(f"unknown size operator {op!r}")


_ARGUMENTS = {"+": (1, 1 << 16), "*": (1, 1 << 16), "//": (2, 2), "min": (1, 1 << 16), "max": (1, 1 << 16)}


def is_expression(e: Any) -> bool:
    """Whether JSON data are a valid expression: known operators, and 64-bit numbers."""
    if isinstance(e, (int, str)):
        return not isinstance(e, bool) and (isinstance(e, str) or -(1 << 63) <= e < 1 << 63)
    if not isinstance(e, list) or not e or e[0] not in _ARGUMENTS:
        return False
    least, most = _ARGUMENTS[e[0]]
    return least < len(e) <= most + 1 and all(map(is_expression, e[1:])) and not (e[0] == "//" and e[2] == 0)


def symbols(e: DimExpr) -> set[str]:
    """Names of the symbols in an expression."""
    if isinstance(e, str):
        return {e}
    return set() if isinstance(e, int) else {name for a in e[1:] for name in symbols(a)}


def in_order(a: DimExpr, b: DimExpr) -> tuple[DimExpr, DimExpr] | None:
    """Read `min(a, b) == a` or `max(a, b) == b` as the inequality `a <= b`; None for other equations.

    `min(1, k) == 1` and `max(1, k) == k` both state that `k` is at least 1: `(1, "k")`.
    """
    for side, other in ((a, b), (b, a)):
        if isinstance(side, list) and side[0] in ("min", "max") and len(side) == 3 and other in side[1:]:
            rest = side[2] if side[1] == other else side[1]
            return (other, rest) if side[0] == "min" else (rest, other)
    return None


DATA_LABEL = "?"  # label of a symbol that no input has


def in_words(e: DimExpr, labels: Mapping[str, str] | None = None) -> str:
    """An expression for a message, which has no names for sizes that a run computes."""
    return "a computed size" if any((labels or {}).get(s) == DATA_LABEL for s in symbols(e)) else text(e, labels)


def text(e: DimExpr, labels: Mapping[str, str] | None = None) -> str:
    """An expression in readable form; `labels` are the model's names for its dims."""
    if isinstance(e, int):
        return str(e)
    if isinstance(e, str):
        return (labels or {}).get(e, e)
    op, *args = e
    parts = [text(a, labels) for a in args]
    if op in ("min", "max"):
        return f"{op}({', '.join(parts)})"
    if op == "+":
        return parts[0] + "".join(f" - {p[1:]}" if p.startswith("-") else f" + {p}" for p in parts[1:])
    wrapped = [f"({p})" if isinstance(a, list) and a[0] != "min" else p for p, a in zip(parts, args, strict=True)]
    return op.join(wrapped) if op != "*" or args[0] != -1 else f"-{op.join(wrapped[1:])}"


def is_known(e: DimExpr, env: Mapping[str, int]) -> bool:
    """Whether all symbols of an expression have a value."""
    return all(is_known(a, env) for a in e[1:]) if isinstance(e, list) else isinstance(e, int) or e in env

"""Host operators: numpy routines for strings, sequences, optionals and data-dependent sizes.

A routine is named after its operator, takes the operands by position (None for absent ones) and the attributes as `a`,
with the number of results as `a.n_results`, and returns the result or a tuple of them. The compiler's oracle calls the
same routines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from occ.runtime.errors import RunError

FAMILIES = ("select", "sizes", "sequence", "text", "random", "image", "constant", "ml_scores", "ml_labels", "contrib")


@cache
def routines() -> dict[str, Callable[..., Any]]:
    """Every routine by name."""
    found: dict[str, Callable[..., Any]] = {}
    for family in FAMILIES:
        found |= import_module(f"{__name__}.{family}").ROUTINES
    return found


def run_host(name: str, operands: Sequence[Any], a: SimpleNamespace, nodes: Sequence[str] = ()) -> list[Any]:
    """Run a routine.

    Raises:
        RunError: OCC0504 it cannot process the operands; the message names the node.
    """
    try:
        results = routines()[name](*operands, a=a)
    except RunError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError) as e:
        raise RunError("OCC0504", f"node `{', '.join(nodes[:3]) or name}`: {e}") from None
    return list(results[: a.n_results]) if isinstance(results, tuple) else [results]

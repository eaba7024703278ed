"""Compiles the model again for the ranks of tensors in sequences and optionals that declare none.

What reads an element of unknown rank waits for the run, and each such operator is a call of its own. Once the ranks are
seen, a session compiles the model for them; extents may still differ from element to element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from occ.compiler.diagnostics import CompileError
from occ.compiler.frontend.signature import Overrides
from occ.runtime.manifest import Manifest
from occ.runtime.session import Session

_MOST = 8  # sessions; inputs of further ranks use the general one
_HIGHEST = 8  # rank that has a session of its own: the sizes of a broadcast are twice as long with each further axis


def undeclared(m: Manifest) -> list[str]:
    """Inputs with tensors of unknown rank, if steps of the plan wait for these."""
    waits = any(s.kind == "deferred" for p in m.plans for s in p.steps)
    return [i.name for i in m.inputs if i.kind in ("sequence", "optional") and not i.shape] if waits else []


class RankCases:
    """Sessions for ranks that inputs do not declare, created on first use.

    Thread-safe.

    Args:
        names: inputs with tensors of unknown rank.
        given: extents fixed by the user.
        made: creates a session with other extents fixed.
    """

    def __init__(self, names: Sequence[str], given: Overrides, made: Callable[[Overrides], Session]) -> None:
        self._names, self._given, self._made = names, given, made
        self._lock = Lock()
        self._known: dict[tuple[int | None, ...], Session | None] = {}

    def __call__(self, values: Mapping[str, Any]) -> Session | None:
        """The session for the ranks in these inputs; None if they are not alike, or the model does not compile."""
        ranks = tuple(_rank(values[name]) for name in self._names)
        if all(rank is None for rank in ranks):
            return None
        if ranks in self._known or len(self._known) >= _MOST:
            return self._known.get(ranks)  # while others compile, too
        with self._lock:
            if ranks not in self._known and len(self._known) < _MOST:
                shapes = {n: (-1,) * rank for n, rank in zip(self._names, ranks, strict=True) if rank is not None}
                try:
                    made = self._made(replace(self._given, shapes={**self._given.shapes, **shapes}))
                except CompileError:
                    made = None
                self._known[ranks] = made
            return self._known.get(ranks)


def _rank(value: Any) -> int | None:
    """The rank of all tensors in a container; None if there are none, or ranks differ or are high."""
    tensors = value if isinstance(value, (list, tuple)) else [value]
    ranks = {x.ndim if isinstance(x, np.ndarray) else None for x in tensors}
    rank = ranks.pop() if len(ranks) == 1 else None
    return rank if rank is not None and rank <= _HIGHEST else None

"""A decoder's step of one token as a call that is bound once: only the extents of its caches change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from occ.generation.names import IDS, LOGITS
from occ.runtime.dims import symbols
from occ.runtime.manifest import Manifest
from occ.runtime.native.bound_call import BoundCall
from occ.runtime.native.engine import NativeEngine
from occ.runtime.session import Session

LEAST = 2  # rows of caches: models may have plans of their own for fewer


class DecodeStep:
    """Runs of a decoder on one token, each after one more than the last one, or any other number.

    With arrays and sizes as arguments of each run, a token of SmolLM2 (60 caches) took 4.9 ms,
    and takes 4.5 (x86-64-v3 on a Zen 4, processor time).

    Args:
        session, caches, others: as for `bound`.
        call: on them.
    """

    def __init__(self, session: Session, call: BoundCall, ids: np.ndarray, caches: Mapping[str, Any]) -> None:
        m = session.artifact.manifest
        self._call, self._ids = call, ids
        ranks = np.cumsum([0, *(len(i.shape) for i in m.inputs)])
        self._rows = np.array([at for i, at in zip(m.inputs, ranks, strict=False) if i.name in caches])
        logits = call.outputs[[o.name for o in m.outputs].index(LOGITS)]
        self._logits = logits.reshape(-1, logits.shape[-1])

    @staticmethod
    def bound(
        session: Session, ids: np.ndarray, caches: Mapping[str, tuple[str, np.ndarray]], others: Mapping[str, Any]
    ) -> DecodeStep | None:
        """A step on the memory of a decoder; None if its runs differ in more than the rows of caches.

        Args:
            session: of the decoder.
            ids: the token, `[1, 1]`.
            caches: for each past the name of its present, and the memory of both.
            others: the other inputs.
        """
        m, engine = session.artifact.manifest, session.engine
        if (
            not caches
            or not isinstance(engine, NativeEngine)
            or not _appends(m, {p: q for p, (q, _) in caches.items()})
        ):
            return None
        read = {IDS: ids, **others} | {past: rows[:LEAST] for past, (_, rows) in caches.items()}
        written = {present: rows[: LEAST + 1] for present, rows in caches.values()}
        call = engine.bind([read[i.name] for i in m.inputs], [written.get(o.name) for o in m.outputs])
        return DecodeStep(session, call, ids, caches) if call is not None and call.writes_in_place else None

    def __call__(self, token: int, done: int) -> np.ndarray:
        """The logits `[1, vocabulary]` after a token that follows `done` others, at least `LEAST`.

        The next call overwrites them.

        Raises:
            RunError: as `Session.run`.
        """
        self._ids[0, 0] = token
        self._call.extents[self._rows] = done
        self._call()
        return self._logits


def _appends(m: Manifest, caches: Mapping[str, str]) -> bool:
    """Whether each run appends its tokens to all caches, and no other output depends on what they contain."""
    inputs, outputs = ({x.name: x.shape for x in row} for row in (m.inputs, m.outputs))
    (_, tokens), *pasts = inputs[IDS], *(inputs[name] for name in caches)
    symbol = pasts[0][0]
    if not isinstance(symbol, str) or any(symbol in symbols(e) for row in pasts for e in row[1:]):
        return False
    if any(shape[0] != symbol for shape in pasts):
        return False
    for name, shape in outputs.items():
        first, *rest = shape
        if name not in caches.values():
            rest = [first, *rest]
        elif not isinstance(first, (list, tuple)) or first[0] != "+" or {*map(str, first[1:])} != {symbol, str(tokens)}:
            return False
        if any(symbols(e) - {tokens} for e in rest):
            return False
    return True

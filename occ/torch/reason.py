"""Why a graph is left to PyTorch, in one line."""

from __future__ import annotations

from occ.compiler.frontend.torch_program import plain

_LONGEST = 600


class Fallback(Exception):
    """A graph that occ does not run; with `strict`, `torch.compile` raises it."""


def reason_of(e: BaseException) -> str:
    """The reason of an exception: its root cause, without colours and torch's advice."""
    while not isinstance(e, Fallback) and e.__cause__ is not None:
        e = e.__cause__
    line = plain(e)
    line = line if len(line) <= _LONGEST else line[:_LONGEST] + "..."
    return line if isinstance(e, Fallback) else f"{type(e).__name__}: {line}"

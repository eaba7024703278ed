"""Why a graph is left to PyTorch, in one line."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST = 600


class Fallback(Exception):
    """A graph that occ does not run; with `strict`, `torch.compile` raises it."""


def reason_of(e: BaseException) -> str:
    """The reason of an exception: its first cause, without colours and torch's advice."""
    while not isinstance(e, Fallback) and e.__cause__ is not None:
        e = e.__cause__
    text = _COLOURS.sub("", str(e)).strip().split("\n\n")[0]
    line = re.sub(r"\s+", " ", text)
    line = line if len(line) <= _LONGEST else line[:_LONGEST] + "..."
    return line if isinstance(e, Fallback) else f"{type(e).__name__}: {line}"

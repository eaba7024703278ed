"""Names that exporters give a decoder's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
NGRAM = "ngram"  # drafts of what followed the same tokens before
DRAFT_TOKENS = 3  # up to 4 rows attention reads the caches where they are, and products take one tile
STARTS = "starts"  # of several sequences: the place in the caches at which each begins
_PAST = ("past_key_values.", "past_", "past.")
_PRESENT = ("present_key_values.", "present_", "present.")


def is_cache(name: str) -> bool:
    """Whether an input holds what a decoder has computed of the tokens before."""
    return name.startswith(_PAST)


def presents_of(pasts: Sequence[str], results: Sequence[str]) -> list[str]:
    """The results that continue the caches of some names: those that are called alike after `past` and `present`.

    Where one has no such partner, all are taken in their order, without the logits; the list is shorter than `pasts` if
    there are too few.
    """
    named = {_after(name, _PRESENT): name for name in results if name.startswith(_PRESENT)}
    found = [named.get(_after(name, _PAST)) for name in pasts]
    alike = [name for name in found if name is not None]
    return alike if len(alike) == len(pasts) else [name for name in results if name != LOGITS][: len(pasts)]


def _after(name: str, prefixes: Sequence[str]) -> str:
    """The rest of a name after the first prefix that it has, or all of it."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)

"""Exporters' names of a decoder's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
# Attention sums keys in an order that depends on their number in blocks of this many: a run within a block equals runs
# of one token each, to the bit.
KEY_BLOCK = 32
NGRAM = "ngram"  # drafts of what followed the same tokens before
DRAFT_TOKENS = 3  # up to 4 rows attention reads the caches in place, and products use one tile
STARTS = "starts"  # for several sequences: the start of each in the caches
_PAST = ("past_key_values.", "past_", "past.")
_PRESENT = ("present_key_values.", "present_", "present.")


def is_cache(name: str) -> bool:
    """Whether an input holds a decoder's results for the preceding tokens."""
    return name.startswith(_PAST)


def presents_of(pasts: Sequence[str], results: Sequence[str]) -> list[str]:
    """The outputs that continue given caches: those with the same name after `past` and `present`.

    If one has no such partner, all outputs except the logits are used in order; the list is shorter than `pasts` if
    there are too few.
    there are too few.
    """
    named = {_after(name, _PRESENT): name for name in results if name.startswith(_PRESENT)}
    found = [named.get(_after(name, _PAST)) for name in pasts]
    alike = [name for name in found if name is not None]
    return alike if len(alike) == len(pasts) else [name for name in results if name != LOGITS][: len(pasts)]


def _after(name: str, prefixes: Sequence[str]) -> str:
    """The rest of a name after the first prefix that it has, or all of it."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)

"""Turns the model's names of symbolic dims into valid, unique identifiers of .occ text."""

from __future__ import annotations

import re

_WORDS = {"min", "max", "inf", "dim"}  # words with a meaning in .occ text


def symbol_name(label: str) -> str:
    """A symbol name similar to `label`. Names like `D0` are reserved for te functions."""
    plain = re.sub(r"\W+", "_", label, flags=re.ASCII)[:40].strip("_")
    plain = plain if plain and not plain[0].isdigit() else f"d{plain}"
    return f"{plain}_" if plain in _WORDS or re.fullmatch(r"D\d+", plain) else plain

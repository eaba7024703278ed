"""Cast of numpy arrays between element types, strings included."""

from __future__ import annotations

from typing import Any

import numpy as np

from occ.compiler.diagnostics import shorten
from occ.compiler.ir.dtype import BOOL, STR, DType

_SPECIAL = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}  # as ONNX Cast spells them
_TRUTHS = {"true": True, "false": False}


def convert(x: Any, source: DType, target: DType) -> Any:
    """`Cast` of an array: floats truncate to integers and saturate, NaN becomes 0; anything non-zero is true.

    Raises:
        ValueError: a text is not a number.
    """
    x = np.asarray(x)
    if STR in (source, target):
        return x if source == target else _texts(x, source) if target == STR else _numbers(x, target)
    if target == BOOL:
        return x != 0
    if source.is_float and target.is_int:
        wide = x.astype(np.float64)
        limit = float(target.highest)
        top = np.trunc(np.where(np.isnan(wide), 0, wide))
        inside = np.clip(top, float(target.lowest), limit)
        exact = np.where(top >= limit, 0, inside).astype(np.int64 if target.kind == "i" else np.uint64)
        return np.where(top >= limit, np.array(target.highest, exact.dtype), exact).astype(target.numpy)
    return x.astype(target.numpy)


def _texts(x: np.ndarray, source: DType) -> np.ndarray:
    """Each element as numpy and onnx.reference write it, with the fewest digits unique in its type.

    For example `0.1`, `100.0`, `True`. Infinities and NaN are spelled as in ONNX Cast.

    """
    if source.is_float and source.numpy.isbuiltin != 1:  # bfloat16 and narrower, whose own texts are truncated
        x = x.astype(np.float32)
    made = np.empty(x.size, object)
    made[:] = [_SPECIAL.get(text, text) for text in map(str, x.reshape(-1))]
    return made.reshape(x.shape)


def _numbers(x: np.ndarray, target: DType) -> np.ndarray:
    """The numbers in texts.

    Those out of the range of an integer type lose their upper bits, as integers do.
    """
    read = _truth if target == BOOL else _float if target.is_float else _integer
    found = [read(_decoded(t), target) for t in x.reshape(-1)]
    if target.is_int:
        bits = np.array([int(v) & 0xFFFF_FFFF_FFFF_FFFF for v in found], np.uint64)
        return bits.view(np.int64).astype(target.numpy).reshape(x.shape)
    return np.array(found, np.float64 if target.is_float else np.bool_).astype(target.numpy).reshape(x.shape)


def _decoded(text: Any) -> str:
    return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)


def _float(text: str, target: DType) -> float:
    if "_" not in text:  # which Python allows between digits
        try:
            return float(text)
        except ValueError:
            pass
    raise ValueError(f"{shorten(text)!r} is not a number, and cannot become {target}")


def _integer(text: str, target: DType) -> int:
    """`100.5` is 100 (ONNX Cast)."""
    try:
        found = int(text) if "_" not in text else int(_float(text, target))
    except ValueError:
        whole = _float(text, target)
        found = int(whole) if abs(whole) < 2.0**64 else 1 << 64
    if not -(1 << 63) <= found < 1 << 64:
        raise ValueError(f"{shorten(text)!r} is beyond 64 bits, and cannot become {target}")
    return found


def _truth(text: str, target: DType) -> bool:
    known = _TRUTHS.get(text.strip().lower())
    return _float(text, target) != 0 if known is None else known

"""Inputs that contain tensors: the elements of sequences, and the shapes that sequences and optionals declare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from occ.runtime.dims import DimExpr
from occ.runtime.errors import RunError
from occ.runtime.manifest import SCALARS, TensorInfo

_OF_SCALARS = frozenset(SCALARS.values())


def elements(info: TensorInfo, value: Any) -> Iterator[Any]:
    """The elements of a sequence.

    Raises:
        RunError: OCC0501 it is none.
    """
    if not isinstance(value, (str, bytes)):
        with suppress(TypeError):
            return iter(value)
    what = f"the input `{info.name}` is {type(value).__name__}, the model takes a {info.kind} of {info.dtype}"
    raise RunError("OCC0501", what, "pass a list of arrays")


def check_shape(info: TensorInfo, shape: Sequence[int]) -> None:
    """Require the shape that a sequence or optional declares for tensors in it.

    Raises:
        RunError: OCC0501 a tensor has another.
    """
    if info.kind not in _OF_SCALARS and not (info.shape and info.kind in SCALARS):
        return
    if not _is_within(info.shape, shape):
        takes = ",".join("?" if e == -1 else str(e) for e in info.shape)
        what = f"the input `{info.name}` has a tensor of shape {[*shape]}, the model takes [{takes}] there"
        raise RunError("OCC0501", what)


def _is_within(stated: Sequence[DimExpr], shape: Sequence[int]) -> bool:
    """Whether a tensor in a container has the stated extents, of which -1 may be any."""
    return len(stated) == len(shape) and all(e in (-1, n) for e, n in zip(stated, shape, strict=True))

"""Reads weights of `.occ` text: inline elements, or a reference to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from occ.compiler.diagnostics import error
from occ.compiler.ir.types import TensorType


class WeightText(NamedTuple):
    """A parsed weight: its location in the weights file, or its elements or bytes."""

    name: str
    type: TensorType
    ref: tuple[int, int] | None
    values: list[Any] | bytes


class WeightsFile:
    """The mapped weights file of a text.

    Args:
        name: as stated in the text; empty if all weights are inline.
        text_path: path of the text, to which the name is relative.
    """

    def __init__(self, name: str, text_path: Path | None) -> None:
        self.path = (text_path.parent if text_path else Path()) / name if name else None
        self._map: np.ndarray | None = None

    def read(self, w: WeightText) -> np.ndarray:
        """The elements of a weight stored in the file.

        Raises:
            CompileError: OCC0604 the file is missing or too short.
        """
        assert w.ref is not None
        offset, size = w.ref
        if self._map is None:
            if self.path is None or not self.path.is_file():
                raise error("OCC0604", f"the weights file `{self.path or ''}` is missing", help="dump the stage again")
            self._map = np.memmap(self.path, np.uint8, "r")
        if offset + size > self._map.size:
            raise error("OCC0604", f"`{self.path}` ends before weight `{w.name}`", help="dump the stage again")
        return shaped(self._map[offset : offset + size], w.type)


def data_of(type_: TensorType, values: list[Any] | bytes) -> np.ndarray:
    """The elements of an inline weight."""
    return shaped(np.frombuffer(values, np.uint8), type_) if isinstance(values, bytes) else array_of(type_, values)


def _extents(type_: TensorType) -> tuple[int, ...]:
    """Physical extents of a weight, which are constants.

    Raises:
        ValueError: they are not.
    """
    if not all(isinstance(d, int) for d in type_.dims):
        raise ValueError(f"a weight is {type_}, whose extents are not constants")
    return type_.with_shape(type_.static).layout.physical_shape(type_.static)  # pyright: ignore[reportReturnType]


def shaped(data: np.ndarray, type_: TensorType) -> np.ndarray:
    """Bytes as the array of a weight."""
    return data.reshape(-1).view(np.uint8).view(type_.dtype.numpy).reshape(_extents(type_))


def array_of(type_: TensorType, values: list[Any]) -> np.ndarray:
    """Elements in row-major order as the array of a weight."""
    data = np.array(values, dtype=object).astype(type_.dtype.numpy) if values else np.empty(0, type_.dtype.numpy)
    return data.reshape(_extents(type_))

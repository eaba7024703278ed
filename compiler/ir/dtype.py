"""Element types: every ONNX tensor element type, with its width, kind and numpy twin.

Names follow MLIR where MLIR has one (`f32`, `i64`, `f8e4m3fn`); `onnx` is the value of TensorProto.DataType.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import ml_dtypes
import numpy as np

from occ.runtime.dataclass import dataclass
from occ.runtime.element_types import ELEMENT_TYPES


@dataclass(frozen=True, eq=False)
class DType:
    """One element type, of which there is one object: passes compare them all the time.

    Attributes:
        name: the spelling in `.occ` text.
        bits: width of one element in packed storage.
        kind: `f` float, `i` signed, `u` unsigned, `b` bool, `c` complex, `s` string.
        onnx: TensorProto.DataType value.
    """

    name: str
    bits: int
    kind: str
    onnx: int

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return _named, (self.name,)  # copies are the same object

    @cached_property
    def numpy(self) -> np.dtype:
        """The numpy dtype of one element in memory; sub-byte elements take a byte each, strings are objects."""
        name = ELEMENT_TYPES[self.name].numpy
        return np.dtype(getattr(ml_dtypes, name, name))

    @property
    def itemsize(self) -> int:
        """Bytes of one element in a buffer of the runtime."""
        return ELEMENT_TYPES[self.name].itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """Whether the type is a signed or unsigned integer (bool is not)."""
        return self.kind in "iu"

    @property
    def lowest(self) -> float | int:
        """The lowest value: -inf for floats that have it, otherwise the lowest finite one."""
        if self.is_float:
            return float("-inf") if self.has_inf else float(ml_dtypes.finfo(self.numpy).min)
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def highest(self) -> float | int:
        """The highest value: inf for floats that have it, otherwise the highest finite one."""
        if self.is_float:
            return float("inf") if self.has_inf else float(ml_dtypes.finfo(self.numpy).max)
        return (1 << (self.bits - (self.kind == "i"))) - 1

    @property
    def has_inf(self) -> bool:
        return self.name in ("f64", "f32", "f16", "bf16", "f8e5m2")

    @property
    def acc(self) -> DType:
        """The type in which sums of this one accumulate: f32 for narrower floats, otherwise the type itself."""
        return F32 if self.is_float and self.bits < 32 else self

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


def _dtype(name: str) -> DType:
    t = ELEMENT_TYPES[name]
    return DType(t.name, t.bits, t.kind, t.onnx)


F32 = _dtype("f32")
U8 = _dtype("u8")
I8 = _dtype("i8")
U16 = _dtype("u16")
I16 = _dtype("i16")
I32 = _dtype("i32")
I64 = _dtype("i64")
STR = _dtype("str")
BOOL = _dtype("bool")
F16 = _dtype("f16")
F64 = _dtype("f64")
U32 = _dtype("u32")
U64 = _dtype("u64")
C64 = _dtype("c64")
C128 = _dtype("c128")
BF16 = _dtype("bf16")
F8E4M3FN = _dtype("f8e4m3fn")
F8E4M3FNUZ = _dtype("f8e4m3fnuz")
F8E5M2 = _dtype("f8e5m2")
F8E5M2FNUZ = _dtype("f8e5m2fnuz")
U4 = _dtype("u4")
I4 = _dtype("i4")
F4E2M1 = _dtype("f4e2m1")
F8E8M0 = _dtype("f8e8m0")
U2 = _dtype("u2")
I2 = _dtype("i2")
F6E2M3FN = _dtype("f6e2m3fn")
F6E3M2FN = _dtype("f6e3m2fn")

ALL = (
    F32, U8, I8, U16, I16, I32, I64, STR, BOOL, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2, F6E2M3FN, F6E3M2FN,
)  # fmt: skip
BY_NAME = {t.name: t for t in ALL}
BY_ONNX = {t.onnx: t for t in ALL}
_BY_NUMPY = {t.numpy: t for t in ALL}


def _named(name: str) -> DType:
    return BY_NAME[name]


def from_numpy(dtype: np.dtype) -> DType:
    """The element type of a numpy dtype (fixed-width strings count as `str`).

    Raises:
        KeyError: ONNX has no such element type.
    """
    return STR if dtype.kind in "USOT" else _BY_NUMPY[dtype]

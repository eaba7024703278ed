"""Element types: every ONNX tensor element type, with its width, kind and numpy twin.

Names follow MLIR where MLIR has one (`f32`, `i64`, `f8e4m3fn`); `onnx` is the value of TensorProto.DataType.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """One element type.

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

    @cached_property
    def numpy(self) -> np.dtype:
        """The numpy dtype of one element in memory; sub-byte elements take a byte each, strings are objects."""
        return np.dtype(_NUMPY.get(self.name) or getattr(ml_dtypes, _ML_DTYPES[self.name]))

    @property
    def itemsize(self) -> int:
        """Bytes of one element in a buffer of the runtime."""
        return 0 if self.kind == "s" else max(1, self.bits // 8)

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


_NUMPY = {
    "f64": "float64", "f32": "float32", "f16": "float16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
    "bool": "bool", "c64": "complex64", "c128": "complex128", "str": "object",
}  # fmt: skip
_ML_DTYPES = {
    "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn",
    "f6e2m3fn": "float6_e2m3fn", "f6e3m2fn": "float6_e3m2fn", "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
}  # fmt: skip

F32 = DType("f32", 32, "f", 1)
U8 = DType("u8", 8, "u", 2)
I8 = DType("i8", 8, "i", 3)
U16 = DType("u16", 16, "u", 4)
I16 = DType("i16", 16, "i", 5)
I32 = DType("i32", 32, "i", 6)
I64 = DType("i64", 64, "i", 7)
STR = DType("str", 0, "s", 8)
BOOL = DType("bool", 8, "b", 9)
F16 = DType("f16", 16, "f", 10)
F64 = DType("f64", 64, "f", 11)
U32 = DType("u32", 32, "u", 12)
U64 = DType("u64", 64, "u", 13)
C64 = DType("c64", 64, "c", 14)
C128 = DType("c128", 128, "c", 15)
BF16 = DType("bf16", 16, "f", 16)
F8E4M3FN = DType("f8e4m3fn", 8, "f", 17)
F8E4M3FNUZ = DType("f8e4m3fnuz", 8, "f", 18)
F8E5M2 = DType("f8e5m2", 8, "f", 19)
F8E5M2FNUZ = DType("f8e5m2fnuz", 8, "f", 20)
U4 = DType("u4", 4, "u", 21)
I4 = DType("i4", 4, "i", 22)
F4E2M1 = DType("f4e2m1", 4, "f", 23)
F8E8M0 = DType("f8e8m0", 8, "f", 24)
U2 = DType("u2", 2, "u", 25)
I2 = DType("i2", 2, "i", 26)
F6E2M3FN = DType("f6e2m3fn", 6, "f", 27)
F6E3M2FN = DType("f6e3m2fn", 6, "f", 28)

ALL = (
    F32, U8, I8, U16, I16, I32, I64, STR, BOOL, F16, F64, U32, U64, C64, C128, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, U4, I4, F4E2M1, F8E8M0, U2, I2, F6E2M3FN, F6E3M2FN,
)  # fmt: skip
BY_NAME = {t.name: t for t in ALL}
BY_ONNX = {t.onnx: t for t in ALL}
_BY_NUMPY = {t.numpy: t for t in ALL}


def from_numpy(dtype: np.dtype) -> DType:
    """The element type of a numpy dtype (fixed-width strings count as `str`).

    Raises:
        KeyError: ONNX has no such element type.
    """
    return STR if dtype.kind in "USOT" else _BY_NUMPY[dtype]

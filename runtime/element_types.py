"""The table of element types: a row for each, with the name or number that each system has for it."""

from __future__ import annotations

from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class ElementType:
    """A row of the table; empty texts and None where a system lacks the type.

    Attributes:
        name: as in `.occ` texts and manifests.
        bits: width in packed storage; 0 for texts.
        kind: `f` float, `i` signed, `u` unsigned, `b` bool, `c` complex, `s` string.
        onnx: TensorProto.DataType.
        abi: `occ_dtype` of runtime/c/occ.h; 0 if it has none.
        numpy: the dtype of numpy, or else of ml_dtypes.
        spelled: as in `tensor(..)` of ONNX and in JSON files of `atc --singleop`.
        c: the type of elements in C, where a complex number is two and what C lacks are bytes.
        halide: the type in Halide generators.
        ge: the name in GE graphs of CANN.
        acl: `aclDataType`, which is the number of `ge::DataType`.
    """

    name: str
    bits: int
    kind: str
    onnx: int
    abi: int
    numpy: str
    spelled: str
    c: str
    halide: str
    ge: str
    acl: int | None

    @property
    def itemsize(self) -> int:
        """Bytes of one element in a buffer; types below 8 bits take a byte each."""
        return 0 if self.kind == "s" else max(1, self.bits // 8)


_TABLE = """
f32          32  f   1   1  float32          float           float     float       FLOAT        0
u8            8  u   2   9  uint8            uint8           uint8_t   uint8_t     UINT8        4
i8            8  i   3   5  int8             int8            int8_t    int8_t      INT8         2
u16          16  u   4  10  uint16           uint16          uint16_t  uint16_t    UINT16       7
i16          16  i   5   6  int16            int16           int16_t   int16_t     INT16        6
i32          32  i   6   7  int32            int32           int32_t   int32_t     INT32        3
i64          64  i   7   8  int64            int64           int64_t   int64_t     INT64        9
str           0  s   8   0  object           string          -         -           STRING      13
bool          8  b   9  13  bool             bool            bool      bool        BOOL        12
f16          16  f  10   3  float16          float16         uint16_t  float16_t   FLOAT16      1
f64          64  f  11   2  float64          double          double    double      DOUBLE      11
u32          32  u  12  11  uint32           uint32          uint32_t  uint32_t    UINT32       8
u64          64  u  13  12  uint64           uint64          uint64_t  uint64_t    UINT64      10
c64          64  c  14  14  complex64        complex64       float     -           COMPLEX64   16
c128        128  c  15  15  complex128       complex128      double    -           COMPLEX128  17
bf16         16  f  16   4  bfloat16         bfloat16        uint16_t  bfloat16_t  BF16        27
f8e4m3fn      8  f  17  16  float8_e4m3fn    float8e4m3fn    uint8_t   -           -           36
f8e4m3fnuz    8  f  18  17  float8_e4m3fnuz  float8e4m3fnuz  uint8_t   -           -            -
f8e5m2        8  f  19  18  float8_e5m2      float8e5m2      uint8_t   -           -           35
f8e5m2fnuz    8  f  20  19  float8_e5m2fnuz  float8e5m2fnuz  uint8_t   -           -            -
u4            4  u  21  25  uint4            uint4           uint8_t   -           -            -
i4            4  i  22  24  int4             int4            int8_t    -           -            -
f4e2m1        4  f  23  23  float4_e2m1fn    float4e2m1      uint8_t   -           -            -
f8e8m0        8  f  24  20  float8_e8m0fnu   float8e8m0      uint8_t   -           -           37
u2            2  u  25  27  uint2            uint2           uint8_t   -           -            -
i2            2  i  26  26  int2             int2            int8_t    -           -            -
f6e2m3fn      6  f  27  21  float6_e2m3fn    float6e2m3      uint8_t   -           -            -
f6e3m2fn      6  f  28  22  float6_e3m2fn    float6e3m2      uint8_t   -           -            -
"""


def _row(line: str) -> ElementType:
    name, bits, kind, onnx, abi, numpy, spelled, c, halide, ge, acl = ("" if x == "-" else x for x in line.split())
    number = int(acl) if acl else None
    return ElementType(name, int(bits), kind, int(onnx), int(abi), numpy, spelled, c, halide, ge, number)


ELEMENT_TYPES = {t.name: t for t in map(_row, _TABLE.strip().splitlines())}
"""The rows by name, in the order of TensorProto.DataType."""

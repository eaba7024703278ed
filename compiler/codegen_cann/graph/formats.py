"""Element types and tensor formats in GE's numbering and spelling.

GE numbers types in two ways: one in graphs, another in AscendCL.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from occ.compiler.ir.dtype import BY_NAME, DType, from_numpy
from occ.runtime.element_types import ELEMENT_TYPES

# GE spelling -> (number in TensorDescriptor.dtype, number in attributes and in AscendCL, bytes per element). INT4
# occurs only in constants here, two per byte.
_IN_AIR = {
    "FLOAT": 1, "FLOAT16": 2, "INT8": 3, "UINT8": 4, "INT16": 5, "UINT16": 6, "INT32": 7, "INT64": 8, "UINT32": 9,
    "UINT64": 10, "BOOL": 11, "DOUBLE": 12, "STRING": 13, "COMPLEX64": 16, "COMPLEX128": 17, "BF16": 27,
}  # fmt: skip
TYPES: dict[str, tuple[int, int, int]] = {
    "UNDEFINED": (0, 28, 0),
    "INT4": (28, 29, 1),
    **{t.ge: (_IN_AIR[t.ge], t.acl, t.itemsize) for t in ELEMENT_TYPES.values() if t.ge and t.acl is not None},
}
_TO_OCC = {t.ge: t.name for t in ELEMENT_TYPES.values() if t.ge}
FORMATS = {"NCHW": 0, "NHWC": 1, "ND": 2, "NDHWC": 27, "NCDHW": 30}
FLOATS = frozenset({"FLOAT", "FLOAT16", "DOUBLE", "BF16"})


def ge_type(dtype: DType) -> str | None:
    """GE's name of an element type; None if GE has none."""
    return ELEMENT_TYPES[dtype.name].ge or None


def occ_type(name: str) -> DType:
    """The element type that GE calls `name`."""
    return BY_NAME[_TO_OCC[name]]


def stored(value: np.ndarray) -> bytes:
    """The bytes of a constant: its elements in order.

    For INT4, the first one is in the low half of a byte.
    """
    flat = np.ascontiguousarray(value).reshape(-1)
    if flat.dtype != ml_dtypes.int4:
        return flat.tobytes()
    codes = np.pad(flat.astype(np.int8).view(np.uint8) & 15, (0, flat.size % 2))
    return (codes[::2] | codes[1::2] << 4).tobytes()


def stored_size(value: np.ndarray) -> int:
    """The number of bytes of `stored`."""
    return -(-value.size // 2) if value.dtype == ml_dtypes.int4 else value.nbytes


def constant_type(value: np.ndarray) -> str:
    """GE's name of the element type of a constant."""
    name = "INT4" if value.dtype == ml_dtypes.int4 else ge_type(from_numpy(value.dtype))
    assert name is not None, f"GE has no element type {value.dtype}"
    return name


def descriptor_number(name: str) -> int:
    """The number of a type in `TensorDescriptor.dtype`."""
    return TYPES[name][0]


def attribute_number(name: str) -> int:
    """The number of a type in attributes (ge::DataType, aclDataType)."""
    return TYPES[name][1]


def serial_name(name: str) -> str:
    """How GE writes a type in string attributes: `DT_FLOAT`; readers know BF16 only as `DT_BFLOAT16`."""
    return "DT_BFLOAT16" if name == "BF16" else f"DT_{name}"

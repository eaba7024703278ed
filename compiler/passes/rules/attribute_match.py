"""Compares attributes and constants with what a pattern requires."""

from __future__ import annotations

from typing import Any

import numpy as np

from occ.compiler.ir.dtype import DType
from occ.compiler.ir.op import Value, Weight
from occ.compiler.passes.rules.pattern import (
    Attribute,
)

LARGEST_COMPARED = 4096  # maximum elements of a constant that is compared with a value


def same(a: Any, b: Any) -> bool:
    """Whether two bound things are equal: the same value, or equal attributes."""
    if isinstance(a, Value) or isinstance(b, Value):
        return a is b
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and a == b


def equals(weight: Weight, value: Any) -> bool:
    """Whether a constant has a value: all elements if it is a number, else shape and elements."""
    data = weight.data
    if (data.dtype.kind not in "biuf" and not weight.tensor.dtype.is_float) or data.size > LARGEST_COMPARED:
        return False
    wanted = np.asarray(value)
    if wanted.ndim and wanted.shape != data.shape:
        return False
    if data.dtype.kind in "biu":
        return bool(np.all(data == wanted))
    return bool(np.all(data == wanted.astype(data.dtype)))


def accepts(wanted: Attribute, value: Any) -> bool:
    """Whether an op's attribute satisfies a pattern."""
    if wanted.any_value:
        return True
    if wanted.test is not None:
        return bool(wanted.test(value))
    if isinstance(wanted.value, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(wanted.value)
            and all(map(_equal_scalars, value, wanted.value))
        )
    return _equal_scalars(value, wanted.value)


def _equal_scalars(actual: Any, wanted: Any) -> bool:
    if isinstance(actual, DType):
        return str(actual) == str(wanted)
    if isinstance(actual, float) and isinstance(wanted, (int, float)):
        return bool(np.float32(actual) == np.float32(wanted))  # ONNX attributes are f32
    return actual == wanted


def wanted_text(wanted: Attribute) -> str:
    """What a pattern requires of an attribute, for messages."""
    return ", which the condition refuses" if wanted.test is not None else f", not {wanted.value}"

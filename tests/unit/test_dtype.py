"""Element types against onnx's own tables."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy

import ml_dtypes
import numpy as np
import onnx
import pytest

from occ.compiler.ir import dtype as dt
from occ.runtime.element_types import ELEMENT_TYPES
from occ.runtime.signature import numpy_dtype


def test_every_element_type_of_onnx_is_there():
    known = {v for k, v in onnx.TensorProto.DataType.items() if k != "UNDEFINED"}
    assert {t.onnx for t in dt.ALL} == known
    assert len(dt.BY_NAME) == len(dt.BY_ONNX) == len(dt.ALL)


@pytest.mark.parametrize("t", dt.ALL, ids=str)
def test_a_copy_is_the_same_object(t):
    assert copy(t) is deepcopy(t) is pickle.loads(pickle.dumps(t)) is t


@pytest.mark.parametrize("t", [t for t in dt.ALL if t.kind != "s"], ids=str)
def test_numpy_twin_is_that_of_onnx(t):
    assert t.numpy == onnx.helper.tensor_dtype_to_np_dtype(t.onnx)
    assert dt.from_numpy(t.numpy) == t
    assert t.itemsize == t.numpy.itemsize


@pytest.mark.parametrize("t", [t for t in dt.ALL if t.is_float], ids=str)
def test_float_range(t):
    info = ml_dtypes.finfo(t.numpy)
    with np.errstate(all="ignore"):
        has_inf = bool(np.isinf(np.array(np.inf, np.float64).astype(t.numpy).astype(np.float64)))
    assert t.has_inf == has_inf
    assert t.highest == (float("inf") if has_inf else float(info.max))
    assert t.lowest == (float("-inf") if has_inf else float(info.min))
    assert info.bits == t.bits


@pytest.mark.parametrize("t", [t for t in dt.ALL if t.is_int], ids=str)
def test_integer_range(t):
    info = ml_dtypes.iinfo(t.numpy)
    assert (t.lowest, t.highest, t.bits) == (info.min, info.max, info.bits)


@pytest.mark.parametrize("t", dt.ALL, ids=str)
def test_the_runtime_knows_the_same_types(t):
    assert numpy_dtype(t.name) == t.numpy
    assert set(ELEMENT_TYPES) == set(dt.BY_NAME)


def test_strings_of_any_numpy_kind_are_str():
    for array in (np.array(["a"]), np.array([b"a"]), np.array(["a"], object)):
        assert dt.from_numpy(array.dtype) == dt.STR


def test_narrow_floats_accumulate_in_f32():
    assert [t.acc.name for t in (dt.F16, dt.BF16, dt.F8E5M2, dt.F32, dt.F64, dt.I8)] == [
        "f32", "f32", "f32", "f32", "f64", "i8",
    ]  # fmt: skip

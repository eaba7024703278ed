"""Codes of narrow types: every code and many values against ml_dtypes."""

import numpy as np
import pytest

from occ.compiler.interp.evaluate import run
from occ.compiler.ir import dtype as dt
from occ.compiler.ir.te.expr import cast
from occ.compiler.ir.te.function import Builder, Param, TeFunc, Tensor
from occ.compiler.ir.te.storage import is_stored, to_bytes
from occ.compiler.ir.types import TensorType

STORED = [t for t in dt.ALL if is_stored(t)]


def convert(x: np.ndarray, source: dt.DType, target: dt.DType) -> np.ndarray:
    """Cast with codes in bytes."""
    t = Builder()
    type_ = TensorType(source, x.shape)
    made = t.map(x.shape, lambda i: cast(target, Tensor("p0", type_)[i]))
    f = to_bytes(TeFunc("f", (), (Param("p0", type_),), tuple(t.stages), (Param(made.name, made.type),)))
    given = x.view(np.uint8) if is_stored(source) else x
    (result,) = run(f, [given], {})
    return result.view(target.numpy) if is_stored(target) else result


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_code_decodes(dtype: dt.DType) -> None:
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    target = dt.F32 if dtype.is_float else dt.I32
    np.testing.assert_array_equal(convert(codes, dtype, target), codes.astype(target.numpy))


@pytest.mark.parametrize("source", [dt.F32, dt.F16, dt.BF16, dt.F64], ids=str)
@pytest.mark.parametrize("dtype", [t for t in STORED if t.is_float], ids=str)
def test_floats_encode_to_the_nearest(dtype: dt.DType, source: dt.DType) -> None:
    rng = np.random.default_rng(0)
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    finite = np.sort(codes[np.isfinite(codes)])
    middles = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([
        codes, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), finite * 1.01,
        rng.normal(size=4000) * 2.0 ** rng.integers(-20, 20, 4000), [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e9, -1e9, 1e-12],
    ])  # fmt: skip
    with np.errstate(all="ignore"):
        x = x.astype(source.numpy)
        if dtype == dt.F8E8M0:
            x = x[(x.astype(np.float64) > 2.0**-126) | np.isnan(x.astype(np.float64))]
        expected = x.astype(dtype.numpy)
    got = convert(x, source, dtype)
    wrong = ~((got.view(np.uint8) == expected.view(np.uint8)) | (np.isnan(got) & np.isnan(expected)))
    assert not wrong.any(), list(zip(x[wrong][:5], got[wrong][:5], expected[wrong][:5], strict=True))


@pytest.mark.parametrize("dtype", [t for t in STORED if t.is_int], ids=str)
def test_integers_keep_their_low_bits(dtype: dt.DType) -> None:
    x = np.arange(-300, 300, dtype=np.int32)
    np.testing.assert_array_equal(convert(x, dt.I32, dtype), x.astype(dtype.numpy))

"""The one comparison of arrays and the one maker of random elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from occ.compiler.compare import difference, first_difference, gaps
from occ.compiler.debugging.random_tensors import random_array

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_infinities_and_nan_are_the_same_as_themselves_alone(dtype) -> None:
    special = np.array([INF, -INF, NAN, 0.0, 4.0]).astype(dtype)
    assert gaps(special, special).tolist() == [0] * 5
    assert difference(special, special) == 0
    for k, value in ((0, -INF), (1, 1.0), (2, 0.0), (3, NAN), (4, INF)):
        other = special.copy()
        other[k] = value
        assert difference(other, special) == INF
        assert first_difference(other, special, 1e9) == (k,)


def test_signalling_nans_of_memory_that_nothing_wrote_are_nans() -> None:
    signalling, ones = np.full(20, 0x7FA00000, np.uint32).view(np.float32), np.ones(20, np.float32)
    assert gaps(signalling, signalling).tolist() == [0] * 20
    assert difference(signalling, ones) == INF
    assert difference(ones, signalling) == INF


def test_floats_may_be_off_by_a_share_of_the_largest_and_integers_by_nothing() -> None:
    x = np.array([[0.0, 1.0], [-10.0, 2.0]], np.float32)
    off = x + np.array([[0, 0], [0, 0.5]], np.float32)
    assert difference(off, x) == pytest.approx(0.05)
    assert first_difference(off, x, 0.051) is None
    assert first_difference(off, x, 0.049) == (1, 1)
    assert first_difference(off / 100, x / 100, 0.049, least=1.0) is None
    huge = np.array([2**62, 2**62 + 1])
    assert first_difference(huge, huge[::-1], 1.0) == (0,)
    assert difference(np.float32(1.0).reshape(1), np.float32([1.0, 1.0])) == INF


def test_complex_numbers_texts_and_nothing() -> None:
    z = np.array([1 + 2j, 3 - 1j])
    assert difference(z, z) == 0
    assert first_difference(z + 1e-3j, z, 1e-6) == (0,)
    words = np.array(["a", "b"], object)
    assert (difference(words, words), difference(words[::-1], words)) == (0, INF)
    assert first_difference(words[::-1], words, 1.0) == (0,)
    empty = np.zeros((0, 3), np.float32)
    assert (difference(empty, empty), first_difference(empty, empty, 0.0)) == (0, None)


@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.uint64, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4, object]
)
def test_random_elements_have_the_type_and_are_the_same_again(dtype) -> None:
    one, two = (random_array(np.random.default_rng(3), np.dtype(dtype), (4, 0, 5)[:k]) for k in (1, 1))
    assert one.dtype == dtype
    assert np.array_equal(one, two)
    assert random_array(np.random.default_rng(3), np.dtype(dtype), (4, 0)).shape == (4, 0)


def test_positive_floats_and_ranges_of_integers() -> None:
    rng = np.random.default_rng(0)
    assert (random_array(rng, np.dtype(np.float32), (1000,), positive=True) >= 0.1).all()
    drawn = random_array(rng, np.dtype(np.int64), (1000,), integers=(-4, 5))
    assert (drawn.min(), drawn.max()) == (-4, 4)

"""Products with a symbolic number of rows: few rows and many take different loops of one kernel, and agree with f64."""

import numpy as np
import pytest
from building import model_of, reference

import occ

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 17]


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.fixture(scope="module")
def rows():
    """Sum, and a choice that makes the kernel an exact one, after a product of 96 columns that are not whole panels."""
    w, b = weights(1, 72, 84), weights(2, 84)
    text = """g (float[n, 72] x, float[n, 84] z) => (float[n, 84] y) {
        h = MatMul(x, w)
        s = Add(h, b)
        odd = IsNaN(s)
        r = Where(odd, z, s)
        y = Add(r, z)
    }"""
    return occ.compile(model_of(text, {"w": w, "b": b}), "cpu"), w, b


@pytest.mark.parametrize("n", SIZES)
def test_rows(rows, n: int) -> None:
    session, w, b = rows
    x, z = weights(3, n, 72), weights(4, n, 84)
    (y,) = session(x, z)
    exact = x.astype(np.float64) @ w + b + 2 * z.astype(np.float64) - z
    assert y.shape == exact.shape
    assert np.abs(y - exact).max(initial=0) <= 1e-5 * np.abs(exact).max(initial=0)


@pytest.fixture(scope="module")
def steps():
    """Steps of a batch, transposed: with few rows in the batch, the tile goes along the steps."""
    w = weights(5, 40, 64)
    text = """g (float[n, s, 40] x) => (float[s, n, 64] y) {
        t = Transpose <perm = [1, 0, 2]> (x)
        y = MatMul(t, w)
    }"""
    return occ.compile(model_of(text, {"w": w}), "cpu"), w


@pytest.mark.thinned
@pytest.mark.parametrize(("n", "s"), [(1, 1), (1, 9), (2, 5), (9, 1), (8, 3), (3, 8), (4, 4), (3, 2)])
def test_steps_of_a_batch(steps, n: int, s: int) -> None:
    session, w = steps
    x = weights(6, n, s, 40)
    (y,) = session(x)
    exact = x.astype(np.float64).transpose(1, 0, 2) @ w
    assert y.shape == (s, n, 64)
    assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()


def test_half_weights_of_few_rows() -> None:
    w = weights(7, 64, 48).astype(np.float16)
    model = model_of("g (float16[n, 64] x) => (float16[n, 48] y) { y = MatMul(x, w) }", {"w": w})
    session = occ.compile(model, "cpu")
    for n in (1, 2, 3, 9):
        x = weights(8, n, 64).astype(np.float16)
        (y,) = session(x)
        (wide,) = reference(model, {"x": x})
        exact = x.astype(np.float64) @ w.astype(np.float64)
        assert y.dtype == wide.dtype
        assert np.all(np.abs(y.astype(np.float64) - exact) <= 1.01 * 2.0**-11 * np.abs(exact) + 1e-4)


@pytest.mark.thinned
@pytest.mark.parametrize("last", [1, 2, 3, 4, 5, 40])
def test_the_last_rows(last: int) -> None:
    """There is an upper bound, which Halide derives too: tests of variants are stated as it states them."""
    w = weights(11, 40, 24)
    text = f"""g (float[n, s, 40] x) => (float[n, k, 24] y) {{
        first = Constant <value_ints = [-{last}]> ()
        end = Constant <value_ints = [9223372036854775807]> ()
        axis = Constant <value_ints = [1]> ()
        h = Slice(x, first, end, axis)
        y = MatMul(h, w)
    }}"""
    session = occ.compile(model_of(text, {"w": w}), "cpu", shapes={"x": (1, "s", 40)})
    for steps in (1, 2, 3, 7, 50):
        x = weights(12, 1, steps, 40)
        (y,) = session(x)
        exact = x[:, -last:].astype(np.float64) @ w
        assert y.shape == exact.shape
        assert np.abs(y - exact).max() <= 1e-5 * np.abs(exact).max()


def test_a_first_row_and_all_but_the_last() -> None:
    """As many windows as `min(1, s) + max(0, s - 1)` rows have, of which Halide makes forms of its own."""
    text = """g (float[n, s, 32] x) => (float[n, 1, k, 32] y) {
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        end = Constant <value_ints = [-1]> ()
        first = Slice(x, zero, one, one)
        others = Slice(x, zero, end, one)
        both = Concat <axis = 1> (first, others)
        plane = Unsqueeze(both, one)
        y = AveragePool <kernel_shape = [2, 1], strides = [2, 1], ceil_mode = 1> (plane)
    }"""
    model = model_of(text)
    session = occ.compile(model, "cpu")
    for rows in (1, 2, 7, 15, 16, 33):
        x = weights(13, 2, rows, 32)
        np.testing.assert_allclose(session(x)[0], reference(model, {"x": x})[0], rtol=1e-6, atol=1e-7)


def test_rows_whose_number_is_a_formula_of_several_sizes() -> None:
    """As in a decoder with a window: the schedule of a run depends on the result of the formula."""
    text = """g (float[n, s, 40] x, float[n, p, 40] z) => (float[n, k, t] y) {
        zero = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [9223372036854775807]> ()
        most = Constant <value_ints = [9]> ()
        axis = Constant <value_ints = [1]> ()
        both = Concat <axis = 1> (z, x)
        some = Slice(both, zero, most, axis)
        old = Slice(z, zero, most, axis)
        held = Shape <start = 1, end = 2> (old)
        new = Slice(some, held, end, axis)
        across = Transpose <perm = [0, 2, 1]> (both)
        y = MatMul(new, across)
    }"""
    session = occ.compile(model_of(text, {}), "cpu")
    for rows, steps, before in ((1, 1, 0), (3, 2, 8), (1, 7, 4), (2, 50, 30), (5, 1, 3), (1, 20, 2)):
        x, z = weights(12, rows, steps, 40), weights(14, rows, before, 40)
        (y,) = session(x, z)
        both = np.concatenate([z, x], 1)
        exact = both[:, before:9].astype(np.float64) @ both.transpose(0, 2, 1)
        assert y.shape == exact.shape
        assert np.abs(y - exact).max(initial=0) <= 1e-5 * np.abs(exact).max(initial=1e-9)


@pytest.mark.thinned
@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_multiples_of_a_batch(times: int) -> None:
    """Rows of which no batch has from three to four, and those of which one has."""
    w = weights(13, 40, 24)
    text = f"""g (float[n, {times}, 40] x) => (float[m, 24] y) {{
        shape = Constant <value_ints = [-1, 40]> ()
        rows = Reshape(x, shape)
        y = MatMul(rows, w)
    }}"""
    session = occ.compile(model_of(text, {"w": w}), "cpu")
    for n in (0, 1, 2, 4):
        x = weights(14, n, times, 40)
        (y,) = session(x)
        exact = x.reshape(-1, 40).astype(np.float64) @ w
        assert y.shape == exact.shape
        assert np.abs(y - exact).max(initial=0) <= 1e-5 * np.abs(exact).max(initial=0)


def test_rows_of_windows_of_a_batch() -> None:
    """As of frames of a sound: their number, `n*s - 3*n`, is a sum of products, and conditions of two variants depend on it."""
    filters, w = weights(15, 40, 8, 4) / 8, weights(16, 40, 24)
    text = """g (float[n, 8, s] x) => (float[n, t, 24] y) {
        windows = Conv <kernel_shape = [4]> (x, filters)
        frames = Transpose <perm = [0, 2, 1]> (windows)
        power = Softmax <axis = 2> (frames)
        y = MatMul(power, w)
    }"""
    model = model_of(text, {"filters": filters, "w": w})
    session = occ.compile(model, "cpu")
    for n, s in ((1, 4), (1, 6), (2, 5), (1, 7), (3, 4), (2, 30), (0, 5)):
        x = weights(17, n, 8, s)
        np.testing.assert_allclose(session(x)[0], reference(model, {"x": x})[0], rtol=1e-5, atol=1e-6)

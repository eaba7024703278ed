"""Fourier transforms of known length are products with constant matrices in native code; numpy's are the oracle."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import TARGETS, model_of, reference

import occ
from occ.compiler.driver.compilation import Compilation, Settings

RNG = np.random.default_rng(0)
FORMS = {
    "rows": ("", "x", "3, 20, 2", lambda z: np.fft.fft(z, axis=1)),
    "one side": ("<onesided = 1>", "x", "3, 20, 1", lambda z: np.fft.rfft(z.real, axis=1)),
    "odd": ("<onesided = 1>", "x", "3, 7, 1", lambda z: np.fft.rfft(z.real, axis=1)),
    "padded": ("", "x, long", "3, 20, 2", lambda z: np.fft.fft(z, 32, axis=1)),
    "cut": ("", "x, short", "3, 20, 2", lambda z: np.fft.fft(z, 5, axis=1)),
    "inverse": ("<inverse = 1>", "x, long", "3, 20, 2", lambda z: np.fft.ifft(z, 32, axis=1)),
    "to real": ("<inverse = 1, onesided = 1>", "x, short", "3, 3, 2", lambda z: np.fft.irfft(z, 5, axis=1)),
    "two factors": ("", "x", "3, 512, 1", lambda z: np.fft.fft(z.real, axis=1)),
    "two odd factors": ("<inverse = 1>", "x", "2, 135, 2", lambda z: np.fft.ifft(z, axis=1)),
    "two factors of columns": ("", "x, , first", "144, 3, 2", lambda z: np.fft.fft(z, axis=0)),
    "a prime": ("", "x", "2, 131, 1", lambda z: np.fft.fft(z.real, axis=1)),
    "columns": ("", "x, , first", "20, 3, 2", lambda z: np.fft.fft(z, axis=0)),
}
SIZES = {"long": np.int64(32), "short": np.int64(5), "first": np.int64(0)}


def parts(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1) if np.iscomplexobj(z) else z[..., None]


def kernels(model: object, target: str) -> str:
    return " ".join(Compilation(model, Settings(target, verify=True)).advance("lowered").te)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("case", FORMS)
def test_dft(case: str, kind: str) -> None:
    attributes, operands, shape, oracle = FORMS[case]
    extents = [int(n) for n in shape.split(", ")]
    used = {k: v for k, v in SIZES.items() if k in operands}
    model = model_of(f"g ({kind}[{shape}] x) => ({kind}[a, b, c] y) {{ y = DFT {attributes} ({operands}) }}", used)
    x = RNG.standard_normal(extents).astype(np.float32 if kind == "float" else np.float64)
    wanted = parts(oracle(x[..., 0] + 1j * x[..., 1] if extents[-1] == 2 else x[..., 0] + 0j))
    for target in ("cpu-jit", "cpu"):
        (y,) = occ.compile(model, target)(x)
        assert y.shape == wanted.shape
        assert np.abs(y - wanted).max() <= (1e-6 if kind == "float" else 1e-14) * np.abs(wanted).max()
        assert "dft" not in kernels(model, target)


@pytest.mark.thinned
@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize(("width", "onesided"), [(1, 1), (1, 0), (2, 0)])  # a complex signal has two sides
def test_stft(width: int, windowed: bool, onesided: int) -> None:
    window = np.hanning(16).astype(np.float32)
    operands = "x, step, window" if windowed else "x, step, , length"
    text = f"g (float[n, t, {width}] x) => (float[n, f, b, 2] y) {{ y = STFT <onesided = {onesided}> ({operands}) }}"
    model = model_of(text, {"step": np.int64(6), **({"window": window} if windowed else {"length": np.int64(16)})})
    for target in ("cpu-jit", "cpu"):
        session = occ.compile(model, target)
        for n, t in ((1, 16), (2, 21), (3, 100)):
            x = RNG.standard_normal((n, t, width), dtype=np.float32)
            z = x[..., 0] + 1j * x[..., 1] if width == 2 else x[..., 0]
            frames = np.stack([z[:, at : at + 16] for at in range(0, t - 15, 6)], 1) * (window if windowed else 1)
            wanted = parts(np.fft.rfft(frames) if onesided else np.fft.fft(frames))
            (y,) = session(x)
            assert y.shape == wanted.shape
            assert np.abs(y - wanted).max() <= 1e-6 * np.abs(wanted).max()
        assert "stft" not in kernels(model, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("given", [1, 2])
def test_parts_that_a_run_tells(target: str, given: int) -> None:
    """Whether elements have an imaginary part is seen by a symbolic extent; it was taken for 2, and read past each element."""
    stft = "y = STFT <onesided = 0> (x, step, window)"
    text = f"g (float[b, n, c] x) => (float[p, q, r, s] y, float[t, u, v] z) {{ {stft}  z = DFT (x) }}"
    window = np.hanning(40).astype(np.float32)
    session = occ.compile(model_of(text, {"step": np.int64(16), "window": window}), target=target)
    x = RNG.standard_normal((2, 100, given), dtype=np.float32)
    z = x[..., 0] + 1j * x[..., 1] if given == 2 else x[..., 0]
    frames = np.stack([np.fft.fft(z[:, k : k + 40] * window, axis=-1) for k in range(0, 61, 16)], axis=1)
    y, whole = session(x)
    np.testing.assert_allclose(y, parts(frames + 0j), atol=1e-4)
    np.testing.assert_allclose(whole, parts(np.fft.fft(z, axis=1) + 0j), atol=1e-4)
    for wrong in (0, 3):
        with pytest.raises(occ.RunError, match="OCC0503"):
            session(np.zeros((2, 100, wrong), np.float32))


@pytest.mark.parametrize("target", TARGETS)
def test_parts_that_a_reshape_hides(target: str) -> None:
    text = "g (float[b, n] x) => (float[p, q, r, s] y) { x3 = Reshape (x, shape)  y = STFT (x3, step, window) }"
    weights = {"step": np.int64(16), "window": np.hanning(40).astype(np.float32), "shape": np.array([1, 400, -1])}
    model = model_of(text, weights)
    x = RNG.standard_normal((2, 200), dtype=np.float32)
    (y,), (exact,) = occ.compile(model, target=target)(x), reference(model, {"x": x})
    np.testing.assert_allclose(y, exact, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_transform_of_any_extents_along_an_inner_axis(target: str) -> None:
    """The distance of what lanes read was a product of sizes and a position, which code for LLVM did not have."""
    text = """g (float[a, b, c, d] x) => (float[p, q, r, 2] y, float[s, t, u, 2] z) {
        long = Constant<value_int = 9>()
        short = Constant<value_int = 3>()
        axis = Constant<value_int = -3>()
        y = DFT<onesided = 1>(x, long, axis)
        z = DFT<onesided = 1>(x, short, axis)
    }"""
    session = occ.compile(model_of(text), target)
    x = RNG.standard_normal((2, 5, 6, 1)).astype(np.float32)
    got = session.run({"x": x})
    for name, length in (("y", 9), ("z", 3)):
        want = np.fft.rfft(x[..., 0], length, axis=1)
        np.testing.assert_allclose(got[name], np.stack([want.real, want.imag], -1), atol=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("form", "width", "kind"),
    [("", 1, "float"), ("", 2, "double"), ("onesided = 1", 1, "float"), ("inverse = 1", 2, "float")],
)
def test_lengths_that_a_run_tells(form: str, width: int, kind: str) -> None:
    """One element, primes, and products of any kind; longer and shorter than the signal."""
    texts = [
        f"<axis = 1, {form}> (x)" if form else "<axis = 1> (x)",
        f"<axis = 0, {form}> (x, n)" if form else "<axis = 0> (x, n)",
    ]
    dtype = np.dtype(np.float32 if kind == "float" else np.float64)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 19]> g ({kind}[a, m, {width}] x, {kind}[n] like)
        => ({kind}[p, q, 2] y, {kind}[r, s, 2] z) {{
            shape = Shape (like)
            n = Squeeze (shape)
            y = DFT {texts[0]}
            z = DFT {texts[1]}
        }}"""
    )
    transform = {"": np.fft.fft, "onesided = 1": np.fft.rfft, "inverse = 1": np.fft.ifft}[form]
    for target in ("cpu-jit", "cpu"):
        session = occ.compile(model, target)
        for m, n in ((1, 1), (2, 7), (33, 2), (127, 5), (400, 12), (1001, 1)):
            x = RNG.standard_normal((3, m, width)).astype(dtype)
            z = x[..., 0] + 1j * x[..., 1] if width == 2 else x[..., 0].astype(np.float64)
            got = session.run({"x": x, "like": np.zeros(n, dtype)})
            for name, wanted in (("y", transform(z, axis=1)), ("z", transform(z, n, axis=0))):
                wanted = parts(wanted + 0j)
                assert got[name].shape == wanted.shape
                assert np.abs(got[name] - wanted).max() <= (3e-6 if kind == "float" else 1e-13) * np.abs(wanted).max()
        assert "dft" not in kernels(model, target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
def test_long_transforms_of_one_side_and_of_prime_length(target: str) -> None:
    for shape, form in (((2, 2048, 1), "onesided = 1"), ((2, 2039, 1), ""), ((1, 2039, 2), "inverse = 1")):
        dims = ", ".join(map(str, shape))
        model = model_of(f"g (float[{dims}] x) => (float[a, b, c] y) {{ y = DFT <{form}> (x) }}".replace("<>", ""))
        x = RNG.standard_normal(shape, dtype=np.float32)
        z = x[..., 0] + 1j * x[..., 1] if shape[2] == 2 else x[..., 0]
        wanted = parts({"": np.fft.fft, "onesided = 1": np.fft.rfft, "inverse = 1": np.fft.ifft}[form](z, axis=1))
        (y,) = occ.compile(model, target)(x)
        assert y.shape == wanted.shape
        assert np.abs(y - wanted).max() <= 1e-6 * np.abs(wanted).max()
        assert "dft" not in kernels(model, target)


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize(("step", "length"), [(512, 2048), (600, 2000)])
def test_long_frames(target: str, step: int, length: int) -> None:
    window = np.hanning(length).astype(np.float32)
    text = "g (float[n, t, 1] x) => (float[n, f, b, 2] y) { y = STFT <onesided = 1> (x, step, window) }"
    model = model_of(text, {"step": np.int64(step), "window": window})
    session = occ.compile(model, target)
    for n, t in ((1, length), (2, 5001)):
        x = RNG.standard_normal((n, t, 1), dtype=np.float32)
        frames = np.stack([x[:, at : at + length, 0] for at in range(0, t - length + 1, step)], 1) * window
        wanted = parts(np.fft.rfft(frames))
        (y,) = session(x)
        assert y.shape == wanted.shape
        assert np.abs(y - wanted).max() <= 1e-6 * np.abs(wanted).max()
    assert "stft" not in kernels(model, target)


@pytest.mark.thinned
def test_lengths_beyond_one_matrix():
    """A matrix of 4,096 by 8,192 elements is too large to be a constant; two of 64 are not. The batch is symbolic."""
    session = occ.compile(model_of("g (float[n, 4096, 1] x) => (float[n, b, c] y) { y = DFT (x) }"), "cpu")
    for n in (1, 3):
        x = RNG.standard_normal((n, 4096, 1), dtype=np.float32)
        wanted = parts(np.fft.fft(x[..., 0], axis=1))
        assert np.abs(session.run({"x": x})["y"] - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("rows", [0, "n"])
def test_transforms_of_no_rows(target: str, rows: int | str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20]>
        g (float[{rows},10,10,1] x) => (y) {{ a = Constant<value_int=1>() y = DFT(x, "", a) }}"""
    session = occ.compile(onnx.parser.parse_model(text), target=target, threads=1)
    assert session.run({"x": np.zeros((0, 10, 10, 1), np.float32)})["y"].shape == (0, 10, 10, 2)

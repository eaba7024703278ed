"""Fourier transforms of known length are products with constant matrices in native code; numpy's are the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

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
    "columns": ("", "x, , first", "20, 3, 2", lambda z: np.fft.fft(z, axis=0)),
}
SIZES = {"long": np.int64(32), "short": np.int64(5), "first": np.int64(0)}


def parts(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1) if np.iscomplexobj(z) else z[..., None]


def kernels(model: object, target: str) -> str:
    return " ".join(Compilation(model, Settings(target, verify=True)).advance("lowered").te)


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

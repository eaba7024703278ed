"""Sin and Cos of f32 against f64: arguments of all sizes, next to zeros of the function, and what is not a number."""

import numpy as np
import pytest
from building import model_of
from machines import opened

import occ

BUILDS = {
    "cpu": ("cpu", {}),
    "avx2": ("cpu", {"halide.target": "x86-64-linux-avx2-fma"}),
    "sse": ("cpu", {"halide.target": "x86-64-linux-sse41"}),
    "jit": ("cpu-jit", {}),
}


def arguments() -> np.ndarray:
    rng = np.random.default_rng(6)
    near = np.arange(1, 20_000) * (np.pi / 2)
    parts = [
        np.exp(rng.uniform(-70, 88.7, 100_000)),
        rng.uniform(0, 10, 20_000),
        near,
        [16367173 * 2.0**72, 3.4028235e38],
    ]
    positive = np.concatenate(parts).astype(np.float32)
    return np.concatenate([positive, -positive])


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize(("target", "options"), list(BUILDS.values()), ids=list(BUILDS))
def test_sines_of_all_arguments(target: str, options: dict[str, str]) -> None:
    m = model_of("g (float[n] x) => (float[n] s, float[n] c) { s = Sin(x) c = Cos(x) }")
    session = opened(occ.build(m, target, options=options))
    x = arguments()
    for got, f in zip(session.run({"x": x}).values(), (np.sin, np.cos), strict=True):
        want = f(x.astype(np.float64))
        assert np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))) < 2, f

    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42], np.float32)
    sine, cosine = session.run({"x": special}).values()
    assert list(np.signbit(sine[:2])) == [False, True]
    assert np.isnan(sine[2:5]).all()
    assert np.isnan(cosine[2:5]).all()
    assert list(cosine[:2]) == [1, 1]
    assert sine[5] in (0, special[5])  # processors may take subnormal numbers for zero


@pytest.mark.thinned
@pytest.mark.toolchain
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3,)], ids=str)
def test_signs_of_few_elements(shape: tuple[int, ...]) -> None:
    """Code of one element has no vectors: a shift into the sign of a number was undefined there."""
    dims = ",".join(map(str, shape))
    session = occ.compile(
        model_of(f"g (float[{dims}] x) => (float[{dims}] s, float[{dims}] c) {{ s = Sin(x) c = Cos(x) }}")
    )
    for v in np.linspace(-9, 9, 37, dtype=np.float32):
        x = np.full(shape, v)
        sine, cosine = session.run({"x": x}).values()
        np.testing.assert_allclose(sine, np.sin(x), rtol=0, atol=1e-6)
        np.testing.assert_allclose(cosine, np.cos(x), rtol=0, atol=1e-6)

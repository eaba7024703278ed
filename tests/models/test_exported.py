"""Models of the folders in OCC_TEST_MODELS against onnxruntime, two sets of inputs from one build.

Outputs in f32 differ by at most 1e-4 of their largest value, models with f16 weights by 2e-3. Quantised models are compared
with onnxruntime as it runs by default: operators between codes are operators on integers there and here. Layers are
compared with onnxruntime as it runs the nodes of the file, one by one: it differs from itself, since sums in f32 in
another order round to the next code here and there. One quantum is the scale of the
DequantizeLinear that computes an output, or one step of a code; at most one element of 1000, both sets together, may differ by more. Where the data
decide the scales there is no quantum of the output; every layer is compared, on the codes that onnxruntime has computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from exported import Arrays, Exported, folders, layers_of, session

import occ

TARGETS = ("interp", "cpu-jit", "cpu")
MODELS = folders()
CODED = [m for m in MODELS if m.is_coded]
OUTLIERS = 1e-3  # of the elements, which may differ by more than a quantum
ONE = 1.001  # quantum, and what f32 rounds when codes are scaled

pytestmark = pytest.mark.slow


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, as a part of the largest value."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else np.inf
    x, y = got.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isfinite(x), np.isfinite(y))
    at = np.isfinite(y)
    most = np.abs(y[at]).max(initial=0)
    return float(np.abs(x[at] - y[at]).max(initial=0)) / (most or 1.0)


def gaps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The difference of each element."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    return np.abs(got.astype(np.float64) - want.astype(np.float64)).ravel()


def check(exported: Exported, pairs: Sequence[tuple[Arrays, Arrays]]) -> str:
    """Compare outputs of all runs; a word on how far they are apart."""
    worst: list[str] = []
    for name in pairs[0][1]:
        quantum = exported.quantum(name)
        if quantum is None:
            gap = max(difference(got[name], want[name]) for got, want in pairs)
            assert gap <= exported.tolerance, f"{name}: {gap:.2e}"
            worst.append(f"{gap:.1e}")
        else:
            off = np.concatenate([gaps(got[name], want[name]) for got, want in pairs]) / quantum
            worst.append(f"{off.max():.2f} quanta, {np.mean(off > ONE):.2%} of {off.size} elements by more than one")
            assert np.mean(off > ONE) <= OUTLIERS, f"{name}: {worst[-1]}"
    return ", ".join(worst)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exported", [m for m in MODELS if not m.is_dynamic], ids=lambda m: m.name)
def test_same_as_onnxruntime_at_two_sizes_from_one_build(exported: Exported, target: str) -> None:
    ours, theirs = occ.compile(exported.path, target), session(exported.path)
    pairs: list[tuple[Arrays, Arrays]] = []
    for inputs in exported.inputs():
        got = ours.run(inputs)
        pairs.append((got, dict(zip(got, theirs.run(list(got), dict(inputs)), strict=True))))
    print(f"{exported.name} on {target}: {check(exported, pairs)}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exported", CODED, ids=lambda m: m.name)
def test_every_layer_gives_the_codes_of_onnxruntime(exported: Exported, target: str) -> None:
    for inputs in exported.inputs():
        layers = layers_of(exported, inputs)
        got = occ.compile(layers.model, target).run(layers.inputs)
        worst, codes, off = 0.0, 0, 0
        for name, y in layers.expected.items():
            if y.dtype.kind == "f":
                gap, quantum = difference(got[name], y), exported.quantum(name)
                assert gap <= 1e-4 or (quantum and gaps(got[name], y).max() <= ONE * quantum), f"{name}: {gap:.2e}"
                worst = max(worst, gap)
            else:
                assert np.mean(gaps(got[name], y) > 1) <= OUTLIERS, name
                codes, off = codes + y.size, off + int(np.sum(got[name] != y))
        print(f"{exported.name} on {target}: {off} of {codes} codes differ, floats by {worst:.1e}")

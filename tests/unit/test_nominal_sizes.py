"""The sizes that schedules count on where those of a run are not known."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.dim import Dim, symbol
from occ.compiler.ir.typical_sizes import NOMINAL, nominal, nominal_count

D = symbol("d")


@pytest.mark.parametrize(
    ("d", "size"),
    [
        (7, 7),
        (0, 0),
        (D, NOMINAL),
        (2 * D + 1, 2 * NOMINAL + 1),
        (symbol("d", 0, 10), 10),
        (symbol("d", 320, 1280), 320),
        ((D + 128) // 160 - 3, 1),  # of a d of 512
        (symbol("d", 0, 10) - 20, 1),  # which no d makes 1
    ],
    ids=str,
)
def test_nominal(d: Dim, size: int) -> None:
    assert nominal(d) == size


def test_extents_of_a_shape_are_counted_one_by_one() -> None:
    windows = D // 160 - 3
    assert nominal_count((windows, windows, 5)) == nominal(windows) ** 2 * 5


def test_windows_that_are_longer_than_typical_sizes_are_shared_by_threads() -> None:
    """A spectrogram: 257 filters of 512 elements, 160 apart, of a signal whose length is symbolic."""
    text = """g (float[n, 1, length] x) => (float[n, 257, frames] y) { y = Conv <strides = [160]> (x, w) }"""
    m = model_of(text, {"w": np.ones((257, 1, 512), np.float32)})
    (f,) = (f for f in Compilation(m, Settings("cpu")).advance("scheduled").te.values() if f.name.startswith("conv"))
    assert [d for d in f.schedule if d.call == "parallel"]


def fused_and_parallel(text: str, weights: dict[str, np.ndarray], kind: str) -> tuple[int, int]:
    """Of the kernel of a kind: how many loops are fused, and how many are parallel."""
    kernels = Compilation(model_of(text, weights), Settings("cpu")).advance("scheduled").te.values()
    (f,) = (f for f in kernels if f.name.startswith(kind))
    return sum(d.call == "fuse" for d in f.schedule), sum(d.call == "parallel" for d in f.schedule)


def test_pixels_of_few_channels_are_shared_by_threads() -> None:
    """The typical image of 64 pixels would not be worth it; runs on such stay on their thread, see test_few_operations.py."""
    text = "g (float[n, 16, h, w] x) => (float[n, 32, p, q] y) { y = Conv (x, k) }"
    weights = {"k": np.ones((32, 16, 1, 2), np.float32)}
    assert fused_and_parallel(text, weights, "conv")[1] == 1
    fixed = text.replace("n, 16, h, w", "1, 16, 8, 8")
    assert fused_and_parallel(fixed, weights, "conv")[1] == 0


def test_a_task_is_a_row_of_pixels() -> None:
    text = "g (float[n, 24, h, w] x) => (float[n, 24, p, q] y) { c = ConvTranspose <strides = [2, 2]> (x, k) y = Sigmoid (c) }"
    assert fused_and_parallel(text, {"k": np.ones((24, 24, 2, 2), np.float32)}, "interleave") == (1, 1)

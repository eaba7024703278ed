"""QLinearGlobalAveragePool adds codes, not numbers: the sum of a plane is exact."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of

import occ


@pytest.mark.parametrize("target", ["interp", pytest.param("cpu", marks=pytest.mark.toolchain)])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_means_of_equal_codes_are_those_codes(channels_last: int, target: str) -> None:
    """Their quotients are half way between two codes: a sum of f32 was a little off, and some of the means another code."""
    codes = np.arange(1, 255, 2, dtype=np.uint8)
    weights = {"s": np.float32(0.1), "z": np.uint8(0), "u": np.float32(0.2), "v": np.uint8(3)}
    shape, result = ("1,96,90,127", "1,1,1,127") if channels_last else ("1,127,96,90", "1,127,1,1")
    node = f"y = com.microsoft.QLinearGlobalAveragePool <channels_last = {channels_last}> (x, s, z, u, v)"
    text = f"g (uint8[{shape}] x) => (uint8[{result}] y) {{ {node} }}"
    model = model_of(text, {k: np.array(v) for k, v in weights.items()})
    x = np.broadcast_to(codes if channels_last else codes[:, None, None], [int(n) for n in shape.split(",")])
    got = occ.compile(model, target).run({"x": np.ascontiguousarray(x)})["y"].ravel()
    want = np.rint(codes.astype(np.float32) * weights["s"] / weights["u"]) + weights["v"]
    np.testing.assert_array_equal(got, want.astype(np.uint8))

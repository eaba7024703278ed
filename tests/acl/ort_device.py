"""Opens models in onnxruntime with the provider for Ascend devices, and counts the calls of the stand-in."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ascend_standin import Standin

import occ

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
NAME = "OccAscendExecutionProvider"
RNG = np.random.default_rng(0)
KINDS = ("upload", "download", "device")
HALF = 5e-3  # of the largest value: the 310P multiplies in half precision
# The middle needs DOUBLE, of which no chip has the kernel.
ABC = """g (float[4,8] x) => (float[4,8] y) {
    a = Relu(x)  b = Cast<to = 11>(a)  c = Exp(b)  d = Cast<to = 1>(c)  e = Sub(d, a)  y = Abs(e)
}"""


def session(model: onnx.ModelProto, options: object = None, **settings: object) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), occ.onnxruntime.session_options(options, **settings))


def plain(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def agree(
    opened: onnxruntime.InferenceSession, model: onnx.ModelProto, feeds: dict[str, np.ndarray], within: float = HALF
) -> None:
    for got, want in zip(opened.run(None, feeds), plain(model, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, atol=within * max(1, np.abs(want).max()) if want.size else 0)


def nodes() -> list[int]:
    return [c.nodes for c in occ.onnxruntime.claimed()]


def copies(device: Standin) -> list[int]:
    return [device.copies(k)[0] for k in KINDS]


def failing(model: onnx.ModelProto, **settings: object) -> str:
    with pytest.raises(Exception) as failed:
        session(model, **settings)
    return " ".join(str(failed.value).split())

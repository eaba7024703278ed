"""ConvTranspose with `output_shape`, and with SAME where strides pass the kernel, against onnxruntime."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import occ

X = np.random.default_rng(3).standard_normal((1, 2, 3)).astype(np.float32)


def model(taps: int, **attrs) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    w = np.random.default_rng(taps).standard_normal((2, 1, taps)).astype(np.float32)
    infos = [helper.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", X), ("w", w))]
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), {"x": X, "w": w}


def of_onnxruntime(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray | None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, feeds)[0]
    except Exception:
        return None


@pytest.mark.parametrize("pads", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_what_onnxruntime_takes_and_no_more(pads: str) -> None:
    taken = 0
    for taps, stride, dilation, size in product((1, 2, 3), (1, 2, 4), (1, 2), range(13)):
        made, feeds = model(taps, strides=[stride], dilations=[dilation], output_shape=[size], auto_pad=pads)
        known = of_onnxruntime(made, feeds)
        if known is None:
            with pytest.raises(occ.CompileError, match=r"OCC0[12]0\d.*`output_shape` of `ConvTranspose`"):
                occ.compile(made, target="interp")
            continue
        taken += 1
        np.testing.assert_allclose(
            occ.compile(made, target="interp").run(feeds)["y"],
            known,
            atol=1e-5,
            err_msg=str((taps, stride, dilation, size)),
        )
    assert taken > 40


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("pads", ["NOTSET", "SAME_UPPER"])
def test_more_than_the_kernel_reaches(target: str, pads: str) -> None:
    made, feeds = model(2, strides=[4], output_shape=[12], auto_pad=pads)
    session = occ.compile(made, target=target)
    np.testing.assert_allclose(session.run(feeds)["y"], of_onnxruntime(made, feeds), atol=1e-5)


@pytest.mark.parametrize("pads", ["SAME_UPPER", "SAME_LOWER"])
def test_same_has_zeros_around_where_strides_pass_the_kernel(pads: str) -> None:
    """ONNX demands 3 * 4 elements, and its reference puts zeros around; onnxruntime leaves them out."""
    made, feeds = model(2, strides=[4], auto_pad=pads)
    (known,) = ReferenceEvaluator(made).run(None, feeds)
    found = occ.compile(made, target="interp").run(feeds)["y"]
    assert found.shape == (1, 1, 12)
    np.testing.assert_allclose(found, known, atol=1e-5)


@pytest.mark.parametrize("shape", [[3, 3], [1, 1, 1, 3]])
def test_entries_for_other_axes(shape: list[int]) -> None:
    with pytest.raises(
        occ.CompileError, match=r"OCC0107.*`output_shape` of `ConvTranspose` is .*has \d entries for 1 spatial"
    ):
        occ.compile(model(2, output_shape=shape)[0], target="interp")

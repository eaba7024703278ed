"""Static AIPP: pictures in, as `atc --insert_op_conf` has the device take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import model_of
from simulating import built, simulated

from occ.compiler.diagnostics import CompileError

RNG = np.random.default_rng(61)
RGB = """# of the camera
aipp_op {
    aipp_mode : static
    input_format: RGB888_U8  # packed
    mean_chn_0: 104 mean_chn_1: 117 mean_chn_2: 123
    min_chn_1: 0.5
    var_reci_chn_0: 0.0171 var_reci_chn_1: 0.0175 var_reci_chn_2: 0.0174
}
"""
MEAN, FACTOR = np.array([104, 117.5, 123]), np.array([0.0171, 0.0175, 0.0174])
YUV = """aipp_op { aipp_mode: static related_input_rank: 1 input_format: YUV420SP_U8 csc_switch: true rbuv_swap_switch: false
    matrix_r0c0: 256 matrix_r0c1: 0 matrix_r0c2: 359 matrix_r1c0: 256 matrix_r1c1: -88 matrix_r1c2: -183
    matrix_r2c0: 256 matrix_r2c1: 454 matrix_r2c2: 0 input_bias_1: 128 input_bias_2: 128 }"""
SAME = "g (float[2, 3, 6, 8] x) => (float[2, 3, 6, 8] y) { y = Neg (x) }"


def configured(tmp_path: Path, text: str) -> str:
    (tmp_path / "aipp.cfg").write_text(text)
    return str(tmp_path / "aipp.cfg")


def near(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_packed_pictures_are_normalised(tmp_path: Path):
    made = built(model_of(SAME), "ascend310p", aipp=configured(tmp_path, RGB))
    (port,), (part,) = made.manifest.inputs, made.manifest.parts
    assert (port.dtype, list(port.shape)) == ("u8", [2, 6, 8, 3])
    assert "--insert_op_conf=part0.aipp.cfg" in part.command
    assert part.files == ["device/part0.aipp.cfg"]
    assert "insert_op_conf" in made.files["device/compile.sh"].decode()
    x = RNG.integers(0, 256, (2, 6, 8, 3)).astype(np.uint8)
    near(-simulated(made, {"x": x})[0], ((x - MEAN) * FACTOR).transpose(0, 3, 1, 2))


def test_crop_swap_and_padding(tmp_path: Path):
    more = """rbuv_swap_switch: true crop: true src_image_size_w: 20 src_image_size_h: 10 load_start_pos_w: 5 load_start_pos_h: 2
        crop_size_w: 5 crop_size_h: 6 padding: true left_padding_size: 1 right_padding_size: 2 padding_value: 0.5 }"""
    made = built(model_of(SAME), "ascend910b", aipp=configured(tmp_path, RGB.replace("}", more)))
    x = RNG.integers(0, 256, (2, 10, 20, 3)).astype(np.uint8)
    want = ((x[:, 2:8, 5:10, ::-1] - MEAN) * FACTOR).transpose(0, 3, 1, 2)
    near(-simulated(made, {"x": x})[0], np.pad(want, [(0, 0), (0, 0), (0, 0), (1, 2)], constant_values=0.5))


def test_frames_of_a_decoder_become_colours(tmp_path: Path):
    """The second of two inputs; the matrix is that of JPEG, so that grey stays grey and colours are those of the formula."""
    model = model_of(
        "g (float[1, 4] s, float[1, 3, 4, 6] x) => (float[1, 3, 4, 6] y, float[1, 4] t) { y = Relu (x) t = Relu (s) }"
    )
    made = built(model, "ascend310p", aipp=configured(tmp_path, YUV))
    assert list(made.manifest.inputs[1].shape) == [1, 6, 6]
    frame = RNG.integers(0, 256, (1, 6, 6)).astype(np.uint8)
    y = frame[0, :4].astype(float)
    u, v = (np.kron(frame[0, 4:].reshape(2, 3, 2)[..., k], np.ones((2, 2))) - 128 for k in (0, 1))
    want = np.clip(np.stack([y + 1.402 * v, y - 0.344 * u - 0.714 * v, y + 1.772 * u]), 0, 255)
    got = simulated(made, {"s": np.ones((1, 4), np.float32), "x": frame})[0]
    assert np.abs(got[0] - want).max() <= 2


WRONG = {
    "no such key": (RGB.replace("mean_chn_0", "mean_chanel_0"), "AIPP has no key `mean_chanel_0`"),
    "no number": (RGB.replace("0.0171", "small"), "`var_reci_chn_0` is a number, not 'small'"),
    "dynamic": (RGB.replace("static", "dynamic"), "`aipp_mode` is not `static`"),
    "a format": (RGB.replace("RGB888_U8", "RAW10"), "`input_format: RAW10` is not supported"),
    "channels": (RGB.replace("RGB888_U8", "YUV400_U8"), r"makes \[N, 1, H, W\]"),
    "sizes": (RGB.replace("}", "src_image_size_w: 9 }"), "it makes 9 along w, the input `x` has 8"),
    "a crop outside": (
        RGB.replace("}", "crop: true src_image_size_w: 9 src_image_size_h: 6 load_start_pos_w: 2 }"), "8 from 2 on are not within 9",
    ),
    "an input": (RGB.replace("}", "related_input_rank: 1 }"), "`related_input_rank: 1` is not an input"),
    "a name": (RGB.replace("}", 'related_input_name: "z" }'), "the model has no input `z`"),
    "twice": (RGB + RGB, "two `aipp_op` for the input `x`"),
    "nothing": ("# later", "it has no `aipp_op`"),
    "another text": ("{ }", "begins no `aipp_op"),
    "a half": ("aipp_op { aipp_mode: }", "is not a `key: value`"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, said: str):
    with pytest.raises(CompileError, match=said):
        built(model_of(SAME), "ascend310p", aipp=configured(tmp_path, text))


def test_what_does_not_go_together(tmp_path: Path):
    for options, said in (
        ({"aipp": str(tmp_path / "none.cfg")}, "cannot be read"),
        ({"aipp": configured(tmp_path, RGB), "enable_cann_graph": "false"}, "exclude each other"),
    ):
        with pytest.raises(CompileError, match=said):
            built(model_of(SAME), "ascend310p", **options)
    uneven = model_of("g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y) { y = Relu (x) }")
    with pytest.raises(CompileError, match="are even, not 5"):
        built(uneven, "ascend310p", aipp=configured(tmp_path, YUV.replace("rank: 1", "rank: 0")))

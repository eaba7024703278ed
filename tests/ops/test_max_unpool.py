"""MaxUnpool to a stated shape, of positions that a MaxPool of the model found, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

SHAPES = [((1, 1, 5, 5), 2, 2), ((2, 3, 7, 6), 3, 2), ((1, 2, 9), 2, 2)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("known", [False, True], ids=["shape of a run", "constant shape"])
@pytest.mark.parametrize(("shape", "taps", "stride"), SHAPES)
def test_what_was_pooled_is_put_back(shape: tuple[int, ...], taps: int, stride: int, known: bool, target: str) -> None:
    n, listed = len(shape) - 2, ", ".join(map(str, shape))
    window = f"<kernel_shape = {[taps] * n}, strides = {[stride] * n}>"
    given, constant = ("", f"s = Constant <value_ints = [{listed}]> ()") if known else (f", int64[{len(shape)}] s", "")
    model = model_of(f"""g (float[{listed}] x{given}) => (float y) {{
        {constant} p, i = MaxPool {window} (x) y = MaxUnpool {window} (p, i, s)
    }}""")  # fmt: skip
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    feeds |= {} if known else {"s": np.array(shape)}
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = occ.compile(model, target=target)
    np.testing.assert_array_equal(session.run(feeds)["y"], runtime.run(None, feeds)[0], strict=True)
    assert np.count_nonzero(session.run(feeds)["y"]) > 2


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([50], "has 1 entries for rank 4"),
        ([1, 2, 5, 5, 1], "has 5 entries for rank 4"),
        ([1, 3, 5, 5], "batches and channels"),
        ([1, 2, 2, 2], "less than the"),
    ],
)
def test_shapes_that_onnxruntime_refuses_too(shape: list[int], said: str) -> None:
    window = "<kernel_shape = [2, 2], strides = [2, 2]>"
    model = model_of(f"""g (float[1, 2, 5, 5] x) => (float y) {{
        s = Constant <value_ints = {shape}> () p, i = MaxPool {window} (x) y = MaxUnpool {window} (p, i, s)
    }}""")  # fmt: skip
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(occ.CompileError, match=f"`output_shape` of `MaxUnpool`.*{said}"):
        occ.compile(model, "interp")

"""Col2Im and DeformConv on the device, against onnx.reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from building import model_of, reference
from onnx import helper
from simulating import built, simulated, worst

RNG = np.random.default_rng(67)
# image, block, attributes
IMAGES = {
    "plain": ((5, 5), (1, 5), {}), "steps": ((5, 5), (3, 3), {"strides": [2, 2]}),
    "pads": ((5, 6), (1, 3), {"pads": [0, 1, 2, 1]}), "dilations": ((6, 6), (2, 2), {"dilations": [1, 5]}),
    "an axis": ((9,), (3,), {"strides": [3], "pads": [1, 2]}), "three axes": ((3, 4, 5), (2, 1, 3), {}),
}  # fmt: skip
# x, w, attributes
DEFORMED = {
    "plain": ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    "groups": ((1, 4, 6, 6), (6, 2, 3, 3), {"group": 2, "offset_group": 4, "pads": [1, 1, 1, 1]}),
    "steps": ((1, 6, 9, 2), (3, 2, 2, 1), {"group": 3, "offset_group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [2, 2]}),
}  # fmt: skip
CHIPS = [("ascend910b", 2e-6), ("ascend310p", 4e-3)]


@pytest.mark.parametrize(("target", "most"), CHIPS)
@pytest.mark.parametrize(("image", "block", "attributes"), IMAGES.values(), ids=IMAGES)
def test_blocks_are_summed(image: tuple[int, ...], block: tuple[int, ...], attributes: dict, target: str, most: float):
    n = len(image)
    pads, strides, dilations = (
        attributes.get(k, [d] * m) for k, d, m in (("pads", 0, 2 * n), ("strides", 1, n), ("dilations", 1, n))
    )
    counts = [
        (image[k] + pads[k] + pads[n + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(n)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(counts)))
    model = model_of(
        f"g (float[{', '.join(map(str, shape))}] x) => (float[2, 3, {', '.join(map(str, image))}] y) {{ y = Col2Im (x, i, b) }}",
        {"i": np.array(image), "b": np.array(block)},
    )
    model.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    x = {"x": RNG.standard_normal(shape).astype(np.float32)}
    assert worst(simulated(built(model, target, cpu_fallback="off"), x), reference(model, x)) < most


@pytest.mark.parametrize(("target", "most"), CHIPS)
@pytest.mark.parametrize(("x", "w", "attributes"), DEFORMED.values(), ids=DEFORMED)
def test_taps_are_moved(x: tuple[int, ...], w: tuple[int, ...], attributes: dict, target: str, most: float):
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    spans = [d * (k - 1) + 1 for d, k in zip(attributes.get("dilations", [1, 1]), w[2:], strict=True)]
    out = [(x[2 + k] + pads[k] + pads[2 + k] - spans[k]) // strides[k] + 1 for k in range(2)]
    taps = attributes.get("offset_group", 1) * w[2] * w[3]
    shapes = {"x": x, "w": w, "offset": (x[0], 2 * taps, *out), "b": (w[0],), "mask": (x[0], taps, *out)}
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    node = helper.make_node("DeformConv", list(shapes), ["y"], **attributes)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", ports, [y]), ir_version=10, opset_imports=[helper.make_opsetid("", 19)]
    )
    given = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    assert worst(simulated(built(model, target, cpu_fallback="off"), given), reference(model, given)) < most

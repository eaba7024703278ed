"""DeformConv: groups of channels and of offsets, masks, steps, known and symbolic sizes, against onnx.reference."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.te.function import reduce_axes

GROUPS = {"group": 2, "offset_group": 4, "pads": [1, 1, 1, 1]}
STEPS = {"group": 3, "offset_group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [2, 2]}
CASES = {
    "plain": ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    "groups": ((1, 4, 6, 6), (6, 2, 3, 3), GROUPS),
    "steps": ((1, 6, 9, 8), (3, 2, 2, 3), STEPS),
}
TARGETS = [(t, c) for t in ("interp", "cpu-jit", "cpu") for c in CASES if t != "cpu" or c == "steps"]


def sizes(x: tuple[int, ...], w: tuple[int, ...], attributes: dict) -> dict[str, tuple[int, ...]]:
    """The shape of each input."""
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    spans = [d * (k - 1) + 1 for d, k in zip(attributes.get("dilations", [1, 1]), w[2:], strict=True)]
    out = [(x[2 + k] + pads[k] + pads[2 + k] - spans[k]) // strides[k] + 1 for k in range(2)]
    taps = attributes.get("offset_group", 1) * w[2] * w[3]
    return {"x": x, "w": w, "offset": (x[0], 2 * taps, *out), "b": (w[0],), "mask": (x[0], taps, *out)}


def model(case: str, *, symbolic: bool) -> onnx.ModelProto:
    """One DeformConv with all of its inputs."""
    shapes = sizes(*CASES[case])
    ports = []
    for name, shape in shapes.items():
        free = symbolic and name in ("x", "offset", "mask")
        dims = [f"{name}{k}" if free and k != 1 else n for k, n in enumerate(shape)]
        ports.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    node = helper.make_node("DeformConv", list(shapes), ["y"], **CASES[case][2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ports, [y])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])


@pytest.mark.toolchain
@pytest.mark.parametrize(("target", "case"), TARGETS)
@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "symbolic"])
def test_deform_conv(target: str, case: str, symbolic: bool) -> None:
    m = model(case, symbolic=symbolic)
    random = np.random.default_rng(0)
    given = {n: random.standard_normal(s).astype(np.float32) for n, s in sizes(*CASES[case]).items()}
    (want,) = ReferenceEvaluator(m).run(None, given)
    got = occ.compile(m, target).run(given)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_samples_are_taken_once_for_all_output_channels() -> None:
    functions = Compilation(model("plain", symbolic=False), Settings("cpu")).advance("scheduled").te.values()
    (f,) = [f for f in functions if any(s.name.startswith("deform_conv") for s in f.stages)]
    per_output = next(s for s in f.stages if s.name.startswith("deform_conv") and reduce_axes(s.expr))
    assert [a.extent for a in reduce_axes(per_output.expr)] == [3, 3, 2], "channels and taps, no neighbours"

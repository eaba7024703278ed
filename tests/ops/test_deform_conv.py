"""DeformConv: groups of channels and of offsets, masks, steps, known and symbolic sizes, against onnx.reference."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
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
# Those that constant weights split into samples and a convolution of one tap over them.
CASES |= {
    "split": ((2, 16, 9, 11), (8, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "offsets": ((1, 32, 7, 6), (6, 32, 3, 2), {"offset_group": 4, "pads": [2, 1, 0, 1], "strides": [1, 2]}),
    "both": ((2, 32, 8, 7), (12, 16, 2, 3), {"group": 2, "offset_group": 4, "dilations": [2, 1]}),
    "channels": ((1, 24, 6, 6), (8, 6, 3, 3), {"group": 4, "offset_group": 2}),
    "apart": ((1, 24, 6, 6), (8, 12, 3, 3), {"group": 2, "offset_group": 3}),  # no part has whole groups of both: stays
}
SPLIT = ("split", "offsets", "both", "channels", "apart")
TARGETS = [
    (t, c) for t in ("interp", "cpu-jit", "cpu") for c in ("plain", "groups", "steps") if t != "cpu" or c == "steps"
]


def sizes(x: tuple[int, ...], w: tuple[int, ...], attributes: dict) -> dict[str, tuple[int, ...]]:
    """The shape of each input."""
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    spans = [d * (k - 1) + 1 for d, k in zip(attributes.get("dilations", [1, 1]), w[2:], strict=True)]
    out = [(x[2 + k] + pads[k] + pads[2 + k] - spans[k]) // strides[k] + 1 for k in range(2)]
    taps = attributes.get("offset_group", 1) * w[2] * w[3]
    return {"x": x, "w": w, "offset": (x[0], 2 * taps, *out), "b": (w[0],), "mask": (x[0], taps, *out)}


def model(case: str, *, symbolic: bool, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """One DeformConv with all of its inputs, but for those that are constants."""
    constants = weights or {}
    shapes = sizes(*CASES[case])
    ports = []
    for name, shape in shapes.items():
        if name in constants:
            continue
        free = symbolic and name in ("x", "offset", "mask")
        dims = [f"{name}{k}" if free and k != 1 else n for k, n in enumerate(shape)]
        ports.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    node = helper.make_node("DeformConv", list(shapes), ["y"], **CASES[case][2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(data, name) for name, data in constants.items()]
    graph = helper.make_graph([node], "g", ports, [y], held)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)])


@pytest.mark.thinned
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


@pytest.mark.toolchain
@pytest.mark.parametrize("case", SPLIT)
@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "symbolic"])
def test_samples_of_constant_weights(case: str, symbolic: bool) -> None:
    """Samples have the channels last, also where offsets reach far outside."""
    random = np.random.default_rng(1)
    given = {n: random.standard_normal(s).astype(np.float32) for n, s in sizes(*CASES[case]).items()}
    m = model(case, symbolic=symbolic, weights={"w": given.pop("w"), "b": given.pop("b")})
    given["offset"] *= 3
    given["offset"][0, :2, 0, 0] = (1e12, -1e12)
    (want,) = ReferenceEvaluator(m).run(None, given)
    compilation = Compilation(m, Settings("cpu"))
    kinds = [op.name for op in compilation.advance("fused").walk()]
    assert kinds.count("deform_samples") == (case != "apart")
    assert kinds.count("DeformConv") == (case == "apart")
    got = occ.compile(m, "cpu").run(given)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("symbolic", [False, True], ids=["known", "symbolic"])
def test_positions_of_a_pixel_are_computed_in_its_loop(symbolic: bool) -> None:
    """Tables of all taps, with vectors: memory of one tap alone is not known to be that little where extents are symbolic."""
    weights = {"w": np.ones((8, 16, 3, 3), np.float32), "b": np.ones(8, np.float32)}
    m = model("split", symbolic=symbolic, weights=weights)
    functions = Compilation(m, Settings("cpu")).advance("scheduled").te.values()
    (f,) = [f for f in functions if any(s.name.startswith("deform_samples") for s in f.stages)]
    *tables, last = f.stages
    columns = last.axes[-3].name
    placed = {d.stage: d.args for d in f.schedule if d.call == "compute_at"}
    assert placed == {t.name: (last.name, columns) for t in tables}

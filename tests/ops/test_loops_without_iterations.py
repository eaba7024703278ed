"""What Loop and Scan stack where they have no iteration, against onnxruntime: extents that the file declares."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import TARGETS, model_of

import occ

LOOP = """g (int64 n, bool c, float[{extent}] y) => (float r, {kind} s) {{
    r, s = Loop (n, c, y) <body = b (int64 i, bool ci, float[{before}] yi)
            => (bool co, float[{after}] yo, {slice} so) {{
        co = Identity (ci)
        {body}
    }}>
}}"""
ELEMENT = """k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0]> ()
    one = Constant <value_ints = [1]> ()
    flat = Constant <value_ints = [-1]> ()
    first = Reshape (i, flat)
    last = Add (first, one)
    part = Slice (k, first, last)
    yo = Add (yi, part)
    so = Identity (yo)"""
FOUND = "yo = Identity (yi) so = NonZero (yi)"
GROWS = "yo = Concat <axis = 0> (yi, yi) so = Identity (yi)"
FLOAT = {"kind": "float", "extent": 1, "before": "1", "after": "1", "body": ELEMENT}
INT = {"kind": "int64", "extent": 4, "before": "4", "after": "4", "body": FOUND}
MODELS = {
    "a slice of one element": FLOAT | {"slice": "float[1]"},
    "an extent of what is copied": FLOAT | {"slice": "float[q]"},
    "two extents": INT | {"slice": "int64[1, 7]"},
    "an extent of two": INT | {"slice": "int64[1, q]"},
    "a state that grows": FLOAT | {"before": "p", "after": "q", "slice": "float[6]", "body": GROWS},
    "no extent": FLOAT | {"before": "p", "after": "q", "slice": "float[o]", "body": GROWS},
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_declared_extents(name: str, target: str) -> None:
    model = model_of(LOOP.format(**MODELS[name]), opset=17)
    model.ir_version = 8
    for o in model.graph.output:
        o.type.tensor_type.ClearField("shape")
    runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = occ.compile(model, target=target)
    start = np.ones(MODELS[name]["extent"], np.float32)
    for count, going in ((0, True), (-1, True), (3, False), (2, True)):
        feeds = {"n": np.array(count), "c": np.array(going), "y": start}
        if count == 2 and name in ("a state that grows", "no extent"):
            continue  # iterations of unlike shapes
        for found, known in zip(session.run(feeds).values(), runtime.run(None, feeds), strict=True):
            assert found.dtype == known.dtype
            np.testing.assert_array_equal(found, known, strict=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("axis", "shape"), [(0, (0, 1, 7)), (1, (1, 0, 7)), (-1, (1, 7, 0))])
def test_scan_of_nothing(axis: int, shape: tuple[int, ...], target: str) -> None:
    """onnxruntime refuses a Scan of no slices, so the shape is the declared one by the definition of ONNX."""
    model = model_of(f"""g (float[2] y, float[t, 2] x) => (float[2] r, int64[a, b, c] s) {{
        r, s = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}], body = b (float[2] yi, float[2] xi)
            => (float[2] yo, int64[1, 7] so) {{ yo = Add (yi, xi) so = NonZero (yi) }}> (y, x)
    }}""", opset=17)  # fmt: skip
    found = occ.compile(model, target=target).run({"y": np.ones(2, np.float32), "x": np.ones((0, 2), np.float32)})
    assert found["s"].shape == shape


@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
@pytest.mark.parametrize("declared", ["1099511627776, 1099511627776", "1, 4611686018427387904"])
def test_extents_that_no_memory_has_are_as_if_undeclared(declared: str, target: str) -> None:
    model = model_of(f"""g (int64 n, float[2] y) => (int64[a, b, c] s)
        <bool t = {{1}}> {{
        s = Loop <body = b (int64 i, bool ci) => (bool co, int64[{declared}] so) {{
            co = Identity (ci) so = NonZero (y) }}> (n, t)
    }}""", opset=17)  # fmt: skip
    session = occ.compile(model, target=target)
    assert session.run({"n": np.array(0), "y": np.ones(2, np.float32)})["s"].size == 0
    assert session.run({"n": np.array(1), "y": np.ones(2, np.float32)})["s"].shape == (1, 1, 2)


def test_the_extents_stay_in_the_text_of_a_module_and_leave_an_exported_model() -> None:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings
    from occ.compiler.driver.source import parsed
    from occ.compiler.frontend.export import export
    from occ.compiler.ir.printer import module_text

    made = Compilation(model_of(LOOP.format(**MODELS["two extents"]), opset=17), Settings("interp", cache=False))
    m = made.advance("canonical")
    assert "declared_extents=[[1, 7]]" in module_text(m)
    assert "declared_extents=[[1, 7]]" in module_text(parsed(module_text(m)))
    assert not [a.name for n in export(m).graph.node for a in n.attribute if a.name == "declared_extents"]

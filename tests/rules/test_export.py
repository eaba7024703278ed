"""`occ dump --format onnx`: onnxruntime agrees on every stage that has an ONNX form."""

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of

NETS = {
    "a symbolic batch, regions, and a shape computed from it": (
        """g (float[n,3,8,8] x) => (float[n,m] y, float[n,4,8,8] z) {
            a = Conv <pads = [1,1,1,1]> (x, w)
            b = BatchNormalization (a, s, s, s, s)
            z = HardSwish (b)
            p = Transpose <perm = [0,2,3,1]> (z)
            sh = Shape (p)
            n = Gather (sh, zero)
            shape = Concat <axis = 0> (n, minus)
            y = Reshape (p, shape)
        }""",
        {"w": (4, 3, 3, 3), "s": (4,)},
        {"zero": [0], "minus": [-1]},
    ),
    "an output that is an input, a constant and a value twice": (
        "g (float[2,3] x) => (float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d) {"
        " a = Identity(x)  b = Relu(x)  c = Identity(b)  d = Identity(k) }",
        {"k": (2, 3)},
        {},
    ),
    "control flow": (
        """g (float[2,3] x, bool t) => (float[2,3] y) {
            y = If (t) <then_branch = one () => (float[2,3] p) { p = Relu(x) },
                        else_branch = two () => (float[2,3] q) { q = Mul(x, k) }>
        }""",
        {"k": (2, 3)},
        {},
    ),
}


@pytest.mark.parametrize("stage", ["imported", "inferred", "canonical", "fused", "layout"])
@pytest.mark.parametrize("name", NETS)
def test_an_exported_stage_gives_the_same_results(name, stage, occ_cli, tmp_path) -> None:
    text, shapes, values = NETS[name]
    rng = np.random.default_rng(0)
    weights = {k: rng.uniform(0.5, 1, s).astype(np.float32) for k, s in shapes.items()}
    model = model_of(text, weights | {k: np.array(v) for k, v in values.items()})
    path, out = tmp_path / "m.onnx", tmp_path / "exported.onnx"
    path.write_bytes(model.SerializeToString())
    ran = occ_cli("dump", path, "--stage", stage, "--format", "onnx", "-o", out)
    assert ran.code == 0, ran.err
    exported = onnx.load(out)
    if stage != "imported":  # there, the types of outputs are still unknown
        onnx.checker.check_model(exported)
    inputs = {"x": rng.standard_normal((2, 3, 8, 8) if "Conv" in text else (2, 3)).astype(np.float32)}
    if name == "control flow":
        inputs["t"] = np.array(False)
    want = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    session = onnxruntime.InferenceSession(str(out))
    assert [o.name for o in session.get_outputs()] == [o.name for o in model.graph.output]
    for a, b in zip(want, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    if stage == "fused" and "Conv" in text:
        assert exported.functions[0].name.startswith("conv_hardswish")
        assert exported.functions[0].domain == "occ.fused"


def test_a_stage_without_an_onnx_form_is_refused(occ_cli, tmp_path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString())
    ran = occ_cli("dump", path, "--stage", "scheduled", "--format", "onnx")
    assert (ran.code, "OCC0602" in ran.err) == (2, True)

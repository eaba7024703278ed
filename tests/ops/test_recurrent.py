"""RNN, GRU and LSTM against onnxruntime: directions, lengths, activations, clip, peepholes, symbolic time."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import occ

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
T, B, WIDTH, H = 5, 3, 4, 6
CASES = [
    pytest.param("RNN", {"direction": "reverse"}, False, id="rnn-reverse"),
    pytest.param("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.25]}, True, id="rnn-affine"),
    pytest.param("GRU", {"direction": "bidirectional"}, True, id="gru-bidirectional-lengths"),
    pytest.param("GRU", {"linear_before_reset": 1, "clip": 0.3}, False, id="gru-linear-clip"),
    pytest.param("GRU", {"activations": ["HardSigmoid", "Softsign"], "activation_alpha": [0.3], "activation_beta": [0.4]}, False, id="gru-activations"),
    pytest.param("LSTM", {"direction": "bidirectional"}, True, id="lstm-bidirectional-lengths"),
    pytest.param("LSTM", {"input_forget": 1, "direction": "reverse"}, False, id="lstm-coupled-reverse"),
    pytest.param("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"], "clip": 0.5}, False, id="lstm-activations"),
]  # fmt: skip


def model(kind: str, attrs: dict, lengths: bool) -> tuple[ModelProto, dict[str, np.ndarray]]:
    n, g = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[kind]
    rng = np.random.default_rng(1)
    data = {
        "X": rng.normal(size=(T, B, WIDTH)), "W": rng.normal(size=(n, g * H, WIDTH)), "R": rng.normal(size=(n, g * H, H)),
        "B": rng.normal(size=(n, 2 * g * H)), "lens": np.array([5, 2, 3], np.int32), "h0": rng.normal(size=(n, B, H)),
    }  # fmt: skip
    if not lengths:
        del data["lens"]
    if kind == "LSTM":
        data |= {"c0": rng.normal(size=(n, B, H)), "P": rng.normal(size=(n, 3 * H))}
    data = {k: v if k == "lens" else v.astype(np.float32) for k, v in data.items()}
    names = ["X", "W", "R", "B", "lens" if lengths else "", "h0", *(["c0", "P"] if kind == "LSTM" else [])]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, names, outputs, hidden_size=H, **attrs)
    infos = [
        helper.make_tensor_value_info(k, TensorProto.INT32 if k == "lens" else TensorProto.FLOAT, ["T", B, WIDTH] if k == "X" else v.shape)
        for k, v in data.items()
    ]  # fmt: skip
    graph = helper.make_graph([node], kind, infos, [helper.make_empty_tensor_value_info(o) for o in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    for o in made.graph.output:
        o.type.tensor_type.elem_type = TensorProto.FLOAT
    return made, data


@pytest.mark.thinned
@pytest.mark.parametrize(("kind", "attrs", "lengths"), CASES)
@pytest.mark.parametrize("target", ["interp", "cpu-jit"])
def test_recurrent_gives_what_onnxruntime_gives(kind: str, attrs: dict, lengths: bool, target: str) -> None:
    made, data = model(kind, attrs, lengths)
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, data)
    got = occ.compile(made, target).run(data)
    for x, y in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)

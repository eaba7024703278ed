"""The codes of models that are read and of the targets that they are built for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from building import mlp, model_of
from scenes import RELU, Scene, case


@case("OCC0101")
def _(s: Scene):
    return ["build", str(s.folder / "missing.onnx")]


@case("OCC0102")
def _(s: Scene):
    path = Path(s.save(mlp()))
    path.write_bytes(path.read_bytes()[:700])
    return ["build", str(path)]


@case("OCC0103")
def _(s: Scene):
    model = model_of(RELU)
    model.opset_import[0].version, model.ir_version = 999, 99
    return ["build", s.save(model)]


@case("OCC0104")
def _(s: Scene):
    return ["build", s.model("g (float[2] x) => (float[2] y) { a = Blorp(x)  y = Relu(a) }")]


@case("OCC0105")
def _(s: Scene):
    return ["build", s.model("g (float[2] x) => (float[2] y) { a = Add(x, b)  b = Relu(a)  y = Relu(b) }")]


@case("OCC0106")
def _(s: Scene):
    model = mlp()
    for tensor, location in zip(
        model.graph.initializer, ("weights.bin", "../../etc/passwd", "/etc/passwd"), strict=True
    ):
        onnx.external_data_helper.set_external_data(tensor, location)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    return ["build", s.save(model)]


@case("OCC0109")
def _(s: Scene):
    (s.folder / "config.json").write_text('{"model_type": "bert"}')
    (s.folder / "model.safetensors").write_bytes(b"")
    return ["build", str(s.folder / "model.safetensors")]


@case("OCC0107")
def _(s: Scene):
    return [
        "build",
        s.model("g (float[2] x) => (float[2] y) { a = Relu(x, x)  b = Cast(a)  y = Relu<alpha = 1.0>(b) }"),
    ]


@case("OCC0108")
def _(s: Scene):
    model = mlp()
    model.graph.initializer[0].dims[:] = [8, 17]
    return ["build", s.save(model)]


@case("OCC0201")
def _(s: Scene):
    return ["build", s.model("g (float[2] x, int64[2] i) => (float[2] y, bool[2] z) { y = Add(x, i)  z = Not(x) }")]


@case("OCC0202")
def _(s: Scene):
    weights = {"k": np.zeros((4, 3, 3, 3), np.float32)}
    return ["build", s.model("g (float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv(x, k) }", weights)]


@case("OCC0203")
def _(s: Scene):
    return [
        "build",
        s.model("g (float[2] x, int64[k] s) => (float[a, b] y) { y = Reshape(x, s) }"),
        "-t",
        "cpu-jit",
        "-C",
        "deferred=off",
    ]


@case("OCC0204")
def _(s: Scene):
    model = model_of(RELU)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    return ["build", s.save(model)]


@case("OCC0205")
def _(s: Scene):
    return ["build", s.model(RELU), "--shape", "z=1,2", "--dim", "batch=4"]


@case("OCC0206")
def _(s: Scene):
    text = "g (float[1, 2, 4] x, float[2, 2] m) => (float[1, 2, 4] y) { y = BatchNormalization (x, m, m, m, m) }"
    return ["build", s.model(text)]


@case("OCC0301")
def _(s: Scene):
    from occ.compiler.ir.operator import registry

    without = {name: spec for name, spec in registry.builtin().items() if name != "Relu"}
    s.patch.setattr(registry, "builtin", lambda: without)
    return ["build", s.model(RELU)]


@case("OCC0302")
def _(s: Scene):
    return [
        "build",
        s.model("g (complex64[2] x) => (complex64[4] y) { y = Concat<axis = 0>(x, x) }"),
        "-t",
        "cpu-jit",
        "-C",
        "deferred=off",
    ]


@case("OCC0303")
def _(s: Scene):
    return ["build", s.model(RELU), "-t", "gpu"]


@case("OCC0305")
def _(s: Scene):
    return ["build", s.model(RELU), "-t", "ascend310"]


@case("OCC0306")
def _(s: Scene):
    text = 'g (string[n] x) => (string[n] y) { [culprit] y = StringNormalizer <case_change_action = "LOWER"> (x) }'
    return ["build", s.model(text), "-t", "cpu-jit", "--emit", "static"]

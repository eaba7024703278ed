"""Networks as people usually have them, with random weights: the structures of layers for which `occ warm` compiles kernels.

Kernels of structure take any sizes, so that a few layers of each kind stand for all networks of the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

_OPSET = 17
Batch = int | str


class _Graph:
    """A network under construction; values are known by their names, those of pictures with their channels."""

    def __init__(self, name: str) -> None:
        self.name, self.nodes, self.weights = name, list[onnx.NodeProto](), list[onnx.TensorProto]()
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, results: int = 1, **attributes: Any) -> Any:
        """A node; the name of its result, or those of several."""
        made = [f"{kind.lower()}{len(self.nodes)}_{k}" for k in range(results)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, **attributes))
        return made[0] if results == 1 else made

    def weight(self, *shape: int) -> str:
        data = self.rng.standard_normal(shape, dtype=np.float32) / np.float32(max(np.prod(shape[1:]), 1)) ** 0.5
        return self.constant(data.astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def conv(
        self, x: str, channels: int, filters: int, size: int = 1, stride: int = 1, act: str = "", group: int = 1
    ) -> str:
        """A convolution with bias that keeps the extents but for its stride, and what follows it."""
        w, b = self.weight(filters, channels // group, size, size), self.weight(filters)
        y = self.op("Conv", x, w, b, pads=[size // 2] * 4, strides=[stride] * 2, kernel_shape=[size] * 2, group=group)
        return self.act(y, act)

    def act(self, x: str, kind: str) -> str:
        match kind:
            case "":
                return x
            case "silu":
                return self.op("Mul", x, self.op("Sigmoid", x))
            case "relu6":
                return self.op("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))
            case "gelu":
                root, one, half = (self.constant(np.float32(c)) for c in (2**0.5, 1, 0.5))
                e = self.op("Add", self.op("Erf", self.op("Div", x, root)), one)
                return self.op("Mul", self.op("Mul", x, e), half)
            case _:
                return self.op(kind, x)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def model(
        self, inputs: dict[str, Sequence[Any]], outputs: Sequence[str], ints: Sequence[str] = ()
    ) -> onnx.ModelProto:
        known = {n: TensorProto.INT64 if n in ints else TensorProto.FLOAT for n in inputs}
        given = [helper.make_tensor_value_info(n, known[n], list(shape)) for n, shape in inputs.items()]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, self.name, given, results, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        return shape_inference.infer_shapes(made, strict_mode=True)


def _head(g: _Graph, x: str, channels: int) -> str:
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x))
    return g.op("Softmax", g.op("Gemm", pooled, g.weight(1000, channels), g.weight(1000), transB=1))


def _resnet(batch: Batch, *, wide: bool) -> onnx.ModelProto:
    """ResNet blocks of 18 to 152 layers: two 3x3 convolutions, or 1x1, 3x3, 1x1."""
    g = _Graph("resnet")
    x = g.op("MaxPool", g.conv("x", 3, 64, 7, 2, "Relu"), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width in (64, 128, 256, 512):
        filters, stride = width * 4 if wide else width, 1 if width == 64 else 2
        for s in (stride, 1):
            short = x if s == 1 and channels == filters else g.conv(x, channels, filters, 1, s)
            if wide:
                h = g.conv(g.conv(x, channels, width, 1, 1, "Relu"), width, width, 3, s, "Relu")
                h = g.conv(h, width, filters)
            else:
                h = g.conv(g.conv(x, channels, width, 3, s, "Relu"), width, width, 3)
            x, channels = g.act(g.op("Add", h, short), "Relu"), filters
    return g.model({"x": [batch, 3, 224, 224]}, [_head(g, x, channels)])


def _vgg(batch: Batch) -> onnx.ModelProto:
    """3x3 convolutions and pools, as in VGG and SqueezeNet."""
    g, x, channels = _Graph("vgg"), "x", 3
    for filters in (64, 128, 256, 512):
        x = g.conv(g.conv(x, channels, filters, 3, 1, "Relu"), filters, filters, 3, 1, "Relu")
        x, channels = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), filters
    return g.model({"x": [batch, 3, 224, 224]}, [_head(g, x, channels)])


def _mobilenet(batch: Batch, act: str, *, squeeze: bool) -> onnx.ModelProto:
    """Inverted bottlenecks with depthwise convolutions, as in MobileNet and EfficientNet."""
    g = _Graph("mobilenet")
    x, channels = g.conv("x", 3, 16, 3, 2, act), 16
    for filters, size, stride in (
        (24, 3, 2),
        (24, 3, 1),
        (40, 5, 2),
        (40, 5, 1),
        (80, 3, 2),
        (80, 3, 1),
        (160, 5, 2),
        (160, 5, 1),
    ):
        inner = channels * 6
        h = g.conv(g.conv(x, channels, inner, 1, 1, act), inner, inner, size, stride, act, group=inner)
        if squeeze:
            s = g.conv(g.op("GlobalAveragePool", h), inner, inner // 4, act="Relu" if act == "HardSwish" else act)
            h = g.op("Mul", h, g.conv(s, inner // 4, inner, act="HardSigmoid" if act == "HardSwish" else "Sigmoid"))
        h = g.conv(h, inner, filters)
        x, channels = g.op("Add", h, x) if channels == filters and stride == 1 else h, filters
    return g.model({"x": [batch, 3, 224, 224]}, [_head(g, g.conv(x, channels, 960, act=act), 960)])


def _yolo(batch: Batch, side: int = 640) -> onnx.ModelProto:
    """The blocks of YOLO: convolutions with SiLU, parts that are split and joined, pyramids of pools, maps made larger."""
    g = _Graph("yolo")

    def block(x: str, channels: int, filters: int, *, add: bool) -> str:
        half = filters // 2
        a, b = g.op(
            "Split", g.conv(x, channels, filters, act="silu"), g.constant(np.array([half, half])), results=2, axis=1
        )
        h = g.conv(g.conv(b, half, half, 3, act="silu"), half, half, 3, act="silu")
        joined = g.op("Concat", a, b, g.op("Add", b, h) if add else h, axis=1)
        return g.conv(joined, 3 * half, filters, act="silu")

    x, levels = g.conv(g.conv("x", 3, 16, 3, 2, "silu"), 16, 32, 3, 2, "silu"), list[tuple[str, int]]()
    channels = 32
    for filters in (64, 128, 256):
        x = g.conv(block(x, channels, channels, add=True), channels, filters, 3, 2, "silu")
        channels = filters
        levels.append((x, channels))
    pools = [g.conv(block(x, 256, 256, add=True), 256, 128, act="silu")]
    for _ in range(3):
        pools.append(g.op("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    x, channels = g.conv(g.op("Concat", *pools, axis=1), 512, 256, act="silu"), 256
    results: list[str] = []
    for skip, more in reversed(levels[:-1]):
        wider = g.op("Resize", x, "", g.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric")  # fmt: skip
        x, channels = block(g.op("Concat", wider, skip, axis=1), channels + more, more, add=False), more
        out = g.conv(g.conv(x, channels, 64, 3, act="silu"), 64, 80)
        results.append(g.op("Sigmoid", out))
    return g.model({"x": [batch, 3, side, side]}, results)


def _transformer(batch: Batch, tokens: Batch, width: int, heads: int, *, before: bool) -> onnx.ModelProto:
    """Layers of attention as BERT (norms after) and ViT (norms before) have them."""
    g, x, each = _Graph("transformer"), "x", width // heads

    def norm(v: str) -> str:
        return g.op("LayerNormalization", v, g.weight(width), g.weight(width), axis=-1, epsilon=1e-5)

    shape, whole = g.constant(np.array([0, 0, heads, each])), g.constant(np.array([0, 0, width]))
    for _ in range(2):
        h = norm(x) if before else x
        q, k, v = (g.op("Reshape", g.linear(h, width, width), shape) for _ in range(3))
        q, v = (g.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        k = g.op("Transpose", k, perm=[0, 2, 3, 1])
        scores = g.op("Div", g.op("MatMul", q, k), g.constant(np.float32(each**0.5)))
        read = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        joined = g.op("Reshape", g.op("Transpose", read, perm=[0, 2, 1, 3]), whole)
        x = g.op("Add", g.linear(joined, width, width), x)
        x = x if before else norm(x)
        h = g.linear(g.act(g.linear(norm(x) if before else x, width, 4 * width), "gelu"), 4 * width, width)
        x = g.op("Add", h, x)
        x = x if before else norm(x)
    return g.model({"x": [batch, tokens, width]}, [x])


def _recurrent(kind: str, gates: int, directions: int) -> onnx.ModelProto:
    """An LSTM or GRU of one or two directions over a text of any length."""
    g = _Graph(kind.lower())
    w = [g.weight(directions, gates * 128, n) for n in (64, 128)] + [g.weight(directions, 2 * gates * 128)]
    direction = "bidirectional" if directions == 2 else "forward"
    y, *_ = g.op(kind, "x", *w, results=2, hidden_size=128, direction=direction)
    return g.model({"x": ["length", 1, 64]}, [y])


NETS: dict[str, Callable[[Batch], onnx.ModelProto]] = {
    "resnet18": lambda batch: _resnet(batch, wide=False),
    "resnet50": lambda batch: _resnet(batch, wide=True),
    "vgg": _vgg,
    "mobilenet_v2": lambda batch: _mobilenet(batch, "relu6", squeeze=False),
    "mobilenet_v3": lambda batch: _mobilenet(batch, "HardSwish", squeeze=True),
    "efficientnet": lambda batch: _mobilenet(batch, "silu", squeeze=True),
    "yolo": _yolo,
    "vit": lambda batch: _transformer(batch, 197, 384, 6, before=True),
    "bert": lambda batch: _transformer(batch, "tokens" if batch == "batch" else 128, 384, 12, before=False),
    "lstm": lambda _: _recurrent("LSTM", 4, 1),
    "bilstm": lambda _: _recurrent("LSTM", 4, 2),
    "gru": lambda _: _recurrent("GRU", 3, 1),
}


def usual_nets() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each network by its name, for one input at a time and for any number."""
    for name, made in NETS.items():
        batches: tuple[Batch, ...] = (1,) if name in ("lstm", "bilstm", "gru") else (1, "batch")
        for batch in batches:
            yield f"{name}, {'one input' if batch == 1 else 'any batch'}", made(batch)

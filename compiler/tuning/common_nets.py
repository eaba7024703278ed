"""Typical networks with random weights: the layer structures for which `occ warm` compiles kernels.

Kernels are generic in sizes, so a few layers of each kind represent all networks of the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx

from occ.compiler.tuning.common_layers import common_layers
from occ.compiler.tuning.net_builder import Extent, Net


def _picture(g: Net, batch: Extent, side: int = 224) -> str:
    """Images of one size; of any size if the batch is `any`."""
    return g.input("x", batch, 3, *(("height", "width") if batch == "any" else (side, side)))


def _classifier(g: Net, x: str, channels: int) -> onnx.ModelProto:
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x))
    g.output(g.op("Softmax", g.op("Gemm", pooled, g.weight(1000, channels), g.weight(1000), transB=1)))
    return g.model()


def _resnet(batch: Extent, *, wide: bool) -> onnx.ModelProto:
    """ResNet blocks of 18 to 152 layers: two 3x3 convolutions, or 1x1, 3x3, 1x1."""
    g = Net("resnet")
    x = g.op(
        "MaxPool",
        g.conv(_picture(g, batch), 3, 64, 7, 2, "Relu"),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    )
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
    return _classifier(g, x, channels)


def _digits(batch: Extent) -> onnx.ModelProto:
    """Two convolutions and a layer, as in first tutorials and in examples/digits.onnx."""
    g = Net("digits")
    x = g.input("x", batch, 1, 8, 8)
    x = g.conv(g.conv(x, 1, 16, 3, 1, "Relu"), 16, 32, 3, 1, "Relu")
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("Reshape", x, g.constant(np.array([-1, 512])))
    g.output(g.op("Softmax", g.op("Gemm", x, g.weight(10, 512), g.weight(10), transB=1)))
    return g.model()


def _vgg(batch: Extent) -> onnx.ModelProto:
    """3x3 convolutions and pools, as in VGG and SqueezeNet."""
    g, channels = Net("vgg"), 3
    x = _picture(g, batch)
    for filters in (64, 128, 256, 512):
        x = g.conv(g.conv(x, channels, filters, 3, 1, "Relu"), filters, filters, 3, 1, "Relu")
        x, channels = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), filters
    return _classifier(g, x, channels)


def _mobilenet(batch: Extent, act: str, *, squeeze: bool, wide: int = 5) -> onnx.ModelProto:
    """Inverted bottlenecks with depthwise convolutions, as in MobileNet and EfficientNet."""
    g = Net("mobilenet")
    channels = 16 if squeeze else 32
    x = g.conv(_picture(g, batch), 3, channels, 3, 2, act)
    for filters, size, stride in (
        (24, 3, 2),
        (24, 3, 1),
        (40, wide, 2),
        (40, wide, 1),
        (80, 3, 2),
        (80, 3, 1),
        (160, wide, 2),
        (160, wide, 1),
    ):
        inner = channels * 6
        h = g.conv(g.conv(x, channels, inner, 1, 1, act), inner, inner, size, stride, act, group=inner)
        if squeeze:
            s = g.conv(g.op("GlobalAveragePool", h), inner, inner // 4, act="Relu" if act == "HardSwish" else act)
            h = g.op("Mul", h, g.conv(s, inner // 4, inner, act="HardSigmoid" if act == "HardSwish" else "Sigmoid"))
        h = g.conv(h, inner, filters)
        x, channels = g.op("Add", h, x) if channels == filters and stride == 1 else h, filters
    return _classifier(g, g.conv(x, channels, 960, act=act), 960)


def _yolo(batch: Extent, side: int = 640) -> onnx.ModelProto:
    """The blocks of YOLO: convolutions with SiLU, splits and joins, pooling pyramids, upsampled maps."""
    g = Net("yolo")

    def block(x: str, channels: int, filters: int, *, add: bool) -> str:
        half = filters // 2
        a, b = g.op(
            "Split", g.conv(x, channels, filters, act="silu"), g.constant(np.array([half, half])), results=2, axis=1
        )
        h = g.conv(g.conv(b, half, half, 3, act="silu"), half, half, 3, act="silu")
        joined = g.op("Concat", a, b, g.op("Add", b, h) if add else h, axis=1)
        return g.conv(joined, 3 * half, filters, act="silu")

    x, levels = _picture(g, batch, side), list[tuple[str, int]]()
    x = g.conv(g.conv(x, 3, 16, 3, 2, "silu"), 16, 32, 3, 2, "silu")
    channels = 32
    for filters in (64, 128, 256):
        x = g.conv(block(x, channels, channels, add=True), channels, filters, 3, 2, "silu")
        channels = filters
        levels.append((x, channels))
    pools = [g.conv(block(x, 256, 256, add=True), 256, 128, act="silu")]
    for _ in range(3):
        pools.append(g.op("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    x, channels = g.conv(g.op("Concat", *pools, axis=1), 512, 256, act="silu"), 256
    for skip, more in reversed(levels[:-1]):
        wider = g.op("Resize", x, "", g.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric")  # fmt: skip
        x, channels = block(g.op("Concat", wider, skip, axis=1), channels + more, more, add=False), more
        out = g.conv(g.conv(x, channels, 64, 3, act="silu"), 64, 80)
        g.output(g.op("Sigmoid", out))
    return g.model()


def _transformer(batch: Extent, tokens: Extent, width: int, heads: int, *, before: bool) -> onnx.ModelProto:
    """Attention layers as in BERT (norms after) and ViT (norms before)."""
    g, each = Net("transformer"), width // heads
    x = g.input("x", batch, tokens, width)

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
    g.output(x)
    return g.model()


def _recurrent(kind: str, gates: int, directions: int) -> onnx.ModelProto:
    """An LSTM or GRU of one or two directions over a text of any length."""
    g = Net(kind.lower())
    w = [g.weight(directions, gates * 128, n) for n in (64, 128)] + [g.weight(directions, 2 * gates * 128)]
    direction = "bidirectional" if directions == 2 else "forward"
    x = g.input("x", "length", 1, 64)
    y, *_ = g.op(kind, x, *w, results=2, hidden_size=128, direction=direction)
    g.output(y)
    return g.model()


NETS: dict[str, Callable[[Extent], onnx.ModelProto]] = {
    "resnet18": lambda batch: _resnet(batch, wide=False),
    "resnet50": lambda batch: _resnet(batch, wide=True),
    "digits": _digits,
    "vgg": _vgg,
    "mobilenet_v2": lambda batch: _mobilenet(batch, "relu6", squeeze=False, wide=3),
    "mobilenet_v3": lambda batch: _mobilenet(batch, "HardSwish", squeeze=True),
    "efficientnet": lambda batch: _mobilenet(batch, "silu", squeeze=True),
    "yolo": _yolo,
    "vit": lambda batch: _transformer(batch, 197, 384, 6, before=True),
    "bert": lambda batch: _transformer(batch, 128 if batch == 1 else "tokens", 384, 12, before=False),
    "lstm": lambda _: _recurrent("LSTM", 4, 1),
    "bilstm": lambda _: _recurrent("LSTM", 4, 2),
    "gru": lambda _: _recurrent("GRU", 3, 1),
}


def trial_net() -> onnx.ModelProto:
    """One convolution of ones, which `occ doctor` tries: of ones f32[1,4,8,8] it makes 36 everywhere."""
    g = Net("trial")
    g.output(g.op("Conv", g.input("x", 1, 4, 8, 8), g.constant(np.ones((16, 4, 3, 3), np.float32))))
    return g.model()


def common_nets() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each network by name, for one input, any batch, and images of any size; then single layers."""
    yield "the trial of `occ doctor`", trial_net()
    for name, made in NETS.items():
        yield f"{name}, one input", made(1)
        if name not in ("lstm", "bilstm", "gru"):
            yield f"{name}, any batch", made("batch")
        if name not in ("lstm", "bilstm", "gru", "vit", "bert", "digits"):
            yield f"{name}, pictures of any size", made("any")
    yield from common_layers()

"""Single layers of common networks, with random weights, whose kernels `occ warm` compiles.

These structures occur in several of 32 independently selected models in packages, and in no network of `common_nets`:
products with any number of rows, tables, slices and joins, norms in pieces, and convolutions on images of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx

from occ.compiler.tuning.net_builder import Net

_OUTPUTS = (384, 48, 100, 1, 2, 3, 4, 5, 10)  # columns of products: panels of 32 and 16, any, and few
_AFTER = ("", "Relu", "Sigmoid", "Tanh", "gelu", "gelu of transformers", "silu")  # following a product
_ACTS = ("", "Relu", "silu", "hardswish", "HardSwish", "LeakyRelu", "relu6")  # following a convolution


def _products() -> Iterator[Net]:
    """Products of any number of rows with a matrix, with what usually follows."""
    g = Net("products")
    x = g.input("x", "rows", 384)
    for n in _OUTPUTS:
        g.output(g.op("MatMul", x, g.weight(384, n)))
        for act in _AFTER if n > 10 else ("", "Sigmoid"):
            g.output(g.act(g.linear(x, 384, n), act))
            g.output(g.act(g.op("Gemm", x, g.weight(n, 384), g.weight(n), transB=1), act))
        if n > 10:
            g.output(g.op("Add", g.linear(x, 384, n), g.input(f"z{n}", "rows", n)))
    yield g
    for k in (60, 35):  # multiples of 6 and 5, as kernels know them
        g = Net(f"products of {k}")
        x = g.input("x", "rows", k)
        for n in (384, 100, 2):
            g.output(g.op("MatMul", x, g.weight(k, n)))
            g.output(g.linear(x, k, n))
        yield g
    g = Net("products of two rows of extents")
    x = g.input("x", "batch", "length", 384)
    for n in (384, 100):
        g.output(g.linear(x, 384, n))
        g.output(g.op("Transpose", g.linear(x, 384, n), perm=[1, 0, 2]))
    yield g


def _steps() -> Iterator[Net]:
    """Recurrent layers with any batch, as exported by Keras and Paddle."""
    for kind, gates in (("LSTM", 4), ("GRU", 3)):
        for direction, more in (("forward", 1), ("bidirectional", 2)):
            for reset in (0, 1) if kind == "GRU" else (0,):
                g = Net(f"{direction} {kind}{' with its reset before' if reset else ''}")
                x = g.input("x", "length", "batch", 64)
                w = [g.weight(more, gates * 128, n) for n in (64, 128)] + [g.weight(more, 2 * gates * 128)]
                extra = {"linear_before_reset": reset} if kind == "GRU" else {}
                y, *_ = g.op(kind, x, *w, results=2, hidden_size=128, direction=direction, **extra)
                g.output(y)
                yield g


def _tables() -> Iterator[Net]:
    """Rows of tables, parts of rows, and joined rows."""
    g = Net("tables")
    ids = g.input("ids", "batch", "length", ints=True)
    for width in (384, 100):
        g.output(g.op("Gather", g.weight(5000, width), ids))
    g.output(g.op("Cast", ids, to=onnx.TensorProto.FLOAT))
    g.output(g.op("Cast", ids, to=onnx.TensorProto.BOOL), onnx.TensorProto.BOOL)
    yield g
    g = Net("parts of 128")
    x = g.input("x", "rows", 128)
    for parts in (2, 4):
        sizes = g.constant(np.full(parts, 128 // parts))
        for y in g.op("Split", x, sizes, results=parts, axis=1):
            g.output(y)
    for other in (16, 32, 48, 64, 128):
        z = g.input(f"z{other}", "rows", other)
        g.output(g.op("Concat", x, z, axis=1))
        g.output(g.op("Concat", z, z, z, axis=1))
    yield g


def _norms() -> Iterator[Net]:
    """Norms of rows of any width, also in pieces as converters write them; softmaxes; elementwise ops."""
    for width in (384, 768, 120):
        g = Net(f"norms of {width}")
        x, z = (g.input(n, "batch", "length", width) for n in "xz")
        both = g.op("Add", x, z)
        for v in (x, both):
            for epsilon in (1e-5, 1e-6, 1e-12):
                g.output(g.op("LayerNormalization", v, g.weight(width), g.weight(width), axis=-1, epsilon=epsilon))
            d = g.op("Sub", v, g.op("ReduceMean", v, axes=[-1]))
            square = g.op("Pow", d, g.constant(np.float32(2)))
            root = g.op("Sqrt", g.op("Add", g.op("ReduceMean", square, axes=[-1]), g.constant(np.float32(1e-5))))
            g.output(g.op("Add", g.op("Mul", g.op("Div", d, root), g.weight(width)), g.weight(width)))
        g.output(g.op("Add", g.op("Mul", x, g.weight(width)), g.weight(width)))
        g.output(g.op("Softmax", x, axis=-1))
        yield g
    g = Net("elements")
    x, z = (g.input(n, "length") for n in "xz")
    for kind in ("Add", "Sub", "Mul", "Div"):
        g.output(g.op(kind, x, z))
    for kind in ("Sigmoid", "Relu", "Tanh"):
        g.output(g.op(kind, x))
    g.output(g.op("Mul", x, g.op("Sigmoid", x)))
    yield g
    g = Net("softmaxes")
    for classes in (2, 4, 10, 1000):
        g.output(g.op("Softmax", g.input(f"x{classes}", "rows", classes), axis=-1))
    yield g


def _convolutions() -> Iterator[Net]:
    """Convolutions on images of any size and batch: 1x1, 3x3, depthwise, strided, with what usually follows."""
    for act in _ACTS:
        g = Net(f"convolutions with {act or 'nothing'}")
        for k, n in ((128, 128), (64, 48), (24, 100)):
            x = g.input(f"x{k}", "batch", k, "height", "width")
            g.output(g.conv(x, k, n, 1, 1, act))
            g.output(g.conv(x, k, n, 1, 1, act, bias=False))
            for stride in (1, 2):
                g.output(g.conv(x, k, n, 3, stride, act))
                for size in (3, 5):
                    g.output(g.conv(x, k, k, size, stride, act, group=k))
            y = g.conv(x, k, k, 1, 1)
            g.output(g.act(g.op("Add", y, x), act))
        yield g
    g = Net("pools")
    for k in (64, 60):
        x = g.input(f"x{k}", "batch", k, "height", "width")
        for size, stride in ((2, 2), (3, 2), (3, 1), (5, 1)):
            pads = [(size - 1) // 2] * 4 if size % 2 else [0] * 4
            for kind in ("MaxPool", "AveragePool"):
                g.output(g.op(kind, x, kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads))
        pooled = g.op("GlobalAveragePool", x)
        g.output(pooled)
        for part in (k // 4, 8):
            gate = g.conv(g.conv(pooled, k, part, act="Relu"), part, k, act="hardsigmoid")
            g.output(g.op("Mul", x, gate))
            g.output(g.op("Add", x, g.op("Mul", x, gate)))
        g.output(g.op("Resize", x, "", g.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest",
                      nearest_mode="floor", coordinate_transformation_mode="asymmetric"))  # fmt: skip
    yield g


LAYERS: Sequence[Callable[[], Iterator[Net]]] = (_products, _steps, _tables, _norms, _convolutions)


def common_layers() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Groups of single layers by their names."""
    for group in LAYERS:
        for g in group():
            yield g.name, g.model()

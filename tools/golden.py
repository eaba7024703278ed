"""`python -m tools.golden`: keeps what this release computes, for tests of later ones.

Writes tests/golden/VERSION.npz: models, their inputs and their outputs on target `cpu`, as `CASE/model`, `CASE/in/NAME` and
`CASE/out/NAME`. A release does so once, when all else is done; files of earlier releases are never written again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import occ

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "golden"
# A family of operators each: the text of a graph, and the types and shapes of its inputs and weights.
CASES: dict[str, tuple[str, dict[str, tuple[str, tuple[int, ...]]], dict[str, tuple[str, tuple[int, ...]]]]] = {
    "convolutions": (
        """g (float[n, 8, 17, 19] x) => (float[a, b, c, d] y) {
            p = Conv<pads = [1, 1, 1, 1]>(x, w)  q = Relu(p)  r = Conv<group = 16, strides = [2, 2]>(q, v)  s = HardSwish(r)
            t = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(s)  y = ConvTranspose<strides = [2, 2]>(t, u)
        }""",
        {"x": ("f", (2, 8, 17, 19))},
        {"w": ("f", (16, 8, 3, 3)), "v": ("f", (16, 1, 3, 3)), "u": ("f", (16, 4, 2, 2))},
    ),
    "attention": (
        """g (float[n, s, 32] x) => (float[n, s, 32] y) {
            q = MatMul(x, a)  k = MatMul(x, b)  v = MatMul(x, c)
            t = Transpose<perm = [0, 2, 1]>(k)  w = MatMul(q, t)  p = Softmax(w)  o = MatMul(p, v)
            z = Add(x, o)  m = LayerNormalization(z, scale, bias)  y = Gelu(m)
        }""",
        {"x": ("f", (2, 7, 32))},
        dict.fromkeys("abc", ("f", (32, 32))) | {"scale": ("f", (32,)), "bias": ("f", (32,))},
    ),
    "recurrence": (
        """g (float[s, n, 6] x) => (float[s, 2, n, 5] y, float[s, 1, n, 5] z) {
            y = LSTM<hidden_size = 5, direction = "bidirectional">(x, w, r)  z = GRU<hidden_size = 5>(x, v, q)
        }""",
        {"x": ("f", (9, 3, 6))},
        {"w": ("f", (2, 20, 6)), "r": ("f", (2, 20, 5)), "v": ("f", (1, 15, 6)), "q": ("f", (1, 15, 5))},
    ),
    "quantised": (
        """g (float[n, 24] x) => (float[n, 10] y, int32[n, 10] z) <float s = {0.03}, uint8 p = {128}, float t = {0.02}, int8 o = {0}> {
            c = QuantizeLinear(x, s, p)  d = DequantizeLinear(c, s, p)  e = DequantizeLinear(w, t, o)  y = MatMul(d, e)
            z = MatMulInteger(c, w, p)
        }""",
        {"x": ("f", (5, 24))},
        {"w": ("b", (24, 10))},
    ),
    "shapes": (
        """g (float[n, 3, h, w] x) => (float[a, b, c, d] y, int64[e, 2] at) {
            u = Resize<mode = "cubic">(x, , scales)  p = Pad<mode = "reflect">(u, pads)  y = ReduceMean<keepdims = 1>(p, one)
            f = Flatten(x)  v, at = TopK(f, k)
        }""",
        {"x": ("f", (2, 3, 5, 6))},
        {},
    ),
    "half": (
        "g (float16[n, 40] x) => (float16[n, 40] y) { e = Exp(x)  t = Tanh(e)  y = Softmax(t) }",
        {"x": ("e", (4, 40))},
        {},
    ),
}  # fmt: skip
CONSTANTS = {
    "scales": np.float32([1, 1, 2, 1.5]),
    "pads": np.int64([0, 0, 1, 2, 0, 0, 2, 1]),
    "one": np.int64([1]),
    "k": np.int64([2]),
}


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Elements that neither vanish nor overflow in a few products."""
    if kind == "b":
        return rng.integers(-127, 128, shape).astype(np.int8)
    return (rng.standard_normal(shape) / 2).astype(kind)


def cases() -> dict[str, tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    """Models with their inputs."""
    rng = np.random.default_rng(0)
    made: dict[str, tuple[onnx.ModelProto, dict[str, np.ndarray]]] = {}
    for name, (text, inputs, weights) in CASES.items():
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
        values = {n: drawn(rng, *w) for n, w in weights.items()} | CONSTANTS
        nodes = model.graph.node
        read = {n for node in nodes for n in node.input} - {n for node in nodes for n in node.output}
        model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in values.items() if n in read)
        made[name] = model, {n: drawn(rng, *i) for n, i in inputs.items()}
    three = np.load(ROOT / "examples/three.npy")
    made["digits"] = onnx.load(ROOT / "examples/digits.onnx"), {"picture": three}
    return made


def main() -> None:
    out = FOLDER / f"{occ.__version__}.npz"
    if out.exists() and "--again" not in sys.argv:
        sys.exit(f"{out} is there: a release keeps its outputs once (--again replaces them before it is out)")
    kept: dict[str, np.ndarray] = {}
    for name, (model, inputs) in cases().items():
        kept[f"{name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
        kept |= {f"{name}/in/{n}": x for n, x in inputs.items()}
        kept |= {f"{name}/out/{n}": y for n, y in occ.compile(model).run(inputs).items()}
    out.parent.mkdir(exist_ok=True)
    np.savez_compressed(out, allow_pickle=False, **kept)
    print(f"wrote {out}: {len({k.partition('/')[0] for k in kept})} models, {out.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()

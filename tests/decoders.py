"""Small decoders with random weights, in the form of onnxruntime-genai's builder, and what onnxruntime writes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import occ

HEADS, GROUPS, SIZE, WORDS, LAYERS = 4, 2, 32, 50, 2
WIDTH = HEADS * SIZE


def decoder(taps: int = 0, **attributes: int | float) -> onnx.ModelProto:
    """Embedding, layers of grouped attention with a cache and rotation, and a head; the batch is symbolic.

    With `taps` a causal convolution with a state follows the embedding.
    """
    n, held, rng = helper.make_node, [], np.random.default_rng(11)

    def weight(name: str, *shape: int, by: float = 0.3) -> str:
        held.append(numpy_helper.from_array((rng.normal(size=shape) * by).astype(np.float32), name))
        return name

    angles = np.arange(256)[:, None] / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
    held += [
        numpy_helper.from_array(f(angles).astype(np.float32), name) for name, f in (("cos", np.cos), ("sin", np.sin))
    ]
    held += [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in (("one", [1]), ("at", 1))]
    nodes = [
        n("ReduceSum", ["attention_mask", "one"], ["count"], keepdims=0), n("Sub", ["count", "one"], ["ends"]),
        n("Cast", ["ends"], ["seqlens"], to=TensorProto.INT32), n("Shape", ["attention_mask"], ["shape"]),
        n("Gather", ["shape", "at"], ["whole"]), n("Cast", ["whole"], ["total"], to=TensorProto.INT32),
        n("Gather", [weight("words", WORDS, WIDTH, by=1), "input_ids"], ["x0"]),
    ]  # fmt: skip
    if taps:
        nodes[-1].output[0] = "rows"
        nodes += _convolution(weight("taps", WIDTH, 1, taps))
    for k in range(LAYERS):
        nodes += _layer(k, weight, **attributes)
    nodes.append(n("MatMul", [f"x{LAYERS}", weight("head", WIDTH, WORDS)], ["logits"]))
    inputs, outputs = _ports(taps)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _convolution(weight: str) -> list[onnx.NodeProto]:
    """`rows` mixed over the taps of a causal convolution with a state, as `x0`."""
    n = helper.make_node
    return [
        n("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        n("CausalConvWithState", ["columns", weight, "", "past.0.conv"], ["mixed", "present.0.conv"],
          domain="com.microsoft", activation="silu"),
        n("Transpose", ["mixed"], ["x0"], perm=[0, 2, 1]),
    ]  # fmt: skip


def _layer(k: int, weight: Callable[..., str], **attributes: int | float) -> list[onnx.NodeProto]:
    """`x{k}` to `x{k + 1}`."""
    n, qkv = helper.make_node, ((HEADS, "q"), (GROUPS, "k"), (GROUPS, "v"))
    caches = ("key", "value")
    reads = [*(f"{y}{k}" for _, y in qkv), *(f"past_key_values.{k}.{y}" for y in caches)]
    writes = [f"a{k}", *(f"present.{k}.{y}" for y in caches)]
    return [
        *(n("MatMul", [f"x{k}", weight(f"w{y}{k}", WIDTH, h * SIZE)], [f"{y}{k}"]) for h, y in qkv),
        n("GroupQueryAttention", [*reads, "seqlens", "total", "cos", "sin"], writes, domain="com.microsoft",
          num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, **attributes),
        n("MatMul", [f"a{k}", weight(f"wo{k}", WIDTH, WIDTH)], [f"o{k}"]), n("Tanh", [f"o{k}"], [f"t{k}"]),
        n("Add", [f"x{k}", f"t{k}"], [f"x{k + 1}"]),
    ]  # fmt: skip


def _ports(taps: int) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Inputs and outputs."""
    value, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
    caches = [f"{k}.{y}" for k in range(LAYERS) for y in ("key", "value")]
    inputs = [value("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    inputs.append(value("attention_mask", TensorProto.INT64, ["batch", "total"]))
    inputs += [value(f"past_key_values.{c}", f32, ["batch", GROUPS, "past", SIZE]) for c in caches]
    outputs = [value("logits", f32, ["batch", "sequence", WORDS])]
    outputs += [value(f"present.{c}", f32, ["batch", GROUPS, "total", SIZE]) for c in caches]
    if taps:
        inputs.append(value("past.0.conv", f32, ["batch", WIDTH, taps - 1]))
        outputs.append(value("present.0.conv", f32, ["batch", WIDTH, taps - 1]))
    return inputs, outputs


def masked(positions: bool = True) -> onnx.ModelProto:
    """A decoder as torch exports it: positions are learned, and keys forbidden by a mask and by causality; one layer.

    Without `positions` they follow from the length of the caches.
    """
    n, rng = helper.make_node, np.random.default_rng(7)

    def weight(name: str, *shape: int, by: float = 0.3) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.normal(size=shape) * by).astype(np.float32), name)

    width = 2 * SIZE
    held = [weight("words", WORDS, width, by=1), weight("places", 64, width, by=1), weight("head", width, WORDS)]
    held += [weight(f"w{y}", width, width) for y in "qkvo"]
    held += [
        numpy_helper.from_array(np.array(v, t), name)
        for name, v, t in (
            ("split", [0, 0, 2, SIZE], np.int64), ("join", [0, 0, width], np.int64), ("low", -np.inf, np.float32),
            ("root", SIZE**-0.5, np.float32), ("at1", 1, np.int64), ("at2", 2, np.int64), ("zero", 0, np.int64),
            ("inner", [1, 2], np.int64), ("first", [0], np.int64), ("last", [1], np.int64), ("nought", 0, np.float32),
        )
    ]  # fmt: skip
    nodes = [
        n("Shape", ["input_ids"], ["ids_shape"]), n("Gather", ["ids_shape", "at1"], ["new"]),
        n("Shape", ["past_key_values.0.key"], ["past_shape"]), n("Gather", ["past_shape", "at2"], ["past"]),
        n("Add", ["past", "new"], ["whole"]), n("Range", ["past", "whole", "at1"], ["rows"]),
        n("Range", ["zero", "whole", "at1"], ["columns"]), n("Unsqueeze", ["rows", "last"], ["row_column"]),
        n("GreaterOrEqual", ["row_column", "columns"], ["causal"]), n("Cast", ["attention_mask"], ["there"], to=TensorProto.BOOL),
        n("Unsqueeze", ["there", "inner"], ["there4"]), n("And", ["causal", "there4"], ["allowed"]),
        n("Gather", ["words", "input_ids"], ["word"]), n("Gather", ["places", "position_ids" if positions else "rows"], ["place"]),
        n("Add", ["word", "place"], ["x"]),
    ]  # fmt: skip
    for y in "qkv":
        nodes += [n("MatMul", ["x", f"w{y}"], [y]), n("Reshape", [y, "split"], [f"{y}4"])]
        nodes.append(n("Transpose", [f"{y}4"], [f"{y}h"], perm=[0, 2, 1, 3]))
    nodes += [
        n("Concat", ["past_key_values.0.key", "kh"], ["present.0.key"], axis=2),
        n("Concat", ["past_key_values.0.value", "vh"], ["present.0.value"], axis=2),
        n("Transpose", ["present.0.key"], ["turned"], perm=[0, 1, 3, 2]), n("MatMul", ["qh", "turned"], ["plain"]),
        n("Mul", ["plain", "root"], ["scores"]), n("Where", ["allowed", "scores", "low"], ["masked"]),
        n("Softmax", ["masked"], ["share"], axis=-1), n("IsNaN", ["share"], ["none"]),
        n("Where", ["none", "nought", "share"], ["weights"]), n("MatMul", ["weights", "present.0.value"], ["mixed"]),
        n("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]), n("Reshape", ["back", "join"], ["flat"]),
        n("MatMul", ["flat", "wo"], ["out"]), n("Add", ["x", "out"], ["y"]), n("MatMul", ["y", "head"], ["logits"]),
    ]  # fmt: skip
    value, f32, i64 = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    inputs = [value("input_ids", i64, ["batch", "sequence"]), value("attention_mask", i64, ["batch", "total"])]
    inputs += [value("position_ids", i64, ["batch", "sequence"])] if positions else []
    inputs += [value(f"past_key_values.0.{c}", f32, ["batch", 2, "past", SIZE]) for c in ("key", "value")]
    outputs = [value("logits", f32, ["batch", "sequence", WORDS])]
    outputs += [value(f"present.0.{c}", f32, ["batch", 2, "total", SIZE]) for c in ("key", "value")]
    graph = helper.make_graph(nodes, "masked", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def merged(model: onnx.ModelProto) -> onnx.ModelProto:
    """The decoder as optimum merges two: a branch that reads the caches, and one that does not, whose logits are wrong here."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, outputs = made.graph, [o.name for o in model.graph.output]
    branches = [helper.make_graph([*graph.node], "past", [], [*graph.output])]
    nodes = [helper.make_node("Neg" if o == "logits" else "Identity", [f"of_{o}"], [o]) for o in outputs]
    for node in graph.node:
        again = onnx.NodeProto()
        again.CopyFrom(node)
        again.output[:] = [f"of_{o}" if o in outputs else o for o in node.output]
        nodes.insert(len(nodes) - len(outputs), again)
    branches.append(helper.make_graph(nodes, "no_past", [], [*graph.output]))
    del graph.node[:]
    graph.node.append(
        helper.make_node("If", ["use_cache_branch"], outputs, then_branch=branches[0], else_branch=branches[1])
    )
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    return made


def in_blocks(model: onnx.ModelProto, level: int) -> onnx.ModelProto:
    """The same decoder with codes of 4 bits, in blocks of 32, instead of the matrices of its products."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    held = {w.name: w for w in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type != "MatMul":
            continue
        w = numpy_helper.to_array(held[node.input[1]])
        parts = w.T.reshape(w.shape[1], -1, 32)
        scales = np.abs(parts).max(-1) / 7
        codes = (np.round(parts / scales[..., None]) + 8).astype(np.uint8)
        name = node.input[1]
        made.graph.initializer.append(numpy_helper.from_array(scales, f"{name}_scales"))
        held[name].CopyFrom(numpy_helper.from_array(codes[..., ::2] | codes[..., 1::2] << 4, name))
        node.CopyFrom(helper.make_node(
            "MatMulNBits", [node.input[0], name, f"{name}_scales"], list(node.output), domain="com.microsoft", K=w.shape[0],
            N=w.shape[1], bits=4, block_size=32, accuracy_level=level,
        ))  # fmt: skip
    return made


class Reference:
    """The decoder in onnxruntime."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.pasts = {
            i.name: np.zeros([{"batch": 1, "past": 0}.get(n, n) for n in i.shape], np.float32)
            for i in self.session.get_inputs()
            if i.name.startswith("past")
        }

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits of every position."""
        given = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
        }
        taken = {i.name for i in self.session.get_inputs()}
        return self.session.run(["logits"], {k: x for k, x in given.items() if k in taken} | self.pasts)[0][0]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The most probable continuation, all computed again for each token."""
        every = list(ids)
        for _ in range(count):
            every.append(int(self.logits(every)[-1].argmax()))
        return every[len(ids) :]


def tokens_of_runs(lm: occ.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each run reads."""
    sizes: list[int] = []
    run = lm.session.run

    def counting(inputs: dict[str, np.ndarray], *rest: Any) -> dict[str, np.ndarray]:
        sizes.append(inputs["input_ids"].size)
        return run(inputs, *rest)

    monkeypatch.setattr(lm.session, "run", counting)
    return sizes

"""Small encoder-decoders with random weights, in the files that optimum writes, and what onnxruntime writes with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

WORDS, WIDTH, HEADS, LAYERS, PLACES, START, END = 40, 32, 2, 2, 48, 1, 2
_F32, _I64 = TensorProto.FLOAT, TensorProto.INT64


class _Weights:
    """Random weights, the same for each file."""

    def __init__(self, seed: int = 4) -> None:
        self.rng = np.random.default_rng(seed)
        self.held: dict[str, onnx.TensorProto] = {}
        self.masked = True

    def __call__(self, name: str, *shape: int) -> str:
        x = self.rng.normal(size=shape) * (1 if shape[0] in (WORDS, PLACES) else 1.6 * shape[0] ** -0.5)
        self.held[name] = numpy_helper.from_array(x.astype(np.float32), name)
        return name

    def number(self, name: str, value: object, dtype: type) -> str:
        self.held[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name


def _model(nodes: list[NodeProto], inputs: list, outputs: list, held: dict[str, onnx.TensorProto]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(held.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def text_encoder() -> onnx.ModelProto:
    """Words, mixed with the mean of all that the mask counts."""
    n, w, value = helper.make_node, _Weights(9), helper.make_tensor_value_info
    last, axis = w.number("last", [-1], np.int64), w.number("axis", [1], np.int64)
    nodes = [
        n("Gather", [w("words", WORDS, WIDTH), "input_ids"], ["word"]), n("Cast", ["attention_mask"], ["float"], to=_F32),
        n("Unsqueeze", ["float", last], ["counted"]), n("Mul", ["word", "counted"], ["seen"]),
        n("ReduceSum", ["seen", axis], ["sum"]), n("ReduceSum", ["counted", axis], ["count"]), n("Div", ["sum", "count"], ["mean"]),
        n("Add", ["seen", "mean"], ["both"]), n("MatMul", ["both", w("w", WIDTH, WIDTH)], ["mixed"]),
        n("Tanh", ["mixed"], ["last_hidden_state"]),
    ]  # fmt: skip
    inputs = [value(k, _I64, ["batch", "encoder"]) for k in ("input_ids", "attention_mask")]
    return _model(nodes, inputs, [value("last_hidden_state", _F32, ["batch", "encoder", WIDTH])], w.held)


def sound_encoder(frames: int = 3000) -> onnx.ModelProto:
    """Two convolutions, the second with a stride of 2, as Whisper's encoder begins."""
    n, w, value = helper.make_node, _Weights(8), helper.make_tensor_value_info
    nodes = [
        n("Conv", ["input_features", w("c1", WIDTH, 80, 3)], ["a"], pads=[1, 1]), n("Tanh", ["a"], ["b"]),
        n("Conv", ["b", w("c2", WIDTH, WIDTH, 3)], ["c"], pads=[1, 1], strides=[2]), n("Tanh", ["c"], ["d"]),
        n("Transpose", ["d"], ["last_hidden_state"], perm=[0, 2, 1]),
    ]  # fmt: skip
    return _model(nodes, [value("input_features", _F32, ["batch", 80, frames])],
                  [value("last_hidden_state", _F32, ["batch", frames // 2, WIDTH])], w.held)  # fmt: skip


def _heads(x: str, to: str) -> list[NodeProto]:
    n = helper.make_node
    return [n("Reshape", [x, "split"], [f"{to}4"]), n("Transpose", [f"{to}4"], [to], perm=[0, 2, 1, 3])]


def _attention(q: str, k: str, v: str, to: str, bias: str) -> list[NodeProto]:
    n = helper.make_node
    return [
        n("Transpose", [k], [f"{to}_kt"], perm=[0, 1, 3, 2]), n("MatMul", [q, f"{to}_kt"], [f"{to}_p"]),
        n("Mul", [f"{to}_p", "root"], [f"{to}_s"]), *([n("Add", [f"{to}_s", bias], [f"{to}_b"])] if bias else []),
        n("Softmax", [f"{to}_b" if bias else f"{to}_s"], [f"{to}_w"], axis=-1), n("MatMul", [f"{to}_w", v], [f"{to}_m"]),
        n("Transpose", [f"{to}_m"], [f"{to}_t"], perm=[0, 2, 1, 3]), n("Reshape", [f"{to}_t", "join"], [to]),
    ]  # fmt: skip


def _layer(k: int, w: _Weights, past: bool) -> list[NodeProto]:
    n, nodes = helper.make_node, []
    for y in ("q", "k", "v"):
        nodes += [n("MatMul", [f"x{k}", w(f"s{y}{k}", WIDTH, WIDTH)], [f"{y}{k}"]), *_heads(f"{y}{k}", f"{y}h{k}")]
    for y, name in (("k", "key"), ("v", "value")):
        here = f"present.{k}.decoder.{name}"
        given = [f"past_key_values.{k}.decoder.{name}", f"{y}h{k}"]
        nodes.append(n("Concat", given, [here], axis=2) if past else n("Identity", [f"{y}h{k}"], [here]))
    nodes += _attention(
        f"qh{k}", f"present.{k}.decoder.key", f"present.{k}.decoder.value", f"self{k}", "" if past else "causal"
    )
    nodes += [
        n("MatMul", [f"self{k}", w(f"so{k}", WIDTH, WIDTH)], [f"so_{k}"]),
        n("Add", [f"x{k}", f"so_{k}"], [f"y{k}"]),
    ]
    nodes += [n("MatMul", [f"y{k}", w(f"cq{k}", WIDTH, WIDTH)], [f"cq_{k}"]), *_heads(f"cq_{k}", f"cqh{k}")]
    for y, name in (("k", "key"), ("v", "value")):
        weight = w(f"c{y}{k}", WIDTH, WIDTH)
        if not past:
            nodes += [n("MatMul", ["encoder_hidden_states", weight], [f"c{y}_{k}"])]
            nodes += _heads(f"c{y}_{k}", f"present.{k}.encoder.{name}")
    source = "past_key_values" if past else "present"
    nodes += _attention(
        f"cqh{k}", f"{source}.{k}.encoder.key", f"{source}.{k}.encoder.value", f"cross{k}", "hidden" if w.masked else ""
    )
    nodes += [
        n("MatMul", [f"cross{k}", w(f"co{k}", WIDTH, WIDTH)], [f"co_{k}"]),
        n("Add", [f"y{k}", f"co_{k}"], [f"z{k}"]),
    ]
    return [*nodes, n("Tanh", [f"z{k}"], [f"x{k + 1}"])]


def decoder(past: bool, *, masked: bool = True) -> onnx.ModelProto:
    """Words and places, layers of attention to itself and to the encoder, and a head.

    With `past` it takes one token, caches, and keys and values of the encoder; else all tokens and the encoder's states.
    """
    n, w, value = helper.make_node, _Weights(), helper.make_tensor_value_info
    w.masked = masked
    numbers = (
        ("split", [0, 0, HEADS, -1], np.int64), ("join", [0, 0, WIDTH], np.int64), ("root", (WIDTH / HEADS) ** -0.5, np.float32),
        ("one", 1.0, np.float32), ("low", -1e9, np.float32), ("axes", [1, 2], np.int64), ("zero", 0, np.int64), ("step", 1, np.int64),
        ("two", 2, np.int64), ("column", [1], np.int64), ("nothing", 0.0, np.float32),
    )  # fmt: skip
    for number in numbers:
        w.number(*number)
    nodes = [n("Shape", ["input_ids"], ["shape"]), n("Gather", ["shape", "step"], ["length"])]
    if masked:
        nodes += [
            n("Cast", ["encoder_attention_mask"], ["counted"], to=_F32), n("Sub", ["one", "counted"], ["uncounted"]),
            n("Mul", ["uncounted", "low"], ["hidden2"]), n("Unsqueeze", ["hidden2", "axes"], ["hidden"]),
        ]  # fmt: skip
    if past:
        nodes += [
            n("Shape", ["past_key_values.0.decoder.key"], ["past_shape"]),
            n("Gather", ["past_shape", "two"], ["first"]),
        ]
    nodes += [
        n("Add", ["first" if past else "zero", "length"], ["end"]), n("Range", ["first" if past else "zero", "end", "step"], ["rows"]),
        n("Gather", [w("places", PLACES, WIDTH), "rows"], ["place"]), n("Gather", [w("words", WORDS, WIDTH), "input_ids"], ["word"]),
        n("Add", ["word", "place"], ["x0"]),
    ]  # fmt: skip
    if not past:
        nodes += [n("Unsqueeze", ["rows", "column"], ["row"]), n("Less", ["row", "rows"], ["later"]),
                  n("Where", ["later", "low", "nothing"], ["causal"])]  # fmt: skip
    for k in range(LAYERS):
        nodes += _layer(k, w, past)
    nodes.append(n("MatMul", [f"x{LAYERS}", w("head", WIDTH, WORDS)], ["logits"]))
    caches = [f"{k}.{{}}.{y}" for k in range(LAYERS) for y in ("key", "value")]
    sizes = {"decoder": "past", "encoder": "encoder"}
    inputs = [value("encoder_attention_mask", _I64, ["batch", "encoder"])] if masked else []
    inputs.append(value("input_ids", _I64, ["batch", 1 if past else "length"]))
    if past:
        inputs += [
            value(f"past_key_values.{c.format(s)}", _F32, ["batch", HEADS, d, WIDTH // HEADS])
            for c in caches
            for s, d in sizes.items()
        ]
    else:
        inputs.append(value("encoder_hidden_states", _F32, ["batch", "encoder", WIDTH]))
    outputs = [value("logits", _F32, ["batch", "length", WORDS])]
    kinds = {"decoder": "total"} if past else {"decoder": "length", "encoder": "encoder"}
    outputs += [
        value(f"present.{c.format(s)}", _F32, ["batch", HEADS, d, WIDTH // HEADS])
        for c in caches
        for s, d in kinds.items()
    ]
    return _model(nodes, inputs, outputs, w.held)


def merged(*, masked: bool = True) -> onnx.ModelProto:
    """Both decoders as optimum merges them: branches of an If by `use_cache_branch`."""
    first, step = decoder(False, masked=masked), decoder(True, masked=masked)
    outputs, branches = list(first.graph.output), []
    for prefix, model in (("a", step), ("b", first)):
        made, own = list(model.graph.node), {o for n in model.graph.node for o in n.output}
        for node in made:
            node.input[:] = [f"{prefix}_{i}" if i in own else i for i in node.input]
            node.output[:] = [f"{prefix}_{o}" for o in node.output]
        ends = []
        for o in outputs:
            there = o.name if o.name in own else o.name.replace("present", "past_key_values")
            made.append(
                helper.make_node("Identity", [f"{prefix}_{there}" if there in own else there], [f"{prefix}_{o.name}_"])
            )
            ends.append(helper.make_tensor_value_info(f"{prefix}_{o.name}_", _F32, None))
        branches.append(helper.make_graph(made, prefix, [], ends))
    node = helper.make_node(
        "If", ["use_cache_branch"], [o.name for o in outputs], then_branch=branches[0], else_branch=branches[1]
    )
    inputs = {i.name: i for i in (*first.graph.input, *step.graph.input)}
    inputs["use_cache_branch"] = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    held = {t.name: t for t in (*first.graph.initializer, *step.graph.initializer)}
    return _model([node], list(inputs.values()), outputs, held)


def write_folder(folder: Path, *, one_file: bool = False, sound: bool = False, **config: object) -> Path:
    """A folder of optimum, with one decoder or two."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(sound_encoder() if sound else text_encoder(), folder / "encoder_model.onnx")
    if one_file:
        onnx.save(merged(masked=not sound), folder / "decoder_model_merged.onnx")
    else:
        onnx.save(decoder(False, masked=not sound), folder / "decoder_model.onnx")
        onnx.save(decoder(True, masked=not sound), folder / "decoder_with_past_model.onnx")
    told = {"decoder_start_token_id": START, "eos_token_id": END, "max_position_embeddings": PLACES, **config}
    (folder / "config.json").write_text(json.dumps(told))
    return folder


class Reference:
    """The model in onnxruntime, which computes all again for each token."""

    def __init__(self, *, sound: bool = False) -> None:
        def opened(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
            return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

        self._encoder, self._sound = opened(sound_encoder() if sound else text_encoder()), sound
        self._decoder = opened(decoder(False, masked=not sound))

    def logits(self, source: np.ndarray | list[int], tokens: list[int]) -> np.ndarray:
        """Logits f32 `[words]` of what follows some tokens."""
        mask = np.ones((1, len(source)), np.int64)
        given = {"input_features": source} if self._sound else {"input_ids": np.array([source]), "attention_mask": mask}
        (states,) = self._encoder.run(None, given)
        more = {} if self._sound else {"encoder_attention_mask": mask}
        return self._decoder.run(
            ["logits"], {"input_ids": np.array([tokens]), "encoder_hidden_states": states, **more}
        )[0][0, -1]

    def greedy(
        self, source: np.ndarray | list[int], count: int, start: tuple[int, ...] = (START,), never: tuple[int, ...] = ()
    ) -> list[int]:
        """The most probable tokens, up to one that ends texts."""
        tokens = list(start)
        for _ in range(count):
            logits = self.logits(source, tokens)
            logits[list(never)] = -np.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == END:
                break
        return tokens[len(start) :]

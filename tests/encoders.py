"""A small encoder of texts with random weights, in the form of optimum's export of BERT, and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper, numpy_helper
from tokenizers import models, pre_tokenizers, processors

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *[
        "a",
        "b",
        "c",
        "d",
        "e",
        "f",
        "g",
        "h",
        "i",
        "j",
        "k",
        "l",
        "m",
        "n",
        "o",
        "p",
        "q",
        "r",
        "s",
        "t",
        "u",
        "v",
        "w",
        "x",
        "y",
        "z",
        "the",
        "lens",
        "is",
        "clear",
    ],
]
WIDTH, HEADS, LONGEST = 32, 4, 24


def encoder(outputs: str = "last_hidden_state") -> onnx.ModelProto:
    """Words, places and kinds; a layer of attention under the mask; LayerNorm.

    `logits` is a score of the first token, `sentence_embedding` the first token itself.
    """
    n, rng = helper.make_node, np.random.default_rng(3)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.normal(size=shape) * shape[0] ** -0.5).astype(np.float32), name)

    held = [weight("words", len(WORDS), WIDTH), weight("places", LONGEST, WIDTH), weight("kinds", 2, WIDTH)]
    held += [
        *(weight(f"w{y}", WIDTH, WIDTH) for y in "qkvo"),
        weight("score", WIDTH, 1),
        weight("gain", WIDTH),
        weight("shift", WIDTH),
    ]
    held += [numpy_helper.from_array(np.array(v, t), k) for k, v, t in (
        ("split", [0, 0, HEADS, -1], np.int64), ("join", [0, 0, WIDTH], np.int64), ("axes", [1, 2], np.int64), ("one", 1, np.float32),
        ("low", -1e9, np.float32), ("root", (WIDTH / HEADS) ** -0.5, np.float32), ("zero", 0, np.int64), ("step", 1, np.int64),
        ("at", 1, np.int64))]  # fmt: skip
    nodes = [
        n("Gather", ["words", "input_ids"], ["word"]), n("Gather", ["kinds", "token_type_ids"], ["kind"]),
        n("Shape", ["input_ids"], ["shape"]), n("Gather", ["shape", "at"], ["length"]),
        n("Range", ["zero", "length", "step"], ["range"]), n("Gather", ["places", "range"], ["place"]),
        n("Add", ["word", "kind"], ["x0"]), n("Add", ["x0", "place"], ["x"]),
        n("Cast", ["attention_mask"], ["counted"], to=TensorProto.FLOAT), n("Sub", ["one", "counted"], ["hidden"]),
        n("Mul", ["hidden", "low"], ["bias2"]), n("Unsqueeze", ["bias2", "axes"], ["bias"]),
    ]  # fmt: skip
    for y in "qkv":
        nodes += [n("MatMul", ["x", f"w{y}"], [y]), n("Reshape", [y, "split"], [f"{y}4"])]
        nodes.append(n("Transpose", [f"{y}4"], [f"{y}h"], perm=[0, 2, 3, 1] if y == "k" else [0, 2, 1, 3]))
    nodes += [
        n("MatMul", ["qh", "kh"], ["plain"]), n("Mul", ["plain", "root"], ["scaled"]), n("Add", ["scaled", "bias"], ["scores"]),
        n("Softmax", ["scores"], ["share"], axis=-1), n("MatMul", ["share", "vh"], ["mixed"]),
        n("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]), n("Reshape", ["back", "join"], ["flat"]),
        n("MatMul", ["flat", "wo"], ["o"]), n("Add", ["x", "o"], ["y"]),
        n("LayerNormalization", ["y", "gain", "shift"], ["last_hidden_state"], axis=-1),
        n("Gather", ["last_hidden_state", "zero"], ["sentence_embedding"], axis=1),
        n("MatMul", ["sentence_embedding", "score"], ["logits"]),
    ]  # fmt: skip
    value, f32 = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [
        value(k, TensorProto.INT64, ["batch", "length"]) for k in ("input_ids", "attention_mask", "token_type_ids")
    ]
    shapes = {
        "last_hidden_state": ["batch", "length", WIDTH],
        "sentence_embedding": ["batch", WIDTH],
        "logits": ["batch", 1],
    }
    made = [value(k, f32, shapes[k]) for k in outputs.split()]
    graph = helper.make_graph(nodes, "encoder", inputs, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tokenizer() -> tokenizers.Tokenizer:
    """Words, with [CLS] and [SEP] around them; it pads and cuts off, as files of sentence-transformers ask for."""
    made = tokenizers.Tokenizer(models.WordLevel({w: k for k, w in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_padding(length=16)
    made.enable_truncation(8)
    return made


def write_folder(
    folder: Path, outputs: str = "last_hidden_state", pooling: dict[str, object] | None = None, normalize: bool = True
) -> Path:
    """A folder of sentence-transformers with its model in `onnx/model.onnx`."""
    (folder / "onnx").mkdir(parents=True)
    onnx.save(encoder(outputs), folder / "onnx" / "model.onnx")
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0, "max_position_embeddings": LONGEST}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        modules = [
            ("", "Transformer"),
            ("1_Pooling", "Pooling"),
            *([("2_Normalize", "Normalize")] if normalize else []),
        ]
        text = [
            {"idx": k, "name": str(k), "path": p, "type": f"sentence_transformers.models.{t}"}
            for k, (p, t) in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(text))
    return folder


def states(text: str, other: str | None = None, outputs: str = "last_hidden_state", longest: int = 20) -> np.ndarray:
    """What onnxruntime computes of one text, or of a pair, alone."""
    reader = tokenizer()
    reader.no_padding()
    reader.enable_truncation(longest)
    e = reader.encode(text, other)
    session = onnxruntime.InferenceSession(encoder(outputs).SerializeToString(), providers=["CPUExecutionProvider"])
    given = {"input_ids": e.ids, "attention_mask": e.attention_mask, "token_type_ids": e.type_ids}
    return session.run([outputs], {k: np.array([v], np.int64) for k, v in given.items()})[0][0]

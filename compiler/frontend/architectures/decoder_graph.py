"""The ONNX model of a decoder: operators of onnxruntime-genai's builder, and rotation by ai.onnx 23.

Angles are computed from the positions, so no table limits the context length. Sources: the operators of com.microsoft
(onnxruntime, docs/ContribOperators.md); the models of the transformers library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from occ.compiler.frontend.architectures.description import Decoder, Rope
from occ.compiler.frontend.architectures.onnx_graph import CONTRIB, OnnxGraph
from occ.compiler.frontend.architectures.stored_weights import Stored
from occ.compiler.frontend.external import MappedModel

Angles = tuple[str, str]  # cosines and sines of each position, f32 `[batch, sequence, pairs]`


def decoder_model(d: Decoder, weights: Mapping[str, Stored]) -> tuple[ModelProto, MappedModel]:
    """The model of a decoder, and the bytes of its weights.

    Its inputs are `input_ids`, `attention_mask`, `position_ids` i64 `[batch, sequence]` and for each layer
    `past_key_values.K.key` and `.value` f32 `[batch, groups, past, head]`; its outputs are `logits` f32
    `[batch, sequence, words]` and `present.K.key` and `.value`.

    Args:
        d: the description.
        weights: those listed in `d.tensors()`.
    """
    return _DecoderGraph(d, weights).build()


class _DecoderGraph:
    """The graph of one decoder."""

    def __init__(self, d: Decoder, weights: Mapping[str, Stored]) -> None:
        self.d, self.g = d, OnnxGraph(weights)

    def build(self) -> tuple[ModelProto, MappedModel]:
        """All of it."""
        d, g = self.d, self.g
        lengths = self._lengths()
        everywhere = self._angles(d.rope)
        nearby = everywhere if d.local_rope is None else self._angles(d.local_rope)
        x = g.gather("token_embd.weight", "input_ids")
        if d.embedding_scale != 1:
            x = g.add("Mul", x, g.number(d.embedding_scale))
        for k in range(d.layers):
            angles = None if k in d.unrotated else nearby if k in d.local else everywhere
            mixed = self._attention(k, self._norm(x, f"blk.{k}.attn_norm"), angles, lengths)
            x = self._joined(x, mixed, f"blk.{k}.post_attention_norm")
            x = self._joined(x, self._feed_forward(k, self._norm(x, f"blk.{k}.ffn_norm")), f"blk.{k}.post_ffw_norm")
        logits = g.linear(self._norm(x, "output_norm"), "token_embd.weight" if d.tied else "output.weight")
        if d.logit_softcap:
            logits = g.add("Tanh", g.add("Div", logits, g.number(d.logit_softcap)))
            logits = g.add("Mul", logits, g.number(d.logit_softcap))
        g.add("Identity", logits, result="logits")
        return g.model(d.architecture, *self._ports())

    def _lengths(self) -> Angles:
        """Number of keys per sequence minus one, and the longest, as GroupQueryAttention expects them, i32."""
        g = self.g
        last = g.add("Sub", g.add("ReduceSum", "attention_mask", g.ints(1), keepdims=0), g.ints(1))
        whole = g.add("Gather", g.add("Shape", "attention_mask"), g.ints(1))
        return g.add("Cast", last, to=TensorProto.INT32), g.add("Cast", whole, to=TensorProto.INT32)

    def _angles(self, rope: Rope) -> Angles:
        g = self.g
        name = f"frequencies {id(rope)}"
        frequencies = g.constant(name, rope.frequencies)
        if rope.long is not None:
            last = g.add("ReduceMax", "position_ids", keepdims=0)
            is_long = g.add("GreaterOrEqual", last, g.add("Squeeze", g.ints(rope.original)))
            frequencies = g.add("Where", is_long, g.constant(f"{name} long", rope.long), frequencies)
        at = g.add("Cast", g.add("Unsqueeze", "position_ids", g.ints(-1)), to=TensorProto.FLOAT)
        angles = g.add("Mul", at, frequencies)
        cos, sin = g.add("Cos", angles), g.add("Sin", angles)
        if rope.factor != 1:
            cos, sin = (g.add("Mul", x, g.number(rope.factor)) for x in (cos, sin))
        return cos, sin

    def _norm(self, x: str, name: str) -> str:
        return self.g.add("RMSNormalization", x, self.g.vector(f"{name}.weight"), axis=-1, epsilon=self.d.epsilon)

    def _joined(self, x: str, added: str, norm: str) -> str:
        """The residual stream plus the output of a part of a layer."""
        return self.g.add("Add", x, self._norm(added, norm) if self.d.post_norms else added)

    def _linear(self, x: str, layer: int, name: str) -> str:
        y = self.g.linear(x, f"blk.{layer}.{name}.weight")
        return self.g.add("Add", y, self.g.vector(f"blk.{layer}.{name}.bias")) if name in self.d.biases else y

    def _attention(self, k: int, x: str, angles: Angles | None, lengths: Angles) -> str:
        d, g = self.d, self.g
        q, key, value = (self._linear(x, k, f"attn_{y}") for y in "qkv")
        if d.head_norms:
            q, key = self._head_norm(k, q, "attn_q_norm"), self._head_norm(k, key, "attn_k_norm")
        if angles is not None:
            turned = 2 * len(d.rope.frequencies)
            how: dict[str, Any] = {} if turned == d.head else {"rotary_embedding_dim": turned}
            q, key = (
                g.add("RotaryEmbedding", y, *angles, num_heads=h, **how) for y, h in ((q, d.heads), (key, d.groups))
            )
        bounds: dict[str, Any] = {"softcap": d.attention_softcap} if d.attention_softcap else {}
        bounds |= {"local_window_size": d.window} if k in d.local else {}
        mixed, caches = f"attention_{k}", ("key", "value")
        g.append(helper.make_node(
            "GroupQueryAttention", [q, key, value, *(f"past_key_values.{k}.{c}" for c in caches), *lengths],
            [mixed, *(f"present.{k}.{c}" for c in caches)], name=mixed, domain=CONTRIB, num_heads=d.heads,
            kv_num_heads=d.groups, scale=d.scale, **bounds,
        ))  # fmt: skip
        return self._linear(mixed, k, "attn_output")

    def _head_norm(self, k: int, x: str, name: str) -> str:
        """Normalises each head of `[batch, sequence, heads * head]`."""
        by_heads = self.g.add("Reshape", x, self.g.ints(0, 0, -1, self.d.head))
        return self.g.add("Reshape", self._norm(by_heads, f"blk.{k}.{name}"), self.g.ints(0, 0, -1))

    def _feed_forward(self, k: int, x: str) -> str:
        g, gate = self.g, self._linear(x, k, "ffn_gate")
        if self.d.activation == "silu":
            gate = g.add("Mul", gate, g.add("Sigmoid", gate))
        else:
            gate = g.add("Gelu", gate, approximate="tanh")
        return self._linear(g.add("Mul", gate, self._linear(x, k, "ffn_up")), k, "ffn_down")

    def _ports(self) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
        d, value, i64, f32 = self.d, helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
        caches = [f"{k}.{y}" for k in range(d.layers) for y in ("key", "value")]
        inputs = [value("input_ids", i64, ["batch", "sequence"]), value("attention_mask", i64, ["batch", "total"])]
        inputs.append(value("position_ids", i64, ["batch", "sequence"]))
        inputs += [value(f"past_key_values.{c}", f32, ["batch", d.groups, "past", d.head]) for c in caches]
        outputs = [value("logits", f32, ["batch", "sequence", d.words])]
        outputs += [value(f"present.{c}", f32, ["batch", d.groups, "total", d.head]) for c in caches]
        return inputs, outputs

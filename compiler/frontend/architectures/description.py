"""Hyperparameters of decoder-only transformers: sizes, norms, attention, positions, activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from occ.runtime.dataclass import dataclass

PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")  # the matrices of a layer


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., 2021): angles of the pairs of a head, in radians per position.

    Attributes:
        frequencies: f32 `[pairs]`.
        long: those for texts longer than `original` tokens (LongRoPE), f32 `[pairs]`; None if there are none.
        original: context length of the original training.
        factor: multiplier of sines and cosines.
    """

    frequencies: np.ndarray
    long: np.ndarray | None = None
    original: int = 0
    factor: float = 1.0


@dataclass(frozen=True)
class Decoder:
    """A decoder-only transformer with RMSNorm, rotary positions, grouped heads and a gated feed-forward network.

    Attributes:
        architecture: its name, for messages.
        layers, width, heads, groups, head, inner, words: sizes: blocks, the residual stream, heads of queries and of
            keys, elements of a head, the hidden rows of the feed-forward network, the vocabulary.
        context: maximum context length; 0 if unknown.
        epsilon: of its norms.
        rope: for layers with global attention.
        local_rope: for layers with a window; None if it is the same.
        window: keys in a local layer's window, including the query's own.
        local: the layers with a window.
        unrotated: the layers without positions.
        scale: of scores before softmax.
        attention_softcap, logit_softcap: bounds of tanh; 0 for none.
        embedding_scale: of the embedding's rows.
        activation: of the gate: `silu` or `gelu_tanh`.
        post_norms: whether outputs of attention and feed-forward are normalised too (Gemma 2 and 3).
        head_norms: whether the heads of queries and keys are (Qwen 3, Gemma 3).
        biases: those of `PROJECTIONS` that have a bias.
        tied: whether head and embedding share weights.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    groups: int
    head: int
    inner: int
    words: int
    epsilon: float
    rope: Rope
    scale: float
    context: int = 0
    local_rope: Rope | None = None
    window: int = 0
    local: frozenset[int] = field(default_factory=frozenset)
    unrotated: frozenset[int] = field(default_factory=frozenset)
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"
    post_norms: bool = False
    head_norms: bool = False
    biases: frozenset[str] = field(default_factory=frozenset)
    tied: bool = False

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The weights of the graph, by their GGUF names, with shapes."""
        yield "token_embd.weight", (self.words, self.width)
        yield "output_norm.weight", (self.width,)
        if not self.tied:
            yield "output.weight", (self.words, self.width)
        queries, keys = self.heads * self.head, self.groups * self.head
        rows = (queries, keys, keys, self.width, self.inner, self.inner, self.width)
        columns = (self.width, self.width, self.width, queries, self.width, self.width, self.inner)
        matrices = dict(zip(PROJECTIONS, zip(rows, columns, strict=True), strict=True))
        norms = {"attn_norm": self.width, "ffn_norm": self.width}
        norms |= {"post_attention_norm": self.width, "post_ffw_norm": self.width} if self.post_norms else {}
        norms |= {"attn_q_norm": self.head, "attn_k_norm": self.head} if self.head_norms else {}
        for k in range(self.layers):
            for name, shape in matrices.items():
                yield f"blk.{k}.{name}.weight", shape
                if name in self.biases:
                    yield f"blk.{k}.{name}.bias", shape[:1]
            for name, size in norms.items():
                yield f"blk.{k}.{name}.weight", (size,)

"""Weights as a file stores them: arrays of floats, or codes in blocks with scales, as in MatMulNBits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from occ.compiler.frontend.architectures.description import Decoder
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class Blocks:
    """A matrix `[N, K]` of codes: `(code - zero) * scale`, as in MatMulNBits (onnxruntime, ContribOperators.md).

    Attributes:
        bits: of a code: 4 or 8.
        size: codes of a block.
        codes: u8 `[N, blocks, size * bits / 8]`, the first code in the low bits.
        scales: f32 `[N, blocks]`.
        zeros: f32 `[N, blocks]`; None for `2**(bits - 1)`.
    """

    bits: int
    size: int
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None

    def rows(self, which: slice | np.ndarray) -> Blocks:
        """Some rows of the matrix."""
        zeros = None if self.zeros is None else self.zeros[which]
        return replace(self, codes=self.codes[which], scales=self.scales[which], zeros=zeros)

    def values(self) -> np.ndarray:
        """The dequantised weights, f32 `[N, K]`."""
        codes = self.codes
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], -1)
        codes = codes.reshape(*self.scales.shape, self.size).astype(np.float32)
        zero = float(1 << (self.bits - 1)) if self.zeros is None else self.zeros[..., None]
        return ((codes - zero) * self.scales[..., None]).reshape(len(codes), -1)


@dataclass(frozen=True)
class Stored:
    """A tensor of a file, read on demand.

    Attributes:
        shape: of its elements, outermost first.
        load: returns it: floats of any width, or blocks.
    """

    shape: tuple[int, ...]
    load: Callable[[], np.ndarray | Blocks]

    def rows(self, which: slice | np.ndarray) -> Stored:
        """Some rows of it."""

        def load() -> np.ndarray | Blocks:
            whole = self.load()
            return whole.rows(which) if isinstance(whole, Blocks) else whole[which]

        count = len(range(self.shape[0])[which]) if isinstance(which, slice) else len(which)
        return Stored((count, *self.shape[1:]), load)

    def plus(self, offset: float) -> Stored:
        """The weight with a number added, in f32."""
        return Stored(self.shape, lambda: floats(self.load()) + np.float32(offset))


def floats(stored: np.ndarray | Blocks) -> np.ndarray:
    """Values of a tensor in f32."""
    return stored.values() if isinstance(stored, Blocks) else stored.astype(np.float32)


def split_rows(weights: Mapping[str, Stored], name: str, parts: Mapping[str, int]) -> dict[str, Stored]:
    """Weights with one tensor, and its bias, split along its rows into several.

    Only if it has the same total number of rows.

    Args:
        weights: by name; returned unchanged if the tensor is missing.
        name: of the tensor, with `{}` instead of `weight` or `bias`.
        parts: names, likewise, and rows of the parts.
    """
    found = dict(weights)
    for kind in ("weight", "bias"):
        whole = found.get(name.format(kind))
        if whole is None or whole.shape[0] != sum(parts.values()):
            continue
        del found[name.format(kind)]
        start = 0
        for part, rows in parts.items():
            found[part.format(kind)] = whole.rows(slice(start, start + rows))
            start += rows
    return found


def unfused(d: Decoder, weights: Mapping[str, Stored]) -> dict[str, Stored]:
    """Weights with a decoder's fused projections split: queries, keys and values, and gate and up."""
    found, keys = dict(weights), d.groups * d.head
    for k in range(d.layers):
        qkv = {f"blk.{k}.attn_{y}.{{}}": rows for y, rows in (("q", d.heads * d.head), ("k", keys), ("v", keys))}
        found = split_rows(found, f"blk.{k}.attn_qkv.{{}}", qkv)
        if f"blk.{k}.ffn_gate.weight" not in found:
            halves = {f"blk.{k}.ffn_{y}.{{}}": d.inner for y in ("gate", "up")}
            found = split_rows(found, f"blk.{k}.ffn_up.{{}}", halves)
    return found


def deinterleaved_halves(heads: int, head: int) -> np.ndarray:
    """Reorders rows of interleaved pairs, so that second halves of heads follow first ones.

    llama.cpp's converter interleaves the rows of queries and keys of the llama architecture (`LlamaModel.permute`).
    """
    return np.arange(heads * head).reshape(heads, head // 2, 2).swapaxes(1, 2).reshape(-1)


def checked(
    weights: Mapping[str, Stored], wanted: Sequence[tuple[str, tuple[int, ...]]], ignored: Sequence[str]
) -> str:
    """Errors of weights: missing, of the wrong shape, or unused; empty if there are none.

    Args:
        weights: by name.
        wanted: names and shapes.
        ignored: additional names that are allowed.
    """
    for name, shape in wanted:
        if name not in weights:
            return f"it has no tensor `{name}`"
        if weights[name].shape != shape:
            return f"its tensor `{name}` has shape {list(weights[name].shape)}, not {list(shape)}"
    known = {name for name, _ in wanted}.union(ignored)
    odd = [n for n in weights if n not in known]
    return f"it has a tensor `{odd[0]:.80}`, which the architecture does not know" if odd else ""

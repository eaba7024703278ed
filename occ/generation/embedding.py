"""Embeddings of texts, and scores of pairs of texts, by encoders in ONNX."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.targets.default import DEFAULT
from occ.generation.embedding_folder import POOLINGS, SENTENCES, TOKENS, EmbeddingFolder
from occ.generation.names import IDS, LOGITS, MASK, POSITIONS
from occ.generation.open import open_plain
from occ.generation.tokenizer import Tokenizer
from occ.runtime.errors import RunError
from occ.runtime.signature import numpy_dtype

_TYPES = "token_type_ids"


class TextEncoder:
    """An encoder with its tokenizer. Thread-safe.

    Args:
        path: a folder with `model.onnx` or `onnx/model.onnx`, or an artifact, and `tokenizer.json`; or the path of such
            a file.
        threads: of one run; OCC_NUM_THREADS or all processors if None.
        target: `cpu` or `cpu-jit`.
        batch_size: maximum texts per run.

    Attributes:
        folder: its configuration.
        session: the compiled model.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 there is no model or no tokenizer, or it has inputs other than texts.
    """

    def __init__(
        self, path: str | os.PathLike[str], threads: int | None = None, *, target: str = DEFAULT, batch_size: int = 32
    ) -> None:
        if batch_size < 1:
            raise RunError("OCC0501", f"batch_size is {batch_size}", "it must be 1 or above")
        self.folder, self.batch_size = EmbeddingFolder.of(Path(path)), batch_size
        self.tokenizer = Tokenizer(self.folder.tokenizer)
        self.session = open_plain(self.folder.model, threads, target)
        self._types = {i.name: numpy_dtype(i.dtype) for i in self.session.inputs}
        odd = sorted(self._types.keys() - {IDS, MASK, _TYPES, POSITIONS})
        if IDS not in self._types or odd:
            what = f"takes `{odd[0]}`" if odd else f"does not take `{IDS}`"
            raise RunError(
                "OCC0501",
                f"`{self.folder.model}` {what}: it is not an encoder of texts",
                "export it for feature extraction",
            )

    def tokens(
        self, texts: Sequence[str | tuple[str, str]], *, truncate: bool = True
    ) -> list[tuple[list[int], list[int]]]:
        """Tokens of texts, and which text of a pair each belongs to.

        Raises:
            RunError: OCC0501 a text is longer than the model allows, and must not be truncated.
        """
        longest = self.folder.longest
        found = self.tokenizer.encode_rows(texts, longest if truncate else None)
        if longest is not None and (most := max((len(ids) for ids, _ in found), default=0)) > longest:
            raise RunError("OCC0501", f"a text has {most} tokens", f"the model takes {longest}")
        return found

    def run(
        self, rows: Sequence[tuple[list[int], list[int]]], read: Callable[[dict[str, Any], np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """The results of `read` on the outputs and the mask of each run, in row order.

        Texts of similar lengths share a run, whose shorter rows are padded.
        """
        order = sorted(range(len(rows)), key=lambda k: -len(rows[k][0]))
        made: dict[int, np.ndarray] = {}
        for at in range(0, len(order), self.batch_size):
            some = order[at : at + self.batch_size]
            inputs, mask = self._batch([rows[k] for k in some])
            made |= dict(zip(some, read(self.session.run(inputs), mask), strict=True))
        return np.stack([made[k] for k in range(len(rows))]) if made else np.empty((0, 0), np.float32)

    def _batch(self, rows: Sequence[tuple[list[int], list[int]]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        longest = max(1, *(len(ids) for ids, _ in rows)) if rows else 1
        ids, types, mask = (np.zeros((len(rows), longest), np.int64) for _ in range(3))
        ids += self.folder.padding
        for k, (tokens, kinds) in enumerate(rows):
            ids[k, : len(tokens)], types[k, : len(kinds)], mask[k, : len(tokens)] = tokens, kinds, 1
        given = {IDS: ids, MASK: mask, _TYPES: types, POSITIONS: np.broadcast_to(np.arange(longest), ids.shape)}
        return {n: given[n].astype(t) for n, t in self._types.items()}, mask


class EmbeddingModel(TextEncoder):
    """A model that computes an embedding vector of a text, as in sentence-transformers.

    Args:
        path: as in `TextEncoder`; so are `threads`, `target` and `batch_size`.
        pooling: how token vectors become one: one of `POOLINGS`; None for the folder's setting, or else the mean.
        normalize: whether vectors are normalised to length 1; None for the folder's setting, or else True.

    Raises:
        CompileError, RunError: as `TextEncoder`; OCC0501 the model outputs no vectors.
    """

    def __init__(
        self, path: str | os.PathLike[str], threads: int | None = None, *, pooling: str | None = None,
        normalize: bool | None = None, **how: Any,
    ) -> None:  # fmt: skip
        if pooling is not None and pooling not in POOLINGS:
            raise RunError("OCC0501", f"pooling is {pooling!r}", f"known are {', '.join(POOLINGS)}")
        super().__init__(path, threads, **how)
        self._pooling = self.folder.pooling if pooling is None else (pooling,)
        told = self.folder.normalize if normalize is None else normalize
        self._normalize = told is not False
        ranks = {o.name: len(o.shape) for o in self.session.outputs}
        whole = [n for n in SENTENCES if ranks.get(n) == 2] if pooling is None else []
        of_tokens = [n for n in (*TOKENS, *ranks) if ranks.get(n) == 3]
        if not whole and not of_tokens:
            raise RunError(
                "OCC0501", f"`{self.folder.model}` returns no vectors of tokens or texts, but {', '.join(ranks)}",
                "export it for feature extraction",
            )  # fmt: skip
        self._output, self._is_whole = (whole or of_tokens)[0], bool(whole)

    def embed(self, texts: str | Sequence[str], *, prompt: str = "", truncate: bool = True) -> np.ndarray:
        """Embedding vectors of texts.

        Args:
            texts: one, or several.
            prompt: a prefix for each, or the name of a prompt of the folder, such as `query`.
            truncate: whether to cut off texts that are too long; otherwise they are an error.

        Returns:
            f32 `[texts, size]`, or `[size]` for a single text.

        Raises:
            RunError: OCC0501 a text is too long.
        """
        before = self.folder.prompts.get(prompt, prompt)
        several = [texts] if isinstance(texts, str) else list(texts)
        found = self.vectors(self.tokens([before + t for t in several], truncate=truncate))
        return found[0] if isinstance(texts, str) else found

    def vectors(self, rows: Sequence[tuple[list[int], list[int]]]) -> np.ndarray:
        """Embedding vectors of tokenized texts, f32 `[texts, size]`."""
        return self.run(rows, self._vectors)

    def _vectors(self, outputs: Mapping[str, np.ndarray], mask: np.ndarray) -> np.ndarray:
        found = outputs[self._output].astype(np.float32)
        if not self._is_whole:
            found = np.concatenate([pooled(found, mask, p) for p in self._pooling], -1)
            for layer in self.folder.dense:
                found = layer(found)
        return normalized(found) if self._normalize else found


def pooled(x: np.ndarray, mask: np.ndarray, way: str) -> np.ndarray:
    """One vector `[n, size]` from token vectors `[n, length, size]`, given a mask `[n, length]`."""
    counts = mask[..., None].astype(np.float32)
    if way == "cls":
        return x[:, 0]
    if way == "lasttoken":
        return x[np.arange(len(x)), np.maximum(mask.sum(1), 1) - 1]
    if way == "max":
        return np.where(counts > 0, x, -1e9).max(1)
    if way == "weightedmean":
        counts = counts * np.arange(1, x.shape[1] + 1, dtype=np.float32)[:, None]
    total = np.maximum(counts.sum(1), 1e-9)
    return (x * counts).sum(1) / (np.sqrt(total) if way == "mean_sqrt_len_tokens" else total)


def normalized(x: np.ndarray) -> np.ndarray:
    """Vectors `[n, size]` of length 1."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


class Reranker(TextEncoder):
    """A model that scores how well a text answers a query: a cross-encoder of sentence-transformers.

    Raises:
        CompileError, RunError: as `TextEncoder`; OCC0501 the model outputs no score.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None, **how: Any) -> None:
        super().__init__(path, threads, **how)
        shapes = {o.name: o.shape for o in self.session.outputs}
        if len(shapes.get(LOGITS, ())) != 2 or shapes[LOGITS][1] != 1:
            raise RunError(
                "OCC0501",
                f"`{self.folder.model}` returns no `{LOGITS}` with one score",
                "export it for text classification",
            )

    def rank(self, query: str, texts: Sequence[str], *, raw: bool = False) -> np.ndarray:
        """The score of each text, f32 `[texts]`, from 0 to 1; before the sigmoid if `raw`."""
        rows = self.tokens([(query, t) for t in texts])
        found = self.run(rows, lambda outputs, _: outputs[LOGITS][:, 0].astype(np.float32)).reshape(-1)
        return found if raw else 1 / (1 + np.exp(-found))


def embed(path_or_model: str | os.PathLike[str] | EmbeddingModel, texts: str | Sequence[str], **how: Any) -> np.ndarray:
    """Embedding vectors, f32 `[texts, size]`, by the model of a folder; for repeated use, keep an `occ.EmbeddingModel`.

    Args:
        path_or_model: of `occ.EmbeddingModel`, or one.
        texts: one, or several.
        how: further arguments of `EmbeddingModel`, and `prompt` and `truncate` of its `embed`.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 as `EmbeddingModel` and its `embed`.
    """
    asked = {k: how.pop(k) for k in ("prompt", "truncate") if k in how}
    model = path_or_model if isinstance(path_or_model, EmbeddingModel) else EmbeddingModel(path_or_model, **how)
    return model.embed(texts, **asked)


def rerank(
    path_or_model: str | os.PathLike[str] | Reranker, query: str, texts: Sequence[str], **how: Any
) -> np.ndarray:
    """How well each text answers a query, f32 `[texts]`, by the model of a folder.

    Args:
        path_or_model: of `occ.Reranker`, or one.
        query: the question.
        texts: the candidates.
        how: further arguments of `Reranker`, and `raw` of its `rank`.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 as `Reranker`.
    """
    asked = {k: how.pop(k) for k in ("raw",) if k in how}
    model = path_or_model if isinstance(path_or_model, Reranker) else Reranker(path_or_model, **how)
    return model.rank(query, texts, **asked)

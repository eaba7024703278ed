"""Routes of text encoders: `/v1/embeddings` as in OpenAI's API, `/v1/rerank` as in Jina's and Cohere's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from occ.generation.batch_scheduler import QueueIsFull
from occ.generation.embedding import EmbeddingModel, Reranker, TextEncoder, normalized
from occ.runtime.errors import RunError
from occ.serve.openai.protocol import EmbeddingRequest, RerankRequest

T = TypeVar("T")
_MOST = 2048  # inputs of a request, as in OpenAI's API


class EncoderService:
    """An encoder that answers one request at a time, each on all of its threads; others wait.

    Args:
        encoder: the model.
        name: of the model.
        waiting: maximum waiting requests; more raise `QueueIsFull`.
    """

    def __init__(self, encoder: TextEncoder, name: str, waiting: int) -> None:
        self.encoder, self._name, self._most = encoder, name, waiting
        self._turn, self._here = asyncio.Lock(), 0

    async def _run(self, work: Callable[[], T]) -> T:
        if self._here > self._most:
            raise QueueIsFull
        self._here += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(work)
        finally:
            self._here -= 1

    async def embed(self, asked: EmbeddingRequest) -> dict[str, Any]:
        """POST /v1/embeddings."""
        model, inputs = self.encoder, asked.inputs
        if not isinstance(model, EmbeddingModel):
            raise RunError("OCC0501", "the model scores texts, and returns no vectors", "ask /v1/rerank")
        _check_count(inputs, "input")
        rows = self._rows(inputs)
        found = await self._run(lambda: model.vectors(rows))
        size = found.shape[1]
        if asked.dimensions is not None and asked.dimensions > size:
            raise RunError("OCC0501", f"dimensions: {asked.dimensions}", f"the vectors have {size}")
        if asked.dimensions is not None and asked.dimensions < size:
            found = normalized(found[:, : asked.dimensions])
        data = [{"object": "embedding", "index": k, "embedding": _written(x, asked)} for k, x in enumerate(found)]
        count = sum(len(ids) for ids, _ in rows)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self._name, "usage": usage}

    async def rerank(self, asked: RerankRequest) -> dict[str, Any]:
        """POST /v1/rerank: the documents by score, best first."""
        model = self.encoder
        if not isinstance(model, Reranker):
            raise RunError("OCC0501", "the model returns vectors, and does not score texts", "ask /v1/embeddings")
        _check_count(asked.documents, "documents")
        scores = await self._run(lambda: model.rank(asked.query, asked.documents))
        best = np.argsort(-scores, kind="stable")[: asked.top_n]
        results: list[dict[str, Any]] = [{"index": int(k), "relevance_score": float(scores[k])} for k in best]
        for r in results if asked.return_documents else ():
            r["document"] = {"text": asked.documents[r["index"]]}
        return {"object": "list", "model": self._name, "results": results}

    def _rows(self, inputs: Sequence[str | list[int]]) -> list[tuple[list[int], list[int]]]:
        """Tokens of inputs; those that are tokens already are unchanged.

        Raises:
            RunError: OCC0501 one is too long, or has tokens that the model does not know.
        """
        known, longest = self.encoder.tokenizer.size, self.encoder.folder.longest
        texts = iter(self.encoder.tokens([x for x in inputs if isinstance(x, str)], truncate=False))
        rows = [next(texts) if isinstance(x, str) else (x, [0] * len(x)) for x in inputs]
        for ids, _ in rows:
            if not ids or (longest is not None and len(ids) > longest):
                raise RunError(
                    "OCC0501", f"an input has {len(ids)} tokens", f"the model takes 1 to {longest or 'any number'}"
                )
            if unknown := [t for t in ids if not 0 <= t < known]:
                raise RunError("OCC0501", f"an input has the token {unknown[0]}", f"the model knows 0 to {known - 1}")
        return rows


def _check_count(given: Sequence[object], what: str) -> None:
    if not 0 < len(given) <= _MOST:
        raise RunError("OCC0501", f"{what}: there are {len(given)}", f"use 1 to {_MOST}")


def _written(x: np.ndarray, asked: EmbeddingRequest) -> list[float] | str:
    """A vector as numbers, or as the base64 of its f32 in little-endian order."""
    if asked.encoding_format == "base64":
        return base64.b64encode(x.astype("<f4").tobytes()).decode()
    return x.tolist()

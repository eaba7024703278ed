"""Encoder-decoders: one run of the encoder, then decoding steps with cross-attention to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.targets.default import DEFAULT
from occ.generation import seq2seq_prepare as prepare
from occ.generation.folder import encoder_file, read_object
from occ.generation.names import IDS, LOGITS
from occ.generation.open import open_prepared
from occ.generation.requests import GenerationRequest, continued
from occ.runtime.buffers import aligned_zeros
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.session import Session
from occ.runtime.signature import numpy_dtype

_MERGED = "decoder_model_merged.onnx"


@dataclass(frozen=True)
class Seq2SeqFiles:
    """The files of an encoder-decoder, as named by optimum.

    Attributes:
        home: the folder with its configuration.
        encoder: its encoder.
        first: a decoder without a past, or the merged one.
        step: a decoder with a past, or the merged one.
        config: `config.json`, overridden by `generation_config.json`.
    """

    home: Path
    encoder: Path
    first: Path
    step: Path
    config: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> Seq2SeqFiles | None:
        """The files of a folder; None if it has no encoder.

        Raises:
            RunError: OCC0501 there is no decoder with a past, or a file cannot be read.
        """
        encoder = encoder_file(path)
        if encoder is None:
            return None
        near, merged = encoder.parent, encoder.parent / _MERGED
        first, step = near / "decoder_model.onnx", near / "decoder_with_past_model.onnx"
        if not (first.is_file() and step.is_file()):
            first = step = merged
        if not step.is_file():
            raise RunError(
                "OCC0501", f"`{near}` has an encoder, but neither `{_MERGED}` nor two decoders, with and without a "
                           "past",
                "export the model with optimum, for a task `...-with-past`",
            )  # fmt: skip
        told = {k: v for k, v in read_object(path / "generation_config.json").items() if v is not None}
        return cls(path, encoder, first, step, {**read_object(path / "config.json"), **told})


class CrossDecoder:
    """The decoder of one text: its caches, and the keys and values of the encoder.

    A step appends a token, and copies nothing.

    Args:
        session: of a step.
        cross: keys and values of the encoder, by the names of inputs.
        capacity: maximum tokens in the caches.

    Attributes:
        tokens: those in the caches.
    """

    def __init__(self, session: Session, cross: Mapping[str, np.ndarray], capacity: int) -> None:
        self.tokens: list[int] = []
        self._session, self._cross, self._capacity = session, cross, capacity
        self._ids = next(numpy_dtype(i.dtype) for i in session.inputs if i.name == IDS)
        self._caches = {
            i.name: aligned_zeros((capacity, *(d for d in i.shape[1:] if isinstance(d, int))), numpy_dtype(i.dtype))
            for i in session.inputs if i.name != IDS and not prepare.is_cross(i.name)
        }  # fmt: skip

    def append(self, ids: Sequence[int]) -> np.ndarray:
        """Append tokens, in order; returns the next-token logits f32 `[vocabulary]` after the last.

        Raises:
            RunError: OCC0501 there is not enough room.
        """
        logits = np.empty(0, np.float32)
        for token in ids:
            done = len(self.tokens)
            if done == self._capacity:
                raise RunError("OCC0501", f"the text has more than {done} tokens", "raise `capacity`")
            given = {IDS: np.array([[token]], self._ids), **self._cross}
            given |= {n: rows[:done] for n, rows in self._caches.items()}
            kept = {n.replace("past_key_values", "present", 1): rows[: done + 1] for n, rows in self._caches.items()}
            logits = self._session.run(given, kept)[LOGITS].reshape(-1).astype(np.float32)
            self.tokens.append(token)
        return logits


class Seq2Seq:
    """The sessions of an encoder-decoder.

    Args:
        files: of its folder.
        threads: of one run; OCC_NUM_THREADS or all processors if None.
        target: `cpu` or `cpu-jit`.
        capacity: maximum tokens of a generated text.

    Attributes:
        session: a step of the decoder.
        eos_ids: tokens that end a text.

    Raises:
        CompileError: a part cannot be compiled.
        RunError: OCC0501 a file does not match its name.
    """

    def __init__(
        self, files: Seq2SeqFiles, threads: int | None = None, capacity: int = 448, *, target: str = DEFAULT
    ) -> None:
        self.files = files
        longest = next(
            (
                n
                for k in ("max_target_positions", "max_position_embeddings")
                if isinstance(n := files.config.get(k), int)
            ),
            capacity,
        )
        self.capacity = min(capacity, longest)
        self.encoder = open_prepared(files.encoder, prepare.prepared_encoder, threads, target)
        self._cross = open_prepared(files.first, prepare.prepared_cross, threads, target)
        self.session = open_prepared(files.step, prepare.prepared_step, threads, target)
        end = files.config.get("eos_token_id")
        self.eos_ids: tuple[int, ...] = (end,) if isinstance(end, int) else tuple(end or ())

    @property
    def words(self) -> int:
        """Number of tokens in the logits."""
        found = next(o.shape[-1] for o in self.session.outputs if o.name == LOGITS)
        assert isinstance(found, int), "the head of a decoder is a constant"
        return found

    def begin(self, source: Mapping[str, np.ndarray]) -> CrossDecoder:
        """A decoder that attends to the encoder's output for a source, its inputs by name."""
        (states,) = self.encoder.run(source).values()
        cross = self._cross.run({prepare.STATES: states})
        wanted = {i.name for i in self.session.inputs}
        return CrossDecoder(self.session, {n: x for n, x in cross.items() if n in wanted}, self.capacity)

    def write(self, request: GenerationRequest, decoder: CrossDecoder) -> Iterator[Any]:
        """The pieces of a text, as they are generated."""
        if not request.ended:
            yield from continued(request, decoder.append(request.tokens), decoder.append)


class Suppressed:
    """Tokens that are never allowed, and some that are not allowed first; a constraint of `GenerationRequest`.

    Args:
        words: tokens of the vocabulary.
        never, first: such tokens.
    """

    def __init__(self, words: int, never: Collection[int] = (), first: Collection[int] = ()) -> None:
        self._later = np.ones(words, np.bool_)
        self._later[[t for t in never if 0 <= t < words]] = False
        self._first: np.ndarray | None = self._later.copy()
        self._first[[t for t in first if 0 <= t < words]] = False

    def allowed(self) -> np.ndarray:
        """The allowed next tokens, bool `[vocabulary]`."""
        return self._later if self._first is None else self._first

    def append(self, token: int) -> None:
        """Record a generated token."""
        self._first = None

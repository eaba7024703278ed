"""`occ.LanguageModel`: text from a folder with a model."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

import numpy as np

from occ.generation.beams import Beams, Rows, search
from occ.generation.decoder import Decoder
from occ.generation.folder import Folder
from occ.generation.open import open_model
from occ.generation.prepare import LOGITS
from occ.generation.sampling import Sampling
from occ.generation.text import TextStream, Tokenizer
from occ.runtime.errors import RunError
from occ.runtime.session import Session

Prompt = str | Sequence[int]
Stops = Sequence[str] | Sequence[int] | str | None


class LanguageModel:
    """A decoder with its tokenizer, ready to write. May be called from many threads; each text has a cache of its own.

    Args:
        path: a folder with `model.onnx` or an artifact, and what belongs to it: `tokenizer.json`, `genai_config.json`, ...;
            or the path of such a file. A model is built once, and found again in the build cache.
        threads: of one step; OCC_NUM_THREADS or all processors if None.
        capacity: tokens of a prompt and its continuation together, at the most; less if the model takes less.
        target: `cpu` or `cpu-jit`.

    Attributes:
        session: the compiled step.
        tokenizer: None if the folder has none; prompts are tokens then.
        ends: tokens that end a text.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 there is no model or no decoder.
    """

    def __init__(
        self, path: str | os.PathLike[str], threads: int | None = None, capacity: int = 4096, *, target: str = "cpu"
    ) -> None:
        if capacity < 2:
            raise RunError("OCC0501", f"capacity is {capacity}", "give room for at least 2 tokens")
        folder = Folder.of(Path(path))
        self.capacity, self._context = min(capacity, folder.context or capacity), folder.context
        self.ends = folder.ends
        self.tokenizer = (
            None if folder.tokenizer is None else Tokenizer(folder.tokenizer, folder.template, dict(folder.special))
        )
        self._opened: Session | None = None
        self._open = lambda: open_model(folder, threads, target, batched=True)
        self.session = open_model(folder, threads, target)
        self._words = next((o.shape[-1] for o in self.session.outputs if o.name == LOGITS), None)
        self._idle: list[Decoder] = [Decoder(self.session, self.capacity)]
        self._lock = threading.Lock()

    def generate(
        self, prompt: Prompt | Sequence[Prompt], max_new_tokens: int = 64, *, num_beams: int = 1, length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False, num_return_sequences: int | None = None, **how: Any,
    ) -> Any:  # fmt: skip
        """Continue a prompt: a text gives a text, tokens give tokens, the prompt not among them.

        Several prompts, of any lengths, give a list: each is continued as it would be alone, one after the other.

        Args:
            prompt: a text, or tokens; or a list of such.
            max_new_tokens: when to stop at the latest.
            num_beams: continuations that are followed at a time, of which the most probable one is returned. Above 1 the
                model is built once more, for several texts.
            length_penalty: what `occ.generation.beams.Beams` says, as the next.
            early_stopping: whether to end as soon as `num_beams` texts have ended.
            num_return_sequences: how many of the beams to return, the best first, in a list; if None the best alone.
            how: as `stream`; beams take no chance, and tell `watch` of the tokens of the best.

        Raises:
            RunError: as `stream`; beams with `do_sample`, or several sequences without beams.
        """
        beams = Beams(num_beams, length_penalty, early_stopping, num_return_sequences or 1)
        if _several(prompt):
            one = partial(
                self.generate, num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping,
                num_return_sequences=num_return_sequences,
            )  # fmt: skip
            return [one(p, max_new_tokens, **how) for p in prompt]
        if num_beams > 1:
            made = self._beams(cast(Prompt, prompt), max_new_tokens, beams, **how)
        else:
            made = [list(self.stream(cast(Prompt, prompt), max_new_tokens, **how))]
        texts = isinstance(prompt, str) if how.get("texts") is None else how["texts"]
        joined = ["".join(m) for m in made] if texts else made
        return joined[0] if num_return_sequences is None else joined

    def stream(
        self, prompt: Prompt, max_new_tokens: int = 64, do_sample: bool = False, temperature: float = 1.0, top_k: int = 0,
        top_p: float = 1.0, seed: int = 0, stop: Stops = (), repetition_penalty: float = 1.0,
        texts: bool | None = None, watch: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Any]:  # fmt: skip
        """Continue a prompt, a piece of text or a token at a time.

        It ends after `max_new_tokens`, with a token that ends texts (which is given where tokens are), at a stop text
        (which is not), or where the cache is full.

        Args:
            prompt: a text, or tokens.
            max_new_tokens: when to stop at the latest.
            do_sample: choose by chance; else the most probable token.
            temperature: below 1 makes probable tokens more so; 0 takes the most probable one.
            top_k: only so many of the most probable tokens; 0 for all.
            top_p: only the most probable tokens that together have this probability.
            seed: of chance; the same seed gives the same text.
            stop: texts, or tokens, at which to end; empty texts are none.
            repetition_penalty: above 1 makes tokens less probable that are there already.
            texts: whether to give text; None for what the prompt is.
            watch: told of each token.

        Raises:
            RunError: OCC0501 the prompt is empty or too long, a value makes no sense, or a text meets a folder without a
                tokenizer.
        """
        sampling = Sampling(do_sample, temperature, top_k, top_p, repetition_penalty)
        for name, value in (("max_new_tokens", max_new_tokens), ("seed", seed)):
            if value < 0:
                raise RunError("OCC0501", f"{name} is {value}", "it must be 0 or above")
        ids = self.tokens_of(prompt)
        as_text = isinstance(prompt, str) if texts is None else texts
        words, ends = self._stops(stop)
        tokens = self._tokens(ids, max_new_tokens, sampling, np.random.default_rng(seed), ends, watch)
        if not as_text and not words:
            return tokens
        written = TextStream(self._speaking(), words)
        return _texts(tokens, written) if as_text else _until(tokens, written)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The tokens of a conversation, `[{"role": "user", "content": ..}, ..]`, up to where the model answers.

        Raises:
            RunError: OCC0501 the folder has no tokenizer or no chat template, or that refuses the messages.
        """
        return self._speaking().chat(messages)

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt.

        Raises:
            RunError: OCC0501 it is empty or too long, has tokens that the model does not know, or a text meets a folder
                without a tokenizer.
        """
        ids = self._speaking().encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        if not 0 < len(ids) < self.capacity:
            more = "; the model takes no more" if self.capacity == self._context else ", or raise `capacity`"
            raise RunError("OCC0501", f"the prompt has {len(ids)} tokens", f"give 1 to {self.capacity - 1}{more}")
        words = self._words if isinstance(self._words, int) else np.iinfo(np.int32).max
        if unknown := [t for t in ids if not 0 <= t < words]:
            raise RunError("OCC0501", f"the prompt has the token {unknown[0]}", f"the model knows 0 to {words - 1}")
        return ids

    def _stops(self, stop: Stops) -> tuple[list[str], set[int]]:
        """The texts and the tokens at which to end."""
        stops: list[Any] = [stop] if isinstance(stop, str) else list(stop or ())
        words = [s for s in stops if isinstance(s, str) and s]
        return words, {*self.ends, *(int(s) for s in stops if not isinstance(s, str))}

    def _beams(
        self, prompt: Prompt, max_new_tokens: int, beams: Beams, do_sample: bool = False, stop: Stops = (),
        repetition_penalty: float = 1.0, texts: bool | None = None, watch: Callable[[int], None] = lambda _: None,
        **chance: Any,
    ) -> list[list[Any]]:  # fmt: skip
        """What the best beams write, in pieces of text or tokens, as `stream` would give it."""
        if do_sample:
            raise RunError("OCC0501", "beams take the most probable texts, not some by chance", "leave out do_sample")
        if max_new_tokens < 0:
            raise RunError("OCC0501", f"max_new_tokens is {max_new_tokens}", "it must be 0 or above")
        Sampling(**{k: v for k, v in chance.items() if k != "seed"}, repetition_penalty=repetition_penalty)
        ids, (words, ends) = self.tokens_of(prompt), self._stops(stop)
        speaking = self._speaking() if words or (isinstance(prompt, str) if texts is None else texts) else None

        def ended(made: Sequence[int]) -> bool:
            return made[-1] in ends or (bool(words) and any(w in self._speaking().decode(made) for w in words))

        count = min(max_new_tokens, self.capacity - len(ids))
        found = self._search(ids, count, replace(beams, repetition_penalty=repetition_penalty), ended, ends)
        for token in found[0]:
            watch(token)
        if speaking is None:
            return found
        as_text = isinstance(prompt, str) if texts is None else texts
        return [list((_texts if as_text else _until)(iter(f), TextStream(speaking, words))) for f in found]

    def _search(
        self, ids: list[int], count: int, beams: Beams, ended: Callable[[Sequence[int]], bool], ends: set[int]
    ) -> list[list[int]]:
        if count <= 0:
            return [[]] * beams.num_return_sequences
        with self._lock:
            session = self._opened = self._opened or self._open()
        decoder = self._take(ids)
        try:
            first = decoder.continue_with(ids)
            rows = Rows(session, decoder, beams.num_beams, count)
        finally:
            with self._lock:
                self._idle.append(decoder)
        return search(beams, ids, first, rows, count, ended, ends)

    def _speaking(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RunError("OCC0501", "there is no tokenizer.json beside the model", "add it, or give tokens")
        return self.tokenizer

    def _tokens(
        self,
        ids: list[int],
        count: int,
        sampling: Sampling,
        rng: np.random.Generator,
        ends: set[int],
        watch: Callable[[int], None],
    ) -> Iterator[int]:
        decoder = self._take(ids)
        try:
            new, every = ids, list(ids)
            for _ in range(min(count, self.capacity - len(ids))):
                logits = decoder.continue_with(ids) if new is ids else decoder.append(new)
                token = sampling.choose(logits, every, rng)
                new = [token]
                every.append(token)
                watch(token)
                yield token
                if token in ends:
                    return
        finally:
            with self._lock:
                self._idle.append(decoder)

    def _take(self, ids: Sequence[int]) -> Decoder:
        """The idle decoder that holds the most of a prompt, or a new one."""
        with self._lock:
            if not self._idle:
                return Decoder(self.session, self.capacity)
            best = max(self._idle, key=lambda d: _common(d.tokens, ids))
            self._idle.remove(best)
            return best


def _several(prompt: Prompt | Sequence[Prompt]) -> TypeGuard[Sequence[Prompt]]:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], (str, Sequence, np.ndarray))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _texts(tokens: Iterator[int], written: TextStream) -> Iterator[str]:
    for token in tokens:
        if piece := written.push(token):
            yield piece
        if written.ended:
            return
    if piece := written.finish():
        yield piece


def _until(tokens: Iterator[int], written: TextStream) -> Iterator[int]:
    """Tokens, up to the one with which a stop text has come."""
    for token in tokens:
        written.push(token)
        yield token
        if written.ended:
            return

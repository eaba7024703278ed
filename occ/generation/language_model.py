"""`occ.LanguageModel`: text generation with the model of a folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeGuard, cast

import numpy as np

from occ.arguments import checked_options
from occ.compiler.diagnostics import CompileError
from occ.compiler.targets.default import DEFAULT
from occ.generation.batch import Batch
from occ.generation.beams import Beams, BeamState, search
from occ.generation.decoder import Decoders
from occ.generation.drafts import Drafts, ModelDrafts, NgramDrafts
from occ.generation.folder import Folder
from occ.generation.names import DRAFT_TOKENS, KEY_BLOCK, LOGITS, NGRAM, STARTS
from occ.generation.open import open_model
from occ.generation.requests import Constraint, Ending, GenerationRequest, generate_batch, generate_one
from occ.generation.sampling import Sampler, Sampling
from occ.generation.tokenizer import TextStream, Tokenizer
from occ.runtime.errors import RunError
from occ.runtime.session import Session

Prompt = str | Sequence[int]
Stops = Sequence[str] | Sequence[int] | str | None
_BATCH = 8  # texts per run: weights are read once for all, and more gain little


class LanguageModel:
    """A decoder with its tokenizer, ready to generate.

    Thread-safe; each text has its own cache.

    Args:
        path: a folder with `model.onnx` or an artifact, and its other files: `tokenizer.json`, `genai_config.json`,
            ...; or the path of such a file. A model is built once, and then found in the build cache.
        threads: of one step; OCC_NUM_THREADS or all processors if None.
        capacity: maximum tokens of a prompt plus its continuation; less if the model supports less.
        target: `cpu` or `cpu-jit`.
        several: whether to build the model for several texts at once, which can then generate single ones too: one copy
            of the weights.
        adapter: the folder of a LoRA adapter of peft, merged into the weights of a GGUF file or a folder of
            safetensors.
        draft: guesses tokens that one run then verifies, so that a text needs fewer runs: `ngram`, what followed the
            same tokens before, or the folder of a smaller model with the same vocabulary. Texts are the same except for
            rounding.
        draft_tokens: how many are guessed at a time.
        options: of the target, as `-C` of the command line; an artifact stays as it was built.
        score_prompts: whether a run returns the logits of its last 32 tokens, so that prompts are scored 32 tokens at a
            time; without, one.

    Attributes:
        session: the compiled step.
        tokenizer: None if the folder has none; prompts must then be tokens.
        decoders: of the session, with caches of earlier texts.
        eos_ids: tokens that end a text.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 there is no model or no decoder.
    """

    _new_drafts: Callable[[], Drafts] | None = None
    _kinds: ClassVar[list[tuple[Callable[[Path], bool], type[LanguageModel]]]] = []

    def __init_subclass__(cls, *, opens: Callable[[Path], bool] | None = None, **how: Any) -> None:
        """A kind of language models, which `LanguageModel` opens the folders with for which `opens` is true."""
        super().__init_subclass__(**how)
        if opens is not None:
            LanguageModel._kinds.append((opens, cls))

    def __new__(cls, path: str | os.PathLike[str], *_: Any, **__: Any) -> Self:
        """A model of the kind that opens the folder (`model_kinds`): a `TextToText` if it also has an encoder."""
        kinds = (kind for opens, kind in LanguageModel._kinds if cls is LanguageModel and opens(Path(path)))
        return super().__new__(cast(Any, next(kinds, cls)))

    def __init__(
        self, path: str | os.PathLike[str], threads: int | None = None, capacity: int = 4096, *, target: str = DEFAULT,
        several: bool = False, adapter: str | os.PathLike[str] | None = None,
        draft: str | os.PathLike[str] | None = None, draft_tokens: int = DRAFT_TOKENS,
        options: Mapping[str, Any] | None = None, score_prompts: bool = False,
    ) -> None:  # fmt: skip
        if capacity < 2:
            raise RunError("OCC0501", f"capacity is {capacity}", "set a capacity of at least 2 tokens")
        if draft_tokens < 1:
            raise RunError("OCC0501", f"draft_tokens is {draft_tokens}", "draft at least 1 token at a time")
        if draft is not None and several:
            raise RunError("OCC0501", "drafts are not supported for batches", "serve without batching")
        folder = replace(Folder.of(Path(path)), adapter=None if adapter is None else Path(adapter))
        self.capacity, self._context = min(capacity, folder.context or capacity), folder.context
        self.eos_ids = folder.eos_ids
        self.tokenizer = (
            None if folder.tokenizer is None else Tokenizer(folder.tokenizer, folder.template, dict(folder.special))
        )
        self._opened: Session | None = None
        self._lock = threading.Lock()
        opened = partial(open_model, folder, threads, target, options=checked_options(options))
        scored = KEY_BLOCK if score_prompts else 1
        self._open = lambda: opened(batched=True, scored=scored)
        of_one = partial(opened, scored=max(scored, 1 if draft is None else draft_tokens + 1))
        self.session = self._for_several() if several else of_one()
        if several and STARTS not in {
            i.name for i in self.session.inputs
        }:  # it cannot batch texts of different lengths
            self._opened, self.session = None, of_one()
        self._words = next((o.shape[-1] for o in self.session.outputs if o.name == LOGITS), None)
        self.decoders = Decoders(self.session, self.capacity)
        self._draft_tokens, self._new_drafts = draft_tokens, self._drafter(draft, threads, target)

    def _drafter(
        self, draft: str | os.PathLike[str] | None, threads: int | None, target: str
    ) -> Callable[[], Drafts] | None:
        """The drafts for a text."""
        if draft is None:
            return None
        if not self.decoders.idle[0].can_go_back:
            raise RunError(
                "OCC0501", "the decoder cannot remove rejected draft tokens from its cache", "leave out `draft`"
            )
        if any(o.name == LOGITS and o.shape[-2:-1] == (1,) for o in self.session.outputs):
            raise RunError("OCC0501", "the model returns the logits of only the last token", "leave out `draft`")
        if draft == NGRAM:
            return NgramDrafts
        small = LanguageModel(draft, threads, self.capacity, target=target)
        if small._words != self._words:
            raise RunError(
                "OCC0501", f"the draft model has {small._words} tokens in its vocabulary, but the model has "
                f"{self._words}",
                "use a smaller model of the same family",
            )  # fmt: skip
        return partial(ModelDrafts, small.decoders)

    @property
    def drafts(self) -> bool:
        """Whether tokens are guessed and verified, so that each text has runs of its own."""
        return self._new_drafts is not None

    def generate(
        self, prompt: Prompt | Sequence[Prompt], max_new_tokens: int = 64, *, num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False, num_return_sequences: int | None = None,
        batch_size: int | None = None, **how: Any,
    ) -> Any:  # fmt: skip
        """Continue a prompt: a text for a text, tokens for tokens, without the prompt itself.

        Several prompts, of any lengths, return a list. Each is continued as it would be alone, except for rounding:
        prompts are read in order, and one run of the model then generates a token for each of `batch_size` texts.

        Args:
            prompt: a text, or tokens; or a list of such.
            max_new_tokens: the limit.
            batch_size: maximum texts per run; above 1 the model is built again, for several texts. If None it is 8, or
                1 if the model does not support that, and for beams.
            num_beams: number of beams, of which the most probable one is returned. Above 1 the model is built again,
                for several texts.
            length_penalty: see `occ.generation.beams.Beams`, as for the next.
            early_stopping: whether to end as soon as `num_beams` texts have ended.
            num_return_sequences: how many of the beams to return, best first, in a list; if None only the best.
            how: as for `stream`; beams do not sample, and call `watch` with the tokens of the best.

        Raises:
            RunError: as `stream`; beams with `do_sample`, or several sequences without beams; a batch size that is not
                positive, or above 1 for a model that cannot batch texts of different lengths.
        """
        if batch_size is not None and batch_size < 1:
            raise RunError("OCC0501", f"batch_size is {batch_size}", "it must be 1 or above")
        beams = Beams(num_beams, length_penalty, early_stopping, num_return_sequences or 1)
        if _several(prompt):
            batch = self._batch(batch_size) if len(prompt) > 1 and num_beams == 1 else None
            if batch is not None:
                requests = [self.request(p, max_new_tokens, **how) for p in prompt]
                generate_batch(requests, self.decoders, batch, batch_size or _BATCH)
                return [r.whole() if num_return_sequences is None else [r.whole()] for r in requests]
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
        self, prompt: Prompt, max_new_tokens: int = 64, do_sample: bool = False, *, seed: int = 0, stop: Stops = (),
        texts: bool | None = None, watch: Callable[[int], None] = lambda _: None, **sampling: Any,
    ) -> Iterator[Any]:  # fmt: skip
        """Continue a prompt, a piece of text or a token at a time.

        It ends after `max_new_tokens`, with a token that ends texts (included if tokens are returned), at a stop text
        (excluded), or when the cache is full.

        Args:
            prompt: a text, or tokens.
            max_new_tokens: the limit.
            do_sample: whether to draw tokens by their probabilities; otherwise the most probable one is used.
            seed: of the draws; equal seeds produce equal texts.
            stop: texts, or tokens, at which to end; empty texts are ignored.
            texts: whether to return text; None for the form of the prompt.
            watch: called with each token.
            sampling: the other settings of `occ.generation.sampling.Sampling`: temperature, top_k, top_p, min_p,
                typical_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, bad_words_ids.

        Raises:
            RunError: OCC0501 the prompt is empty or too long, a value is invalid, or a text is given without a
                tokenizer in the folder.
        """
        request = self.request(
            prompt, max_new_tokens, do_sample=do_sample, seed=seed, stop=stop, texts=texts, watch=watch, **sampling
        )
        return generate_one(request, self.decoders)

    def request(
        self, prompt: Prompt, max_new_tokens: int = 64, *, seed: int = 0, stop: Stops = (), texts: bool | None = None,
        watch: Callable[[int], None] | None = None, constraint: Constraint | None = None,
        top_logprobs: int | None = None, scores_prompt: bool = False,
        **sampling: Any,
    ) -> GenerationRequest:  # fmt: skip
        """A request for a text; arguments and errors are those of `stream`.

        Args:
            prompt: as of `stream`; so are `max_new_tokens`, `seed`, `stop`, `texts`, `watch` and `sampling`.
            constraint: restricts the next tokens.
            top_logprobs: how many of the most probable tokens to record for each; None to record no probabilities.
            scores_prompt: whether to record the probabilities of the prompt's tokens too.
        """
        chosen = Sampling(**sampling)
        self._check_known({*chosen.logit_bias, *(t for w in chosen.bad_words_ids for t in w)}, "the sampling")
        for name, value in (("max_new_tokens", max_new_tokens), ("seed", seed)):
            if value < 0:
                raise RunError("OCC0501", f"{name} is {value}", "it must be 0 or above")
        ids = self.tokens_of(prompt)
        as_text = isinstance(prompt, str) if texts is None else texts
        words, ends = self._stops(stop)
        text = TextStream(self._speaking(), words) if as_text or words else None
        ending = Ending(min(max_new_tokens, self.capacity - len(ids)), ends)
        made = GenerationRequest(
            ids, ending, Sampler(chosen, ids, seed), text=text, as_text=as_text, constraint=constraint,
            top_logprobs=top_logprobs, scores_prompt=scores_prompt,
        )  # fmt: skip
        made.watch = watch
        if self._new_drafts is not None:
            made.drafts, made.draft_count = self._new_drafts(), self._draft_tokens
        return made

    def batch(self) -> Batch:
        """Memory for several texts that generate a token each in one run; the model is built again for that.

        Raises:
            CompileError: it cannot be compiled for several texts.
            RunError: OCC0501 it cannot batch texts of different lengths.
        """
        return Batch(self._for_several(), self.capacity)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **more: Any
    ) -> list[int]:
        """The tokens of a conversation, `[{"role": "user", "content": ..}, ..]`, up to the model's answer.

        Args:
            messages: as of `occ.generation.tokenizer.Tokenizer.chat`; so are `tools` and `more`.

        Raises:
            RunError: OCC0501 the folder has no tokenizer or no chat template, or that rejects the messages.
        """
        return self._speaking().chat(messages, tools, **more)

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt.

        Raises:
            RunError: OCC0501 it is empty or too long, has tokens that the model does not know, or is a text without a
                tokenizer in the folder.
        """
        ids = self._speaking().encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        if not 0 < len(ids) < self.capacity:
            more = "; the model takes no more" if self.capacity == self._context else ", or raise `capacity`"
            raise RunError("OCC0501", f"the prompt has {len(ids)} tokens", f"use 1 to {self.capacity - 1}{more}")
        self._check_known(ids, "the prompt")
        return ids

    def _check_known(self, tokens: Iterable[int], what: str) -> None:
        words = self._words if isinstance(self._words, int) else np.iinfo(np.int32).max
        if unknown := [t for t in tokens if not 0 <= t < words]:
            raise RunError("OCC0501", f"{what} has the token {unknown[0]}", f"the model knows 0 to {words - 1}")

    def _stops(self, stop: Stops) -> tuple[list[str], set[int]]:
        """The texts and the tokens at which to end."""
        stops: list[Any] = [stop] if isinstance(stop, str) else list(stop or ())
        words = [s for s in stops if isinstance(s, str) and s]
        return words, {*self.eos_ids, *(int(s) for s in stops if not isinstance(s, str))}

    def _beams(
        self, prompt: Prompt, max_new_tokens: int, beams: Beams, do_sample: bool = False, stop: Stops = (),
        repetition_penalty: float = 1.0, texts: bool | None = None, watch: Callable[[int], None] = lambda _: None,
        **chance: Any,
    ) -> list[list[Any]]:  # fmt: skip
        """The texts of the best beams, in pieces as `stream` yields them."""
        if do_sample:
            raise RunError(
                "OCC0501", "beam search keeps the most probable texts, and does not sample", "leave out do_sample"
            )
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
        return [TextStream(speaking, words).pieces(f, as_text) for f in found]

    def _search(
        self, ids: list[int], count: int, beams: Beams, ended: Callable[[Sequence[int]], bool], ends: set[int]
    ) -> list[list[int]]:
        if count <= 0:
            return [[]] * beams.num_return_sequences
        session = self._for_several()
        with self.decoders.holding(ids) as decoder:
            first = decoder.continue_with(ids)
            rows = BeamState(session, decoder, beams.num_beams, count)
        return search(beams, ids, first, rows, count, ended, ends)

    def _batch(self, size: int | None) -> Batch | None:
        """Memory for several texts, or None if they are to be generated one by one."""
        if size == 1:
            return None
        try:
            return self.batch()
        except (RunError, CompileError):
            if size is not None:
                raise
            return None

    def _for_several(self) -> Session:
        with self._lock:
            self._opened = self._opened or self._open()
            return self._opened

    def _speaking(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RunError("OCC0501", "there is no tokenizer.json next to the model", "add it, or pass tokens")
        return self.tokenizer


def _several(prompt: Prompt | Sequence[Prompt]) -> TypeGuard[Sequence[Prompt]]:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], (str, Sequence, np.ndarray))

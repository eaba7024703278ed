"""Encoder-decoders for texts (translation, summaries): T5, BART, Marian and others exported by optimum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from occ.compiler.targets.default import DEFAULT
from occ.generation.batch import Batch
from occ.generation.folder import has_encoder
from occ.generation.language_model import LanguageModel, Prompt, Stops
from occ.generation.names import DRAFT_TOKENS, IDS
from occ.generation.requests import GenerationRequest
from occ.generation.seq2seq import Seq2Seq, Seq2SeqFiles, Suppressed
from occ.generation.tokenizer import Tokenizer
from occ.runtime.errors import RunError
from occ.runtime.signature import numpy_dtype


class TextToText(LanguageModel, opens=has_encoder):
    """An encoder-decoder, which `occ.LanguageModel` opens if a folder has one: the encoder reads the prompt.

    Args:
        path: a folder with `encoder_model.onnx`, and `decoder_model_merged.onnx` or `decoder_model.onnx` and
            `decoder_with_past_model.onnx`, in it or in its folder `onnx`.
        threads: as for `LanguageModel`; so is `target`.
        capacity: maximum tokens of a prompt, and of the output; less if the model supports less.
        several: must be False; `adapter` and `draft` must be None, `options` empty; `draft_tokens` is then ignored,
            and so is `score_prompts`: prompts are read by the encoder.

    Raises:
        CompileError: a part cannot be compiled.
        RunError: OCC0501 a file is missing, or the encoder's input is not text.
    """

    def __init__(
        self, path: str | os.PathLike[str], threads: int | None = None, capacity: int = 4096, *, target: str = DEFAULT,
        several: bool = False, adapter: str | os.PathLike[str] | None = None,
        draft: str | os.PathLike[str] | None = None, draft_tokens: int = DRAFT_TOKENS,
        options: Mapping[str, str] | None = None, score_prompts: bool = False,
    ) -> None:  # fmt: skip
        files = Seq2SeqFiles.of(Path(path))
        assert files is not None, "`LanguageModel` has looked"
        if several:
            what = f"`{path}` is an encoder-decoder, which generates one text at a time"
            raise RunError("OCC0501", what, "leave out `several`")
        if adapter is not None:
            raise RunError(
                "OCC0501", f"`{path}` is in ONNX, to which no adapter is added", "merge it before the export"
            )
        if options or draft is not None:
            what = "options" if draft is None else "drafts"
            raise RunError("OCC0501", f"`{path}` is an encoder-decoder, which takes no {what}", "leave them out")
        if files.config.get("model_type") == "whisper":
            raise RunError("OCC0501", f"`{path}` reads sounds, not texts", "`occ transcribe`, or `occ.Transcriber`")
        if capacity < 2:
            raise RunError("OCC0501", f"capacity is {capacity}", "set a capacity of at least 2 tokens")
        self._model = Seq2Seq(files, threads, capacity, target=target)
        given = {i.name: numpy_dtype(i.dtype) for i in self._model.encoder.inputs}
        if given.keys() != {IDS}:
            raise RunError("OCC0501", f"the encoder takes {', '.join(given)}", f"only `{IDS}` and its mask are known")
        self._ids, self.session, self.eos_ids = given[IDS], self._model.session, self._model.eos_ids
        self.capacity = self._context = self._model.capacity
        tokenizer = next(
            (p for p in (files.home / "tokenizer.json", files.encoder.parent / "tokenizer.json") if p.exists()), None
        )
        self.tokenizer = None if tokenizer is None else Tokenizer(tokenizer)
        self._words = self._model.words
        start = next(
            (k for n in ("decoder_start_token_id", "bos_token_id") if isinstance(k := files.config.get(n), int)), None
        )
        if start is None:
            raise RunError("OCC0501", f"`{path}` does not define the first token of texts", "add its config.json")
        forced = files.config.get("forced_bos_token_id")
        self._start = [start, forced] if isinstance(forced, int) else [start]

    def request(
        self, prompt: Prompt, max_new_tokens: int = 64, *, texts: bool | None = None, **how: Any
    ) -> GenerationRequest:
        """A request for the output, whose tokens start with `decoder_start_token_id` and `forced_bos_token_id`."""
        self.tokens_of(prompt)  # which may be wrong
        config, as_text = self._model.files.config, isinstance(prompt, str) if texts is None else texts
        how.setdefault("bad_words_ids", config.get("bad_words_ids") or ())
        never, first = (config.get(k) or () for k in ("suppress_tokens", "begin_suppress_tokens"))
        if (never or first) and how.get("constraint") is None:
            how["constraint"] = Suppressed(self._model.words, never, first)
        return super().request(self._start, max_new_tokens, texts=as_text, **how)

    def stream(
        self, prompt: Prompt, max_new_tokens: int = 64, do_sample: bool = False, *, seed: int = 0, stop: Stops = (),
        texts: bool | None = None, watch: Callable[[int], None] = lambda _: None, **sampling: Any,
    ) -> Iterator[Any]:  # fmt: skip
        """Generate the answer to a prompt, a piece of text or a token at a time.

        Arguments and errors as for `LanguageModel.stream`.
        """
        request = self.request(
            prompt, max_new_tokens, do_sample=do_sample, seed=seed, stop=stop, texts=texts, watch=watch, **sampling
        )
        source = np.array([self.tokens_of(prompt)], self._ids)
        return self._model.write(request, self._model.begin({IDS: source}))

    def batch(self) -> Batch:
        """Raises RunError: texts are generated one by one."""
        raise RunError("OCC0501", "an encoder-decoder generates one text at a time", "leave out `batch_size`")

    def _beams(self, *_: Any, **__: Any) -> list[list[Any]]:
        raise RunError("OCC0501", "beam search is not supported for an encoder-decoder", "leave out `num_beams`")

"""Speech to text by Whisper, as exported by optimum.

Source: Radford et al. 2022, and `generate` of Whisper in the transformers library, whose greedy tokens these are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from occ.compiler.targets.default import DEFAULT
from occ.generation.audio import MelSpectrogram, read_sound
from occ.generation.folder import read_object
from occ.generation.seq2seq import CrossDecoder, Seq2Seq, Seq2SeqFiles
from occ.generation.tokenizer import Tokenizer
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

Task = Literal["transcribe", "translate"]
_FEATURES = "input_features"
_STEP = 0.02  # seconds from one timestamp token to the next


@dataclass(frozen=True)
class Segment:
    """A part of a recording, from `start` to `end` in seconds, and what is said in it."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcription:
    """The transcription of a recording.

    Attributes:
        text: the whole text.
        language: such as `en`; empty for models of one language.
        segments: parts with their times, if requested, or if the recording was too long for one window.
    """

    text: str
    language: str
    segments: list[Segment] = field(default_factory=list[Segment])


class Transcriber:
    """A Whisper model.

    Args:
        path: a folder of optimum: `encoder_model.onnx`, `decoder_model_merged.onnx` or two decoders, `tokenizer.json`,
            `generation_config.json`, `preprocessor_config.json`.
        threads: of one run; OCC_NUM_THREADS or all processors if None.
        target: `cpu` or `cpu-jit`.

    Attributes:
        languages: supported ones, such as `en`.

    Raises:
        CompileError: a part cannot be compiled.
        RunError: OCC0501 the folder contains something else, or lacks a file.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None, *, target: str = DEFAULT) -> None:
        files = Seq2SeqFiles.of(Path(path)) if Path(path).is_dir() else None
        if files is None:
            raise RunError(
                "OCC0501", f"`{path}` is not a folder with encoder_model.onnx", "export Whisper with optimum"
            )
        config, tokenizer = files.config, files.home / "tokenizer.json"
        if not tokenizer.exists():
            raise RunError("OCC0501", f"`{path}` has no tokenizer.json", "add the tokenizer of the model")
        self._tokenizer, self._config = Tokenizer(tokenizer), config
        self._start, self._end = (self._token_of(k) for k in ("decoder_start_token_id", "eos_token_id"))
        plain = config.get("no_timestamps_token_id")
        self._plain = plain if isinstance(plain, int) else self._tokenizer.id_of("<|notimestamps|>")
        if self._plain is None:
            raise RunError("OCC0501", f"`{path}` names no token `<|notimestamps|>`", "add its generation_config.json")
        known = config.get("lang_to_id") or {}
        self.languages = (
            {str(k).strip("<|>"): int(v) for k, v in known.items()} if config.get("is_multilingual", True) else {}
        )
        self._tasks = {str(k): int(v) for k, v in (config.get("task_to_id") or {}).items()}
        self.mel = MelSpectrogram.of(read_object(files.home / "preprocessor_config.json"))
        self._model = Seq2Seq(files, threads, target=target)
        if [i.name for i in self._model.encoder.inputs] != [_FEATURES]:
            raise RunError(
                "OCC0501", f"the encoder of `{path}` does not take `{_FEATURES}`", "pass a folder with Whisper"
            )
        if (bands := self._model.encoder.inputs[0].shape[1]) != self.mel.bands:
            raise RunError("OCC0501",
                           f"the encoder takes {bands} bands, and preprocessor_config.json has {self.mel.bands}",
                           "add the file of the model")  # fmt: skip

    def _token_of(self, key: str) -> int:
        found: Any = self._config.get(key)
        found = found[0] if isinstance(found, list) and found else found
        if not isinstance(found, int):
            raise RunError("OCC0501", f"the configuration has no `{key}`", "add the config.json of the model")
        return found

    def transcribe(
        self, sound: str | os.PathLike[str] | np.ndarray, *, language: str | None = None, task: Task = "transcribe",
        timestamps: bool = False,
    ) -> Transcription:  # fmt: skip
        """Transcribe a recording.

        Audio longer than 30 seconds is read a window at a time, each starting where the previous one's last segment
        ended.

        Args:
            sound: the path of a WAV file of any rate and number of channels, or f32 samples `[n]` at `mel.rate` Hz.
            language: such as `en`; None to detect it.
            task: `translate` writes English.
            timestamps: whether to return when each segment begins and ends.

        Raises:
            RunError: OCC0501 the file cannot be read, or the model does not know the language or the task.
        """
        samples = sound if isinstance(sound, np.ndarray) else read_sound(Path(sound), self.mel.rate)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            what = f"the sound has the shape {list(samples.shape)}, or is not finite"
            raise RunError("OCC0501", what, "pass samples of one channel")
        self._check(language, task)
        found, segments, at = list[str](), list[Segment](), 0
        several = len(samples) > self.mel.samples
        while at < max(len(samples), 1):
            states = {_FEATURES: self.mel.features(samples[at:])}
            language = language or self._language(states)
            tokens = self._tokens(states, self._prompt(language, task, timestamps=timestamps or several))
            found.append(self._text(tokens))
            if not timestamps and not several:
                break
            length = min(len(samples) - at, self.mel.samples) / self.mel.rate
            some, seconds = self._segments(tokens, at / self.mel.rate, length)
            segments += some
            at += max(1, round(seconds * self.mel.rate))
        return Transcription("".join(found).strip(), language or "", segments)

    def _check(self, language: str | None, task: str) -> None:
        if language is not None and language not in self.languages:
            known = (
                f"it knows {', '.join(sorted(self.languages))}"
                if self.languages
                else "it has only one language: leave it out"
            )
            raise RunError("OCC0501", f"the model does not know the language `{language}`", known)
        if task != "transcribe" and task not in self._tasks:
            raise RunError(
                "OCC0501", f"the model does not know the task `{task}`", f"it knows {', '.join(self._tasks) or 'one'}"
            )

    def _prompt(self, language: str, task: str, *, timestamps: bool) -> list[int]:
        spoken = [self.languages[language]] if language else []
        asked = [self._tasks[task]] if task in self._tasks and self.languages else []
        return [self._start, *spoken, *asked, *([] if timestamps else [self._plain])]  # pyright: ignore[reportReturnType]

    def _language(self, states: dict[str, np.ndarray]) -> str:
        if not self.languages:
            return ""
        logits = self._model.begin(states).append([self._start])
        return max(self.languages, key=lambda name: logits[self.languages[name]])

    def _tokens(self, states: dict[str, np.ndarray], prompt: Sequence[int]) -> list[int]:
        """The most probable tokens, without the one that ends them."""
        return list(self._greedy(self._model.begin(states), prompt))

    def _greedy(self, decoder: CrossDecoder, prompt: Sequence[int]) -> Iterator[int]:
        rules = _Rules(self._config, self._model.words, self._end, None if prompt[-1] == self._plain else self._plain)
        logits, made = decoder.append(prompt), list[int]()
        while len(prompt) + len(made) < self._model.capacity:
            token = int(rules.kept(logits, made).argmax())
            if token == self._end:
                return
            made.append(token)
            yield token
            logits = decoder.append([token])

    def _text(self, tokens: Sequence[int]) -> str:
        assert self._plain is not None, "checked when it was opened"
        return self._tokenizer.decode([t for t in tokens if t <= self._plain])

    def _segments(self, tokens: Sequence[int], start: float, length: float) -> tuple[list[Segment], float]:
        """The segments of a window that begins at `start`, and how many of its `length` seconds they cover.

        Segments are separated by pairs of timestamps. What follows the last pair is read again in the next window,
        unless a single timestamp ends the window: then nothing is said after it.
        """
        assert self._plain is not None, "checked when it was opened"
        times = [t - self._plain - 1 if t > self._plain else None for t in tokens]
        cuts = [k for k in range(1, len(times)) if times[k - 1] is not None and times[k] is not None]
        whole = len(times) < 2 or times[-2] is None
        if not cuts:
            end = next((t for t in reversed(times) if t), None)
            seconds = length if end is None else end * _STEP
            text = self._text(tokens).strip()
            return ([Segment(start, start + seconds, text)] if text else []), length
        if whole and times[-1] is not None:
            cuts.append(len(times))
        made, last, end = list[Segment](), 0, 0.0
        for cut in cuts:
            begun, end = (_STEP * (t or 0) for t in (times[last], times[cut - 1]))
            if text := self._text(tokens[last:cut]).strip():
                made.append(Segment(start + begun, start + end, text))
            last = cut
        return made, length if last == len(times) or not end else end


class _Rules:
    """Which tokens may follow: suppressed ones never, and timestamps in non-decreasing pairs.

    Args:
        config: of the model.
        words: tokens of the vocabulary.
        end: the token that ends texts.
        plain: the token `<|notimestamps|>`, before the first timestamp; None to generate no timestamps.
    """

    def __init__(self, config: Any, words: int, end: int, plain: int | None) -> None:
        never, first = (config.get(k) or () for k in ("suppress_tokens", "begin_suppress_tokens"))
        self._never, self._first = ([t for t in some if 0 <= t < words] for some in (never, first))
        self._end, self._plain = end, plain
        latest = config.get("max_initial_timestamp_index")
        self._latest = latest if isinstance(latest, int) else None

    def kept(self, logits: np.ndarray, made: Sequence[int]) -> np.ndarray:
        """Logits f32 `[vocabulary]`, with -inf for tokens not allowed after the generated ones."""
        found = logits.copy()
        found[self._never] = -np.inf
        if not made:
            found[self._first] = -np.inf
        return found if self._plain is None else self._timed(found, made, self._plain, self._plain + 1)

    def _timed(self, found: np.ndarray, made: Sequence[int], plain: int, first: int) -> np.ndarray:
        found[plain] = -np.inf
        last = bool(made) and made[-1] >= first
        before = len(made) < 2 or made[-2] >= first
        if last and before:
            found[first:] = -np.inf
        elif last:
            found[: self._end] = -np.inf
        if times := [t for t in made if t >= first]:
            found[first : times[-1] + (0 if last and not before else 1)] = -np.inf
        if not made:
            found[:first] = -np.inf
            if self._latest is not None:
                found[first + self._latest + 1 :] = -np.inf
        rest = np.exp(found - found.max())
        if rest[first:].sum() > rest[:first].max(initial=0):
            found[:first] = -np.inf
        return found


def transcribe(
    path_or_model: str | os.PathLike[str] | Transcriber, sound: str | os.PathLike[str] | np.ndarray, **how: Any
) -> Transcription:
    """Transcribe a recording with the Whisper model of a folder.

    To transcribe more than one, keep an `occ.Transcriber`.

    Args:
        path_or_model: of `occ.Transcriber`, or one.
        sound: the path of a WAV file, or samples.
        how: `threads` and `target` of `Transcriber`; the others are those of its `transcribe`.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 as `Transcriber` and its `transcribe`.
    """
    given = {k: how.pop(k) for k in ("threads", "target") if k in how}
    model = path_or_model if isinstance(path_or_model, Transcriber) else Transcriber(path_or_model, **given)
    return model.transcribe(sound, **how)

"""Tokenization, by the library `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from occ.runtime.errors import RunError

_REPLACEMENT = "\ufffd"  # the decoding of bytes that are not yet a whole character
_WINDOW = 8  # tokens on which the text of the next one may depend, for example by a space between words


class Tokenizer:
    """The tokenizer of a folder.

    Args:
        source: the path of `tokenizer.json`, or its text.
        template: the chat template, in Jinja; empty if the model has none.
        special: texts of special tokens by their name in the template, such as `bos_token`.

    Raises:
        RunError: OCC0501 the library is not installed, or the file cannot be read.

    Attributes:
        source: the argument.
    """

    def __init__(self, source: Path | str, template: str = "", special: Mapping[str, str] | None = None) -> None:
        try:
            from tokenizers import Tokenizer as Reader
        except ModuleNotFoundError:
            raise RunError(
                "OCC0501", "texts need the library `tokenizers`; tokens work without", "pip install tokenizers"
            ) from None
        try:
            self._reader = Reader.from_str(source) if isinstance(source, str) else Reader.from_file(str(source))
        except Exception as e:  # the library raises nothing narrower
            name = "the vocabulary of the model" if isinstance(source, str) else f"`{source}`"
            raise RunError("OCC0501", f"{name} is not a tokenizer: {e}", "download the file again") from None
        self._cutting: dict[int | None, Any] = {}  # truncation and padding are done here
        self.source, self.template, self.special = source, template, dict(special or {})

    @property
    def size(self) -> int:
        """Size of the vocabulary, including added tokens."""
        return self._reader.get_vocab_size()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, with the model's special tokens around it if `special`."""
        return list(self._reader.encode(text, add_special_tokens=special).ids)

    def encode_rows(
        self, texts: Sequence[str | tuple[str, str]], longest: int | None
    ) -> list[tuple[list[int], list[int]]]:
        """Tokens of texts, or of pairs of texts, as model inputs, with token types.

        Args:
            texts: individually, without padding.
            longest: maximum tokens; longer texts are truncated at the end, in pairs the longer text.
        """
        if longest not in self._cutting:
            reader = type(self._reader).from_str(self._reader.to_str())
            reader.no_padding()
            reader.no_truncation()
            if longest is not None:
                reader.enable_truncation(longest)
            self._cutting[longest] = reader
        return [(list(e.ids), list(e.type_ids)) for e in self._cutting[longest].encode_batch(list(texts))]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self._reader.decode(list(ids), skip_special_tokens=True)

    def id_of(self, word: str) -> int | None:
        """The token for a word of the vocabulary, or None."""
        return self._reader.token_to_id(word)

    def token(self, id_: int) -> str:
        """The text of one token, or its vocabulary word if special or part of a character."""
        text = self._reader.decode([id_])
        return text if text and _REPLACEMENT not in text else self._reader.id_to_token(id_) or ""

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **more: Any
    ) -> list[int]:
        """The tokens of a conversation, up to the model's answer.

        The template runs as in transformers: with the same filters, functions, and `{% generation %}` blocks.

        Args:
            messages: with `role`, `content` and whatever else the template reads.
            tools: functions that the model may call, in the form of OpenAI's API.
            more: further variables of the template, such as `enable_thinking`.

        Raises:
            RunError: OCC0501 the model has no chat template, it rejects the messages, or `jinja2` is not installed.
        """
        try:
            made = self._compiled_template.render(
                **{"tools": tools, "documents": None, "add_generation_prompt": True, **self.special, **more},
                messages=list(messages), raise_exception=_refuse, strftime_now=datetime.now().strftime,
            )  # fmt: skip
            made.encode()  # half of a surrogate pair is no text
        except RunError:
            raise
        except Exception as e:  # a template is a program: it can fail in any way
            raise RunError(
                "OCC0501", f"the chat template rejects these messages: {e}", "change them, or the template"
            ) from None
        return self.encode(made, special=False)

    @cached_property
    def _compiled_template(self) -> Any:
        """The chat template, compiled once: that takes longer than to render it.

        Raises:
            RunError: as `chat`; whatever else Jinja raises.
        """
        if not self.template:
            raise RunError("OCC0501", "the model has no chat template", "pass a prompt, or add a chat_template.jinja")
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError:
            raise RunError("OCC0501", "chat templates need the library `jinja2`", "pip install jinja2") from None
        places = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_blocks()]
        )
        places.filters["tojson"] = _json
        return places.from_string(self.template)


def _refuse(message: str) -> Any:
    raise ValueError(message)


def _json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:  # fmt: skip
    """The `tojson` filter of templates, which keeps non-ASCII letters: Jinja's is for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@cache
def _generation_blocks() -> Any:
    """A Jinja extension for `{% generation %}`, which marks the model's output for training; here it has no effect."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationBlocks(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationBlocks


class TextStream:
    """Text from streamed tokens: complete characters only, held back where a stop text may begin.

    Args:
        tokenizer: decodes.
        stop: texts at which it ends.

    Attributes:
        ended: whether one of them has occurred.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, [s for s in stop if s]
        self._ids: list[int] = []  # those on which the next text may depend
        self._before = 0  # characters of their text already returned
        self._held = ""  # possibly the beginning of a stop text
        self.ended = False

    def push(self, token: int) -> str:
        """Add a token; returns the text that becomes complete."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_REPLACEMENT) or len(text) <= self._before:  # not yet a whole character
            return ""
        new = text[self._before :]
        del self._ids[:-_WINDOW]
        self._before = len(self._tokenizer.decode(self._ids))
        return self._checked(new, final=False)

    def finish(self) -> str:
        """The text that was held back."""
        return "" if self.ended else self._checked(self._tokenizer.decode(self._ids)[self._before :], final=True)

    def pieces(self, tokens: Sequence[int], as_text: bool) -> list[Any]:
        """Whole texts in pieces: text or tokens, up to the one that completes a stop text."""
        found: list[Any] = []
        for token in tokens:
            text = self.push(token)
            found.append(text if as_text else token)
            if self.ended:
                break
        return [*found, self.finish()] if as_text else found

    def _checked(self, new: str, *, final: bool) -> str:
        """The text before a stop text, and before what may become one unless it is the last."""
        text = self._held + new
        found = [at for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            self.ended, self._held = True, ""
            return text[: min(found)]
        end = len(text) if final else min((_beginning(text, s) for s in self._stop), default=len(text))
        self._held = text[end:]
        return text[:end]


def _beginning(text: str, stop: str) -> int:
    """Where a text begins that may be completed to `stop`, at the end of `text`."""
    at = max(len(text) - len(stop) + 1, 0)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return at
        at += 1
    return len(text)

"""Text and tokens, by the library `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from occ.runtime.errors import RunError

_REPLACEMENT = "\ufffd"  # what bytes decode to that are not yet a whole character


class Tokenizer:
    """The tokenizer of a folder.

    Args:
        path: of `tokenizer.json`.
        template: the chat template, in Jinja; empty if the model has none.
        special: texts of special tokens by their name in the template, such as `bos_token`.

    Raises:
        RunError: OCC0501 the library is not installed, or the file cannot be read.
    """

    def __init__(self, path: Path, template: str = "", special: Mapping[str, str] | None = None) -> None:
        try:
            from tokenizers import Tokenizer as Reader
        except ModuleNotFoundError:
            raise RunError(
                "OCC0501", "texts need the library `tokenizers`; tokens work without", "pip install tokenizers"
            ) from None
        try:
            self._reader = Reader.from_file(str(path))
        except Exception as e:  # the library raises nothing narrower
            raise RunError("OCC0501", f"`{path}` is no tokenizer: {e}", "take the file of the model again") from None
        self.template, self.special = template, dict(special or {})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the model wants around it if `special`."""
        return list(self._reader.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self._reader.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of a conversation, up to where the model answers.

        Raises:
            RunError: OCC0501 the model has no chat template, refuses the messages, or `jinja2` is not installed.
        """
        if not self.template:
            raise RunError("OCC0501", "the model has no chat template", "give a prompt, or a chat_template.jinja")
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError:
            raise RunError("OCC0501", "chat templates need the library `jinja2`", "pip install jinja2") from None
        places = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        places.filters["tojson"] = _json
        try:
            made = places.from_string(self.template).render(
                messages=list(messages), add_generation_prompt=True, raise_exception=_refuse,
                strftime_now=datetime.now().strftime, **self.special,
            )  # fmt: skip
        except Exception as e:  # a template is a program: it can fail as any other does
            raise RunError(
                "OCC0501", f"the chat template does not take these messages: {e}", "change them, or the template"
            ) from None
        return self.encode(made, special=False)


def _refuse(message: str) -> Any:
    raise ValueError(message)


def _json(value: Any, indent: int | None = None, **_: Any) -> str:
    """The filter of templates, which writes letters as they are: that of Jinja is for web pages."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class TextStream:
    """The text of tokens as they come: what is whole of it, and ends before what may become a stop text.

    Args:
        tokenizer: decodes.
        stop: texts at which it ends.

    Attributes:
        ended: whether one of them has come.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, [s for s in stop if s]
        self._ids: list[int] = []
        self._given = 0
        self.ended = False

    def push(self, token: int) -> str:
        """What a token adds."""
        self._ids.append(token)
        return self._next(final=False)

    def finish(self) -> str:
        """What was held back."""
        return "" if self.ended else self._next(final=True)

    def pieces(self, tokens: Sequence[int], as_text: bool) -> list[Any]:
        """What whole texts are written in: pieces of text, or their tokens, up to the one with which a stop text has come."""
        found: list[Any] = []
        for token in tokens:
            text = self.push(token)
            found.append(text if as_text else token)
            if self.ended:
                break
        return [*found, self.finish()] if as_text else found

    def _next(self, *, final: bool) -> str:
        text = self._tokenizer.decode(self._ids)
        found = [at for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            self.ended, end = True, min(found)
        else:
            end = len(text) if final else len(text) - self._pending(text)
        new = text[self._given : end]
        self._given = max(self._given, end)
        return new

    def _pending(self, text: str) -> int:
        """Characters at the end that more tokens may change, or may make a stop text of."""
        broken = len(text) - len(text.rstrip(_REPLACEMENT))
        lengths = (n for s in self._stop for n in range(1, len(s)) if text.endswith(s[:n]))
        return max(broken, max(lengths, default=0))

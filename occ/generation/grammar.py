"""Constrained decoding: token masks from a grammar, by the library llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from occ.runtime.errors import RunError

ANY_OBJECT = {"type": "object"}  # the schema of `json_object`
# White space between parts of JSON, as in llama.cpp: without a limit, small models write newlines to the end.
_SPACES = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}


class Grammars:
    """Compiles grammars for one tokenizer.

    Args:
        tokenizer: the path of `tokenizer.json`, or its text.
        words: number of logits, which may exceed the tokenizer's vocabulary.
        eos_ids: tokens that end a text.

    Raises:
        RunError: OCC0501 the library is not installed, or does not support the tokenizer.
    """

    def __init__(self, tokenizer: Path | str, words: int, eos_ids: Sequence[int]) -> None:
        try:
            import llguidance
        except ModuleNotFoundError:
            raise RunError("OCC0501", "grammars need the library `llguidance`", "pip install llguidance") from None
        self._library, self._words = llguidance, words
        try:
            self._tokenizer = llguidance.LLTokenizer(str(tokenizer), n_vocab=words, eos_token=list(eos_ids) or None)
        except Exception as e:  # the library raises nothing narrower
            raise RunError("OCC0501", f"grammars do not work with this tokenizer: {e}", "ask without") from None

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """JSON that matches a schema; a space, or one or two newlines and an indent, may separate its parts.

        Raises:
            RunError: OCC0501 the schema is invalid, or has unsupported features.
        """
        text = json.dumps(schema)
        return self._made(lambda: self._library.LLMatcher.grammar_from_json_schema(text, defaults=_SPACES))

    def regular_expression(self, text: str) -> Grammar:
        """Text that matches a regular expression, in the syntax of Rust's `regex`.

        Raises:
            RunError: OCC0501 it is invalid.
        """
        return self._made(lambda: self._library.LLMatcher.grammar_from_regex(text))

    def context_free(self, text: str) -> Grammar:
        """Text of a context-free grammar, in the form of Lark or of GBNF (llama.cpp).

        Raises:
            RunError: OCC0501 it is invalid.
        """
        from llguidance.gbnf_to_lark import any_to_lark

        return self._made(lambda: self._library.LLMatcher.grammar_from_lark(any_to_lark(text)))

    def _made(self, grammar: Any) -> Grammar:
        try:
            matcher = self._library.LLMatcher(self._tokenizer, grammar(), log_level=0)
        except Exception as e:  # the library raises nothing narrower
            raise _unfollowable(str(e) or type(e).__name__) from None
        if matcher.is_error():
            raise _unfollowable(matcher.get_error())
        return Grammar(matcher, self._words)


def _unfollowable(why: str) -> RunError:
    return RunError("OCC0501", f"the grammar is not supported: {why.strip()}", "change it")


class Grammar:
    """One text that follows a grammar: which tokens may come next."""

    def __init__(self, matcher: Any, words: int) -> None:
        from llguidance.numpy import allocate_token_bitmask

        self._matcher, self._words = matcher, words
        self._bits = allocate_token_bitmask(1, words)

    def allowed(self) -> np.ndarray:
        """The allowed next tokens, bool `[vocabulary]`; once the text is complete, those that end it."""
        from llguidance.numpy import fill_next_token_bitmask

        fill_next_token_bitmask(self._matcher, self._bits, 0)
        return np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._words].view(np.bool_)

    def append(self, token: int) -> None:
        """Record a generated token."""
        self._matcher.consume_token(token)

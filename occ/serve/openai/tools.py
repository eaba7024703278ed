"""Function calling: calls found in a model's text, or forced by a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from occ.runtime.dataclass import dataclass

# How models begin a call: Hermes and Qwen, Mistral, Llama. Bare JSON at the beginning of an answer counts too.
_OPENERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_BARE = ("{", "[")


@dataclass(frozen=True)
class Call:
    """A call: the name of the function, and its arguments as JSON."""

    name: str
    arguments: str


class ToolParser:
    """Splits an answer into content and calls, as it is generated.

    Args:
        names: of the functions that may be called.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)
        self._held, self._begun = "", False

    def push(self, text: str) -> str:
        """The content that is certain after adding `text`."""
        self._held += text
        if not self._begun:
            if not (lead := self._held.lstrip()) or lead.startswith(_BARE):
                return ""
            self._begun = True
        found = [at for o in _OPENERS if (at := self._held.find(o)) >= 0]
        partial = (n for o in _OPENERS for n in range(1, len(o)) if self._held.endswith(o[:n]))
        end = min(found) if found else len(self._held) - max(partial, default=0)
        content, self._held = self._held[:end], self._held[end:]
        return content

    def finish(self) -> tuple[str, list[Call]]:
        """The rest of the content, and the calls."""
        calls = [c for value in _values(self._held) if (c := self._call(value)) is not None]
        return ("" if calls else self._held), calls

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        return Call(
            value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )


def _values(text: str) -> Iterator[Any]:
    """The JSON objects in a text, including those in lists."""
    decoder, at = json.JSONDecoder(), 0
    while (starts := [k for b in _BARE if (k := text.find(b, at)) >= 0]) and (at := min(starts)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        yield from value if isinstance(value, list) else [value]


def forced_call(tools: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """The schema of a call to one of the functions, or to the named one."""
    options = [
        {
            "type": "object",
            "properties": {"name": {"const": f["name"]}, "arguments": f.get("parameters") or {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for f in (t["function"] for t in tools)
        if name in (None, f["name"])
    ]
    return options[0] if len(options) == 1 else {"anyOf": options}

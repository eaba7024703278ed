"""Changes of valid files: bytes, texts, trees of JSON, and messages of protobuf. Most keep the form, so that the fault
reaches the code after the parser.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message
from numpy.random import Generator

INTEGERS = (
    0, 1, -1, 2, 3, 7, 16, 63, 64, 100, 255, 256, 4096, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53,
    2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"))
STRINGS = ("", "x", "\0", "../../x", "/etc/passwd", "é", "a" * 300, "NOTSET", "%x", "{}", "float", "-1", "\n", '"')
_TOKEN = re.compile(r"[A-Za-z_][\w.]*|-?\d+(?:\.\d+)?|\s+|.", re.S)


def choose(rng: Generator, items: Sequence[Any]) -> Any:
    """One of some."""
    return items[int(rng.integers(len(items)))]


def times(rng: Generator) -> range:
    """A few, most often one."""
    return range(1 + min(int(rng.exponential(1.2)), 8))


def blob(rng: Generator, data: bytes) -> bytes:
    """Bytes with some of them changed, lost, repeated, or cut off."""
    made = bytearray(data)
    for _ in times(rng):
        at, n = int(rng.integers(len(made) + 1)), 1 + int(rng.exponential(8))
        kind = int(rng.integers(7))
        if kind == 0 and at < len(made):
            made[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            made[at : at + 1] = bytes([choose(rng, (0, 1, 127, 128, 255))])
        elif kind == 2:
            made[at : at + 8] = struct.pack("<Q", choose(rng, INTEGERS) & (2**64 - 1))[: choose(rng, (2, 4, 8))]
        elif kind == 3:
            del made[at : at + n]
        elif kind == 4:
            made[at:at] = made[at : at + n]
        elif kind == 5:
            made[at:at] = rng.bytes(n)
        elif rng.random() < 0.2:
            del made[at:]
    return bytes(made)


def text(rng: Generator, source: str) -> str:
    """A text with numbers, names, or lines changed, lost, or exchanged."""
    tokens, words = [*_tokens(source)], _words(source)
    for _ in times(rng) if words else ():
        at, other, kind = choose(rng, words), choose(rng, words), int(rng.integers(8))
        if kind <= 1:
            numbers = [k for k in words if tokens[k].lstrip("-")[:1].isdigit()] or words
            tokens[choose(rng, numbers)] = str(choose(rng, INTEGERS))
        elif kind == 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == 3:
            tokens[at] = ""
        elif kind == 4:
            tokens[at] = tokens[other]
        elif kind == 5:
            tokens[at] += choose(
                rng, (",", "(", ")", "{", "}", "[", "]", "%", "@", "#", '"', "=", ":", "\n", "\0", *STRINGS)
            )
        else:
            return _lines(rng, "".join(tokens))
    return "".join(tokens)


def numbers(rng: Generator, source: str) -> str:
    """A text with some of its integers changed, or exchanged."""
    tokens = [*_tokens(source)]
    places = [k for k in _words(source) if tokens[k].lstrip("-").isdigit()]
    for _ in times(rng) if places else ():
        at = choose(rng, places)
        old = int(tokens[at]) if len(tokens[at]) < 20 else 0
        near = (old + 1, old - 1, old + 64, old * 2, old // 2, -old)
        tokens[at] = choose(rng, (tokens[choose(rng, places)], str(choose(rng, near)), str(choose(rng, INTEGERS))))
    return "".join(tokens)


@lru_cache(16)
def _tokens(source: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(source))


@lru_cache(16)
def _words(source: str) -> list[int]:
    return [k for k, t in enumerate(_tokens(source)) if not t.isspace()]


def _lines(rng: Generator, source: str) -> str:
    lines = source.splitlines(keepends=True)
    at, other, kind = int(rng.integers(len(lines))), int(rng.integers(len(lines))), int(rng.integers(4))
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        del lines[at:]
    return "".join(lines)


def tree(rng: Generator, value: Any) -> Any:
    """JSON data with some values changed, lost, repeated, or of another kind. The data that is given changes."""
    for _ in times(rng):
        place = choose(rng, _places(value))
        if place is None:
            return _other(rng, value)
        holder, key = place
        kind = int(rng.integers(6))
        if kind == 0:
            del holder[key]
        elif kind == 1:
            there, at = choose(rng, [p for p in _places(value) if p is not None] or [(holder, key)])
            holder[key] = deepcopy(there[at])  # which may hold the holder
        elif kind == 2 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = _other(rng, holder[key])
        if not _places(value)[1:]:
            break
    return value


def _places(value: Any, depth: int = 0) -> list[Any]:
    """Holders and keys of all values within one, and None for itself."""
    found: list[Any] = [None] if depth == 0 else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        found.append((value, key))
        if depth < 40:
            found += _places(inner, depth + 1)
    return found


def _other(rng: Generator, value: Any) -> Any:
    if isinstance(value, bool) or rng.random() < 0.15:
        return choose(rng, (None, True, False, 0, -1, 1.5, "x", [], {}, [[]], {"a": 1}, [0] * 50, 10**30, 1e400))
    if isinstance(value, int):
        return choose(rng, (choose(rng, INTEGERS), value + 1, value - 1, value * 2, -value))
    if isinstance(value, str):
        return choose(rng, (choose(rng, STRINGS), value + "x", value[:-1], value[::-1]))
    if isinstance(value, list):
        return choose(rng, (value[::-1], value * 2, value[:-1], [value], {}))
    return choose(rng, (None, [], {}, 0, "x"))


def message(rng: Generator, root: Message) -> None:
    """Change some fields of a protobuf message, at any depth."""
    for _ in times(rng):
        found = _messages(root)
        holder = choose(rng, found)
        set_ = [d for d, _ in holder.ListFields()]
        field = choose(rng, set_ if set_ and rng.random() < 0.8 else holder.DESCRIPTOR.fields)
        _change(rng, holder, field, found)


def _messages(root: Message) -> list[Message]:
    found = [root]
    for field, value in root.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                found += _messages(inner)
    return found


def _change(rng: Generator, holder: Message, field: Any, all_: Sequence[Message]) -> None:
    value = getattr(holder, field.name)
    alike: Callable[[], list[Any]] = lambda: [
        x for m in all_ for f, v in m.ListFields() if (f.type, f.message_type, f.enum_type) == (field.type, field.message_type, field.enum_type)
        for x in (v if f.is_repeated else [v])
    ]  # fmt: skip
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    kind = int(rng.integers(5))
    if kind == 0:
        holder.ClearField(field.name)
    elif field.message_type is not None:
        given = choose(rng, alike() or [field.message_type._concrete_class()])
        copied = type(given)()
        copied.CopyFrom(given)
        if not field.is_repeated:
            value.CopyFrom(copied)
        elif len(value) and kind == 1:
            del value[int(rng.integers(len(value)))]
        elif len(value) and kind == 2:
            value[int(rng.integers(len(value)))].CopyFrom(copied)
        else:
            value.append(copied)
    else:
        new = choose(rng, alike()) if rng.random() < 0.4 and alike() else _scalar(rng, field)
        if not field.is_repeated:
            setattr(holder, field.name, new)
        elif len(value) and kind == 1:
            del value[int(rng.integers(len(value)))]
        elif len(value) and kind <= 3:
            value[int(rng.integers(len(value)))] = new
        else:
            value.append(new)


def _scalar(rng: Generator, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        word = choose(rng, STRINGS)
        return word.encode() if field.type == field.TYPE_BYTES else word
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return choose(rng, FLOATS)
    if field.cpp_type == field.CPPTYPE_ENUM:
        return choose(rng, [v.number for v in field.enum_type.values])
    if field.cpp_type == field.CPPTYPE_BOOL:
        return bool(rng.integers(2))
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return min(max(choose(rng, INTEGERS), low), high)

"""Random JSON schemas, whose instances are short."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_NAMES = ("name", "size", "kind", "when", "count", "tags", "place", "ok", "größe", 'a "b"', "x-1", "deep")
_PATTERNS = (
    r"^[a-z]{2,6}$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^(red|green|blue)$",
    r"^[A-Z][a-z]{1,8} [A-Z][a-z]{1,8}$",
    r"^#[0-9a-f]{6}$",
)
_FORMATS = ("date", "uuid", "ipv4")  # a time may have a fraction of any length


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """A schema of an object: required and optional members, closed or not, definitions and alternatives."""
    made = _object(rng, depth)
    if rng.random() < 0.3:
        made["$defs"] = {"part": _object(rng, 1)}
        made["properties"]["part"] = {"$ref": "#/$defs/part"}
        made["required"].append("part")
    return made


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randrange(1, 5))
    return {
        "type": "object",
        "properties": {n: _any(rng, depth - 1) for n in names},
        "required": [n for n in names if rng.random() < 0.8],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(3)
    return {"type": "array", "items": _any(rng, depth - 1), "minItems": least, "maxItems": least + rng.randrange(3)}


def _string(rng: random.Random, _: int) -> Schema:
    match rng.randrange(4):
        case 0:
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": rng.choice(_FORMATS)}
        case _:
            least = rng.randrange(4)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(1, 20)}


def _integer(rng: random.Random, _: int) -> Schema:
    least = rng.randrange(-1000, 1000)
    kind = rng.choice(("integer", "number"))
    bounds = {"minimum": least, "maximum": least + rng.randrange(1, 5000)}
    return {"type": kind, **bounds} if kind == "integer" else {"type": kind, **bounds, "multipleOf": 0.25}


def _choice(rng: random.Random, _: int) -> Schema:
    values = ["on", "off", 0, 17, -2.5, None, True, "ünïcode", 'q"q']
    return {"const": rng.choice(values)} if rng.random() < 0.3 else {"enum": rng.sample(values, rng.randrange(1, 5))}


def _either(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(2)]}


def _plain(rng: random.Random, _: int) -> Schema:
    return {"type": rng.choice(("boolean", "null"))}


_FLAT: tuple[Callable[[random.Random, int], Schema], ...] = (_string, _string, _integer, _choice, _plain)
_NESTED: tuple[Callable[[random.Random, int], Schema], ...] = (*_FLAT, _object, _array, _either)


def _any(rng: random.Random, depth: int) -> Schema:
    return rng.choice(_NESTED if depth > 0 else _FLAT)(rng, depth)

"""Attribute schemas of operators that ONNX does not define.

A schema is written as names with kinds: `te=text dims=sizes? *`. `?` marks optional ones, and `*` allows any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from occ.compiler.ir.dim import Sym
from occ.compiler.ir.dtype import DType
from occ.runtime.dataclass import dataclass


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, types) and (bool in types or not isinstance(v, bool))


def _all(*types: type) -> Callable[[Any], bool]:
    each = _is(*types)
    return lambda v: isinstance(v, tuple) and all(map(each, v))


# What an attribute holds, and the check of it. A size is an int or a dim; a value is a size or a float.
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "int": _is(int),
    "bool": _is(bool, int),
    "float": _is(float, int),
    "text": _is(str),
    "dtype": _is(DType),
    "size": _is(int, Sym),
    "ints": _all(int),
    "sizes": _all(int, Sym),
    "values": _all(int, Sym, float),
    "texts": _all(str),
    "tuple": _is(tuple),
}


@dataclass(frozen=True)
class Attributes:
    """A schema: the kind of each attribute by name, the optional ones, and whether others are allowed."""

    kinds: Mapping[str, str]
    optional: frozenset[str]
    others: bool

    @classmethod
    def of(cls, text: str) -> Attributes:
        """Parse the written form."""
        items = [item.partition("=") for item in text.split() if item != "*"]
        kinds = {name: kind.rstrip("?") for name, _, kind in items}
        assert set(kinds.values()) <= KINDS.keys(), text
        return cls(kinds, frozenset(name for name, _, kind in items if kind.endswith("?")), "*" in text.split())

    def problems(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Errors of attributes: unknown, missing, or of a wrong type."""
        for name, value in given.items():
            if name not in self.kinds and not self.others:
                known = ", ".join(f"`{n}`" for n in self.kinds) or "none"
                yield f"has no attribute `{name}`; there are: {known}"
            elif name in self.kinds and not KINDS[self.kinds[name]](value):
                yield f"has `{name}={value}`, which is not {_article(self.kinds[name])}"
        for name in self.kinds.keys() - self.optional - given.keys():
            yield f"has no `{name}`"


def _article(kind: str) -> str:
    singular = {
        "ints": "a list of ints",
        "sizes": "a list of sizes",
        "values": "a list of values",
        "texts": "a list of texts",
    }
    return singular.get(kind) or f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"

"""Attributes with many elements, such as vocabularies: what passes compare is made once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from occ.compiler.ir.attribute_keys import frozen, is_plain


class Counted(tuple[Any, ...]):
    """A tuple that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.times += 1
        return super().__iter__()


def test_large_attributes_are_looked_at_once() -> None:
    words = Counted(f"w{k}" for k in range(1000))
    first = frozen(words)
    seen = Counted.times
    assert frozen(words) is first
    assert is_plain(words)
    assert Counted.times == seen
    assert first == frozen(tuple(words))


def test_large_attributes_of_unlike_type_stay_unlike() -> None:
    ones = [(kind(1),) * 1000 for kind in (int, float, bool, str)]
    assert len({frozen(v) for v in ones}) == len(ones)
    assert frozen((0.0,) * 1000) != frozen((-0.0,) * 1000)
    assert frozen((1,) * 1000) != frozen((1,) * 999)
    assert not is_plain((*ones[0], None))

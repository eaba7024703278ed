"""The prototypes of GE operators (REG_OP in the public headers), from `prototypes.json`; `tools/ge_prototypes.py` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from occ.runtime.dataclass import dataclass

RELEASES = ("2021-01", "2021-10", "2022-09", "2023-03", "2023-11", "2025-06", "2026-08")


@dataclass(frozen=True)
class Formal:
    """A formal input or output; `kind` is `required`, `optional` or `dynamic`; no `dtypes` means any."""

    name: str
    kind: str
    dtypes: frozenset[str]


@dataclass(frozen=True)
class FormalAttr:
    """A formal attribute and its REG_OP type (`Int`, `ListFloat`, ...)."""

    name: str
    type: str
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Prototype:
    """A GE operator.

    Attributes:
        since: the first of `RELEASES` whose headers have it.
    """

    name: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attrs: dict[str, FormalAttr]
    graphs: tuple[str, ...]
    since: str


def _formal(text: str) -> Formal:
    name, *dtypes = text.split()
    kind = {"?": "optional", "*": "dynamic"}.get(name[-1], "required")
    return Formal(name.rstrip("?*"), kind, frozenset(dtypes))


class _Prototypes(Mapping[str, Prototype]):
    """The prototypes by name, each created from its record on first use."""

    def __init__(self, records: dict[str, dict[str, Any]]) -> None:
        self._records = records
        self._made: dict[str, Prototype] = {}

    def __getitem__(self, name: str) -> Prototype:
        if name not in self._made:
            r = self._records[name]
            attrs = {a[0]: FormalAttr(a[0], a[1], len(a) == 2, a[2] if len(a) > 2 else None) for a in r["attrs"]}
            ins, outs = (tuple(map(_formal, r[k])) for k in ("in", "out"))
            self._made[name] = Prototype(name, ins, outs, attrs, tuple(r["graphs"]), RELEASES[r["since"]])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


@cache
def prototypes() -> Mapping[str, Prototype]:
    """All prototypes by name."""
    text = (files("occ.compiler.codegen_cann.graph") / "prototypes.json").read_text(encoding="utf-8")
    return _Prototypes(json.loads(text))

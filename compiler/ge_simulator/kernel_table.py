"""Which kernels the chips have, as far as public sources tell: `tables/*.tsv`, each row with its source and date.

A graph that GE loads still needs a kernel for every node: an operator, an element type, a unit (AI Core, or AI CPU, which
is slower) of the chip. Of an operator that has no row on a unit nothing is known, and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import ml_dtypes
import numpy as np

from occ.compiler.ge_simulator.reader import Node, NoKernel

CHIPS = ("310", "310P", "910", "910B")
_NEW = ("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1")
_NAMES = {
    np.dtype(v): k
    for k, v in {
        "FLOAT": np.float32, "FLOAT16": np.float16, "BF16": ml_dtypes.bfloat16, "DOUBLE": np.float64, "BOOL": np.bool_,
        "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16,
        "UINT32": np.uint32, "UINT64": np.uint64, "COMPLEX64": np.complex64, "INT4": ml_dtypes.int4, "COMPLEX128": np.complex128,
    }.items()
}  # fmt: skip


def chip_of(soc: str) -> str:
    """The kind of chip that a soc_version names; `Ascend910B` without a digit is a first-generation 910."""
    if soc in _NEW:
        return "910B"
    return "910" if soc.startswith("Ascend910") else soc.removeprefix("Ascend")[:4]


@dataclass(frozen=True)
class Kernels:
    """A row of the table: the kernels of an operator on a unit of some chips.

    Attributes:
        port: the tensor whose element type decides.
        pairs: (type taken, type given); all there are.
        missing: types that are known to have none; then nothing is known of the others.
    """

    operator: str
    chips: frozenset[str]
    unit: str
    port: str
    pairs: tuple[tuple[str, str], ...]
    missing: frozenset[str]
    source: str

    def __str__(self) -> str:
        names = [a if a == b else f"{a} giving {b}" for a, b in self.pairs] or [f"no {m}" for m in sorted(self.missing)]
        return f"{self.unit} has {', '.join(names) or 'none'} ({self.source}, {sources()[self.source][0]})"


def rows_of(name: str) -> Iterator[list[str]]:
    """The rows of one of the tables."""
    text = (files("occ.compiler.ge_simulator") / "tables" / f"{name}.tsv").read_text("utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def chips_in(text: str) -> frozenset[str]:
    """The chips that a row is about."""
    return frozenset(CHIPS if text == "*" else text.split(","))


@cache
def sources() -> dict[str, tuple[str, str]]:
    """What rows come from: date and description by key."""
    return {key: (date, what) for key, date, what in rows_of("sources")}


@cache
def table() -> dict[str, tuple[Kernels, ...]]:
    """All rows by operator."""
    found: dict[str, list[Kernels]] = {}
    for operator, chips, unit, port, types, source in rows_of("kernels"):
        items = [t for t in types.split() if t != "-"]
        missing = frozenset(t[1:] for t in items if t.startswith("!"))
        pairs = tuple((t.partition(">")[0], t.partition(">")[2] or t) for t in items if not t.startswith("!"))
        row = Kernels(operator, chips_in(chips), unit, port, pairs, missing, source)
        found.setdefault(operator, []).append(row)
    return {k: tuple(v) for k, v in found.items()}


def element_type(node: Node) -> str:
    """The element type that decides which kernel a node gets; empty where it has no tensors."""
    port = next((r.port for r in table().get(node.type, ())), "")
    descs = [*node.input_descs, *node.output_descs]
    desc = next((d for d in descs if d.name == port), descs[0] if descs else None)
    return "" if desc is None or desc.dtype is None else _NAMES.get(desc.dtype, "")


def kernel(node: Node, chip: str, wanted: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The kernel that runs a node: the first pair of types wanted that a unit has, AI Core before AI CPU.

    Raises:
        NoKernel: the chip is known to have none of them.
    """
    rows = [r for r in table().get(node.type, ()) if chip in r.chips]
    for unit in ("AICore", "AICPU"):
        own = [r for r in rows if r.unit == unit]
        if not own and unit == "AICore":
            return wanted[0]  # nothing is known
        for pair in wanted:
            if own and all(_takes(r, pair) for r in own):
                return pair
    known = "; ".join(map(str, rows))
    types = " or ".join(dict.fromkeys(a for a, _ in wanted))
    raise NoKernel(f"{node.name}: Ascend{chip} has no kernel of {node.type} for {types}: {known}")


def _takes(row: Kernels, pair: tuple[str, str]) -> bool:
    return pair[0] not in row.missing if row.missing else pair in row.pairs

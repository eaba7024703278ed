"""Kernel tables of the chips, from `tables/kernels.tsv` and `tables/functions.tsv`.

A graph that GE loads still needs a kernel for every node: on a unit of the chip (AI Core; AI CPU, which is slower), for
the element types, and, if an extent is unknown, for unknown extents. Operators missing from the tables have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

import ml_dtypes
import numpy as np

from occ.compiler.ge_simulator.fusion_passes import replacement
from occ.compiler.ge_simulator.reader import Node, NoKernel, Tensor
from occ.runtime.dataclass import dataclass

CHIPS = ("310", "310B", "310P", "910", "910B")
UNITS = ("AICore", "AICPU", "TF")  # in the order in which GE tries them
# What GE handles itself: structure, views, sizes (operators of its ge_local engine); `PASS` marks what it replaces.
GE_LOCAL = frozenset(
    {
        "Bitcast", "Const", "Constant", "Data", "ExpandDims", "FileConstant", "Flatten", "FlattenV2", "Identity",
        "IdentityN", "If", "NetOutput", "Rank", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "SqueezeV2",
        "SqueezeV3", "StatelessIf", "StatelessWhile", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3", "While",
    }
)  # fmt: skip
_CODES = {
    "FLOAT": "f32", "FLOAT16": "f16", "BF16": "bf16", "DOUBLE": "f64", "BOOL": "b1", "INT8": "i8", "INT16": "i16",
    "INT32": "i32", "INT64": "i64", "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64",
    "COMPLEX64": "c64", "COMPLEX128": "c128", "INT4": "i4",
}  # fmt: skip
_GE_NAMES = {code: name for name, code in _CODES.items()}
_NAMES = {
    np.dtype(v): k
    for k, v in {
        "FLOAT": np.float32, "FLOAT16": np.float16, "BF16": ml_dtypes.bfloat16, "DOUBLE": np.float64, "BOOL": np.bool_,
        "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8,
        "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "COMPLEX64": np.complex64,
        "INT4": ml_dtypes.int4, "COMPLEX128": np.complex128,
    }.items()
}  # fmt: skip
_ANY = "?"
FLOATS = ("FLOAT", "FLOAT16", "BF16")


def chip_of(soc: str) -> str:
    """The kind of chip for a soc_version: `Ascend910B` without a digit is a first-generation 910.

    The 910_93 has the kernels of the 910B.
    """
    name = soc.removeprefix("Ascend")
    if name.startswith("910_93") or (name.startswith("910B") and name != "910B"):
        return "910B"
    return "910" if name.startswith("910") else next((c for c in ("310B", "310P") if name.startswith(c)), "310")


@dataclass(frozen=True)
class Kernels:
    """A row of the tables: the kernels of an operator on a unit of some chips.

    Attributes:
        chips: chip -> whether extents may be unknown.
        operands: names, `>` before results, `?` after optional, `*` after repeated ones.
        combinations: element types, the sets that each operand accepts; None if they are unknown.
        source: key of `sources`.
    """

    operator: str
    unit: str
    chips: Mapping[str, bool]
    operands: tuple[str, ...]
    combinations: tuple[tuple[frozenset[str], ...], ...] | None
    source: str

    def __str__(self) -> str:
        places = [k for k, name in enumerate(self.operands) if name[:1] == ">"]
        shown: dict[str, None] = {}
        for each in self.combinations or ():
            taken, given = (",".join(sorted(each[k])) for k in (0, places[0] if places else 0))
            shown.setdefault(taken if taken == given else f"{taken} giving {given}")
        types = ", ".join(shown) or "other extents"
        return f"{self.unit} has {types} ({self.source}, {sources()[self.source][0]})"


def rows_of(name: str) -> Iterator[list[str]]:
    """The rows of one of the tables."""
    text = (files("occ.compiler.ge_simulator") / "tables" / f"{name}.tsv").read_text("utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def chips_in(text: str) -> dict[str, bool]:
    """The chips of a row, and whether it supports unknown extents on each."""
    chosen = text.replace("*", " ".join(f"{c}{'+' if '+' in text else ''}" for c in CHIPS)) if "*" in text else text
    return {c.rstrip("+"): c.endswith("+") for c in chosen.replace("++", "+").replace(",", " ").split()}


@cache
def sources() -> dict[str, tuple[str, str]]:
    """The sources of the table's rows: date and description by key."""
    return {key: (date, what) for key, date, what in rows_of("sources")}


@cache
def _lines() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for row in rows_of("kernels"):
        found.setdefault(row[0], []).append([*row, *[""] * (5 - len(row)), "info81"])
    for row in rows_of("functions"):
        found.setdefault(row[0], []).append(row)
    return found


def operators() -> frozenset[str]:
    """All operators that the tables name."""
    return frozenset(_lines())


@cache
def kernels_of(operator: str) -> tuple[Kernels, ...]:
    """The rows of an operator, with those of `functions.tsv` in place of untyped rows."""
    rows = [
        Kernels(op, unit, chips_in(chips), tuple(operands.split()), _combinations(types), source)
        for op, unit, chips, operands, types, source in _lines().get(operator, ())
    ]
    told = {c for r in rows if r.source != "info81" and r.unit == "AICore" for c in r.chips}
    return tuple(
        replace(r, chips={c: d for c, d in r.chips.items() if c not in told})
        if (r.source, r.unit, r.combinations) == ("info81", "AICore", None)
        else r
        for r in rows
    )


def _combinations(text: str) -> tuple[tuple[frozenset[str], ...], ...] | None:
    """The element types in a cell."""
    if text in ("", "function"):
        return None
    found: list[tuple[frozenset[str], ...]] = []
    for part in text.split(" | "):
        pattern, _, fill = part.partition(":")
        items = pattern.split()
        for code in fill.split() or (items[0],):
            each = [code if item == "T" else item for item in items]
            found.append(tuple(frozenset(_GE_NAMES.get(c, c) for c in item.split(",")) for item in each))
    return tuple(found)


def _name(desc: Tensor) -> str:
    return "" if desc.dtype is None else _NAMES.get(desc.dtype, "")


def float_type(node: Node) -> str:
    """The floating-point type that decides a node's kernel: of its first such operand, otherwise result.

    Empty without one.
    """
    named = [_name(d) for d in (*node.input_descs, *node.output_descs)]
    return next((n for n in named if n in FLOATS), "")


def is_dynamic(node: Node) -> bool:
    """Whether an extent of a node is unknown."""
    return any(d < 0 for desc in (*node.input_descs, *node.output_descs) for d in desc.shape)


@dataclass(frozen=True)
class Wanted:
    """The floating-point types that a precision mode allows for a node.

    Attributes:
        pairs: the types for the first operand and the first result, best first; for those that are FLOAT in the graph.
        free: replacements for FLOAT in the other tensors of the node; empty if all must match the graph.
    """

    pairs: tuple[tuple[str, str], ...]
    free: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KernelChoice:
    """The kernel of a node: its unit, and the types of its FLOAT operands and results."""

    unit: str
    operands: str
    results: str


def kernel(node: Node, chip: str, wanted: Wanted, *, fixed: bool = False) -> KernelChoice:
    """The kernel that runs a node, AI Core before AI CPU.

    Args:
        node: the node.
        chip: one of `CHIPS`.
        wanted: acceptable types.
        fixed: whether unknown extents are known when it is compiled, as for gears.

    Raises:
        NoKernel: the chip has none.
    """
    if node.type in GE_LOCAL:
        return KernelChoice("GE", *wanted.pairs[0])
    rows = [r for r in kernels_of(node.type) if chip in r.chips]
    unknown = is_dynamic(node) and not fixed
    if any(r.unit == "PASS" and (r.chips[chip] or not unknown) for r in rows):
        return KernelChoice("AICore", *wanted.pairs[0])
    if (put := replacement(node)) is not None:
        core = [r for r in kernels_of(put.type) if chip in r.chips and r.unit == "AICore"]
        if (found := _on_unit("AICore", put, core, chip, wanted, unknown=unknown)) is not None:
            return found
    alone = not any(r.unit in ("AICore", "AICPU") for r in kernels_of(node.type))
    for unit in UNITS if alone else UNITS[:2]:  # TensorFlow's have no types that the others lack, as far as is known
        if (found := _on_unit(unit, node, rows, chip, wanted, unknown=unknown)) is not None:
            return found
    raise NoKernel(_refusal(node, chip, rows, wanted, unknown=unknown))


def _on_unit(
    unit: str, node: Node, rows: Sequence[Kernels], chip: str, wanted: Wanted, *, unknown: bool
) -> KernelChoice | None:
    """The kernel of a unit for a node; None if there is none."""
    own = [r for r in rows if r.unit == unit and (r.chips[chip] or not unknown or unit == "TF")]
    if any(r.combinations is None for r in own):
        return KernelChoice(unit, *wanted.pairs[0])
    fitting = (pair for pair in wanted.pairs if any(_serves(row, node, pair, wanted.free) for row in own))
    return next((KernelChoice(unit, *pair) for pair in fitting), None)


def _serves(row: Kernels, node: Node, pair: tuple[str, str], free: frozenset[str]) -> bool:
    """Whether a row has a combination for a node with a given pair of types."""
    needed: dict[int, frozenset[str]] = {}
    before = 0
    for descs, to, mark in ((node.input_descs, pair[0], False), (node.output_descs, pair[1], True)):
        formals = [n.lstrip(">") for n in row.operands if (n[0] == ">") == mark]
        first = next((d for d in descs if _name(d) in FLOATS), None)
        for k, desc in enumerate(descs):
            if desc.dtype is None:
                continue
            place = _place(formals, desc.name, k)
            if place is None:
                return False
            name = _name(desc)
            types = {to} if desc is first and name == "FLOAT" else {name, *(free if name in FLOATS else ())}
            needed[before + place] = needed.get(before + place, frozenset(types)) & types
        before += len(formals)
    return any(
        all(types & each[k] or _ANY in each[k] for k, types in needed.items()) for each in row.combinations or ()
    )


def _place(formals: Sequence[str], name: str, position: int) -> int | None:
    """The formal operand of a tensor: by name, `x3` being one of `x*`, or by position if names differ."""
    bare = [f.rstrip("?*") for f in formals]
    stem = name.rstrip("0123456789")
    if name in bare:
        return bare.index(name)
    if stem in bare and formals[bare.index(stem)].endswith("*"):
        return bare.index(stem)
    if len(formals) == 1:
        return 0
    return position if position < len(formals) else None


def _refusal(node: Node, chip: str, rows: Sequence[Kernels], wanted: Wanted, *, unknown: bool) -> str:
    named = [_name(d) for d in (*node.input_descs, *node.output_descs) if d.dtype is not None]
    halves = " or ".join(dict.fromkeys(a for a, _ in wanted.pairs))
    types = ", ".join(dict.fromkeys(halves if t == "FLOAT" else t for t in named))
    fixed = " of fixed extents" if unknown and any(not r.chips[chip] for r in rows) else ""
    known = "; ".join(str(r) + fixed for r in rows if r.unit != "TF") or "it is in none of the tables"
    needed = " and unknown extents" if fixed else ""
    return f"{node.name}: Ascend{chip} has no kernel of {node.type} for {types}{needed}: {known}"

"""Model metadata for C programs: `occ_model_facts`, which runtime/c/facts.h reads.

A block of bytes next to the native entry, made from the same manifest: names, element types and extents of inputs and
outputs, locations of weights, meanings of failed conditions, and the nodes of each step.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from occ.compiler.native_entry.conditions import conditions
from occ.compiler.native_entry.kernel_abi import KernelAbi
from occ.runtime.dims import DimExpr, symbols, text
from occ.runtime.element_types import ELEMENT_TYPES
from occ.runtime.manifest import Manifest, Plan, TensorInfo

MAGIC, VERSION = 0x4643434F, 2
_RANK_OF_A_RUN = 1 << 31  # flag on the element type of an output whose rank sizes decide
_EXTENTS_OF_A_RUN = 1 << 30  # and of one with data-dependent extents
_HEAD = struct.Struct("<8I10I")

# The order of occ_dtype in runtime/c/occ.h, from 1 on.
DTYPES = tuple(t.name for t in sorted(ELEMENT_TYPES.values(), key=lambda t: t.abi) if t.abi)


class _Block:
    """Bytes under construction; referenced data is written before references to it."""

    def __init__(self) -> None:
        self.data = bytearray(_HEAD.size)
        self._texts: dict[str, int] = {"": 0}

    def text(self, value: str) -> int:
        """Position of a text; 0 for none."""
        if value not in self._texts:
            self._texts[value] = len(self.data)
            self.data += value.encode("utf-8", "replace").replace(b"\0", b"?") + b"\0"
        return self._texts[value]

    def rows(self, layout: str, rows: Iterable[Sequence[int]]) -> tuple[int, int]:
        """Position and count of rows of a table."""
        packed = [struct.pack(layout, *row) for row in rows]
        self.data += bytes(-len(self.data) % 8)
        at = len(self.data)
        self.data += b"".join(packed)
        return at, len(packed)


def model_facts(m: Manifest, *, refusal: str, abi: KernelAbi) -> bytes:
    """The facts of a model.

    Args:
        m: the manifest.
        refusal: why the model has no native entry; empty if it has one.
        abi: of the kernels.
    """
    b = _Block()
    labels = {d.name: d.label for d in m.dims}
    tables: list[tuple[int, int]] = []
    if not refusal:
        shown = {e for i in m.inputs for e in i.shape if isinstance(e, str)}
        tables = [
            b.rows("<4I", [_port(b, i, labels, shown) for i in m.inputs]),
            b.rows("<4I", [_port(b, o, labels, shown) for o in m.outputs]),
            b.rows("<2Q", [(w.offset, w.nbytes) for w in m.weights]),
            b.rows("<2iI", [(c.input, c.axis, b.text(c.text)) for c in conditions(m)]),
            b.rows("<2I", [_plan(b, p) for p in m.plans]),
        ]
    words = [b.text(m.name), b.text(m.machine), b.text(refusal), int(abi is KernelAbi.RANGE), b.text(m.code_digest)]
    tables += [(0, 0)] * (5 - len(tables))
    _HEAD.pack_into(b.data, 0, MAGIC, VERSION, len(b.data), *words, *(n for rows in tables for n in rows))
    return bytes(b.data)


def _port(b: _Block, info: TensorInfo, labels: dict[str, str], shown: set[str]) -> tuple[int, int, int, int]:
    def extent(e: DimExpr) -> tuple[int, int, int]:
        return (e, 0, 0) if isinstance(e, int) else (-1, b.text(text(e, labels)), 0)

    kind = 1 + DTYPES.index(info.dtype) + (_RANK_OF_A_RUN if info.kind == "unranked" else 0)
    kind += _EXTENTS_OF_A_RUN if any(symbols(e) - shown for e in info.shape) else 0
    return b.text(info.name), kind, *b.rows("<qII", [extent(e) for e in info.shape])


def _plan(b: _Block, plan: Plan) -> tuple[int, int]:
    rows: list[tuple[int, int, int]] = []
    for s in plan.steps:
        checks = b.rows("<I", [(b.text(c),) for c in s.checks])
        rows.append((b.text(", ".join(s.nodes[:3]) or s.name), *checks))
    return b.rows("<3I", rows)

"""Output shapes in the results of a native entry's call."""

from __future__ import annotations

from collections.abc import Sequence

from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DimExpr, symbols
from occ.runtime.manifest import Manifest, TensorInfo
from occ.runtime.native.call import MOST_AXES


@dataclass(frozen=True)
class Cases:
    """The shape of a result whose rank depends on input sizes, or whose extents have no expression.

    Attributes:
        when: two sizes; if they are equal the result has the shape `then`, otherwise `otherwise`.
    """

    when: tuple[DimExpr, DimExpr]
    then: Sequence[DimExpr]
    otherwise: Sequence[DimExpr]
    ranked: bool  # both have one rank


@dataclass(frozen=True)
class Row:
    """Position of an output's extents among the results of a call.

    `at` is the first one; `ranked`: they follow their number.
    """

    at: int
    ranked: bool


def result_rows(m: Manifest) -> list[Row]:
    """Where a call returns the output extents, with room for the largest rank."""
    rows: list[Row] = []
    at = 0
    for o in m.outputs:
        rows.append(Row(at, o.kind == "unranked"))
        at += 1 + MOST_AXES if rows[-1].ranked else len(o.shape)
    return rows


def is_decided_by_runs(m: Manifest, info: TensorInfo) -> bool:
    """Whether the rank of an output depends on sizes, or its extents depend on data."""
    return info.kind == "unranked" or bool(_decided(m, info))


def _decided(m: Manifest, info: TensorInfo) -> set[str]:
    """The symbols of an output that are not extents of inputs."""
    return {s for e in info.shape for s in symbols(e)} - {e for i in m.inputs for e in i.shape if isinstance(e, str)}


def open_outputs(m: Manifest) -> list[str]:
    """Outputs whose rank depends on sizes, or whose extents depend on data, each with the deciding node."""
    found: list[str] = []
    for b, info in zip(m.plan.outputs, m.outputs, strict=True):
        decided = _decided(m, info)
        if is_decided_by_runs(m, info):
            what = "rank" if info.kind == "unranked" else "extents"
            by = next((s.nodes for s in m.plan.steps if b in s.writes or decided & {row[2] for row in s.binds}), [])
            found.append(
                f"only a run determines the {what} of the output `{info.name}`, by node `{', '.join(by[:3]) or '?'}`"
            )
    return found

"""Register tiles of block-quantised products: the loops of the stage in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from occ.compiler.ir.dim import Dim, is_multiple, lower, upper
from occ.compiler.ir.te.function import TeStage
from occ.compiler.ir.te.schedule import AtMost
from occ.compiler.ir.te.stage_schedule import Loop, StageSchedule
from occ.compiler.ir.typical_sizes import nominal
from occ.compiler.targets.machine import Machine
from occ.runtime.dataclass import dataclass

# Tile heights: the smallest that holds all rows of a run is used. 16 are not faster than 8, and 5 % slower with 3
# digits (Zen 5).
_TILES = (1, 2, 4, 8)
_SERIAL = 1 << 19  # multiplications done before a second thread has started


@dataclass(frozen=True)
class Tile:
    """A tile of rows by panels of columns.

    Attributes:
        rows: of the tile.
        lanes: columns of a panel.
        panels: of the tile.
        mark: suffix of its loops' names.
        terms: elements of a block, by its axes.
        blocks: how many there are.
        tiles: row tiles for which a panel is computed before the next one; 0 for all.
        group: tiles of columns whose sums are in memory together.
    """

    rows: int
    lanes: int
    panels: int
    mark: str
    terms: Sequence[int]
    blocks: Dim
    tiles: int = 0
    group: int = 1


def schedule_root(out: StageSchedule, root: TeStage, tile: Tile) -> tuple[Loop, Loop]:
    """Schedule the stage in memory: all tiles of a panel, or of a group of them, then the next one.

    Returns its loops over panels, or groups, and over tiles.
    """
    *outer, n = out.axes
    size, into, width = root.axes[-1].extent, (f"o{tile.mark}", f"i{tile.mark}"), tile.lanes * tile.panels
    panels, lane = out.split(n, width, "Auto" if is_multiple(size, width) else "GuardWithIf", into)
    inner, across = [lane], list[Loop]()
    if tile.panels > 1:
        within, lane = out.split(lane, tile.lanes, into=(f"p{tile.mark}", f"l{tile.mark}"), root=n)
        inner = [lane, within]
    if tile.rows > 1:
        extent = root.axes[-2].extent
        symbolic = "RoundUp" if not isinstance(extent, int) else "Auto"
        outer[-1], row = out.split(
            outer[-1], tile.rows, symbolic if is_multiple(extent, tile.rows) else "GuardWithIf", into
        )
        inner.append(row)
    if tile.group > 1:
        whole = is_multiple(size, tile.group * width)
        panels, of_group = out.split(
            panels, tile.group, "Auto" if whole else "GuardWithIf", (f"g{tile.mark}", f"n{tile.mark}"), root=n
        )
        across = [of_group]
    around: list[Loop] = []
    if tile.tiles and not upper(root.axes[-2].extent) <= tile.tiles * tile.rows:
        block, outer[-1] = out.split(outer[-1], tile.tiles, "GuardWithIf", (f"b{tile.mark}", f"t{tile.mark}"))
        around = [block]
    out.reorder(*inner, *across, *reversed(outer), panels, *around).vectorize(lane)
    for loop in inner[1:]:
        out.unroll(loop)
    if nominal(size) * nominal(tile.blocks) * prod(tile.terms) * tile.rows >= _SERIAL:
        out.parallel(panels)
    return panels, outer[-1] if outer else panels


def tile_heights(rows: Dim, machine: Machine) -> list[int]:
    """Tile heights, smallest first."""
    most = _TILES[-1] if machine.registers >= 32 else 4
    if isinstance(rows, int):
        count = -(-rows // most)
        return [-(-rows // count)] if rows else [1]
    fitting = [t for t in _TILES if t <= most]
    return fitting[: sum(t < upper(rows) for t in fitting) + 1]


def tests_of_heights(rows: Dim, tiles: Sequence[int]) -> dict[int, AtMost]:
    """The run-time condition of each tile height that can occur: 3*D rows fill no tile of 2."""
    found: dict[AtMost, int] = {}
    for tile in tiles:
        test = AtMost(rows, tile).simplest
        if lower(test.right) > 0:
            found.setdefault(test, tile)
    return {tile: test for test, tile in found.items()}

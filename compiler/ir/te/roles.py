"""Roles of te stages: the function of a stage in the schedule of its method.

An operator states them in its body (`t.map(..., role="pad")`); they stay with the stage through all passes, print as
`role(pad)`, and take part in comparisons. The schedule of a method looks stages up by role, never by name; all other
code uses facts (`facts_of_role`).
"""

from __future__ import annotations

from occ.runtime.dataclass import dataclass

_WINOGRAD = ("columns", "input", "sum", "products", "rows", "output")
_STRASSEN = ("left", "sum", "products", "result")
_ATTENTION = ("query", "keys", "scores", "logits", "top", "exp", "total", "values", "sum", "out")

WINOGRAD = {part: f"winograd_{part}" for part in _WINOGRAD}  # set by the op `winograd`
STRASSEN = {part: f"strassen_{part}" for part in _STRASSEN}  # by `strassen`
ATTENTION = {part: f"attend_{part}" for part in _ATTENTION}  # by `attend_scores` and `attend`
PEAK = "attend_peak"  # by `attend` if rows may be empty: the top, or 0
KEYS_OF_CHUNK = "attend_chunk"  # reads keys of a chunk, its first axis; the last chunk may extend past them
HEADS = "attend_heads"  # by `repeat_heads`: keys or values, each head for several query heads
PAD = "pad"  # a border around a tensor
PANELS = "panels"  # bytes in panels of columns, fours of rows innermost: [.., panel, four, column, byte]
FOURS = "fours"  # channels of an image in fours, or pairs, innermost
COLUMNS = "columns"  # the right operand of a product in panels of columns: [.., panel, row, column]
CONV = "conv"  # sums over a window, whose rows are the positions of an image
WINDOW_ROWS = "window_rows"  # the column results of a planar window: one row for each row of the result
SQUARES = "squares"  # read across the rows of a tensor
TURNED = "turned"  # squares in the order of the result
SAMPLES = "samples"  # by `deform_samples`: sums of pixels at positions from tables, channels last
UNPACKED = "unpacked_sum"  # by `block_matmul`: sums of activations times weights that are unpacked to f32
POSITIONS = "positions"  # by the schedule: where a gather loads each element, clamped to the axis
PREFIX = "prefix"  # sums of a block's elements up to each of them
SUM_BLOCK = "sum_block"  # a block of a long sum: terms past its end are 0, and a loop over those before is shorter


@dataclass(frozen=True)
class Role:
    """A role: facts about a stage for code that does not know its method.

    Attributes:
        name: as in texts.
        keeps_axes: positions of axes that a schedule distinguishes: if one of them has a single element, no stage of
            the function loses an axis.
        keeps_order: stages of the function keep their written axis order, whatever the results' order is.
        any_order_sum: a sum of a few multiples in any order; docs/numerics.md says how infinities are handled.
        border_axis: the index of the axis whose tests are false in all but a few steps of a loop; None if there is
            none.
        own_memory: it is computed into memory, however cheap it is.
    """

    name: str
    keeps_axes: tuple[int, ...] = ()
    keeps_order: bool = False
    any_order_sum: bool = False
    border_axis: int | None = None
    own_memory: bool = False


_KEEPS_AXES = {WINOGRAD["input"]: (0, 1), ATTENTION["exp"]: (-2,)}
ROLES = {
    r.name: r
    for r in (
        Role(PAD, border_axis=-1),
        Role(COLUMNS, border_axis=-1),
        Role(KEYS_OF_CHUNK, border_axis=0),
        Role(WINDOW_ROWS, own_memory=True),
        Role(FOURS, own_memory=True),
        Role(POSITIONS, own_memory=True),
        *map(Role, (PANELS, SQUARES, TURNED, SAMPLES, CONV, PEAK, HEADS, PREFIX, SUM_BLOCK, UNPACKED)),
        *(
            Role(name, _KEEPS_AXES.get(name, ()), any_order_sum=True)
            for name in (*WINOGRAD.values(), *STRASSEN.values())
        ),
        *(Role(name, _KEEPS_AXES.get(name, ()), keeps_order=True) for name in ATTENTION.values()),
    )
}
_NONE = Role("")


def facts_of_role(name: str) -> Role:
    """The facts of a role; those of no role for an empty name."""
    return ROLES.get(name, _NONE)

"""Roles of te stages: what a stage is to the schedule of the method that it is a part of, whatever it is called.

An operator states them in its body (`t.map(..., role="pad")`); they go with the stage through all passes, into text as
`role(pad)`, and are compared. Schedules ask for roles, and never look at names.
"""

from __future__ import annotations

_WINOGRAD = ("columns", "input", "sum", "products", "rows", "output")
_STRASSEN = ("left", "sum", "products", "result")
_ATTENTION = ("query", "keys", "scores", "logits", "top", "exp", "total", "values", "sum", "out")

WINOGRAD = {part: f"winograd_{part}" for part in _WINOGRAD}  # set by the op `winograd`
STRASSEN = {part: f"strassen_{part}" for part in _STRASSEN}  # by `strassen`
ATTENTION = {part: f"attend_{part}" for part in _ATTENTION}  # by `attend_scores` and `attend`
PEAK = "attend_peak"  # by `attend` where rows may be empty: the top, or 0
KEYS_OF_CHUNK = "attend_chunk"  # reads keys of a chunk, its first axis; the last chunk may end beyond them
HEADS = "attend_heads"  # by `repeat_heads`: keys or values, each head for several of queries
PAD = "pad"  # a border around a tensor
PANELS = "panels"  # bytes in panels of columns, fours of rows innermost: [.., panel, four, column, byte]
COLUMNS = "columns"  # the right operand of a product in panels of columns: [.., panel, row, column]
CONV = "conv"  # sums over a window, whose rows are the positions of an image
WINDOW_ROWS = "window_rows"  # what a window in a plane takes of its columns: one row for each row of the result
SQUARES = "squares"  # what is read across the rows of a tensor
SAMPLES = "samples"  # by `deform_samples`: sums of pixels at positions from tables, channels last
SUM_BLOCK = "sum_block"  # a block of a long sum: terms are 0 beyond its end, and a loop over those before is shorter

ROLES = frozenset(
    {
        PAD,
        PANELS,
        COLUMNS,
        SQUARES,
        SAMPLES,
        CONV,
        WINDOW_ROWS,
        PEAK,
        HEADS,
        KEYS_OF_CHUNK,
        SUM_BLOCK,
        *WINOGRAD.values(),
        *STRASSEN.values(),
        *ATTENTION.values(),
    }
)

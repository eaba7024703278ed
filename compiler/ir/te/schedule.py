"""Schedules as data: directives on the stages of a te function, one to one with Halide's scheduling calls."""

from __future__ import annotations

from dataclasses import field
from math import gcd

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dim import Dim, Sym, build, cases, lower, split_constant, terms_of, upper
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AtMost:
    """The condition of a variant on run-time sizes: `left <= right`."""

    left: Dim
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} <= {self.right}"

    @property
    def always(self) -> bool:
        """Whether it holds for all sizes.

        Halide detects that too, and then drops the loops of the other schedule.
        """
        return upper(self.left - self.right) <= 0

    @property
    def never(self) -> bool:
        """Whether it holds for no sizes."""
        return lower(self.left - self.right) > 0

    @property
    def simplest(self) -> AtMost:
        """The condition as Halide simplifies it, so that Halide recognises it between two variants.

        `2*N - max(0, 2*N - 3) <= 2`, the last 3 rows, is `N <= 1`.
        """
        d = self.left - self.right
        while isinstance(d, Sym) and (found := cases(d)) is not None:
            pick, parts = found
            left = [p for p in parts if (upper(p) > 0 if pick is max else lower(p) <= 0)]
            if len(left) != 1:
                break
            (d,) = left
        variable, const = split_constant(d)
        factor = gcd(*(n for _, n in terms_of(variable))) or 1
        more = {mono: n // factor for mono, n in terms_of(variable) if n > 0}
        less = {mono: -n // factor for mono, n in terms_of(variable) if n < 0}
        most = -const // factor
        return AtMost(build(more), build(less) + most) if more else AtMost(-most, build(less))

    @classmethod
    def parsed(cls, left: Dim, comparison: str, right: Dim) -> AtMost:
        """The condition that a text states.

        Raises:
            ValueError: it uses another comparison.
        """
        if comparison != "<=":
            raise ValueError(f"a variant has a test `{comparison}`; it takes `<=`")
        return cls(left, right)


Arg = int | str | AtMost | Sym


@dataclass(frozen=True, slots=True)
class Directive:
    """`stage.call(args)`, or `stage.update.call(args)` for the update of a reduction.

    Attributes:
        stage: name of the stage.
        call: a scheduling call of Halide, of `CALLS`.
        args: names of axes, stages and tail strategies, integers, conditions, and run-time sizes.
        update: the number of the update definition that it schedules, from 1, or 0 for the initial value. A reduction
            has one; a stage computed in parts (`in_parts`) has one each, with the axis of the part.
        variant: the number of the stage's variant that it belongs to, from 1 in the order of the calls
            `stage.specialize(test)`, or 0: at run time, the first whose test holds is used.
        line: of the text that it was parsed from, or 0.
        rule: the schedule rule that made it, or empty.
    """

    stage: str
    call: str
    args: tuple[Arg, ...] = ()
    update: int = 0
    variant: int = 0
    line: int = field(default=0, compare=False)
    rule: str = field(default="", compare=False)

    def __str__(self) -> str:
        variant = f".variant{self.variant}" if self.variant else ""
        update = f".update{self.update if self.update > 1 else ''}" if self.update else ""
        args = (f"dim<{a}>" if isinstance(a, Sym) else str(a) for a in self.args)
        return f"{self.stage}{update}{variant}.{self.call}({', '.join(args)})"


AXIS, NEW, STAGE, LOOP, SOURCE, TAIL, INT, FIRST, TEST, SIZE = (
    "a loop", "a new loop", "another stage", "a loop of that stage", "a parameter", "a tail", "a number",
    "a first position",
    "a test of sizes", "a number or a size of at least 1",
)  # fmt: skip
TAILS = ("GuardWithIf", "ShiftInwards", "RoundUp", "PredicateLoads", "PredicateStores", "Predicate", "Auto")

# call -> (arguments, how many of them are required); `...` repeats the one before
CALLS: dict[str, tuple[tuple[str, ...], int]] = {
    "split": ((AXIS, NEW, NEW, SIZE, TAIL), 4),
    "fuse": ((AXIS, AXIS, NEW), 3),
    "reorder": ((AXIS, "..."), 1),
    "vectorize": ((AXIS, INT, TAIL), 1),
    "unroll": ((AXIS, INT, TAIL), 1),
    "parallel": ((AXIS,), 1),
    "compute_root": ((), 0),
    "compute_inline": ((), 0),
    "compute_at": ((STAGE, LOOP), 2),
    "store_at": ((STAGE, LOOP), 2),
    "reorder_storage": ((AXIS, "..."), 1),
    "bound": ((AXIS, FIRST, INT), 3),
    "bound_extent": ((AXIS, INT), 2),
    "align_storage": ((AXIS, INT), 2),
    "bound_storage": ((AXIS, INT), 2),
    "align_bounds": ((AXIS, INT), 2),
    "atomic": ((), 0),
    "specialize": ((TEST,), 1),
    "in_parts": ((AXIS,), 1),
    "fetch_ahead": ((SOURCE, SIZE, SIZE), 2),
    "fetch_beyond": ((SOURCE, INT, INT), 2),
    "in_tiles": ((), 0),
}
OF_STORAGE = (
    "reorder_storage",
    "bound",
    "bound_extent",
    "align_storage",
    "bound_storage",
    "align_bounds",
)  # their loops are axes of the stage

Schedule = tuple[Directive, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """The user's or tuner's schedule choices for a kernel; rules choose the rest.

    Choices that do not apply to a kernel are ignored.

    Attributes:
        vectorize: lanes of a vector; 0 to leave it to the rules.
        tile: positions along the axis before the vectors that are computed together; 0 as above.
        vectors: vectors in a tile of a product; 0 as above.
        unroll: unrolled steps of a sum in the innermost loop; 0 as above.
        block: tiles, or rows of a window, that a thread computes in order; 0 as above.
        outer: the outermost loop of a product, over `rows` or `columns`; empty as above.
        parallel: whether the outer loops run on several threads; None as above.
        compute_root: whether stages that are not reductions are computed into memory, in order, instead of inside each
            other.
    """

    vectorize: int = 0
    tile: int = 0
    vectors: int = 0
    unroll: int = 0
    block: int = 0
    outer: str = ""
    parallel: bool | None = None
    compute_root: bool = False

    @classmethod
    def parse(cls, text: str) -> Hint:
        """A hint from its text, `vectorize=8, tile=4, parallel=off, compute_root`.

        Raises:
            Invalid: an unknown choice or an invalid value.
        """
        made: dict[str, int | bool | str] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            key, _, value = (part.strip() for part in item.partition("="))
            if key not in CHOICES or value not in CHOICES[key]:
                known = "; ".join(f"{k}={', '.join(v)}" if v != ("",) else k for k, v in CHOICES.items())
                raise Invalid(f"`{item}` is not a choice of a schedule", code="OCC0610", help=f"choices: {known}")
            made[key] = value if key == "outer" else int(value) if value.isdigit() else value != "off"
        return cls(**made)  # pyright: ignore[reportArgumentType]


CHOICES = {
    "vectorize": ("2", "4", "8", "16", "32", "64"),
    "tile": tuple(map(str, range(1, 17))),
    "vectors": ("1", "2", "3", "4"),
    "unroll": ("1", "2", "4", "8", "16"),
    "block": ("1", "2", "4", "8", "16", "32", "64"),
    "outer": ("rows", "columns"),
    "parallel": ("on", "off"),
    "compute_root": ("",),
}

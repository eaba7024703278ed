"""Shape ranges: one dynamic graph for all sizes of its symbolic dims between bounds.

The graph is derived from graphs at several sets of sizes, like that of gears: what differs between them becomes an
expression in the input extents, and must hold for all sets. They include the bounds, each dim varied by itself, and
sizes that are not multiples of each other, so that no wrong expression fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import gcd

from occ.compiler.codegen_cann.graph.gears import input_shape
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.dim import Sym, Symbol, symbols
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import TensorType
from occ.runtime.dataclass import dataclass

_FORM = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?|(\?)")
_FOLLOWS = re.compile(r"(.*\S)\s*\+\s*(\d+)")
_PARTS = (0.29, 0.53, 0.83)  # fraction of the way from the lower to the upper bound
_GENERAL = 3  # the smallest extent without a special form
_LEAST_STEPS = 4  # between general sizes around gears: two sizes alone would fit too many expressions
_OPEN = 97  # steps from the lower bound, if there is no upper one


@dataclass(frozen=True)
class Range:
    """Sizes `least, least + step, ...` up to `most`; unbounded if that is None.

    Attributes:
        of: the symbol that the size always exceeds by `plus`; empty if it is free.
    """

    least: int
    most: int | None
    step: int = 1
    of: str = ""
    plus: int = 0

    def at(self, part: float) -> int:
        """A size at a fraction of the way from the lower to the upper bound.

        Not 1, for which transpositions vanish and axes are dropped, nor 2, for which recurrences are unrolled.

        If a single size is left, which would be taken for a constant, it moves on to the next one.
        """
        first = max(-(-(_GENERAL - self.least) // self.step), 0)
        steps = _OPEN if self.most is None else max((self.most - self.least) // self.step, first + 1)
        return self.least + self.step * max(round(part * steps), first)


def ranges(m: Module, options: AscendOptions) -> dict[str, Range]:
    """The range of each symbol of the inputs.

    Raises:
        CompileError: OCC0603 the option is not a list of ranges, or does not match the symbolic dims.
    """
    known = {
        name: s
        for arg in m.main.args
        if isinstance(arg.type, TensorType)
        for name, s in symbols(*arg.type.dims).items()
    }
    labels = {m.symbols[name].label: name for name in known if name in m.symbols}
    found, sums = _read(options.dynamic_ranges, known, labels)
    for name, (of, plus) in sums.items():
        if of not in found:
            raise error("OCC0603", f"`dynamic_ranges` uses `{shorten(of)}`, which has no range of its own")
        r = found[of]
        found[name] = Range(r.least + plus, None if r.most is None else r.most + plus, r.step, of, plus)
    if missing := [m.symbols[s].label if s in m.symbols else s for s in known if s not in found]:
        raise error(
            "OCC0603",
            f"`dynamic_ranges` leaves {', '.join(missing)} open",
            help="name each of them, or fix it with --dim",
        )
    return found


def _read(
    given: str, known: Mapping[str, Symbol], labels: Mapping[str, str]
) -> tuple[dict[str, Range], dict[str, tuple[str, int]]]:
    """The option as ranges by symbol, and sums: the symbol that another one exceeds by a number."""
    found: dict[str, Range] = {}
    sums: dict[str, tuple[str, int]] = {}
    for item in given.split(","):
        label, _, text = (part.strip() for part in item.rpartition("="))
        match = _FORM.fullmatch(text)
        name = labels.get(label, label)
        if name not in known:
            have = ", ".join(labels) or "none"
            raise error(
                "OCC0603",
                f"`dynamic_ranges` names `{shorten(label)}`, which is not a symbolic dim",
                help=f"there are: {have}",
            )
        sum_of = _FOLLOWS.fullmatch(text)
        if sum_of is not None and labels.get(sum_of[1], sum_of[1]) in known:
            sums[name] = labels.get(sum_of[1], sum_of[1]), int(sum_of[2])
            continue
        if match is None:
            raise error(
                "OCC0603",
                f"`dynamic_ranges` has `{shorten(item)}`",
                help="it takes NAME=1..64, NAME=32..640:32, NAME=? and NAME=OTHER+1",
            )
        least, most, step, is_open = match.groups()
        found[name] = Range(max(known[name].lo, 1), None) if is_open else Range(int(least), int(most), int(step or 1))
        r = found[name]
        if r.step < 1 or r.least < 1 or (r.most is not None and r.most <= r.least):
            raise error(
                "OCC0603", f"`{shorten(item)}` of `dynamic_ranges` has no two sizes", help="`--dim` fixes a size"
            )
    return found, sums


def around(sizes: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Sets of general sizes that span some gears; none if these are general.

    A size that exceeds another one by a fixed number in all gears keeps doing so, and steps of gears are kept: a
    network may only accept multiples of 32.
    """
    varied = [name for name in sizes[0] if len({each[name] for each in sizes}) > 1]
    if all(each[name] >= _GENERAL for each in sizes for name in varied):
        return []
    found: dict[str, Range] = {}
    for name in sorted(varied, key=lambda n: sizes[0][n]):
        values = [each[name] for each in sizes]
        step = gcd(*(v - min(values) for v in values))
        made = Range(min(values), max(*values, min(values) + _LEAST_STEPS * step), step)
        for of in (n for n, r in found.items() if not r.of):
            if len(more := {each[name] - each[of] for each in sizes}) == 1:
                made = Range(made.least, made.most, made.step, of, more.pop())
                break
        found[name] = made
    fixed = {name: size for name, size in sizes[0].items() if name not in found}
    return [fixed | each for each in samples(found)]


def samples(found: dict[str, Range]) -> list[dict[str, int]]:
    """The sets of sizes at which the graph is made."""
    free = {name: r for name, r in found.items() if not r.of}

    def each() -> Iterator[dict[str, int]]:
        yield {name: r.at(0) for name, r in free.items()}
        for name, r in free.items():
            for size in sorted({r.at(part) for part in _PARTS[:2]} - {r.at(0)}) or [r.at(1)]:
                yield {**{n: o.at(0) for n, o in free.items()}, name: size}
        for turn in range(3):
            yield {name: r.at(_PARTS[(k + turn) % 3]) for k, (name, r) in enumerate(free.items())}
        yield {name: r.at(1) for name, r in free.items()}

    made = list({tuple(sizes.values()): sizes for sizes in each()}.values())
    return [{name: sizes[name] if not r.of else sizes[r.of] + r.plus for name, r in found.items()} for sizes in made]


def arguments(m: Module, options: AscendOptions) -> list[str]:
    """The arguments of atc for the ranges of a model.

    Raises:
        CompileError: OCC0305 the name of an input is not valid in an atc argument.
    """
    if not options.dynamic_ranges:
        return []
    found = ranges(m, options)
    return [input_shape(m, "ranges", lambda d: _extent(d, found))]


def _extent(d: object, found: dict[str, Range]) -> str:
    r = found.get(str(d)) if isinstance(d, Sym) else None
    if r is None or r.most is None:
        return str(d) if isinstance(d, int) else "-1"
    return f"{r.least}~{r.most}"

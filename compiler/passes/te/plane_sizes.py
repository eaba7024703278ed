"""Dims for the numbers of tiles of a plane, with which Winograd convolutions number its tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from occ.compiler.ir.dim import Dim, Sym, symbol
from occ.compiler.ir.te.expr import Axis, Binary, Const, Expr, Index, binary, wrap
from occ.compiler.ir.te.function import AnyStage, TeFunc, TeStage
from occ.compiler.ir.te.roles import WINOGRAD
from occ.compiler.ir.te.walks import transform
from occ.compiler.passes.te.index_values import IndexValues

_COLUMNS, _ROWS = WINOGRAD["columns"], WINOGRAD["rows"]
_TILES = {WINOGRAD[part]: k for part, k in (("columns", -4), ("input", -2), ("sum", -2), ("products", -2))}
_BORDER = 8  # elements by which a plane and its border are longer, at most


def plane_sizes(f: TeFunc) -> IndexValues | None:
    """The function with dims for the tiles of its plane, down and across.

    `rows[i<7, j<7, ..] = products[.., i * 7 + j, ..]` --> `rows[i<D0, j<D1, ..] = products[.., i * dim(D1) + j, ..]`

    It is known where these numbers are: small ones could as well be taps of windows. None if blocks of tiles have no
    memory that suffices for any plane, or a stage is no part of `winograd`, no border around its operand, and no map of
    its result.
    """
    found = f.by_role
    if not found.keys() >= {*WINOGRAD.values()}:
        return None
    given, rows, output = (found[WINOGRAD[part]] for part in ("input", "rows", "output"))
    bounded = any((d.stage, d.call) == (given.name, "bound_storage") for d in f.schedule)
    numbers = [n for n in (*rows.shape[-5:-3], *output.shape[-3:-1]) if isinstance(n, int)]
    if not bounded or len(numbers) < 4:
        return None
    down, across, height, width = numbers
    if down == 1 or across == 1 or height % down or width % across:
        return None
    names = f"D{len(f.dims)}", f"D{len(f.dims) + 1}"
    tiles = symbol(names[0], 1), symbol(names[1], 1)
    more = height // down * (tiles[0] - down), width // across * (tiles[1] - across)
    plane = _Plane((height, width), across, tiles, more)
    made = [plane.stage(s) for s in f.stages]
    stages = [s for s in made if s is not None]
    if len(stages) < len(made):
        return None
    return IndexValues(replace(f, stages=tuple(stages)), {names[0]: down, names[1]: across})


@dataclass(frozen=True)
class _Plane:
    """A plane in tiles.

    Attributes:
        size: elements down and across.
        across: tiles.
        tiles: the dims, down and across.
        more: elements of a plane of these, more than `size`.
    """

    size: tuple[int, int]
    across: int
    tiles: tuple[Sym, Sym]
    more: tuple[Dim, Dim]

    def stage(self, s: AnyStage) -> TeStage | None:
        """A stage with dims, or None if it has no plane."""
        if not isinstance(s, TeStage) or len(s.axes) < 3:
            return None
        down, across = self.tiles
        if s.role in _TILES:
            at = _TILES[s.role]
            name = s.axes[at].name
            return _with(s, {at: down * across}, lambda n: self._column(n, name) if s.role == _COLUMNS else None)
        if s.role == _ROWS:
            return _with(s, {-5: down, -4: across}, lambda n: self._first_of_row(n, s.axes[-5].name))
        extents = s.shape[-3:-1]
        if not all(isinstance(n, int) and 0 <= n - k <= _BORDER for n, k in zip(extents, self.size, strict=True)):
            return None
        more = dict(zip((-3, -2), self.more, strict=True))
        by_axis = {s.axes[k].name: m for k, m in more.items()}
        return _with(s, {k: s.shape[k] + m for k, m in more.items()}, lambda n: _beyond(n, by_axis))

    def _column(self, n: Expr, tile: str) -> Expr | None:
        """Row and column of a tile: `t // 7`, `t % 7`, and elements of a row of tiles, `t // 7 * 28`."""
        match n:
            case Binary(op="floordiv" | "mod", lhs=Index(name=name), rhs=Const(value=self.across)) if name == tile:
                return binary(n.op, n.lhs, wrap(self.tiles[1]))
            case Binary(op="mul", lhs=Binary(op="floordiv"), rhs=Const(value=value)) if value == self.size[1]:
                return binary("mul", n.lhs, wrap(self.size[1] // self.across * self.tiles[1]))
            case _:
                return None

    def _first_of_row(self, n: Expr, row: str) -> Expr | None:
        """The number of the first tile of a row, `i * 7`."""
        match n:
            case Binary(op="mul", lhs=Index(name=name), rhs=Const(value=self.across)) if name == row:
                return binary("mul", n.lhs, wrap(self.tiles[1]))
            case _:
                return None


def _beyond(n: Expr, more: Mapping[str, Dim]) -> Expr | None:
    """A test for the end of a plane, `i < 57`."""
    match n:
        case Binary(op="lt", lhs=Index(name=name), rhs=Const(value=int(value))) if name in more:
            return binary("lt", n.lhs, wrap(value + more[name]))
        case _:
            return None


def _with(s: TeStage, extents: Mapping[int, Dim], of: Callable[[Expr], Expr | None]) -> TeStage:
    """A stage with other extents of some of its axes, by their negative positions, and expressions."""
    rank = len(s.axes)
    axes = tuple(Axis(a.name, extents.get(k - rank, a.extent)) for k, a in enumerate(s.axes))
    return replace(s, axes=axes, expr=transform(s.expr, of))

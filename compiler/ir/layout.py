"""Physical layouts: the order of a tensor's axes in memory, with blocks and strides.

A layout is an order of the axes plus inner tiles, spelled as a memory-format tag: axis letters `a b c ...` in memory
order, a capital where the axis is also tiled, then the tiles. `NCHW16c` is the alias of `aBcd16b`: channels in blocks
of 16, the block innermost.

A tensor may be part of a larger one: `acdb.b256` is channels-last inside a tensor with 256 channels. A kernel for any
such tensor takes `row.d<P>`, whose last axis has the extent `P` there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from occ.compiler.ir.dim import Dim, ceildiv
from occ.runtime.dataclass import dataclass

_ALIASES = {"NCHW16c": "aBcd16b", "NCHW8c": "aBcd8b", "NCW16c": "aBc16b", "NCW8c": "aBc8b"}
_NAMES = {tag: alias for alias, tag in _ALIASES.items()}


@dataclass(frozen=True)
class Layout:
    """Axes in memory order and the tiles inside them.

    Attributes:
        order: a permutation of the axes, outermost first; empty means row-major of any rank.
        tiles: (axis, size) pairs, outermost first; each splits its axis, the tile moving to the end.
        within: (axis, extent) pairs: an axis's extent in the surrounding tensor, if that may be larger.
            It only determines the strides of elements.
    """

    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, int], ...] = ()
    within: tuple[tuple[int, Dim], ...] = ()

    @property
    def is_row_major(self) -> bool:
        return not self.tiles and self.order == tuple(range(len(self.order)))

    @property
    def is_permuted(self) -> bool:
        """Whether only the order of the axes differs from row-major."""
        return not self.tiles and not self.is_row_major

    @cached_property
    def tag(self) -> str:
        """The memory-format tag, or its common alias (`NCHW16c`)."""
        any_extents = [str(n) for _, n in self.within if not isinstance(n, int)]
        around = "".join(f".{_letter(axis)}{n if isinstance(n, int) else ''}" for axis, n in self.within)
        around += f"<{','.join(any_extents)}>" if any_extents else ""
        if not self.order:
            return f"row{around}"
        tiled = {axis for axis, _ in self.tiles}
        letters = "".join(_letter(axis).upper() if axis in tiled else _letter(axis) for axis in self.order)
        tag = letters + "".join(f"{size}{_letter(axis)}" for axis, size in self.tiles)
        return _NAMES.get(tag, tag) + around

    @classmethod
    def parse(cls, tag: str, extents: Sequence[Dim] = ()) -> Layout:
        """The layout for a tag; `extents` are those of `within` that are not numbers, in order.

        Raises:
            ValueError: the tag is not one.
        """
        tag, *around = tag.split(".")
        found = [re.fullmatch(r"([a-z])(\d*)", part) for part in around]
        given = iter(extents)
        within = tuple(
            (ord(part[1]) - ord("a"), int(part[2]) if part[2] else next(given, 0)) for part in found if part is not None
        )
        if len(within) != len(around) or next(given, None) is not None or any(n == 0 for _, n in within):
            raise ValueError(f"`{'.'.join(around)}` is not part of a layout")
        if tag == "row":
            return cls(within=within)
        match = re.fullmatch(r"([A-Za-z]+)((?:\d+[a-z])*)", _ALIASES.get(tag, tag))
        if not match:
            raise ValueError(f"`{tag}` is not a layout")
        order = tuple(ord(c) - ord("a") for c in match[1].lower())
        tiles = tuple((ord(c) - ord("a"), int(n)) for n, c in re.findall(r"(\d+)([a-z])", match[2]))
        if sorted(order) != list(range(len(order))) or any(a not in order for a, _ in tiles):
            raise ValueError(f"`{tag}` is not a layout")
        return cls(order, tiles, within)

    def physical_shape(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Extents in memory order; a tiled axis is rounded up to whole tiles."""
        if not self.order:
            return shape
        tiles = dict(self.tiles)
        outer = [ceildiv(shape[axis], tiles[axis]) if axis in tiles else shape[axis] for axis in self.order]
        return (*outer, *(size for _, size in self.tiles))

    def memory_shape(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The shape in memory, of the surrounding tensor for a part; its outermost extent may be larger."""
        return self.physical_shape(tuple(dict(self.within).get(k, n) for k, n in enumerate(shape)))

    def moved(self, axes: Sequence[int]) -> tuple[tuple[int, Dim], ...]:
        """`within` after a transposition: axis k of the new tensor is axis `axes[k]` of this one."""
        return tuple((k, dict(self.within)[a]) for k, a in enumerate(axes) if a in dict(self.within))

    def __str__(self) -> str:
        return self.tag


def _letter(axis: int) -> str:
    return chr(ord("a") + axis)


ROW = Layout()


def channels_last(rank: int) -> Layout:
    """Axis 1 innermost: `NHWC` for images, where `channels_last(4)` is `acdb`."""
    return Layout((0, *range(2, rank), 1))


def panels(rank: int, axis: int, width: int) -> Layout:
    """Panels of `width` along one axis: `axis` blocks outermost, the block innermost (packed GEMM and conv weights).

    `panels(2, 1, 32)` of a (K, N) matrix is `Ba32b`: one panel is a contiguous stream of K rows of 32.
    """
    others = tuple(a for a in range(rank) if a != axis)
    return Layout((axis, *others), ((axis, width),))


def in_panels(
    shape: Sequence[Dim],
    axis: int,
    order: Sequence[int],
    lanes: int,
    least: int,
    inner: tuple[tuple[int, int], ...] = (),
) -> Layout | None:
    """A constant operand as a kernel streams it: `order` of axes, in panels of `panel_width` along `axis`.

    Args:
        shape: of the operand; the extent of `axis` is constant.
        axis: the axis that only this operand has: vectors run along it.
        order: of the axes, outermost first, before the panels.
        lanes: elements of a vector.
        least: extent of `axis` below which there are no panels, and the result is None.
        inner: tiles inside of a panel, as in `Layout.tiles`.
    """
    extent = shape[axis]
    assert isinstance(extent, int), "constants have constant extents"
    width = panel_width(extent, lanes, least)
    return Layout(tuple(order), ((axis, width), *inner)) if width else None


# From here on, one more vector as padding costs less than tiles of a single vector. Of 8 lanes few are enough: AVX2
# loads an element for each multiply-add of such a tile; AVX-512 and NEON multiply by one in memory or in a lane. 196
# columns take 0.75 of the time, a PP-OCR classifier 0.96, a ShuffleNet 0.97 (Zen 4).
_MANY_VECTORS = 64
_MANY_SHORT_VECTORS = 4
# Five of 8 lanes are a panel without padding, for tiles of two rows. 1x1 convolutions of 40 filters take 0.93 of the
# time, of codes 0.62, Winograd's method 0.85, a PP-OCR classifier 0.97, a ShuffleNet, with 34, 0.98 (Zen 4).
_ONE_PANEL = 5


def panel_width(extent: int, lanes: int, least: int) -> int:
    """Two vectors; three, five or one if the number of vectors is odd and small for vectors of these lanes.

    0 if panels would be mostly padding.
    """
    if extent < least:
        return 0
    while lanes >= 2 * max(extent, 4):
        lanes //= 2
    count = -(-extent // lanes)
    if lanes == 8 and count == _ONE_PANEL:
        return lanes * count
    many = _MANY_SHORT_VECTORS if lanes == 8 else _MANY_VECTORS
    return lanes * next((k for k in (2, 3) if count % k == 0), 1 if count < many else 2)


def pack(data: np.ndarray, layout: Layout) -> np.ndarray:
    """A row-major array converted to a layout; the tail of a tiled axis is filled with zeros.

    Shape `data.shape` in, `layout.physical_shape(data.shape)` out.
    """
    if not layout.order:
        return data
    tiles = dict(layout.tiles)
    assert len(tiles) == len(layout.tiles), "an axis has two tiles"
    margins = [(0, -n % tiles.get(axis, 1)) for axis, n in enumerate(data.shape)]
    if any(after for _, after in margins):
        data = np.pad(data, margins)
    split: list[int] = []
    outer: dict[int, int] = {}
    inner: dict[int, int] = {}
    for axis, n in enumerate(data.shape):
        outer[axis] = len(split)
        split.append(n // tiles.get(axis, 1))
        if axis in tiles:
            inner[axis] = len(split)
            split.append(tiles[axis])
    order = [outer[a] for a in layout.order] + [inner[a] for a, _ in layout.tiles]
    return np.ascontiguousarray(data.reshape(split).transpose(order))


def unpack(data: np.ndarray, layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `pack`: a row-major array of `shape`."""
    if not layout.order:
        return data
    tiles = dict(layout.tiles)
    position = {("outer", a): k for k, a in enumerate(layout.order)}
    position |= {("inner", a): len(layout.order) + k for k, (a, _) in enumerate(layout.tiles)}
    order: list[int] = []
    merged: list[int] = []
    for axis, n in enumerate(shape):
        order.append(position["outer", axis])
        if axis in tiles:
            order.append(position["inner", axis])
        merged.append(-(-n // tiles.get(axis, 1)) * tiles.get(axis, 1))
    return data.transpose(order).reshape(merged)[tuple(slice(n) for n in shape)]

"""Loads of a tile whose lanes are far apart, but whose rows are adjacent: whole vectors, transposed in registers."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from occ.compiler.codegen_llvm.expressions import Expressions
from occ.compiler.codegen_llvm.lane_steps import NEAR, flat_offset, lane_step
from occ.compiler.codegen_llvm.memory import Env
from occ.compiler.codegen_llvm.values import lanes, undefined
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.te.expr import Load
from occ.compiler.ir.te.function import TeStage
from occ.compiler.ir.te.index import axis_symbols, to_dim
from occ.compiler.ir.te.walks import walk
from occ.compiler.native_entry.builder import Builder
from occ.compiler.native_entry.types import I32, I64

_BLOCK_BITS = 128  # within which every processor interleaves elements
_LEAST = 4  # positions on an axis from which on a tile pays


class _FarApart(NamedTuple):
    """The offset of a load, in elements, and the stride of its lanes."""

    flat: Dim
    step: Dim


def transposed_axis(s: TeStage, vector: str, sources: Mapping[str, tuple[Dim, ...]]) -> tuple[str, int]:
    """The axis along which distant lanes are adjacent, and the bytes of an element; or ("", 0)."""
    symbols = axis_symbols((*s.axes,))
    extents = {a.name: a.extent for a in s.axes}
    if _is_short(extents[vector]):
        return "", 0
    for load in (n for n in walk(s.expr) if isinstance(n, Load)):
        if (found := _far_apart(load, vector, symbols, sources)) is None:
            continue
        for a in s.axes:
            if a.name != vector and not _is_short(a.extent) and lane_step(found.flat, a.name, 1) == 1:
                return a.name, load.dtype.itemsize
    return "", 0


def _is_short(extent: Dim) -> bool:
    return isinstance(extent, int) and extent < _LEAST


def _far_apart(
    load: Load, vector: str, symbols: Mapping[str, Dim], sources: Mapping[str, tuple[Dim, ...]]
) -> _FarApart | None:
    """A load whose lanes are far, but equally far, apart; None for others."""
    index = [d for i in load.index if (d := to_dim(i, symbols)) is not None]
    if len(index) < len(load.index):
        return None
    flat = flat_offset(index, sources[load.source])
    step = lane_step(flat, vector, 1)
    if step is None or (isinstance(step, int) and -NEAR <= step <= NEAR):
        return None
    return _FarApart(flat, step)


def tile_width(width: int, itemsize: int, vector_bits: int, *, copies: bool) -> int:
    """Lanes, and rows, of a tile of elements.

    Args:
        width: lanes of the arithmetic.
        itemsize: bytes of an element.
        vector_bits: of the machine.
        copies: whether nothing is computed.
    """
    most = max(vector_bits // (8 * itemsize), 2)
    return min(max(width, _BLOCK_BITS // (8 * itemsize)) if copies else width, most)


class TransposedLoads(Expressions):
    """Expressions in tiles of rows."""

    def _load_transposed(self, s: TeStage, tile: str, envs: Sequence[Env]) -> None:
        """Evaluate loads for adjacent positions on the axis `tile`, from `envs[0]` on."""
        first, width = envs[0], envs[0].width
        for load in (n for n in walk(s.expr) if isinstance(n, Load)):
            found = _far_apart(load, first.vector, self.symbols, self.f.shapes)
            if found is None or lane_step(found.flat, tile, 1) != 1 or not self._stays_within(load):
                continue
            start, apart = self._at_lane_0(found.flat, first), self.size(found.step, first.axes)
            rows = [self._row(load, self._lane_start(start, apart, k, first), len(envs), width) for k in range(width)]
            for env, value in zip(envs, transpose(self.b, rows), strict=False):
                env.memo[id(load)] = (load, self.o.from_memory(value, load.dtype))

    def _lane_start(self, start: Any, apart: Any, k: int, env: Env) -> Any:
        """The offset of lane `k`; of lane 0 where `k` is masked."""
        moved = self.b.mul(I64(k), apart)
        if env.tail is not None and k:
            inside = self.b.extract_element(env.tail, I32(k))
            if isinstance(env.tail, ir.Constant):
                inside = env.tail.constant[k]
            moved = self.b.select(inside, moved, I64(0))
        return self.b.add(start, moved)

    def _row(self, e: Load, offset: Any, count: int, width: int) -> Any:
        """`count` adjacent elements from an offset on, in a vector of `width`."""
        loaded = self._vector(e, offset, None, count)
        if count == width:
            return loaded
        places = [I32(min(k, count)) for k in range(width)]  # `count` is the first one of the undefined vector
        return self.b.shuffle_vector(loaded, undefined(loaded.type), ir.Constant(ir.VectorType(I32, width), places))


def transpose(b: Builder, rows: Sequence[Any]) -> list[Any]:
    """The columns of as many vectors as each has lanes, a power of two.

    Elements are interleaved within blocks of 128 bits first, since that is one instruction everywhere, and then whole
    blocks of vectors are exchanged.
    """
    n = lanes(rows[0])
    bits = {"half": 16, "float": 32, "double": 64}.get(str(rows[0].type.element)) or rows[0].type.element.width
    group = min(max(_BLOCK_BITS // bits, 1), n)
    inside = [c for k in range(0, n, group) for c in _interleaved(b, rows[k : k + group], group)]
    # `inside[g * group + j]` has, in its block q, column q * group + j of the rows of group g.
    columns: dict[int, Any] = {}
    for j in range(group):
        swapped = _blocks_swapped(b, inside[j::group], group)
        columns |= {q * group + j: v for q, v in enumerate(swapped)}
    return [columns[k] for k in range(n)]


def _interleaved(b: Builder, rows: Sequence[Any], group: int) -> list[Any]:
    """A transposition within each block of `group` lanes of as many vectors, by interleaving halves of blocks."""
    current, n, half = list(rows), lanes(rows[0]), group // 2
    low = [block + k // 2 + (n if k % 2 else 0) for block in range(0, n, group) for k in range(group)]
    for _ in range(group.bit_length() - 1):
        pairs = list(zip(current[:half], current[half:], strict=True))
        current = [_shuffled(b, x, y, [p + high for p in low]) for x, y in pairs for high in (0, half)]
    return current


def _blocks_swapped(b: Builder, vectors: Sequence[Any], group: int) -> list[Any]:
    """A transposition of blocks of `group` lanes, of as many vectors as each has blocks."""
    current, n = list(vectors), lanes(vectors[0])
    count = len(current)
    distance = 1
    while distance < count:
        for i in (i for i in range(count) if not i & distance):
            x, y = current[i], current[i + distance]
            first = [k if not q & distance else n + k - distance * group for k, q in _places(n, group)]
            second = [k + distance * group if not q & distance else n + k for k, q in _places(n, group)]
            current[i], current[i + distance] = _shuffled(b, x, y, first), _shuffled(b, x, y, second)
        distance *= 2
    return current


def _places(n: int, group: int) -> list[tuple[int, int]]:
    """Each lane and its block."""
    return [(k, k // group) for k in range(n)]


def _shuffled(b: Builder, x: Any, y: Any, places: Sequence[int]) -> Any:
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(places)), [I32(p) for p in places]))

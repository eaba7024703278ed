"""Random operand shapes that are valid for an operator, for `occ check-rules`.

Each takes the random source, an operand's position, and the shapes of the others as far as they are known; None leaves
the choice to broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # importing it takes 20 ms
    from numpy.random import Generator

Shape = tuple[int, ...]


class Draw(Protocol):
    """The source of random shapes."""

    rng: Generator

    def shape(self, rank: int | None = None, least: int = 1) -> Shape:
        """A random shape with extents of at least `least`, and a random rank unless one is given."""
        ...


Sample = Callable[[Draw, int, Sequence[Shape | None]], Shape | None]


def of_rank(rank: int) -> Sample:
    """Operands of one rank."""
    return lambda draw, k, shapes: draw.shape(rank)


def picture(draw: Draw, k: int, shapes: Sequence[Shape | None]) -> Shape | None:
    """Batch, channels, and one or two spatial axes."""
    return draw.shape(int(draw.rng.integers(3, 5)), least=2)


def convolved(draw: Draw, k: int, shapes: Sequence[Shape | None]) -> Shape | None:
    """An image, filters with one or two taps, and a number per filter."""
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else None
    if k == 1 and x is not None:
        return (int(draw.rng.integers(1, 4)), x[1], *(int(draw.rng.integers(1, 3)) for _ in x[2:]))
    return (w[0],) if k > 1 and w is not None else picture(draw, k, shapes)


def matrices(draw: Draw, k: int, shapes: Sequence[Shape | None]) -> Shape | None:
    """Two matrices that can be multiplied."""
    other = shapes[1 - k] if len(shapes) > 1 and k < 2 else None
    if other is None or len(other) < 2:
        return draw.shape(2)
    n = int(draw.rng.integers(1, 4))
    return (other[-1], n) if k == 1 else (n, other[-2])


def per_channel(draw: Draw, k: int, shapes: Sequence[Shape | None]) -> Shape | None:
    """An image, then a number per channel."""
    x = shapes[0]
    if k == 0 or x is None or len(x) < 2:
        return draw.shape(4, least=2)
    return (x[1],)


def scalars_after_first(draw: Draw, k: int, shapes: Sequence[Shape | None]) -> Shape | None:
    """Any tensor, then scalars."""
    return () if k else None


def same_shapes(draw: Draw, k: int, shapes: Sequence[Shape | None]) -> Shape | None:
    """The same shape for all operands."""
    return next((s for s in shapes if s is not None), None) or draw.shape(2)

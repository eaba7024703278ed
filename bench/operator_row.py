"""A row of `bench/operators.py`: one node, in ONNX's textual syntax.

In the shape of an input an upper-case letter is an extent that stays symbolic in the symbolic form of a row; a lower-case one is
always fixed. `T` stands for the element type. A letter has one extent for all sizes, or one each for small, medium and large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Extents = Mapping[str, int | tuple[int, int, int]]
Range = tuple[float | str, float | str]


@dataclass(frozen=True)
class Row:
    """One operator, at three sizes.

    Attributes:
        operator: its name, with a remark where there are several rows of one.
        inputs: as of a graph in ONNX syntax, a name each: `T[N,c] x`.
        node: its outputs are those of the model; `%h` stands for the extent h.
        extents: of the letters.
        types: element types that stand for T; the first at all sizes, the others at medium size alone.
        weights: inputs that are constants, at random.
        constants: constant inputs: integers or texts of letters, or real numbers.
        ranges: bounds of random values, the upper one excluded for integers unless it is the lower one too; letters are extents.
        opset: of ai.onnx.
        tolerance: where onnxruntime rounds what the operator does not ask for, as a share of the largest value.
    """

    operator: str
    inputs: str
    node: str
    extents: Extents
    types: tuple[str, ...] = ("float",)
    weights: Sequence[str] = ()
    constants: Mapping[str, Sequence[int | str | float] | float | int] = field(
        default_factory=dict[str, "Sequence[int | str | float] | float | int"]
    )
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    opset: int = 22
    tolerance: float = 0.0


LINE: Extents = {"N": (1, 64, 1024), "C": (1000, 1024, 2048)}
ROWS_OF: Extents = {"N": (1, 128, 2048), "C": 768}
IMAGE: Extents = {"N": 1, "c": (16, 64, 64), "H": (14, 56, 160), "W": (14, 56, 160)}
REALS = ("float", "float16")

"""Values: operands and results of ops.

Use lists are kept by `Op`; nothing else writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from occ.compiler.ir.dtype import from_numpy
from occ.compiler.ir.types import TensorType, Type

if TYPE_CHECKING:
    from occ.compiler.ir.op import Op, Region


class Value:
    """An SSA value: a result of an op, or an argument of a region.

    Attributes:
        type: None until inference has determined it.
        name: a hint for printing; made unique on print.
        owner: the op or the region that defines it.
        uses: the (op, operand index) pairs that read it, in order of creation.
    """

    __slots__ = ("name", "owner", "type", "uses")

    def __init__(self, type: Type | None, name: str, owner: Op | Region | None = None) -> None:  # noqa: A002
        self.type, self.name, self.owner = type, name, owner
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor type."""
        assert isinstance(self.type, TensorType), f"%{self.name} is {self.type or 'untyped'}, not a tensor"
        return self.type

    @property
    def users(self) -> list[Op]:
        """The ops that read the value, each once."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def replace_uses(self, new: Value, outside: Iterable[Op] = ()) -> None:
        """Redirect the readers of this value to another one; names and locations stay, see `Rewriter.replace_value`.

        Args:
            new: the value to read instead.
            outside: ops that keep reading this value.
        """
        staying = set(outside)
        for user, k in list(self.uses):
            if user not in staying:
                user.set_operand(k, new)

    @property
    def defining_op(self) -> Op | None:
        """The op that computes the value; None for region arguments and weights."""
        from occ.compiler.ir.op import Op

        return self.owner if isinstance(self.owner, Op) else None

    def __repr__(self) -> str:
        return f"<%{self.name}: {self.type}>"


class Weight(Value):
    """A constant of the module.

    `data` is an array, or a view of a mapped file; it is never copied into text.
    """

    __slots__ = ("data",)

    def __init__(self, name: str, data: np.ndarray, type: TensorType | None = None) -> None:  # noqa: A002
        super().__init__(type or TensorType(from_numpy(data.dtype), data.shape), name)
        self.data = data

    def __repr__(self) -> str:
        return f"<@{self.name}: {self.type}>"

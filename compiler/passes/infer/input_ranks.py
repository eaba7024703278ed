"""Infers undeclared input ranks from the operators that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops import elementwise
from occ.compiler.ir.symbol_names import symbol_name
from occ.compiler.ir.types import TensorType


def find_ranks(m: Module) -> None:
    """Infer the rank of inputs without one from their readers, with a symbol for each extent.

    `%y = Conv(%x, @w)`, where `@w` has four axes --> `%x: f32[x_0,x_1,x_2,x_3]`
    """
    for arg in m.main.args:
        if isinstance(arg.type, TensorType) and arg.type.shape is None:
            rank = _wanted(arg, set())
            if rank is not None:
                names = (symbol_name(f"{arg.name}_{k}") for k in range(rank))
                arg.type = TensorType(arg.type.dtype, tuple(m.fresh_symbol(n, label=n) for n in names))


def _of_constant(k: int) -> Callable[[Op], int | None]:
    """The rank of a constant operand, such as the weight of a convolution."""
    return lambda op: v.data.ndim if k < len(op.operands) and isinstance(v := op.operands[k], Weight) else None


def _of_window(op: Op) -> int:
    return 2 + len(op.a.kernel_shape)


def _of_length(k: int, parts: int = 1) -> Callable[[Op], int | None]:
    """The rank from the length of a constant operand, or half of it for pairs."""

    def rank(op: Op) -> int | None:
        v = op.operands[k] if k < len(op.operands) else None
        return v.data.size // parts if isinstance(v, Weight) and v.data.size else None

    return rank


# Rank of an operator's first operand, where it is fixed.
_RANKS: Mapping[str, Callable[[Op], int | None]] = {
    "Conv": _of_constant(1), "ConvTranspose": _of_constant(1), "ConvInteger": _of_constant(1),
    "QLinearConv": _of_constant(3),
    "MaxPool": _of_window, "AveragePool": _of_window, "LpPool": _of_window, "Gemm": lambda _: 2,
    "LSTM": lambda _: 3, "GRU": lambda _: 3, "RNN": lambda _: 3,
    "Transpose": lambda op: None if op.a.perm is None else len(op.a.perm),
    "Pad": lambda op: None if len(op.operands) > 3 else _of_length(1, 2)(op),
    "Resize": lambda op: None if op.a.axes is not None else _of_length(2)(op) or _of_length(3)(op),
    "Tile": _of_length(1), "SpaceToDepth": lambda _: 4, "DepthToSpace": lambda _: 4,
}  # fmt: skip
# Operators whose result has the rank of the first operand, if the others are scalars.
_KEEP = frozenset(
    [*(s.name for s in elementwise.ALL), "Identity", "BatchNormalization", "QuantizeLinear", "DequantizeLinear", "LRN"]
)


def _wanted(value: Value, seen: set[Value]) -> int | None:
    """The rank that a reader of the value requires, or a reader of a value of the same rank."""
    if value in seen:
        return None
    seen.add(value)
    for op, k in value.uses:
        found = _RANKS[op.name](op) if k == 0 and op.name in _RANKS else None
        if found is None and op.name in _KEEP and _is_alone(op, value):
            found = _wanted(op.results[0], seen)
        if found is not None:
            return found
    return None


def _is_alone(op: Op, value: Value) -> bool:
    """Whether no other broadcast operand adds axes."""
    if op.name in ("BatchNormalization", "QuantizeLinear", "DequantizeLinear"):
        return op.operands[0] is value
    return all(v is value or (isinstance(v, Weight) and v.data.size == 1 and v.data.ndim <= 1) for v in op.inputs)

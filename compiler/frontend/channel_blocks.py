"""Reads the blocked channel layout of onnxruntime's optimiser (`com.microsoft.nchwc`).

The compiler chooses layouts itself, so all images are `[N, C, H, W]` here, and only the block size matters, for the
order of stored weights. The file does not state it, but usually something implies it: weights for 24 channels cannot be
blocks of 16, and 8 channels in the space of 16 cannot be blocks of 8.
"""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.diagnostics import error
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.contrib.nchwc import DOMAIN
from occ.compiler.ir.rewriter import Rewriter
from occ.runtime import machine

_SIZES = (8, 16)  # on processors with AVX or less, and with AVX-512 or NEON
_STORED = ("Conv", "ReorderInput")  # operators for which the block size matters
# Operators that may read blocked channels unknowingly.
_ANY_ORDER = frozenset((
    "Add", "Clip", "Concat", "Div", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mish", "Mul",
    "Relu", "Sigmoid", "Softplus", "Sub", "Sum", "Swish", "Tanh", "com.microsoft.Gelu", "com.microsoft.QuickGelu",
    "yield",
))  # fmt: skip


def read_channel_blocks(m: Module) -> None:
    """Set `block` on operators of `com.microsoft.nchwc`, and remove conversions to and from a block axis.

    If nothing in the file decides the block size, it is the one that onnxruntime uses on this machine.

    Raises:
        CompileError: OCC0107 an operator reads blocked channels although no optimiser produces that, or block sizes
            differ.
    """
    ops = [op for func in m.funcs.values() for op in func.body.walk()]
    found = [op for op in ops if op.name.startswith(f"{DOMAIN}.")]
    if not found:
        return
    said = {size: op for op in found for size in _said(op)}
    if len(said) > 1:
        raise error("OCC0107", "channels are in blocks of 8 and of 16 in one file", where=str(said[_SIZES[0]].loc))
    block = next(iter(said), 0) or _here()
    for op in found:
        if op.name.removeprefix(f"{DOMAIN}.") in _STORED:
            op.attrs["block"] = block
    _drop_views(m, ops, block)


def _here() -> int:
    flags = machine.flags()
    return 16 if "avx512f" in flags or "asimd" in flags else 8


def _said(op: Op) -> Iterator[int]:
    """The block size, if an operator allows only one."""
    match op.name.removeprefix(f"{DOMAIN}."):
        case "Conv" if _room(op) % 16:
            yield 8
        case "ReorderOutput":
            maker = op.operands[0].defining_op if op.operands and op.operands[0] is not None else None
            room, channels = _room(maker), op.attrs.get("channels", 0)
            fits = [size for size in _SIZES if isinstance(channels, int) and room == -(-channels // size) * size]
            if len(fits) == 1:
                yield fits[0]
        case _:
            pass
    for reader in (user for value in op.results for user in value.users):
        shape = _constant_shape(reader)
        if len(shape) == 5 and shape[-1] in _SIZES:
            yield shape[-1]


def _room(op: Op | None) -> int:
    """Result channels of a convolution, rounded up to whole blocks; 0 for another operator."""
    weight = op.operands[1] if op is not None and op.name == f"{DOMAIN}.Conv" and len(op.operands) > 1 else None
    return weight.data.shape[0] if isinstance(weight, Weight) and weight.data.ndim == 4 else 0


def _constant_shape(op: Op) -> tuple[int, ...]:
    shape: Value | None = op.operands[1] if op.name == "Reshape" and len(op.operands) == 2 else None
    return tuple(int(d) for d in shape.data) if isinstance(shape, Weight) and shape.data.ndim == 1 else ()


def _is_view(op: Op, block: int) -> bool:
    """Whether an op adds or removes a block axis."""
    match _constant_shape(op):
        case (0, _, 0, 0):
            return True
        case (0, _, 0, 0, last):
            return last == block
        case _:
            return False


def _drop_views(m: Module, ops: list[Op], block: int) -> None:
    """Replace images of `[N, C / block, H, W, block]`, used in broadcasting sums, by the original `[N, C, H, W]`."""
    rw, in_blocks = Rewriter(m), set[Value]()
    for op in ops:
        ours = op.name.startswith(f"{DOMAIN}.")
        source = op.operands[0] if op.operands else None
        if ours and not op.name.endswith(".ReorderOutput"):
            in_blocks.update(op.results)
        elif not ours and any(v in in_blocks for v in op.operands if v is not None):
            if source is not None and _is_view(op, block):
                rw.replace(op, [source])
                continue
            if op.name not in _ANY_ORDER:
                raise error("OCC0107", f"`{op.name}` reads channels in onnxruntime's blocked layout", where=str(op.loc))
            in_blocks.update(op.results)

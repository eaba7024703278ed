"""KV caches of 8-bit codes: a quarter of the memory."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.ir.dtype import F16, F32, I8
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class QuantizeCaches(Pass):
    """Stores growing KV caches as i8 codes, with a scale for each head of each token.

    The scales are caches of their own. New entries are quantised once, when they are appended. Attention reads codes
    and scales where they are.

    `func(%past: f32[P,N,3,64]) { %present = append(%new, %past)  return %present : f32[P + S,N,3,64] }` -->
    `func(%past: i8[P,N,3,64], %past.scale: f32[P,N,3]) { %s = head_scales(%new)  %c = head_codes(%new, %s)
    %present = append(%c, %past)  %present.scale = append(%s, %past.scale)  return %present, %present.scale }`, and
    readers of `%present` get `head_values(%present, %present.scale)`.
    """

    name: ClassVar[str] = "quantize-caches"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, made = Rewriter(m), 0
        for op in list(m.main.body):
            if op.name == "append" and (past := _cache(op, m.main)) is not None:
                _quantize(op, past, m.main, rw)
                made += 1
        rw.hits[self.name] += made
        return finish(rw, ctx, made)


def _cache(op: Op, main: Func) -> Value | None:
    """The input that an output continues, of floating-point rows for each head, with no other reader."""
    past, results = op.operands[1], main.body.terminator.operands
    if past is None or past not in main.args or len(past.uses) != 1 or results.count(op.result) != 1:
        return None
    return past if past.tensor.dtype in (F32, F16) and past.tensor.rank > 2 else None


def _quantize(op: Op, past: Value, main: Func, rw: Rewriter) -> None:
    new, name, old = op.operands[0], op.result.name, past.tensor
    past.type = TensorType(I8, old.dims)
    past_scales = main.body.add_arg(TensorType(F32, old.dims[:-1]), f"{past.name}.scale")
    b = rw.builder(op)
    new_scales = b.head_scales(new)
    codes, scales = b.append(b.head_codes(new, new_scales), past), b.append(new_scales, past_scales)
    end = main.body.terminator
    k = end.operands.index(op.result)
    result = main.result_names[k]
    rw.replace_operands(end, [*(codes if v is op.result else v for v in end.operands), scales])
    main.result_names.append(f"{result}.scale")
    rw.replace(op, [b.head_values(codes, scales, to=old.dtype)])
    codes.name, scales.name = name, f"{name}.scale"

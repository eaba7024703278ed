"""Changes the element types of a model's inputs and outputs."""

from __future__ import annotations

from typing import ClassVar

from occ.compiler.diagnostics import closest, error, shorten
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass

_TYPES: dict[str, DType] = {
    "FP32": F32, "FP16": F16, "UINT8": U8, "INT8": I8, "INT16": I16, "UINT16": U16, "INT32": I32, "UINT32": U32,
    "INT64": I64,
    "UINT64": U64, "DOUBLE": F64,
}  # fmt: skip


@dataclass(frozen=True)
class CastPorts(Pass):
    """Changes inputs from FLOAT to FLOAT16, and outputs to other types, as `atc --input_fp16_nodes` and `--output_type` do.

    `func @main(%x: f32[2]) -> (%y: f32[2]) { %y = Relu(%x) }` -->
    `func @main(%x: f16[2]) -> (%z: f16[2]) { %a = Cast(%x) : f32[2]  %y = Relu(%a)  %z = Cast(%y) : f16[2] }`
    """

    inputs: str = ""  # names, separated by `;`
    outputs: str = (
        ""  # one type for all, or NAME:TYPE;OTHER:TYPE; a node name means its first result, NODE:1 its second
    )

    name: ClassVar[str] = "cast-ports"

    def run(self, m: Module, ctx: Context) -> bool:
        rw, changed = Rewriter(m), 0
        for name in filter(None, (n.strip() for n in self.inputs.split(";"))):
            changed += self._cast_input(m, rw, name)
        if self.outputs.strip():
            changed += self._cast_outputs(m, rw)
        return finish(rw, ctx, changed)

    def _cast_input(self, m: Module, rw: Rewriter, name: str) -> bool:
        args = {a.name: a for a in m.main.args}
        arg = args.get(name)
        if arg is None:
            known = closest(name, args) or f"inputs: {', '.join(shorten(a, 60) for a in args)}"
            raise error("OCC0603", f"`input_fp16_nodes` names `{shorten(name)}`, which is not an input", help=known)
        if arg.tensor.dtype is F16:
            return False
        if arg.tensor.dtype not in (F32, F64):
            raise error(
                "OCC0603",
                f"`input_fp16_nodes` names `{shorten(name)}`, which is {arg.tensor.dtype}",
                help="inputs of floats can be FLOAT16",
            )
        first = next(iter(m.main.body))
        uses = list(arg.uses)
        to, arg.type = arg.tensor.dtype, TensorType(F16, arg.tensor.shape)
        cast = rw.builder(first).Cast(arg, to=to)
        for op, k in uses:
            rw.replace_operand(op, k, cast)
        return True

    def _cast_outputs(self, m: Module, rw: Rewriter) -> int:
        end = m.main.body.terminator
        wanted = self._wanted(m, end)
        b: GraphBuilder = rw.builder(end)
        changed = 0
        for k, dtype in wanted.items():
            value = end.operands[k]
            if value is None or not isinstance(value.type, TensorType) or value.tensor.dtype is dtype:
                continue
            rw.replace_operand(end, k, b.Cast(value, to=dtype))
            changed += 1
        return changed

    def _wanted(self, m: Module, end: Op) -> dict[int, DType]:
        """The types by output position."""
        if ":" not in self.outputs:
            return dict.fromkeys(range(len(end.operands)), _type(self.outputs))
        made: dict[int, DType] = {}
        for item in filter(None, (i.strip() for i in self.outputs.split(";"))):
            name, _, text = item.rpartition(":")
            places = [
                k
                for k, (known, value) in enumerate(zip(m.main.result_names, end.operands, strict=True))
                if name == known or (value is not None and name in _names(value))
            ]
            if not places:
                known = ", ".join(f"`{shorten(n, 60)}`" for n in m.main.result_names)
                raise error(
                    "OCC0603",
                    f"`output_type` names `{shorten(name)}`, which is not an output",
                    help=f"outputs: {known}",
                )
            made |= dict.fromkeys(places, _type(text))
        return made


def _type(text: str) -> DType:
    found = _TYPES.get(text.strip())
    if found is None:
        raise error("OCC0603", f"`output_type` has the type `{shorten(text)}`", help=f"one of: {', '.join(_TYPES)}")
    return found


def _names(value: Value) -> set[str]:
    """How `atc` names a result: its node and its index."""
    op = value.defining_op
    if op is None:
        return set()
    node, k = str(op.loc), op.results.index(value)
    return {f"{node}:{k}", *((node,) if k == 0 else ())}

"""Operators of AMCT and torch_npu that become GE nodes of the same name.

They have no ONNX operator. Their GE prototypes define what they accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from occ.compiler.codegen_cann.graph.graph import Desc, Ref
from occ.compiler.codegen_cann.graph.prototypes import Formal, FormalAttr, Prototype, prototypes
from occ.compiler.codegen_cann.mapping.emitter import Emitter, Unsupported, describe
from occ.compiler.diagnostics import shorten
from occ.compiler.ir.op import Op

Row = Callable[..., Any]
# GE names of operators whose ONNX name is not simply `NPU` followed by it.
_NAMES = {
    "NPUAntiQuant": "AscendAntiQuantV2", "NPUBatchNms": "BatchMultiClassNonMaxSuppression", "NPUCiou": "CIoU",
    "NPUDiou": "DIoU", "NPUDtypeCast": "Cast", "NPUFormatCast": "Identity", "NPUGeglu": "GeGluV2",
    "NPUNmsWithMask": "NMSWithMask",
    "NPUPsRoiPooling": "PSROIPoolingV2", "NPURoiAlign": "ROIAlign", "NPUScatter": "ArgMaxGrad",
}  # fmt: skip
# CANN's importer expands these to several operators, so a node of the same name would mean something else.
_SEVERAL = frozenset(
    {
        "NPUDeformableConv2d", "NPUDropoutWithAddSoftmax", "NPUGiou", "NPUGridAssignPositive", "NPUGru", "NPUIndexing",
        "NPULstm", "NPULstmCell", "NPUNmsV4", "NPUOneHot", "NPURotatedIou", "NPURotatedOverlaps", "NPUSlice",
    }
)  # fmt: skip
# Nodes that build graphs or read files and variables: not for models to use.
_STRUCTURE = frozenset(
    {
        "AippData", "Assign", "Const", "ConstPlaceHolder", "Constant", "Data", "FileConstant", "NetOutput",
        "PlaceHolder", "QueueData", "ReadFile", "RefData", "Variable", "VarHandleOp", "WriteFile",
    }
)  # fmt: skip
_ANY_SHAPE = (-2,)


def _passed(e: Emitter, op: Op, *operands: Ref | None) -> tuple[Ref, ...]:
    name = str(op.attrs["type"])
    if name in _SEVERAL:
        raise Unsupported(f"`{name}` stands for several GE operators, which only CANN's own importer inserts")
    kind = _NAMES.get(name, name.removeprefix("NPU"))
    proto = prototypes().get(kind)
    if proto is None or proto.graphs or kind in _STRUCTURE:
        raise Unsupported(f"GE has no operator `{shorten(kind)}`, for which `{shorten(name)}` would stand")
    attrs = {k: _attribute(proto, k, v) for k, v in json.loads(str(op.attrs["attributes"])).items()}
    inputs, outs = _inputs(proto, operands), _outputs(proto, op, operands)
    made = e.op(kind, *inputs, out=outs, **attrs)
    return made[: len(op.results)]


def _attribute(proto: Prototype, name: str, value: Any) -> Any:
    """The value of an attribute in its prototype's type: ONNX has no booleans."""
    formal = proto.attrs.get(name)
    if formal is None:
        have = ", ".join(proto.attrs) or "none"
        raise Unsupported(f"GE `{proto.name}` has no attribute `{shorten(name)}`; it has {have}")
    return [_element(formal, v) for v in value] if isinstance(value, list) else _element(formal, value)


def _element(formal: FormalAttr, value: Any) -> Any:
    match formal.type.removeprefix("List"):
        case "Bool" if value in (0, 1):
            return bool(value)
        case "Float" if isinstance(value, int):
            return float(value)
        case _:
            return value


def _inputs(proto: Prototype, operands: Sequence[Ref | None]) -> list[Ref | list[Ref] | None]:
    """The operands by formal input; extra ones belong to the dynamic input."""
    more = len(operands) - len(proto.inputs) + 1 if any(f.kind == "dynamic" for f in proto.inputs) else 0
    if (more == 0 and len(operands) > len(proto.inputs)) or more < 0:
        raise Unsupported(f"GE `{proto.name}` takes {len(proto.inputs)} inputs, not {len(operands)}")
    left, made = list(operands), list[Ref | list[Ref] | None]()
    for formal in proto.inputs:
        if formal.kind == "dynamic":
            made.append([r for r in left[:more] if r is not None])
            del left[:more]
            continue
        given = left.pop(0) if left else None
        if given is None and formal.kind == "required":
            raise Unsupported(f"GE `{proto.name}` needs the input `{formal.name}`")
        made.append(given)
    return made


def _outputs(proto: Prototype, op: Op, operands: Sequence[Ref | None]) -> list[Desc]:
    stated = [describe(r) for r in op.results]
    if any(f.kind == "dynamic" for f in proto.outputs):
        return stated
    if len(stated) > len(proto.outputs):
        raise Unsupported(f"GE `{proto.name}` has {len(proto.outputs)} outputs, not {len(stated)}")
    return [*stated, *(_unread(f, operands) for f in proto.outputs[len(stated) :])]


def _unread(formal: Formal, operands: Sequence[Ref | None]) -> Desc:
    """An omitted output, with its only possible type or the first operand's."""
    first = next((r.dtype for r in operands if r is not None), "FLOAT")
    fits = not formal.dtypes or first in formal.dtypes
    return Desc(first if fits and len(formal.dtypes) != 1 else min(formal.dtypes), _ANY_SHAPE)


ROWS: dict[str, Row] = {"device_operator": _passed}

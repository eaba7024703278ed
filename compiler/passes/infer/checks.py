"""Checks of every op during inference: operands, attributes, element types, sizes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from occ.compiler.diagnostics import Invalid, shorten
from occ.compiler.ir.dim import Sym
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.operator.attribute_values import check_values
from occ.compiler.ir.operator.onnx_values import onnx_type_name
from occ.compiler.ir.operator.operand_forms import check_forms
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from occ.compiler.passes.base import Context

_LARGEST = 1 << 47  # elements: the limit of the address space


def no_result(op: Op, e: BaseException) -> Invalid:
    """The definition of an operator fails on operands that it does not reject."""
    place = traceback.extract_tb(e.__traceback__)[-1]
    types = [v.type for v in op.inputs]
    symbolic = any(isinstance(d, Sym) for t in types if isinstance(t, TensorType) for d in t.shape or ())
    numbers = "numbers for symbolic extents (`--dim`, `--shape`) may help; " if symbolic else ""
    return Invalid(
        f"`{shorten(op.name)}` has no result for these operands and attributes",
        code="OCC0206",
        note=f"{type(e).__name__} in {Path(place.filename).name}:{place.lineno}: {shorten(str(e))}",
        help=f"{numbers}`onnx.checker.check_model(model, full_check=True)` says more; if it finds nothing, report this "
        "with the model",
    )


def check_ranks(m: Module, ctx: Context) -> None:
    """Every input must have a rank.

    Raises:
        CompileError: OCC0204.
    """
    for arg in m.main.args:
        if isinstance(arg.type, TensorType) and arg.type.shape is None:
            name = shorten(arg.name)
            ctx.sink.error(
                "OCC0204",
                f"the model does not declare the rank of its input `{name}`",
                where=shorten(ctx.source or m.name),
                help=f"set its extents with `--shape {name}=...`; names keep extents symbolic: "
                f"`--shape {name}=n,3,h,w`",
            )
    ctx.sink.raise_errors()


def check_form(op: Op) -> None:
    """The number of results, and the values of attributes.

    Raises:
        Invalid: OCC0107.
    """
    if op.spec.is_internal:
        return
    check_values(op.name, op.attrs)
    if op.spec.region:
        return
    results = op.spec.results
    if len(op.results) > len(results) and not (results and results[-1].variadic):
        raise Invalid(f"`{op.name}` has {len(results)} results, not {len(op.results)}", code="OCC0107")


def check_operands(op: Op) -> None:
    """The ranks and extents of what says how an operator works.

    Raises:
        Invalid: one does not fit.
    """
    given = [v.type if v is not None else None for v in op.operands]
    check_forms(op.spec, [t.shape if isinstance(t, TensorType) else None for t in given])


def check_extents(op: Op, types: Sequence[Type | None]) -> None:
    if len(types) != len(op.results):
        raise Invalid(f"`{op.name}` has {len(types)} results here, not {len(op.results)}", code="OCC0107")
    for t in types:
        for k, d in enumerate((t.shape or ()) if isinstance(t, TensorType) else ()):
            if isinstance(d, int) and d < 0:
                raise Invalid(f"a result of `{op.name}` would have {d} elements along axis {k}")


def check_sizes(op: Op, types: Sequence[Type | None]) -> None:
    for t in types:
        if isinstance(t, TensorType) and t.shape is not None and isinstance(t.size, int) and t.size > _LARGEST:
            raise Invalid(f"`{op.name}` would work on {t}, which no memory can hold")


def check_types(op: Op) -> None:
    """Element types against the constraints of the ONNX schema.

    Raises:
        Invalid: OCC0201.
    """
    bound: dict[str, tuple[str, str]] = {}
    formals = () if op.spec.region else op.spec.operands
    for k, value in enumerate(op.operands):
        if value is None or not formals:
            continue
        formal = formals[min(k, len(formals) - 1)]
        spelled = _spelling(value.type)
        if formal.types and spelled and spelled not in formal.types:
            allowed = ", ".join(sorted(t[7:-1] for t in formal.types if t.startswith("tensor(")))
            raise Invalid(
                f"`{op.name}` does not take {value.type} as `{formal.name}`", code="OCC0201", note=f"it takes {allowed}"
            )
        if formal.type_var and spelled and not formal.variadic:
            first, name = bound.setdefault(formal.type_var, (spelled, formal.name))
            if first != spelled:
                raise Invalid(f"`{op.name}` requires one element type for `{name}` and `{formal.name}`", code="OCC0201")


def _spelling(type_: Type | None) -> str:
    match type_:
        case TensorType():
            return onnx_type_name(type_.dtype)
        case SequenceType(TensorType() as elem):
            return f"seq({onnx_type_name(elem.dtype)})"
        case OptionalType(elem):
            return f"optional({_spelling(elem)})"
        case MapType(key, value):
            return f"map({onnx_type_name(key)[7:-1]},{onnx_type_name(value.dtype)})"
        case _:
            return ""

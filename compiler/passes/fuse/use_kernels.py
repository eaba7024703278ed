"""Replaces operators by user-supplied kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from occ.compiler.diagnostics import Invalid, error, shorten
from occ.compiler.ir.kernel import CODE, CKernel, HalideKernel, Kernel, digest, library_bytes
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.fuse.outline import outline_foreign
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class UseKernels(Pass):
    """Replaces an operator by a `foreign` op if the user supplies a kernel for it.

    Reports operators whose only kernels are for other targets.

    `%y = com.example.Scale(%x)` --> `%y = foreign(%x) {kernel="c", symbol="scale"} do (%a) { ...  yield %r }`
    """

    report: bool = False  # nothing is replaced: the target computes the operator's own definition

    name: ClassVar[str] = "use-kernels"

    def run(self, m: Module, ctx: Context) -> bool:
        made, rw = 0, Rewriter(m)
        for func in m.funcs.values():
            for op in func.body.body:
                kernel = op.spec.kernel
                if kernel is None or any(not _ranked(v) for v in (*op.inputs, *op.results)):
                    continue
                if ctx.target.name not in kernel.targets:
                    _report(op, kernel, ctx)
                elif not self.report:
                    made += _use(op, kernel, rw)
        ctx.sink.raise_errors()
        ctx.hits["use-kernels"] += made
        return made > 0


def _ranked(value: Any) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None


def _report(op: Op, kernel: Kernel, ctx: Context) -> None:
    """An error if the operator is defined only by a kernel that the target cannot use."""
    if op.spec.meaning != "kernel":
        return
    able = " or ".join(f"`-t {t}`" for t in kernel.targets)
    ctx.sink.error(
        CODE,
        f"`-t {ctx.target.name}` cannot use the {kernel.kind} kernel of `{op.name}`",
        where=f"{shorten(ctx.source)}: {shorten(str(op.loc))}",
        help=f"build with {able}, or add a `body` or `composite` to the operator",
    )


def _use(op: Op, kernel: Kernel, rw: Rewriter) -> bool:
    names = [o.name for o in (*op.spec.operands, *op.spec.results)]
    operands = [*op.operands, *[None] * (len(op.spec.operands) - len(op.operands))]
    types = [None if v is None else v.type for v in (*operands, *op.results)]
    try:
        attrs = kernel_attrs(kernel, names, types, vars(op.a))
    except Invalid:
        if op.spec.meaning == "kernel":
            raise
        return False  # the kernel is for other element types
    given = [v for v in operands if v is not None]
    outline_foreign([op], given, list(op.results), rw, kind=op.spec.operator.lower(), **attrs)
    return True


def kernel_attrs(
    kernel: Kernel, names: Sequence[str], types: Sequence[Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes of a `foreign` op.

    Args:
        kernel: the kernel.
        names: of operands and results.
        types: their types; None for absent operands.
        values: attribute values.

    Raises:
        Invalid: the kernel does not accept them.
    """
    if isinstance(kernel, CKernel):
        return {
            "kernel": "c",
            "library": kernel.library,
            "digest": digest(library_bytes(kernel.library)),
            "symbol": kernel.symbol,
            "arguments": kernel.arguments(names, types, values),
            "gives_code": kernel.gives_code,
        }
    assert isinstance(kernel, HalideKernel), "te functions are bodies"
    present = tuple(n for n, t in zip(names, types, strict=True) if t is not None)
    return {"kernel": "halide", "source": kernel.source, "names": present}


def member(op: Op) -> str:
    """The path of a `foreign` op's library in an artifact."""
    stem = re.sub(r"[^\w.-]", "_", Path(op.attrs["library"]).stem)[:60]
    return f"kernels/{stem}-{op.attrs['digest']}.so"


def libraries(m: Module) -> dict[str, bytes]:
    """The libraries of users that a module calls, by their paths in the artifact.

    Raises:
        CompileError: OCC0615 one is missing, or has changed since the module was made.
    """
    found: dict[str, bytes] = {}
    for op in m.walk():
        if op.name != "foreign" or op.attrs["kernel"] != "c" or member(op) in found:
            continue
        path = op.attrs["library"]
        try:
            data = library_bytes(path)
        except Invalid as e:
            raise error(CODE, str(e)) from None
        if digest(data) != op.attrs["digest"]:
            raise error(CODE, f"the library `{path}` has changed since the text was made", help="dump the stage again")
        found[member(op)] = data
    return found

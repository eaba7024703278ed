"""Parses users' te functions from text, for operators and fusions."""

from __future__ import annotations

import sys
from typing import Any

from occ.compiler.diagnostics import error
from occ.compiler.frontend.text import parse
from occ.compiler.ir.kernel import CODE, TeKernel


def te_kernel(text: str) -> TeKernel:
    """A te function from text, in the form of dumps of the stage `scheduled`.

    Args:
        text: `te @twice[n](%x: f32[n]) -> (y: f32[n]) { y[i<n] = %x[i] + %x[i] }`. Operands are its parameters in
            order; its dims are extents of theirs.

    Raises:
        CompileError: OCC0615 the text is not valid, or is not one function.
    """
    caller: dict[str, Any] = sys._getframe(1).f_globals
    where = str(caller.get("__file__") or "")
    try:
        found = list(parse(f'module @kernel {{stage="scheduled"}} {{\n{text}\n}}').te.values())
    except Exception as e:  # the reader may also fail on ill-typed expressions
        lines = str(e).splitlines()
        raise error(
            CODE, f"the te function cannot be read: {lines[0] if lines else e}", where=where, notes=lines[2:4]
        ) from None
    if len(found) != 1 or not found[0].stages:
        raise error(
            CODE, "the text has to be one te function", where=where, help="te @name[dims](params) -> (results) { ... }"
        )
    (f,) = found
    missing = [r.name for r in f.results if r.name not in {s.name for s in f.stages}]
    dims = {str(d) for p in f.params for d in p.type.dims}
    loose = [d for d in f.dims if d not in dims]
    if missing or loose:
        what = (
            f"no stage `{missing[0]}`, which is a result"
            if missing
            else f"a dim `{loose[0]}` that is not an extent of a parameter"
        )
        raise error(CODE, f"te `{f.name}` has {what}", where=where)
    return TeKernel(f)

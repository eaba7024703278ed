"""Bytes that a kernel for any sizes fetches ahead: in terms of a tensor's sizes, not numbers."""

from __future__ import annotations

from occ.compiler.ir.dim import product
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.ir.te.schedule import Arg, Directive
from occ.compiler.ir.types import TensorType


def bytes_of_panels(d: Directive, f: TeFunc, general: TensorType) -> list[Arg]:
    """Bytes of a panel, and of the panels used in turn, in terms of the tensor's sizes.

    They stay as they are if they have sizes already.

    Args:
        d: `fetch_ahead` of a tensor.
        f: the function of fixed sizes.
        general: the tensor's type in the function for any sizes.
    """
    fixed = next(p.type for p in f.params if p.name == d.args[0])
    sizes = [n for n in d.args[1:] if isinstance(n, int)]
    if len(sizes) == len(d.args) - 1:
        for k in range(1, len(fixed.physical) + 1):
            before, after = (product(t.physical[-k:]) * t.dtype.itemsize for t in (fixed, general))
            if before == sizes[0]:
                return [after * (n // before) if n % before == 0 else n for n in sizes]
    return list(d.args[1:])

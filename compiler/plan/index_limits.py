"""32-bit limits of kernels: size parameters, and on `cpu` element counts."""

from __future__ import annotations

from collections.abc import Iterator

from occ.compiler.diagnostics import error, shorten
from occ.compiler.ir.dim import Dim, Sym, lower, minimum, product, substitute, terms_of, upper
from occ.compiler.ir.func import Constraint, Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.types import TensorType
from occ.runtime.dims import MOST_COUNTED


def limits(m: Module, func: Func, *, elements: bool) -> list[Constraint]:
    """Limits of sizes, for kernels that use 32-bit counts.

    Args:
        m: lowered.
        func: one of its functions.
        elements: whether kernels count the elements of whole tensors in 32 bits, not only extents.

    Raises:
        CompileError: OCC0309 a tensor is certainly too large.
    """
    nodes: dict[Dim, str] = {}
    seen: set[Dim] = set()  # layers have many counts in common
    for op in func.body.walk():
        if op.name == "kernel":
            for d in _counted(m, op, elements=elements):
                if d in seen:
                    continue
                seen.add(d)
                if isinstance(d, Sym) and minimum(d, MOST_COUNTED) != d:
                    nodes[d] = str(op.loc)
                elif lower(d) > MOST_COUNTED:
                    raise _too_many(m, op, d, elements=elements)
    largest = [d for d in nodes if not any(_is_less(d, other) for other in nodes if other is not d)]
    return [Constraint(minimum(d, MOST_COUNTED), d, nodes[d], func.name) for d in largest]


def _counted(m: Module, op: Op, *, elements: bool) -> Iterator[Dim]:
    """What a kernel counts with 32 bits; of tensors all elements, and those along the axes of constant extents."""
    yield from op.attrs.get("dims", ())
    if elements:
        f = m.te[op.attrs["te"]]
        given = dict(zip(f.dims, op.attrs.get("dims", ()), strict=True))
        for p in (*f.params, *f.results):
            sizes = [substitute(n, given) for n in p.type.physical]
            yield product(sizes)
            yield product(n for n in sizes if isinstance(n, int))
        for v in op.inputs:
            if isinstance(v.type, TensorType) and v.type.shape is not None:
                yield product(v.type.physical)


def _is_less(a: Dim, b: Dim) -> bool:
    """Whether one sum of products is certainly at most another one, term by term; of two equal ones neither."""
    whole = dict(terms_of(b))
    return a != b and lower(a) >= 0 and all(c <= whole.get(mono, 0) for mono, c in terms_of(a)) and _is_natural(b)


def _is_natural(d: Dim) -> bool:
    return all(c > 0 for _, c in terms_of(d)) and upper(d) > 0


def _too_many(m: Module, op: Op, count: Dim, *, elements: bool) -> Exception:
    what = f"work on a tensor of {count} elements" if elements else f"have an extent of {count}"
    wider = "for `cpu-jit`, whose kernels count with 64 bits, or " if elements else ""
    return error(
        "OCC0309",
        f"the kernel would {what}, but kernels of `{m.target}` can only count to {MOST_COUNTED}",
        where=f"{shorten(m.name)}: {shorten(str(op.loc))}",
        help=f"build {wider}for smaller inputs",
    )

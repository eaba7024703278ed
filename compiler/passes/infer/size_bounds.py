"""Upper bounds of the sizes that a run finds: native code allocates that much."""

from __future__ import annotations

from functools import reduce

from occ.compiler.ir.dim import Dim, Sym, ceildiv, maximum, minimum, product
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.ir.ops.own.data_dependent_sizes import DECIDED, LARGEST, is_defined_by_step, on_axes
from occ.compiler.passes.infer.known_elements import Known

_FEW = 1 << 20  # elements, for which memory suffices whatever shape a Reshape gives them


def set_size_bounds(m: Module, known: Known) -> None:
    """Record the upper bound of each symbol at its `sizes` op; native code allocates that much."""
    most: dict[str, Dim] = {}
    for op in m.walk():
        for d, bound in _bounds(op, known):
            if is_defined_by_step(d):
                most[str(d)] = minimum(most[str(d)], bound) if str(d) in most else bound
    for op in m.walk():
        if op.name == DECIDED:
            op.attrs["upper_bounds"] = tuple(most.get(str(d), LARGEST) for d in op.attrs["defines"])


def _bounds(op: Op, known: Known) -> list[tuple[Dim, Dim]]:
    """Sizes that an op reads, each with its upper bound."""
    if op.name == DECIDED:
        return _of_spread(op, known)
    if op.name not in ("part", "Reshape", "Split") or len(op.operands) < 2 or op.operands[1] is None:
        return []
    maker, x = op.operands[1].defining_op, op.inputs[0].tensor
    if maker is None or not maker.is_dims or x.shape is None:
        return []
    found = maker.attrs["values"]
    if op.name == "Reshape":
        # Each is at most the number of elements. Memory for all of them at their maximum exceeds any machine's unless
        # they are few: then nothing bounds them, and native code leaves the model to Python.
        size, count = product(x.shape), len(set(filter(is_defined_by_step, found)))
        few = count < 2 or (isinstance(size, int) and size**count <= _FEW)
        return [(d, size) for d in found] if few else []
    if op.name == "Split":
        return [(d, x.shape[op.attrs.get("axis", 0)]) for d in found]
    bounds: list[tuple[Dim, Dim]] = []
    for k, (axis, step) in enumerate(zip(op.attrs["axes"], op.attrs["strides"], strict=True)):
        bounds += [(found[2 * k], x.shape[axis]), (found[2 * k + 1], ceildiv(x.shape[axis], abs(step)))]
    return bounds


def _of_spread(op: Op, known: Known) -> list[tuple[Dim, Dim]]:
    """Broadcast sizes of several shapes."""
    maker = op.inputs[0].defining_op
    if maker is None or maker.name not in ("expanded_shape", "common_shape"):
        return []
    shapes = [v.tensor.dims for v in maker.inputs]
    if maker.name == "expanded_shape":
        asked = [n for n in known.elements(maker.inputs[1]) or () if isinstance(n, (int, Sym))]
        if len(asked) != maker.inputs[1].tensor.size:
            return []
        shapes[1] = tuple(asked)
    most = [reduce(maximum, sorted(found, key=str), 1) for found in on_axes(shapes)]
    return list(zip(op.attrs["defines"], most, strict=True))

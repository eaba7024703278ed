"""Kernel tables of the chips: which unit runs an operator, and for which element types and shapes.

`kernels.json` lists those that CANN 8.1.RC1 installs (`tools/ge_kernels.py` writes it from an installed toolkit); the
tables of an installed toolkit take precedence (`installed.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from occ.compiler.codegen_cann.graph.fusion_passes import replacement
from occ.compiler.codegen_cann.graph.graph import Graph, Node
from occ.runtime.dataclass import dataclass

RELEASE = "8.1.RC1"  # of `kernels.json`
FLOATS = ("FLOAT", "FLOAT16", "BF16")
# What GE handles without a kernel: structure, views, sizes; and what its passes replace by other operators.
_NO_KERNEL = frozenset(
    {
        "Bitcast", "Const", "Data", "ExpandDims", "FileConstant", "Identity", "If", "NetOutput", "Reshape", "Shape",
        "ShapeN", "Size", "Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3", "While",
    }
)  # fmt: skip
_REPLACED = frozenset({"GlobalAveragePool", "TensorScatterAdd"})
_ALIKE = {"910_93": "910b"}  # Huawei's sources list the types of the two together
_EXACT = frozenset({"AscendAntiQuant", "AscendDequant", "AscendQuant", "Cast"})  # no precision mode changes their types


@dataclass(frozen=True)
class Operand:
    """A tensor of a kernel.

    Attributes:
        types: GE's names: one per combination, or all accepted ones; empty if the kernel's code decides.
    """

    name: str
    repeated: bool
    types: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """The kernels of an operator on a unit.

    Attributes:
        unit: `AI Core`, `AI CPU`, or `TF` for TensorFlow's kernels on the AI CPU.
        dynamic: whether extents may be unknown.
        paired: whether operand types are combined position by position; otherwise each may have any of its own.
    """

    unit: str
    dynamic: bool
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    paired: bool = True

    @property
    def known(self) -> bool:
        """Whether the types are known."""
        return any(o.types for o in (*self.inputs, *self.outputs))

    def takes(self, node: Node, precision: str) -> bool:
        """Whether it supports a node in a precision mode."""
        if not self.known:
            return True
        needed = [
            *_needed(self.inputs, _inputs(node), node, precision),
            *_needed(self.outputs, _outputs(node), node, precision),
        ]
        if any(operand is None for operand, _ in needed):
            return False
        pairs = [(operand.types, types) for operand, types in needed if operand is not None]
        if not self.paired:
            return all(not have or types & set(have) for have, types in pairs)
        count = max((len(have) for have, _ in pairs), default=0)
        return any(all(k < len(have) and have[k] in types for have, types in pairs) for k in range(count))


def _inputs(node: Node) -> list[tuple[str, str]]:
    return [(name, "" if r is None else r.dtype) for name, r in zip(node.input_names, node.inputs, strict=True)]


def _outputs(node: Node) -> list[tuple[str, str]]:
    return [(name, d.dtype) for name, d in zip(node.output_names, node.outputs, strict=True)]


def _needed(
    operands: Sequence[Operand], tensors: Sequence[tuple[str, str]], node: Node, precision: str
) -> list[tuple[Operand | None, set[str]]]:
    """The operand for each tensor, and the types that are acceptable for it."""
    found: list[tuple[Operand | None, set[str]]] = []
    for k, (name, dtype) in enumerate(tensors):
        if dtype:
            found.append(
                (_operand(operands, name, k), types_for(dtype, precision if node.type not in _EXACT else "origin"))
            )
    return found


def types_for(dtype: str, precision: str) -> set[str]:
    """The types that a kernel may have for a graph's type: modes except `origin` allow another floating-point type."""
    if dtype not in FLOATS or precision == "origin":
        return {dtype}
    return {dtype, "FLOAT", "BF16" if precision == "mixed_bfloat16" else "FLOAT16"} - (
        {"BF16"} if dtype == "FLOAT16" else set()
    )


def _operand(operands: Sequence[Operand], name: str, position: int) -> Operand | None:
    """The type column of an operand, by name; `x3` is one of a repeated `x`.

    Tables with other names have the same order.
    """
    stem = name.rstrip("0123456789")
    for o in operands:
        if o.name == name or (o.repeated and o.name == stem):
            return o
    return operands[0] if len(operands) == 1 else operands[position] if position < len(operands) else None


class KernelTable:
    """The kernels of a chip by operator.

    Attributes:
        release: of CANN.
        installed: whether they come from the local toolkit.
    """

    def __init__(self, kernels: Mapping[str, Sequence[Kernel]], release: str, *, installed: bool = False) -> None:
        self._kernels, self.release, self.installed = kernels, release, installed

    @property
    def operators(self) -> Sequence[str]:
        """The operators that have a kernel."""
        return tuple(self._kernels)

    def kernels(self, operator: str) -> Sequence[Kernel]:
        """The kernels of an operator, in the order in which GE tries them."""
        return self._kernels.get(operator, ())

    def has(self, operator: str) -> bool:
        """Whether an operator has a kernel for any types."""
        return operator in _NO_KERNEL or operator in _REPLACED or operator in self._kernels

    def unit(self, node: Node, precision: str, *, dynamic: bool | None = None) -> str:
        """The unit that runs a node, `GE` if none is needed; empty if there is no kernel.

        Args:
            node: the node.
            precision: `precision_mode_v2`.
            dynamic: whether extents are unknown; by default according to the node.
        """
        if node.type in _NO_KERNEL:
            return "GE"
        unknown = is_dynamic(node) if dynamic is None else dynamic
        if node.type in _REPLACED:
            return "" if unknown else "AI Core"
        put = replacement(node)
        if put is not None and "AI Core" in self._units(put, precision, unknown):
            return "AI Core"
        return next(self._units(node, precision, unknown), "")

    def _units(self, node: Node, precision: str, unknown: bool) -> Iterator[str]:
        """The units that have a kernel for a node."""
        rows = self._kernels.get(node.type, ())
        return (k.unit for k in rows if (k.dynamic or not unknown) and k.takes(node, precision))

    def unit_for(self, operator: str, dtype: str, position: int, precision: str, *, dynamic: bool) -> str:
        """The unit with a kernel for an element type of an operand at a position; empty if there is none.

        With `dynamic`, a kernel for unknown extents is preferred; `fixed` if there are only others.
        """
        if operator in _NO_KERNEL or operator in _REPLACED:
            return "fixed" if dynamic and operator in _REPLACED else "AI Core"
        if operator == "StridedSliceV2":
            operator, position = "StridedSlice", 0  # a pass turns one into the other
        fixed = ""
        for k in self._kernels.get(operator, ()):
            types = k.inputs[min(position, len(k.inputs) - 1)].types if k.inputs else ()
            if not types or types_for(dtype, precision) & set(types):
                if k.dynamic or not dynamic:
                    return k.unit
                fixed = "fixed"
        return fixed

    def lacking(self, graph: Graph, precision: str, *, fixed: bool = False) -> tuple[Node, str] | None:
        """The first node of a graph that no unit runs, and what is missing, completing `the chip has`.

        Args:
            graph: sub-graphs included.
            precision: `precision_mode_v2`.
            fixed: whether extents unknown in the graph are known when it is compiled, as for gears.
        """
        for node in (n for g in graph.all() for n in g.nodes):
            unknown = is_dynamic(node) and not fixed
            if not self.unit(node, precision, dynamic=unknown):
                types = ", ".join(dict.fromkeys(r.dtype for r in node.inputs if r is not None)) or node.outputs[0].dtype
                alone = unknown and bool(self.unit(node, precision, dynamic=False))
                return (
                    node,
                    f"no kernel of GE `{node.type}` for {types}{' with extents that are not fixed' if alone else ''}",
                )
        return None


def is_dynamic(node: Node) -> bool:
    """Whether an extent of a node is unknown."""
    shapes = [*(r.shape for r in node.inputs if r is not None), *(d.shape for d in node.outputs)]
    return any(extent < 0 for shape in shapes for extent in shape)


@cache
def builtin(chip: str) -> KernelTable:
    """The kernels of a chip, from those of CANN 8.1.RC1."""
    chip = _ALIKE.get(chip, chip)
    text = (files("occ.compiler.codegen_cann.graph") / "kernels.json").read_text(encoding="utf-8")
    records: dict[str, list[list[Any]]] = json.loads(text)["operators"]
    made = {op: [k for r in rows if (k := _kernel(r, chip)) is not None] for op, rows in records.items()}
    return KernelTable(with_decided(chip, {op: kernels for op, kernels in made.items() if kernels}), RELEASE)


def _kernel(record: Sequence[Any], chip: str) -> Kernel | None:
    """A record of `kernels.json` if it is about a chip: unit, chips, tensors."""
    unit, chips, tensors = record
    listed = {c.rstrip("+"): c[-1] == "+" for c in chips.split()}
    if chips != "all" and chip not in listed:
        return None
    sides: dict[bool, list[Operand]] = {False: [], True: []}
    first: tuple[str, ...] = ()
    for text in tensors:
        name, _, types = text.partition(" ")
        found = first if types == "=" else tuple(types.split(",")) if types else ()
        first = first or found
        sides[name[0] == ">"].append(Operand(name.strip(">*"), name[-1] == "*", found))
    dynamic = chips == "all" or listed[chip]
    return Kernel(unit, dynamic, tuple(sides[False]), tuple(sides[True]), unit == "AI Core")


# Operator -> chips, whether extents may be unknown, types of x, filter or x2, bias, offset_w, y, for what the kernels'
# code decides. Sources: documents of CANN 8.0 and 8.2 (aclnnMatmul, conv2d), and for unknown extents mat_mul.py and
# batch_matmul_v2.py of Huawei's operator repositories.
_HALF, _WIDE, _INT8 = ("FLOAT16", "FLOAT16"), ("FLOAT16", "FLOAT"), ("INT8", "INT32")
_FULL, _BRAIN = ("FLOAT", "FLOAT"), ("BF16", "BF16")
_OLD, _NEW = ("310", "310p", "910"), ("310b", "910b")
_DECIDED: tuple[tuple[str, tuple[str, ...], bool, tuple[tuple[str, str], ...]], ...] = (
    ("Conv2D", _OLD, True, (_HALF, _INT8)),
    ("Conv2D", ("310b",), True, (_HALF, _FULL, _INT8)),
    ("Conv2D", ("910b",), True, (_HALF, _FULL, _BRAIN, _INT8)),
    ("MatMulV2", _OLD, False, (_WIDE, _HALF, _INT8)),
    ("MatMulV2", ("310p", "910"), True, (_WIDE, _HALF)),
    ("BatchMatMulV2", _OLD, False, (_WIDE, _HALF, _INT8)),
    ("BatchMatMulV2", ("310p", "910"), True, (_HALF,)),
    *((op, _NEW, False, (_INT8,)) for op in ("MatMulV2", "BatchMatMulV2")),
    *((op, _NEW, True, (_WIDE, _HALF, _FULL)) for op in ("MatMulV2", "BatchMatMulV2")),
    *((op, ("910b",), True, (_BRAIN,)) for op in ("MatMulV2", "BatchMatMulV2")),
)
_PORTS = {"Conv2D": ("x", "filter")}


def with_decided(chip: str, kernels: Mapping[str, Iterable[Kernel]]) -> dict[str, list[Kernel]]:
    """Kernels with the entries whose types their code decides, in place of untyped ones."""
    made, chip = {op: list(rows) for op, rows in kernels.items()}, _ALIKE.get(chip, chip)
    for op in {d[0] for d in _DECIDED if chip in d[1]}:
        rows = [_decided(op, dynamic, pairs) for o, chips, dynamic, pairs in _DECIDED if o == op and chip in chips]
        allowed = any(k.dynamic for k in made.get(op, ()) if k.unit == "AI Core")
        others = [k for k in made.get(op, ()) if k.unit != "AI Core"]
        made[op] = [*(k if allowed or not k.dynamic else _fixed(k) for k in rows), *others]
    return made


def _decided(op: str, dynamic: bool, pairs: Sequence[tuple[str, str]]) -> Kernel:
    taken, given = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    sums = tuple("INT32" if a == "INT8" else b for a, b in pairs)
    x, w = (Operand(n, False, taken) for n in _PORTS.get(op, ("x1", "x2")))
    offsets = Operand("offset_w", False, ("INT8",) * len(pairs))
    return Kernel("AI Core", dynamic, (x, w, Operand("bias", False, sums), offsets), (Operand("y", False, given),))


def _fixed(k: Kernel) -> Kernel:
    return Kernel(k.unit, False, k.inputs, k.outputs, k.paired)

"""Size and format limits of kernels, from `tables/limits.tsv` and `tables/formats.tsv`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from occ.compiler.ge_simulator.kernel_table import chips_in, rows_of, sources
from occ.compiler.ge_simulator.reader import Node


class Limit(NamedTuple):
    """A limit of an operator's kernel on nodes, `least..most`."""

    operator: str
    chips: frozenset[str]
    what: str
    least: int
    most: int
    source: str


@cache
def limits() -> tuple[Limit, ...]:
    """All limits of operators, from the table `limits`."""
    return tuple(
        Limit(operator, frozenset(chips_in(chips)), what, int(least), int(most), source)
        for operator, chips, what, least, most, source in rows_of("limits")
    )


class Formats(NamedTuple):
    """The formats that tensors of an operator's nodes may have."""

    operator: str
    chips: frozenset[str]
    tensor: str
    taken: tuple[str, ...]
    source: str


@cache
def formats() -> tuple[Formats, ...]:
    """All rows; operators without one accept any format."""
    return tuple(
        Formats(operator, frozenset(chips_in(chips)), tensor, tuple(taken.split()), source)
        for operator, chips, tensor, taken, source in rows_of("formats")
    )


def _attribute(name: str) -> Callable[[Node], Sequence[int]]:
    return lambda node: node.attrs.get(name) or ()


def _row_bytes(node: Node) -> Sequence[int]:
    """Bytes of a normalised row; unknown if an extent is."""
    dtype, shape = node.input_descs[1].dtype, node.input_descs[1].shape
    return (prod(shape) * dtype.itemsize,) if dtype is not None and min(shape, default=0) >= 0 else ()


def _loose_rows(node: Node) -> Sequence[int]:
    """How far masked queries and keys of four axes are from whole blocks of 128, and from one another."""
    mask = next((d for d in node.input_descs if d.name == "atten_mask" and d.dtype is not None), None)
    rows, keys = (node.input_descs[k].shape[-2] for k in (0, 1))
    return () if mask is None or min(rows, keys) < 0 else (rows % 128, keys % 128, abs(rows - keys))


def _boxes_a_class(node: Node) -> Sequence[int]:
    """The maximum number of boxes selected per batch and class."""
    batches, classes = node.input_descs[1].shape[:2]
    return (-(-node.attrs.get("max_boxes_size", 0) // (batches * classes)),) if min(batches, classes) > 0 else ()


MEASURES: dict[str, Callable[[Node], Sequence[int]]] = {
    "boxes a class": _boxes_a_class, "bytes of a row": _row_bytes, "dilations": _attribute("dilations"),
    "heads": lambda node: (node.attrs["num_heads"],),
    "transposed weight": lambda node: (int(node.attrs.get("transpose_weight", False)),),
    "weight groups": lambda node: (node.attrs.get("antiquant_group_size", 0),),
    "heads a group": lambda node: (node.attrs["num_heads"] // (node.attrs.get("num_key_value_heads", 0) or node.attrs["num_heads"]),),
    "rank": lambda node: (len(node.input_descs[0].shape),), "masked rows past 128": _loose_rows,
    "width": lambda node: (node.input_descs[0].shape[-1],), "filter": lambda node: node.input_descs[1].shape[2:],
    "inputs": lambda node: (len(node.input_descs),), "outputs": lambda node: (len(node.output_descs),),
    "pads": _attribute("pads"), "strides": _attribute("strides"), "weight": lambda node: node.input_descs[1].shape,
    "window": lambda node: (prod(node.attrs["ksize"]),),
}  # fmt: skip


def beyond(node: Node, chip: str) -> Iterator[str]:
    """The limits of a chip that a node exceeds, and its unsupported formats.

    Unknown extents do not count.
    """
    for row in formats():
        if row.operator != node.type or chip not in row.chips:
            continue
        found = next((d.format for d in node.input_descs if d.name == row.tensor), "")
        if found not in row.taken:
            taken = f"{', '.join(row.taken)} ({row.source}, {sources()[row.source][0]})"
            yield f"{node.name}: `{row.tensor}` of {node.type} is {found or 'not there'}, Ascend{chip} takes {taken}"
    for limit in limits():
        if limit.operator != node.type or chip not in limit.chips:
            continue
        found = [v for v in MEASURES[limit.what](node) if v >= 0]
        if any(not limit.least <= v <= limit.most for v in found):
            bounds = f"{limit.least}..{limit.most} ({limit.source}, {sources()[limit.source][0]})"
            yield f"{node.name}: {limit.what} of {node.type} are {list(found)}, Ascend{chip} takes {bounds}"

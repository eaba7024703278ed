"""Cost model of a device part: a roofline estimate for each node, and the transfers.

The estimate is coarse: data-sheet peaks, operands read once, results written once. It separates parts that are worth
the copies from those that are not by factors, not by percents (Williams, Waterman, Patterson: Roofline, CACM 52, 2009).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np

from occ.compiler.codegen_cann.graph.formats import stored_size
from occ.compiler.codegen_cann.graph.graph import Graph, Node
from occ.runtime.dataclass import dataclass

_CALL = 50e-6  # seconds to start a part and to wait for it
_PRODUCTS = ("BatchMatMul", "Conv", "MatMul", "WeightQuantBatchMatmul")
_FREE = frozenset({"Const", "Data", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class Processor:
    """A processor as a roofline: peak arithmetic and bandwidth.

    Attributes:
        operations: per second, for products.
        bandwidth: bytes per second of its memory.
        link: bytes per second to and from the host; 0 for the host itself.
        call: seconds to launch something on it.
    """

    operations: float
    bandwidth: float
    link: float = 0.0
    call: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """Seconds that a part takes.

    Attributes:
        device: on the device, copies included.
        copies: of its inputs and outputs, within `device`.
        cpu: on this CPU.
    """

    part: str
    device: float
    copies: float
    cpu: float

    @property
    def pays(self) -> bool:
        """Whether the device is faster."""
        return self.device < self.cpu

    def __str__(self) -> str:
        device, copies, cpu = (f"{1e3 * t:.2g} ms" for t in (self.device, self.copies, self.cpu))
        return f"{device} on the device, {copies} of them copies; {cpu} on this CPU"


# target -> products per second in half precision, and in FLOAT (the same if the matrix unit uses half precision
# instead), bytes per second of the memory, of the link. Public figures for the 910B differ by up to a factor of four;
# these are the lower ones.
_CHIPS: dict[str, tuple[float, float, float, float]] = {
    "ascend310": (
        8e12,
        8e12,
        51.2e9,
        3.9e9,
    ),  # HiSilicon, 2018: 8 TFLOPS; 64 bits of LPDDR4X; PCIe 3.0 x4 per chip
    "ascend310b": (10e12, 10e12, 51.2e9, 25.6e9),  # Atlas 200I A2: 20 TOPS of INT8, LPDDR4X; the CPU shares its memory
    "ascend310p": (70e12, 70e12, 204e9, 16e9),  # Atlas 300I Duo, two chips: 280 TOPS of INT8, 408 GB/s, PCIe 4.0 x16
    "ascend910": (256e12, 256e12, 1.2e12, 16e9),  # Hot Chips 2019: 256 TFLOPS, 1.2 TB/s
    "ascend910b": (256e12, 64e12, 768e9, 31.5e9),  # the lowest of several: 256 TFLOPS, 768 GB/s, PCIe 4.0 x16
    "ascend910_93": (256e12, 64e12, 768e9, 31.5e9),  # assumed to be a die of the 910B
}


def chip(target: str, *, half: bool) -> Processor:
    """The chip of a target, with products in half precision or in FLOAT."""
    halves, floats, memory, link = _CHIPS[target]
    return Processor(halves if half else floats, memory, link, _CALL)


@cache
def host() -> Processor:
    """This CPU: a matrix product and a copy, measured once per process, in about 30 ms."""
    a, block = np.ones((384, 384), np.float32), np.ones(1 << 23, np.uint8)
    return Processor(2 * 384**3 / _fastest(lambda: a @ a), 2 * block.nbytes / _fastest(lambda: block.copy()))


def _fastest(run: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def operations(node: Node) -> int:
    """Arithmetic operations of a node: two per product term, otherwise one per element."""
    out = prod(node.outputs[0].shape) if node.outputs else 0
    if not node.type.startswith(_PRODUCTS):
        return out
    first, weight = node.inputs[0], node.inputs[1]
    assert first is not None and weight is not None  # noqa: PT018 - products have two operands
    if node.type.startswith("Conv"):
        return 2 * out * prod(weight.shape[1:])
    turned = bool(node.attrs.get("transpose_x1") or node.attrs.get("adj_x1"))
    return 2 * out * first.shape[-2 if turned else -1]


def _traffic(node: Node) -> int:
    read = sum(
        stored_size(r.node.value) if r.node.type == "Const" else r.desc.nbytes for r in node.inputs if r is not None
    )
    return read + sum(d.nbytes for d in node.outputs)


def _seconds(graph: Graph, on: Processor) -> float:
    nodes = [n for g in graph.all() for n in g.nodes if n.type not in _FREE]
    return sum(max(operations(n) / on.operations, _traffic(n) / on.bandwidth) for n in nodes)


def estimate(graph: Graph, target: str, *, half: bool, cpu: Processor | None = None) -> Estimate:
    """The estimated cost of a part on the chip and on the host.

    Args:
        graph: of the part.
        target: an Ascend target.
        half: whether the matrix unit computes in half precision.
        cpu: the host; measured if None.
    """
    device, here = chip(target, half=half), cpu or host()
    moved = sum(d.outputs[0].nbytes for d in graph.data) + sum(r.desc.nbytes for r in graph.outputs)
    copies = moved / device.link
    return Estimate(graph.name, device.call + copies + _seconds(graph, device), copies, _seconds(graph, here))

"""An ONNX graph under construction, whose weights are arrays outside of the message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from occ.compiler.frontend.architectures.stored_weights import Blocks, Stored, floats
from occ.compiler.frontend.external import MappedModel
from occ.compiler.ir.dtype import from_numpy

CONTRIB = "com.microsoft"
_OPSET, _IR_VERSION = 23, 11
_ROUNDED = 4  # accuracy_level: activations may be rounded to 8 bits, block by block, as in llama.cpp


class OnnxGraph:
    """Nodes and weights of one graph.

    Args:
        weights: weights for `linear` and `gather`, by name.
    """

    def __init__(self, weights: Mapping[str, Stored]) -> None:
        self._weights = weights
        self._nodes: list[NodeProto] = []
        self._held: dict[str, TensorProto] = {}
        self._raw: dict[int, np.ndarray] = {}
        self._read: dict[str, np.ndarray | Blocks] = {}

    def add(
        self, kind: str, *operands: str, result: str = "", results: int = 1, domain: str = "", **attributes: Any
    ) -> str:
        """Append a node; returns the name of its (first) result."""
        name = f"{kind}_{len(self._nodes)}"
        made = [result or name, *(f"{name}_{k}" for k in range(1, results))]
        self._nodes.append(helper.make_node(kind, operands, made, name=name, domain=domain, **attributes))
        return made[0]

    def append(self, node: NodeProto) -> None:
        """Append a node whose results have given names."""
        self._nodes.append(node)

    def constant(self, name: str, data: np.ndarray) -> str:
        """A weight, created once per name; its bytes are not copied."""
        if name not in self._held:
            self._raw[len(self._held)] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            self._held[name] = TensorProto(name=name, dims=data.shape, data_type=from_numpy(data.dtype).onnx)
        return name

    def number(self, value: float) -> str:
        """A scalar of f32."""
        return self.constant(f"f32 {value!r}", np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        """A vector of i64."""
        return self.constant(f"i64 {values}", np.array(values, np.int64))

    def vector(self, name: str) -> str:
        """A weight in f32."""
        return self.constant(name, floats(self._stored(name)))

    def linear(self, x: str, name: str) -> str:
        """`x @ W'` with the matrix `name` of `[rows, columns]`."""
        stored = self._stored(name)
        if isinstance(stored, Blocks):
            return self._product_of_codes(x, name, stored)
        return self.add("MatMul", x, self.add("Transpose", self._wide(name, stored), perm=[1, 0]))

    def gather(self, name: str, indices: str) -> str:
        """Rows of the matrix `name`, in f32."""
        stored = self._stored(name)
        if isinstance(stored, Blocks) and stored.zeros is None:
            codes, scales = self._codes(name, stored)
            flat = self.add("Reshape", codes, self.ints(len(stored.codes), -1))
            return self.add("GatherBlockQuantized", flat, indices, scales, domain=CONTRIB, bits=stored.bits,
                            block_size=stored.size, gather_axis=0, quantize_axis=1)  # fmt: skip
        if isinstance(stored, Blocks):  # the operator only supports whole zero points
            return self.add("Gather", self.constant(f"{name}.values", stored.values()), indices)
        rows = self.add("Gather", self.constant(name, stored), indices)
        return rows if stored.dtype == np.float32 else self.add("Cast", rows, to=TensorProto.FLOAT)

    def model(
        self, name: str, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]
    ) -> tuple[ModelProto, MappedModel]:
        """The message, and the bytes of its weights, which it does not contain."""
        graph = GraphProto(name=name, node=self._nodes, input=inputs, output=outputs, initializer=self._held.values())
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), MappedModel(b"", self._raw)

    def _stored(self, name: str) -> np.ndarray | Blocks:
        if name not in self._read:
            self._read[name] = self._weights[name].load()
        return self._read[name]

    def _wide(self, name: str, data: np.ndarray) -> str:
        held = self.constant(name, data)
        return held if data.dtype == np.float32 else self.add("Cast", held, to=TensorProto.FLOAT)

    def _codes(self, name: str, stored: Blocks) -> tuple[str, str]:
        return self.constant(name, stored.codes), self.constant(f"{name}.scales", stored.scales)

    def _product_of_codes(self, x: str, name: str, stored: Blocks) -> str:
        operands = [x, *self._codes(name, stored)]
        if stored.zeros is not None:
            operands.append(self.constant(f"{name}.zeros", stored.zeros))
        rows, blocks = stored.scales.shape
        return self.add("MatMulNBits", *operands, domain=CONTRIB, K=blocks * stored.size, N=rows, bits=stored.bits,
                        block_size=stored.size, accuracy_level=_ROUNDED)  # fmt: skip

"""The part of onnxruntime's C API for reading graphs, by ctypes."""

from __future__ import annotations

import ctypes as c
from typing import Any

_SLOTS = {
    "ErrorMessage": 2, "TensorData": 51, "TensorInfo": 55, "ElementType": 60, "Rank": 61, "Dims": 62, "Symbols": 63,
    "TypeAndShape": 65, "ReleaseStatus": 93, "ReleaseValue": 96, "ReleaseInfo": 99, "ReadAttr": 272, "ValueName": 289,
    "ValueType": 290, "SizeInBytes": 318, "InitializerValue": 326, "IsConstant": 331, "NumOpsets": 336, "Opsets": 337,
    "NumInputs": 338, "Inputs": 339, "NumOutputs": 340, "Outputs": 341, "NumNodes": 344, "Nodes": 345, "NodeName": 349,
    "NodeType": 350, "NodeDomain": 351, "NumNodeInputs": 353, "NodeInputs": 354, "NumNodeOutputs": 355,
    "NodeOutputs": 356, "NumImplicit": 357, "Implicit": 358, "NumAttrs": 359, "IsOuter": 332, "Subgraphs": 366,
    "HasShape": 390, "Attrs": 360, "AttrTensor": 362, "AttrType": 363, "AttrName": 364, "NumSubgraphs": 365,
    "EpName": 368,
}  # fmt: skip


class Api:
    """onnxruntime's table of functions."""

    def __init__(self, table: int) -> None:
        self._table = (c.c_void_p * 400).from_address(table)

    def __getattr__(self, name: str) -> Any:
        """A function that returns a status, whose errors are raised as `RuntimeError`."""
        fn = c.CFUNCTYPE(c.c_void_p)(self._table[_SLOTS[name]] or 0)
        fn.argtypes = None  # pyright: ignore[reportAttributeAccessIssue] - pointers and sizes of any number

        def call(*given: Any) -> None:
            status = fn(*[c.c_void_p(g) if isinstance(g, int) else g for g in given])
            if status:
                text = c.CFUNCTYPE(c.c_char_p, c.c_void_p)(self._table[_SLOTS["ErrorMessage"]] or 0)(status) or b""
                self.release("ReleaseStatus", status)
                raise RuntimeError(text.decode("utf-8", "replace"))

        setattr(self, name, call)
        return call

    def has_shape(self, info: int) -> bool:
        return c.CFUNCTYPE(c.c_bool, c.c_void_p)(self._table[_SLOTS["HasShape"]] or 0)(info)

    def release(self, name: str, handle: int) -> None:
        c.CFUNCTYPE(None, c.c_void_p)(self._table[_SLOTS[name]] or 0)(handle)

    def text(self, name: str, handle: int) -> str:
        out = c.c_char_p()
        getattr(self, name)(handle, c.byref(out))
        return (out.value or b"").decode()

    def number(self, name: str, handle: int) -> int:
        out = c.c_size_t()
        getattr(self, name)(handle, c.byref(out))
        return out.value

    def pointer(self, name: str, handle: int) -> int | None:
        out = c.c_void_p()
        getattr(self, name)(handle, c.byref(out))
        return out.value

    def pointers(self, count: str, name: str, handle: int) -> list[int | None]:
        n = self.number(count, handle)
        out = (c.c_void_p * n)()
        getattr(self, name)(handle, out, c.c_size_t(n))
        return list(out)

"""Kernels on inputs that end where memory ends: who reads past the end of a row of odd length is ended by the system."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import occ

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None)
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class AtTheEnd:
    """An array whose last byte is the last of a page before one that nobody may read."""

    def __init__(self, x: np.ndarray) -> None:
        size = -(-x.nbytes // PAGE) * PAGE
        self._memory = mmap.mmap(-1, size + PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        assert LIBC.mprotect(start + size, PAGE, 0) == 0
        flat = np.frombuffer(self._memory, x.dtype, x.size, size - x.nbytes)
        self.array = flat.reshape(x.shape)
        self.array[...] = x


def model(op: str, rank: int, **attrs: Any) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attrs)], "g",
        [helper.make_tensor_value_info("x", 1, [f"d{k}" for k in range(rank)])], [helper.make_empty_tensor_value_info("y")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("op", ["ReduceMean", "ArgMax"])
def test_columns_of_rows_of_any_length(op: str, target: str) -> None:
    """Halide rounded the columns of `window` up to whole vectors, and read them all of the last row."""
    session = occ.compile(model(op, 2, **({"axis": 0} if op == "ArgMax" else {"axes": [0]})), target=target, threads=1)
    for shape in ((2, 17), (3, 3), (33, 5), (2, 16)):
        end = AtTheEnd(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
        expected = end.array.mean(0) if op == "ReduceMean" else end.array.argmax(0)
        if (child := os.fork()) == 0:
            code = 1
            try:
                code = 0 if np.allclose(session.run({"x": end.array})["y"][0], expected, atol=1e-5) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, shape

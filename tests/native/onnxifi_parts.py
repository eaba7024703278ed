"""ONNXIFI for tests: the library, parts of Debian's onnx 1.12, and a client in C that uses those."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from occ.compiler.cache.cache import Cache
from occ.compiler.onnxifi.library import onnxifi_library

HEADER = Path("/usr/include/onnx/onnxifi.h")
WRAPPER = Path("/usr/lib/libonnxifi.so")
LOADER = Path("/usr/lib/x86_64-linux-gnu/libonnxifi_loader.a")
DATA = Path("/usr/share/libonnx-testdata/data/node")
FOUND_IN = b"/usr/lib/\0"  # where the wrapper looks for libraries
NEAR = b"./vendor/\0"
HIGH_THROUGHPUT, LOW_DELAY = 0, 3
KEEP = {"OCC_CACHE_ARTIFACTS": str(1 << 28)}  # other tests do not keep artifacts


def needs(*parts: Path) -> None:
    """Skip a test where Debian's packages are missing."""
    if missing := [str(p) for p in parts if not p.exists()]:
        pytest.skip(f"{missing[0]} is missing: apt install libonnxifi libonnx-dev libonnx-testdata")


@cache
def library() -> Path:
    return onnxifi_library(Cache())


@dataclass
class Case:
    """A model, its inputs, those of them that are weights, and the outputs that are expected."""

    name: str
    model: bytes
    inputs: list[TensorProto]
    weights: list[TensorProto]
    outputs: list[TensorProto]

    def packed(self) -> bytes:
        lists = (_packed(self.inputs, True), _packed(self.weights, True), _packed(self.outputs, False))
        return struct.pack("<Q", len(self.model)) + self.model + b"".join(lists)


@dataclass
class Result:
    """Statuses of compatibility, InitGraph, SetGraphIO and the run, and the outputs if all were 0."""

    statuses: tuple[int, ...]
    outputs: list[np.ndarray]


def _packed(tensors: Sequence[TensorProto], with_data: bool) -> bytes:
    parts = [struct.pack("<I", len(tensors))]
    for t in tensors:
        name, x = t.name.encode(), numpy_helper.to_array(t)
        data = x.tobytes() if with_data else bytes(x.nbytes)
        parts += [struct.pack("<I", len(name)), name, struct.pack("<II", t.data_type, x.ndim)]
        parts += [struct.pack(f"<{x.ndim}Q", *x.shape), struct.pack("<Q", len(data)), data]
    return b"".join(parts)


class Client:
    """The client in C.

    Args:
        folder: where to build it.
        wrapped: through the wrapper of onnx, which finds the library in a folder; else through the loader alone.
    """

    def __init__(self, folder: Path, *, wrapped: bool) -> None:
        needs(HEADER, WRAPPER, LOADER)
        source = Path(__file__).with_name("onnxifi_client.c")
        self.program, self.folder = folder / "client", folder
        command = ["gcc", "-O1", str(source), str(LOADER), "-ldl", "-o", str(self.program)]
        subprocess.run(command, check=True)
        self.found = [] if wrapped else [str(library())]
        if wrapped:
            text = WRAPPER.read_bytes()
            assert text.count(FOUND_IN) == 1
            (folder / WRAPPER.name).write_bytes(text.replace(FOUND_IN, NEAR))
            (folder / "vendor").mkdir()
            shutil.copy(library(), folder / "vendor")

    def run(self, cases: Sequence[Case], optimization: int = LOW_DELAY) -> list[Result]:
        """Run some cases in one process."""
        data = struct.pack("<I", len(cases)) + b"".join(c.packed() for c in cases)
        more = {"LD_LIBRARY_PATH": f"{self.folder}:{self.folder / 'vendor'}", **KEEP}
        command = [str(self.program), str(optimization), *self.found]
        done = subprocess.run(
            command, input=data, stdout=subprocess.PIPE, check=True, env={**os.environ, **more}, cwd=self.folder
        )
        return list(_results(cases, done.stdout))


def _results(cases: Sequence[Case], data: bytes) -> Iterator[Result]:
    at = 0
    for case in cases:
        statuses = struct.unpack_from("<4I", data, at)
        at += 16
        outputs: list[np.ndarray] = []
        for t in case.outputs:
            want = numpy_helper.to_array(t)
            if want.dtype != object:  # texts, which no descriptor has
                outputs.append(np.frombuffer(data, want.dtype, prod(want.shape), at).reshape(want.shape))
            at += want.nbytes
        yield Result(statuses, outputs)
    assert at == len(data)


def node_cases(names: Sequence[str] = ()) -> Iterator[Case]:
    """The node cases of onnx 1.12; those that descriptors cannot pass have inputs that are not tensors, and no name."""
    for folder in sorted(DATA.iterdir()):
        if names and folder.name.removeprefix("test_") not in names:
            continue
        model = onnx.load(folder / "model.onnx", load_external_data=False)
        tensors: dict[str, list[TensorProto]] = {}
        for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
            tensors[kind] = []
            for k, info in enumerate(infos):
                if not info.type.HasField("tensor_type"):
                    continue
                t = TensorProto.FromString((folder / f"test_data_set_0/{kind}_{k}.pb").read_bytes())
                t.name = info.name
                if info.type.tensor_type.elem_type == TensorProto.BFLOAT16:
                    t.data_type = TensorProto.BFLOAT16  # the files of this release say UINT16
                tensors[kind].append(t)
        name = folder.name.removeprefix("test_")
        yield Case(name, model.SerializeToString(), tensors["input"], [], tensors["output"])

"""The stand-in for libascendcl.so, built from tests/acl/standin, and models that it can load."""

from __future__ import annotations

import ast
import ctypes
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from occ.runtime.acl.prototypes import DATA_TYPES, DTYPE_OF, FORMATS, SINGLE_OP_TYPES
from occ.runtime.signature import numpy_dtype

SOURCES = Path(__file__).parent / "standin"
_FLAGS = ["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
# of type, attributes, (format, extents) of operands and of results, operands (None where absent)
Described = list[tuple[int, tuple[int, ...]]]
OperatorCompute = Callable[
    [str, dict[str, object], Described, Described, list[np.ndarray | None]], Sequence[np.ndarray]
]
Compute = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


def build(folder: Path) -> Path:
    """Compile the library; returns its path."""
    made = folder / "libascendcl.so"
    sources = sorted(map(str, SOURCES.glob("*.c")))
    subprocess.run(["gcc", *_FLAGS, *sources, "-o", str(made)], check=True)
    return made


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("dims", ctypes.c_int64 * 16),
    )


_TENSORS = ctypes.POINTER(_Tensor)
_EXECUTOR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, _TENSORS, ctypes.c_int, _TENSORS
)
_OP_EXECUTOR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, _TENSORS, ctypes.c_int, _TENSORS
)


def _view(t: _Tensor) -> np.ndarray:
    dtype = numpy_dtype(DTYPE_OF[t.dtype])
    shape = tuple(t.dims[: t.rank])
    count = int(np.prod(shape, dtype=np.int64))
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(t.data)
    return np.frombuffer(raw, dtype).reshape(shape)


def _give(t: _Tensor, value: np.ndarray) -> None:
    value = np.asarray(value, order="C")  # `ascontiguousarray` makes vectors of scalars
    assert value.nbytes <= t.size, (value.shape, value.dtype, t.size)
    assert DATA_TYPES[next(k for k in DATA_TYPES if numpy_dtype(k) == value.dtype)] == t.dtype, value.dtype
    ctypes.memmove(t.data, value.ctypes.data, value.nbytes)
    t.rank = value.ndim
    t.dims[: value.ndim] = value.shape


@dataclass
class Standin:
    """The library as tests see it.

    Attributes:
        programs: what models do, by payload; any other payload goes to `fallback`.
        errors: exceptions of programs, which the library reports as a failed execution.
    """

    path: Path
    programs: dict[bytes, Compute] = field(default_factory=dict)
    operator: OperatorCompute | None = None
    fallback: Callable[[bytes, Sequence[np.ndarray]], Sequence[np.ndarray]] | None = None
    errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dll = ctypes.CDLL(str(self.path))
        self.dll.standin_report.restype = self.dll.standin_calls.restype = ctypes.c_char_p
        self.dll.standin_copied.restype = ctypes.c_size_t
        for name in ("standin_count", "standin_copies", "standin_memory_used", "standin_memory_peak"):
            getattr(self.dll, name).restype = ctypes.c_long
        self._callbacks = _EXECUTOR(self._execute), _OP_EXECUTOR(self._execute_op)
        self.reset()

    def reset(self) -> None:
        """As on loading; nothing of before may be in use."""
        self.dll.standin_reset()
        self.dll.standin_executors(*self._callbacks)
        self.errors.clear()

    def machine(self, soc: str = "Ascend310P3", devices: int = 1, memory: int = 0, once: bool = False) -> None:
        """What the machine is: SoC, number of devices, bytes of memory (0: plenty), whether aclInit works only once."""
        self.dll.standin_machine(soc.encode(), devices, ctypes.c_size_t(memory), once)

    def fail(self, call: str, at: int = 1, code: int = 500000) -> None:
        """Have the `at`-th call of that name fail, counted from the last reset."""
        self.dll.standin_fail(call.encode(), ctypes.c_long(at), code)

    def count(self, call: str) -> int:
        return self.dll.standin_count(call.encode())

    @property
    def calls(self) -> dict[str, int]:
        """Calls made since the last reset."""
        words = self.dll.standin_calls().decode().split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    @property
    def report(self) -> str:
        """Leaks and violations, a line each; empty if all is well."""
        return self.dll.standin_report().decode()

    def copies(self, kind: str) -> tuple[int, int]:
        """How many copies of a kind were made, and how many bytes."""
        number = ("host", "upload", "download", "device").index(kind)
        return self.dll.standin_copies(number), self.dll.standin_copied(number)

    @property
    def memory(self) -> tuple[int, int]:
        """Device memory in use, and its peak."""
        return self.dll.standin_memory_used(), self.dll.standin_memory_peak()

    @property
    def peak_streams(self) -> int:
        """The most streams that had executions on them at once."""
        return self.dll.standin_peak_streams()

    def _execute(self, model: int, size: int, n: int, inputs: object, m: int, outputs: object) -> int:
        payload = ctypes.string_at(model, size)
        try:
            arrays = [_view(inputs[k]) for k in range(n)]
            program = self.programs.get(payload)
            assert program or self.fallback, payload[:80]
            results = program(arrays) if program else self.fallback(payload, arrays)
            for k, value in zip(range(m), results, strict=True):
                _give(outputs[k], value)
        except Exception as e:
            self.errors.append(e)
            return 1
        return 0

    def _execute_op(self, name: bytes, attrs: bytes, n: int, inputs: object, m: int, outputs: object) -> int:
        try:
            arrays = [None if inputs[k].dtype < 0 else _view(inputs[k]) for k in range(n)]
            ins, outs = ([(t.format, tuple(t.dims[: t.rank])) for t in side] for side in (inputs[:n], outputs[:m]))
            assert self.operator is not None
            results = self.operator(name.decode(), _attributes(attrs.decode()), ins, outs, arrays)
            for k, value in zip(range(m), results, strict=True):
                _give(outputs[k], value)
        except Exception as e:
            self.errors.append(e)
            return 1
        return 0


def _attributes(text: str) -> dict[str, object]:
    return {name: ast.literal_eval(value) for name, value in re.findall(r"(\w+)=(.*?);(?=\w+=|$)", text, re.DOTALL)}


def _attribute(kind: str, value: object) -> str:
    """An attribute as the library records it."""
    match kind:
        case "float":
            return f"{float(np.float32(value)):.9g}"
        case "bool" | "int":
            return str(int(value))
        case "string":
            return f'"{value}"'
        case "data_type":
            return str(SINGLE_OP_TYPES[value][0])
        case _:
            return "[" + "".join(_attribute(kind.removeprefix("list_"), v) + "," for v in value) + "]"


def operator_model(entry: dict[str, object]) -> bytes:
    """A model of one operator that the stand-in loads, from an entry of the file that `atc --singleop` takes."""

    def tensor(d: dict[str, object]) -> str:
        number = SINGLE_OP_TYPES[d["type"]][0] if d["type"] in SINGLE_OP_TYPES else -1
        dims = "".join(f"{n}," for n in d["shape"])
        return f" {number}:{FORMATS.get(d['format'], -1)}:{dims}{d.get('dynamic_input', '')}{'!' * ('is_const' in d)}"

    ins, outs = ("".join(map(tensor, entry[side])) for side in ("input_desc", "output_desc"))
    attrs = "".join(f"{a['name']}={_attribute(a['type'], a['value'])};" for a in entry.get("attr", []))
    return f"standin-op 1\n{entry['op']} |{ins} |{outs} | {attrs}".encode()


@dataclass(frozen=True)
class P:
    """An input or output of a model: -1 for extents that change."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    format: str = "ND"

    def line(self) -> str:
        numbers = (DATA_TYPES[self.dtype], FORMATS[self.format], len(self.shape), *self.shape)
        return " ".join(map(str, numbers)) + f" {self.name}"


def om(
    payload: bytes,
    inputs: Sequence[P],
    outputs: Sequence[P],
    *,
    soc: str = "Ascend310P3",
    work: int = 4096,
    weight: int = 8192,
    gears: str = "",
    outside: str = "",
) -> bytes:
    """A model that the stand-in loads.

    `gears` as `batch 1 2 4`, `image 8,8 16,16` or `dims 1,8 2,8`; `outside` is a file in `weight` with the rest of the payload.
    """
    head = ["standin-om 1", f"soc {soc}", f"memory {work} {weight}"]
    head += [f"gears {gears}"] if gears else []
    head += [f"outside {outside}"] if outside else []
    head += [f"input {p.line()}" for p in inputs] + [f"output {p.line()}" for p in outputs]
    return "\n".join([*head, f"payload {len(payload)}", ""]).encode() + payload

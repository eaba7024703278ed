"""Measures single kernels: compares their results first, then times them."""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from occ.compiler.cache.cache import digest
from occ.compiler.codegen_halide.build import cpu_identity
from occ.compiler.compare import first_difference
from occ.compiler.debugging.random_tensors import random_array
from occ.compiler.ir.dim import Symbol, evaluate, symbols
from occ.compiler.ir.te.function import Param, TeFunc
from occ.runtime.buffers import aligned_bytes
from occ.runtime.dataclass import dataclass
from occ.runtime.native.library import Dimension, HalideBuffer, Library, fill_buffer

_NOMINAL = 64  # value of a symbolic size, halved until the operands fit a cache
_MOST_BYTES = 16 << 20
_COLD = 4 << 20  # bytes of operands cycled through: in a model, kernels do not find theirs in L1 and L2
_MOST_COPIES = 16
_SAMPLE = 300e-6  # minimum seconds of one sample
_MOST_CALLS = 64
# Tolerance for sums in another order, relative to the largest value.
_TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


def machine_identity() -> str:
    """The identity of a machine for tuning: processor, features, cores, caches."""
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    sizes = [f.read_text() for c in caches for f in (c / "level", c / "type", c / "size") if f.is_file()]
    return digest([cpu_identity(), str(os.cpu_count()), *sizes])


@contextmanager
def alone() -> Generator[None]:
    """Wait until no other process of this user measures on this machine, which would distort the result."""
    place = Path(tempfile.gettempdir(), f"occ-measuring-{os.getuid()}")
    descriptor = os.open(place, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Tensor:
    """An operand in memory."""

    param: Param
    shape: tuple[int, ...]
    data: np.ndarray
    buffer: HalideBuffer
    dims: ctypes.Array[Dimension]


class Operands:
    """Operands of a te function, in several copies; symbolic sizes have typical values.

    Attributes:
        sizes: the values of its dims.
        results: of the first copy.
    """

    def __init__(self, f: TeFunc) -> None:
        self.sizes = _sizes(f)
        rng = np.random.default_rng(0)
        once = sum(_bytes(p, self.sizes) for p in (*f.params, *f.results))
        copies = min(max(math.ceil(_COLD / max(once, 1)), 1), _MOST_COPIES)
        self._values = (ctypes.c_int32 * max(len(f.dims), 1))(*(self.sizes[d] for d in f.dims))
        first = [_tensor(p, self.sizes, rng) for p in f.params]
        self._sets = [[*first, *(_tensor(p, self.sizes) for p in f.results)]]
        for _ in range(copies - 1):
            again = [_tensor(t.param, self.sizes, like=t.data) for t in first]
            self._sets.append([*again, *(_tensor(p, self.sizes) for p in f.results)])
        self._blocks = [self._block(s, len(f.dims), len(f.params)) for s in self._sets]
        self.results = self._sets[0][len(f.params) :]

    def _block(self, tensors: Sequence[Tensor], dims: int, params: int) -> ctypes.Array[ctypes.c_void_p]:
        listed = [ctypes.addressof(t.buffer) for t in tensors[:params]]
        listed += [ctypes.addressof(self._values) + 4 * k for k in range(dims)]
        listed += [ctypes.addressof(t.buffer) for t in tensors[params:]]
        return (ctypes.c_void_p * len(listed))(*listed)

    def calls(self, count: int) -> ctypes.Array[ctypes.c_void_p]:
        """Argument blocks for consecutive calls, cycling through the copies."""
        return (ctypes.c_void_p * count)(*(ctypes.addressof(self._blocks[k % len(self._blocks)]) for k in range(count)))


class Bench:
    """Kernels of one library on the same operands.

    Attributes:
        names: of the kernels with the same results as the first one; empty if that one fails.
    """

    def __init__(self, code: bytes, names: Sequence[str], operands: Operands, threads: int) -> None:
        self._library, self._operands, self._threads = Library(code, "tune"), operands, threads
        assert self._library.run is not None, "the library has no loop over kernels"
        self._run, self._count = self._library.run, 1
        expected = self._results(names[0])
        self.names: list[str] = []
        if expected is None:
            return
        self.names += [n for n in names if n == names[0] or _same(self._results(n), expected, operands.results)]
        self._count = min(max(int(_SAMPLE / self.seconds(names[0])), 1), _MOST_CALLS)

    def _repeated(self, name: str) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * self._count)(*[self._library.address(f"{name}_argv")] * self._count)

    def _results(self, name: str) -> list[np.ndarray] | None:
        """The outputs of a kernel in randomly filled memory; None if it fails."""
        for t in self._operands.results:
            t.data.view(np.uint8)[...] = 0x5A
        failed = self._run(1, self._repeated(name), self._operands.calls(1), self._threads)
        return None if failed else [t.data.copy() for t in self._operands.results]

    def seconds(self, name: str) -> float:
        """Seconds of one call, the mean over a sample."""
        blocks = self._operands.calls(self._count)
        addresses = self._repeated(name)
        start = time.perf_counter()
        self._run(self._count, addresses, blocks, self._threads)
        return max(time.perf_counter() - start, 1e-9) / self._count

    def least(self, rounds: int = 5) -> dict[str, float]:
        """The shortest time of each kernel, interleaved, so that disturbances affect all alike."""
        found = dict.fromkeys(self.names, math.inf)
        for _ in range(rounds):
            for n in self.names:
                found[n] = min(found[n], self.seconds(n))
        return found

    def pairs(self, first: str, second: str, rounds: int = 15) -> list[tuple[float, float]]:
        """Times of two kernels, in order."""
        return [(self.seconds(first), self.seconds(second)) for _ in range(rounds)]


def _sizes(f: TeFunc) -> dict[str, int]:
    """Values of the dims: equal, within their bounds, and such that the operands fit a cache."""
    found: dict[str, Symbol] = {}
    for d in (d for p in (*f.params, *f.results) for d in p.type.physical if not isinstance(d, int)):
        found.update(symbols(d))
    value = _NOMINAL
    while True:
        made = {name: _within(found.get(name), value) for name in f.dims}
        if value == 1 or sum(_bytes(p, made) for p in (*f.params, *f.results)) <= _MOST_BYTES:
            return made
        value //= 2


def _within(symbol: Symbol | None, value: int) -> int:
    if symbol is None:
        return value
    most = min(value, symbol.hi) if isinstance(symbol.hi, int) else value
    return max(most // symbol.divisible_by, 1) * symbol.divisible_by if most >= symbol.lo else symbol.lo


def _shape(p: Param, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(max(evaluate(d, sizes), 0) for d in p.type.physical)


def _bytes(p: Param, sizes: dict[str, int]) -> int:
    return math.prod(_shape(p, sizes)) * p.type.dtype.numpy.itemsize


def _tensor(
    p: Param, sizes: dict[str, int], rng: np.random.Generator | None = None, like: np.ndarray | None = None
) -> Tensor:
    """An operand: a copy, or random numbers for which every function is defined; wide integers (indices) are 0."""
    shape, dtype = _shape(p, sizes), p.type.dtype.numpy
    around = tuple(max(evaluate(d, sizes), 0) for d in p.type.layout.memory_shape(p.type.dims))
    count = math.prod(around)
    data = aligned_bytes(count * dtype.itemsize + 64)[: count * dtype.itemsize].view(dtype)
    if like is not None:
        data[...] = like
    elif rng is not None:
        integers = (0, 100) if dtype.itemsize == 1 else (0, 1)
        data[...] = random_array(rng, dtype, (count,), integers=integers, positive=True)
    buffer, dims = HalideBuffer(), (Dimension * max(len(shape), 1))()
    strides = [max(evaluate(d, sizes), 0) for d in p.type.strides]
    fill_buffer(buffer, dims, p.type.dtype.name, dtype.itemsize, shape, strides)
    buffer.host = data.ctypes.data
    return Tensor(p, shape, data, buffer, dims)


def _same(got: list[np.ndarray] | None, want: list[np.ndarray], results: Sequence[Tensor]) -> bool:
    return got is not None and all(
        first_difference(a, b, _TOLERANCE.get(t.param.type.dtype.name, 0.0)) is None
        for a, b, t in zip(got, want, results, strict=True)
    )

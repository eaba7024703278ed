"""Inputs of a run: from files, or random."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from occ.runtime.manifest import DimInfo
    from occ.runtime.session import Session

_DRAWN = 8  # bytes of an element during random generation
_FREE = 32  # extent of a symbolic dim that is not a batch


def given_inputs(
    session: Session, single: Mapping[str, str], npz: str | None, sizes: dict[str, int], seed: int
) -> dict[str, Any]:
    """Inputs from files: `single` by name, one file each, or `npz` for all; seeded random ones if there are none.

    A sequence consists of the arrays of its file, in order.

    Raises:
        RunError: OCC0501 a file cannot be read or lacks an array, or as `random_inputs`.
    """
    from occ.runtime.errors import RunError

    found: dict[str, Any] = {}
    if npz is not None:
        found |= named_arrays(npz)
    sequences = {p.name for p in session.inputs if p.kind.startswith("sequence")}
    for name, path in single.items():
        arrays = list(arrays_of(path).values())
        if name in sequences:
            found[name] = arrays
            continue
        if len(arrays) != 1:
            raise RunError("OCC0501", f"the input `{name}` takes a file of one array, `{path}` has {len(arrays)}")
        found[name] = arrays[0]
    if found:
        return found
    return random_inputs(session, sizes, np.random.default_rng(seed))


def named_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of a file for all inputs, by input name.

    Raises:
        RunError: OCC0501 the file cannot be read, or has one array without a name.
    """
    from occ.runtime.errors import RunError

    found = arrays_of(path)
    if "" in found:
        help_ = f"`numpy.savez` writes such files; `occ run` also takes one input from a file: `--input NAME={path}`"
        raise RunError("OCC0501", f"`{path}` has an array without the name of an input", help_)
    return found


def arrays_of(path: str) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name, or the array of an .npy or .pb (TensorProto) file.

    Raises:
        RunError: OCC0501 the file cannot be read.
    """
    from tokenize import TokenError

    from occ.runtime.errors import RunError
    from occ.runtime.members import DAMAGE

    if path.endswith(".pb"):
        return _tensor(path)
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"": found}
        with found as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as e:
        raise RunError("OCC0501", f"the input file `{path}` cannot be read: {e.strerror or e}") from None
    except (*DAMAGE, TokenError, SyntaxError, TypeError, LookupError) as e:  # the header of an array is Python
        with open(path, "rb") as file:
            ours = file.read(6).startswith((b"\x93NUMPY", b"PK"))  # NumPy also calls an unknown file a pickle
        help_ = "`numpy.save` writes .npy files, `numpy.savez` .npz files; .pb files hold a TensorProto"
        raise RunError("OCC0501", f"`{path}` is not a file of arrays{f': {e}' if ours else ''}", help_) from None


def _tensor(path: str) -> dict[str, np.ndarray]:
    """The array of a file with a TensorProto, as in ONNX's test data, by its name.

    Raises:
        RunError: OCC0501 the file cannot be read.
    """
    from google.protobuf.message import DecodeError
    from onnx import TensorProto, numpy_helper

    from occ.runtime.errors import RunError

    try:
        tensor = TensorProto.FromString(Path(path).read_bytes())
        return {tensor.name: numpy_helper.to_array(tensor)}
    except OSError as e:
        raise RunError("OCC0501", f"the input file `{path}` cannot be read: {e.strerror or e}") from None
    except (DecodeError, ValueError, TypeError) as e:
        raise RunError("OCC0501", f"`{path}` is not a TensorProto: {e}") from None


def free_dims(session: Session, sizes: Mapping[str, int]) -> dict[str, int]:
    """Extents of random inputs for symbolic dims that `sizes` leaves open: 1 for batches, otherwise 32.

    The first axis of a shape with several is a batch. Many nets are undefined for a single element. The bounds of the
    dims apply.
    """
    shapes = [p.shape for p in session.inputs]
    first = {shape[0] for shape in shapes if len(shape) > 1}
    dims = [d for shape in shapes for d in shape if isinstance(d, str) and d not in sizes]
    known = {d.label: d for d in session.artifact.manifest.dims}
    return {d: _within(known.get(d), 1 if d in first else _FREE) for d in dims}


def _within(dim: DimInfo | None, n: int) -> int:
    """The size closest to `n` that a dim may have."""
    if dim is None:
        return n
    most = n if dim.hi is None else min(n, dim.hi)
    step = dim.divisible_by
    return max(most // step, -(-dim.lo // step)) * step


def _available_memory() -> int:
    """Bytes that can be allocated without swapping."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def random_inputs(session: Session, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs of the right types; symbolic dims have the values of `sizes`, or of `free_dims`.

    Raises:
        RunError: OCC0501 an input is not a tensor, or there is not enough memory.
    """
    from occ.compiler.debugging.random_tensors import random_array
    from occ.runtime.errors import RunError
    from occ.runtime.signature import numpy_dtype

    made: dict[str, np.ndarray] = {}
    sizes = free_dims(session, sizes) | sizes
    room = _available_memory()
    for port in session.inputs:
        if port.kind not in ("tensor", "unranked"):
            help_ = (
                f"`occ run` reads it with `--input {port.name}=FILE`; a session takes Python's lists, dicts and None"
            )
            raise RunError("OCC0501", f"the input `{port.name}` is of kind {port.kind}: random ones are tensors", help_)
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in port.shape)
        room -= prod(shape) * (numpy_dtype(port.dtype).itemsize + _DRAWN)
        if room < 0:
            text = f"a random input `{port.name}` of {port.dtype}{list(shape)} needs more memory than there is"
            raise RunError("OCC0501", text, "set smaller sizes with --dim or --shape, or pass the input itself")
        made[port.name] = random_array(rng, numpy_dtype(port.dtype), shape)
    return made

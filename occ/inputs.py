"""Inputs of a run: from files, and random ones for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from occ.runtime.manifest import DimInfo
    from occ.runtime.session import Session

_FREE = 32  # of a symbolic dim that is no batch


def given_inputs(
    session: Session, single: Mapping[str, str], npz: str | None, sizes: dict[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Inputs from files: `single` by name, one file each, or `npz` for all; seeded random ones if there are none.

    Raises:
        RunError: OCC0501 a file cannot be read, or one of `single` has more than one array.
    """
    from occ.runtime.errors import RunError

    found: dict[str, np.ndarray] = {}
    if npz is not None:
        found |= arrays_of(npz)
    for name, path in single.items():
        arrays = list(arrays_of(path).values())
        if len(arrays) != 1:
            raise RunError("OCC0501", f"the input `{name}` takes a file of one array, `{path}` has {len(arrays)}")
        found[name] = arrays[0]
    if found:
        return found
    return random_inputs(session, sizes, np.random.default_rng(seed))


def arrays_of(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, or the one of an .npy file or of a .pb file with a TensorProto.

    Raises:
        RunError: OCC0501 the file cannot be read.
    """
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
    except DAMAGE as e:
        help_ = f"`numpy.save` writes .npy files, .pb files hold a TensorProto; {e}"
        raise RunError("OCC0501", f"`{path}` is not a file of arrays", help_) from None


def _tensor(path: str) -> dict[str, np.ndarray]:
    """The array of a file with a TensorProto, as the test data of ONNX are, by its name.

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
    """What random inputs have for the symbolic dims that `sizes` leaves open: 1 for what comes first in a shape of some axes,
    as batches do, and 32 for the others, since many nets are not defined for a single element; within the bounds of the dims.
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


def random_inputs(session: Session, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs of the right types; symbolic dims take the values of `sizes`, or of `free_dims`."""
    from occ.compiler.tools.samples import random_array
    from occ.runtime.signature import numpy_dtype

    made: dict[str, np.ndarray] = {}
    sizes = free_dims(session, sizes) | sizes
    for port in session.inputs:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in port.shape)
        made[port.name] = random_array(rng, numpy_dtype(port.dtype), shape)
    return made

"""Typical inputs for calibrating the ranges of activations: from an .npz file, a folder, or Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ValueInfoProto, helper

from occ.compiler.diagnostics import closest, shorten
from occ.inputs import arrays_of
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

Arrays = Mapping[str, np.ndarray]
Data = str | os.PathLike[str] | Iterable[Arrays]
_SUFFIXES = (".npz", ".npy", ".pb")


@dataclass(frozen=True)
class Samples:
    """Inputs of runs, each read on demand.

    Attributes:
        ports: the inputs of the model.
        places: of each sample: its name for messages, and its source, files or arrays.
    """

    ports: tuple[ValueInfoProto, ...]
    places: tuple[tuple[str, tuple[Path, ...] | Arrays], ...]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for name, place in self.places:
            given = _read(place, self.ports) if isinstance(place, tuple) else dict(place)
            yield from _split(_checked(given, self.ports, name), self.ports)


def samples_of(data: Data, graph: GraphProto) -> Samples:
    """The samples of a model.

    Args:
        data: an .npz file; a folder of .npz files, of .npy or .pb files if the model has one input, or of folders with
            `input_0.pb` and so on, as in ONNX's test data; or inputs by name, one mapping per run. If a model has a
            fixed batch, an array of several batches is split.
        graph: of the model.

    Raises:
        RunError: OCC0501 there are no samples, or they cannot be read.
    """
    ports = tuple(graph.input)
    if not isinstance(data, (str, os.PathLike)):
        places = list(_of_arrays(data))
        if not places:
            raise RunError("OCC0501", "there are no calibration data: the list of runs is empty")
        return Samples(ports, tuple(places))
    path = Path(data)
    places = _of_folder(path) if path.is_dir() else [(str(path), (path,))]
    if not places:
        help_ = (
            "a sample is an .npz file with an array for each input, an .npy or .pb file of the only one, or a "
            "folder of `input_0.pb` ..."
        )
        raise RunError("OCC0501", f"the folder `{path}` has no calibration data", help_)
    return Samples(ports, tuple(places))


def _of_arrays(data: Iterable[Arrays]) -> Iterator[tuple[str, Arrays]]:
    help_ = 'a list with a dict for each run, such as [{"x": array}, ...]; or the path of an .npz file or a folder'
    if isinstance(data, Mapping):
        raise RunError("OCC0501", "the calibration data are a dict, not a list of the inputs of runs", help_)
    for k, one in enumerate(data):
        if not isinstance(one, Mapping):
            raise RunError(
                "OCC0501", f"sample {k} of the calibration data is {type(one).__name__}, not inputs by name", help_
            )
        yield f"sample {k}", one


def _of_folder(folder: Path) -> list[tuple[str, tuple[Path, ...]]]:
    """The samples in a folder, in the order of their names."""
    made: list[tuple[str, tuple[Path, ...]]] = []
    for entry in sorted(folder.iterdir()):
        if entry.suffix in _SUFFIXES and entry.is_file():
            made.append((str(entry), (entry,)))
        elif entry.is_dir() and (parts := sorted(entry.glob("input_*.pb"), key=_number)):
            made.append((str(entry), tuple(parts)))
    return made


def _number(path: Path) -> tuple[int, str]:
    digits = path.stem.removeprefix("input_")
    return (int(digits) if digits.isdecimal() else -1, path.name)


def _read(files: tuple[Path, ...], ports: tuple[ValueInfoProto, ...]) -> dict[str, np.ndarray]:
    """The arrays of a sample by input name; by order if files have no such names."""
    found: list[tuple[str, np.ndarray]] = [pair for f in files for pair in arrays_of(str(f)).items()]
    known = {p.name for p in ports}
    in_order = len(files) > 1 or (len(found) == len(ports) == 1 and all(f.suffix != ".npz" for f in files))
    if in_order and not all(name in known for name, _ in found):
        return {port.name: x for port, (_, x) in zip(ports, found, strict=False)}
    return dict(found)


def _checked(given: dict[str, np.ndarray], ports: tuple[ValueInfoProto, ...], place: str) -> dict[str, np.ndarray]:
    """A sample that matches the inputs.

    Raises:
        RunError: OCC0501 it does not.
    """
    made: dict[str, np.ndarray] = {}
    for port in ports:
        if port.name not in given:
            has = ", ".join(f"`{shorten(n, 40)}`" for n in given if n) or "one array without a name"
            raise RunError(
                "OCC0501",
                f"`{place}` has no array for the input `{shorten(port.name)}`, but {has}",
                closest(port.name, given),
            )
        made[port.name] = _fitting(np.asarray(given[port.name]), port, place)
    return made


def _fitting(x: np.ndarray, port: ValueInfoProto, place: str) -> np.ndarray:
    wanted = helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
    what = f"`{place}`: the input `{shorten(port.name)}`"
    if x.dtype != wanted:
        raise RunError("OCC0501", f"{what} is {wanted}, not {x.dtype}", f"convert it: `x.astype('{wanted}')`")
    extents = _extents(port)
    if extents is not None and not _fits(x.shape, extents):
        raise RunError("OCC0501", f"{what} is {list(extents)}, not {list(x.shape)}")
    if x.size == 0:
        raise RunError("OCC0501", f"{what} has no elements: {list(x.shape)}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise RunError("OCC0501", f"{what} has infinities or NaN, which have no range")
    return x


def _fits(shape: tuple[int, ...], extents: tuple[int | str, ...]) -> bool:
    """Whether an array has the extents of an input, or a multiple on its first axis."""
    if len(shape) != len(extents):
        return False
    apart = [(k, n, d) for k, (n, d) in enumerate(zip(shape, extents, strict=True)) if isinstance(d, int) and n != d]
    return not apart or (len(apart) == 1 and apart[0][0] == 0 and apart[0][2] > 0 and apart[0][1] % apart[0][2] == 0)


def _extents(port: ValueInfoProto) -> tuple[int | str, ...] | None:
    kind = port.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim)


def _split(given: dict[str, np.ndarray], ports: tuple[ValueInfoProto, ...]) -> Iterator[dict[str, np.ndarray]]:
    """Runs with the model's batch, from arrays of several batches."""
    counts: dict[str, tuple[int, int]] = {}
    for port in ports:
        extents, x = _extents(port), given[port.name]
        batch = next(iter(extents or ()), None)
        if isinstance(batch, int) and x.shape[0] != batch:
            counts[port.name] = (batch, x.shape[0] // batch)
    runs = min((n for _, n in counts.values()), default=1)
    for k in range(runs):
        yield {n: x[k * counts[n][0] : (k + 1) * counts[n][0]] if n in counts else x for n, x in given.items()}


class Reader:
    """The library's source of successive inputs (its CalibrationDataReader)."""

    def __init__(self, samples: Iterable[Arrays]) -> None:
        self._left = iter(samples)
        self.count = 0

    def get_next(self) -> Any:
        """The next inputs by name, or None."""
        one = next(self._left, None)
        self.count += one is not None
        return one

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Any:
        one = self.get_next()
        if one is None:
            raise StopIteration
        return one

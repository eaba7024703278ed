"""Compares operator dumps of a device with the simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from occ.analysis.oracles import CannotCompare
from occ.analysis.rows import Row
from occ.compiler.compare import difference
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass
from occ.runtime.open import open_artifact


@dataclass(frozen=True)
class DumpDifferences:
    """The values that both sides have, in the order in which the graph computes them.

    Attributes:
        rows: of each.
        unknown: operators of the dump that are not in the graph, such as those fused by the toolkit's passes.
        unread: outputs in an unsupported format.
        refused: why other files are not dumps.
    """

    rows: list[Row]
    unknown: list[str]
    unread: int
    refused: list[str]


def compared_with_dump(
    artifact: Artifact, folder: Path, inputs: Mapping[str, np.ndarray], tolerance: float
) -> DumpDifferences:
    """Run an artifact on the simulator, and compare each operator with the device's dump file.

    Args:
        artifact: of an Ascend target.
        folder: of the dump, searched recursively.
        inputs: the device's inputs.
        tolerance: the largest difference allowed, relative to the largest value.

    Raises:
        CannotCompare: it is not an artifact for Ascend, or the folder has no dump of its operators.
        RunError: the artifact cannot be run on these inputs.
    """
    from occ.compiler.ge_simulator.dump_files import dumps
    from occ.compiler.ge_simulator.watch import Watcher

    if artifact.manifest.engine != "ascend":
        raise CannotCompare(
            f"a dump of a device is compared with an artifact for Ascend, not for {artifact.manifest.target}"
        )
    found, refused = dumps(folder)
    watcher = Watcher()
    open_artifact(artifact, 1, device=watcher).run(dict(inputs))
    place = {_plain(name): (k, name) for k, name in enumerate(watcher.seen)}
    ordered = sorted((d for d in found if _plain(d.name) in place), key=lambda d: place[_plain(d.name)][0])
    if not ordered:
        why = f"; {refused[0]}" if refused else ""
        raise CannotCompare(f"{folder} has no dump of an operator of the artifact, of {len(found)} dumps{why}")
    rows: list[Row] = []
    unread = 0
    for d in ordered:
        name = place[_plain(d.name)][1]
        for k, (got, want) in enumerate(zip(d.outputs, watcher.seen[name], strict=False)):
            unread += got is None
            if got is not None:
                rows.append(_row(name, k, got, want, tolerance))
    unknown = [f"{d.type} {d.name}" for d in found if _plain(d.name) not in place]
    return DumpDifferences(rows, unknown, unread, refused)


def _plain(name: str) -> str:
    """A name as in file names."""
    return re.sub(r"\W", "_", name)


def _row(name: str, k: int, got: np.ndarray, want: np.ndarray, tolerance: float) -> Row:
    if got.size != want.size:
        return Row(f"{name}:{k}", got.shape, False, name, reason=f"the simulator has {list(want.shape)}")
    floats = got.dtype.kind == want.dtype.kind and got.dtype != want.dtype  # types in half precision after passes
    theirs = got.astype(want.dtype) if floats else got
    if theirs.dtype != want.dtype:
        return Row(
            f"{name}:{k}", got.shape, False, name, reason=f"the device has {got.dtype}, the simulator {want.dtype}"
        )
    gap = difference(theirs.reshape(want.shape), want)
    return Row(f"{name}:{k}", want.shape, gap <= tolerance, name, gap)

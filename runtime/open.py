"""Opens artifacts: selects the engine that a manifest names."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from occ.runtime.artifact import Artifact
from occ.runtime.buffers import ALIGNMENT, aligned
from occ.runtime.device import Accelerator, CpuSubgraph, DeviceEngine
from occ.runtime.dims import evaluate, symbols
from occ.runtime.errors import RunError
from occ.runtime.machine import best_of, missing_feature, refused, shown
from occ.runtime.manifest import Manifest
from occ.runtime.mapped_arrays import WORTH_READING_AHEAD, read_ahead
from occ.runtime.native.engine import NativeEngine, RunDeferred
from occ.runtime.session import Session
from occ.runtime.threads import thread_count


def open_artifact(
    artifact: Artifact,
    threads: int | None = None,
    *,
    run_deferred: RunDeferred | None = None,
    device: Accelerator | None = None,
    options: Mapping[str, Any] | None = None,
) -> Session:
    """A session that runs the native code of an artifact, or its parts on an accelerator.

    Args:
        artifact: what to run.
        threads: of one run; OCC_NUM_THREADS or all processors if None.
        run_deferred: compiles ops that wait for their operands; without it they are an error.
        device: the device for the device parts; this machine's accelerator by default.
        options: of the session on an accelerator, see `occ.runtime.acl.options`.

    Raises:
        RunError: the artifact needs the compiler, its code does not load, or there is no accelerator.
    """
    whole, artifact = artifact, _for_this_machine(artifact)
    m, count = artifact.manifest, thread_count(threads)
    if m.engine == "ascend":
        return Session(artifact, _on_device(artifact, threads, run_deferred, device, options or {}), count)
    if options:
        raise RunError("OCC0603", f"sessions of `{m.target}` have no option `{next(iter(options))}`")
    if m.engine != "native":
        raise RunError("OCC0502", f"an artifact for `{m.target}` needs the compiler to run", "use `occ.load`")
    return Session(artifact, _native(artifact, count, run_deferred), count, whole)


def _for_this_machine(artifact: Artifact) -> Artifact:
    """The model variant that this machine runs best."""
    if not artifact.variants:
        return artifact
    all_ = [artifact, *artifact.variants]
    machines = [a.manifest.machine for a in all_]
    chosen = best_of(machines)
    if chosen < 0:
        lacks = next(filter(None, map(missing_feature, machines)), "")
        why = f"this machine lacks {lacks}{refused(lacks)}" if lacks else f"this machine is {platform.machine()}"
        message = f"the artifact has code for {', '.join(map(shown, machines))}; {why}"
        raise RunError("OCC0502", message, "build it for this one too, such as `--also x86-64-v2`")
    return all_[chosen]


def _native(artifact: Artifact, threads: int, run_deferred: RunDeferred | None) -> NativeEngine:
    if missing := missing_feature(artifact.manifest.machine):
        raise RunError(
            "OCC0502",
            f"the artifact was built for a processor with `{missing}`, which this one lacks{refused(missing)}",
            "build it on this machine, or for it: `-t cpu -C halide.target=x86-64-linux-sse41`",
        )
    arrays = artifact.weights = _aligned_weights(artifact)
    made = NativeEngine(artifact.manifest, arrays, artifact.code, threads, run_deferred, artifact.files)
    if sum(w.nbytes for w in arrays) >= WORTH_READING_AHEAD:  # last: mapping memory waits for reading it
        whole = used_whole(artifact.manifest)
        read_ahead([arrays[k] for k in whole], [w for k, w in enumerate(arrays) if k not in whole])
    return made


def _aligned_weights(artifact: Artifact) -> list[np.ndarray]:
    """The constants, those that kernels read whole at multiples of 64, as in the file.

    What a compiler has just made may be anywhere, and vectors of 64 bytes, or rows of tiles, would each take two lines
    of a cache. 32 rows of bytes by [768, 768] on Sapphire Rapids: 33 --> 19 us.
    """
    arrays = [np.ascontiguousarray(w) for w in artifact.weights]
    if all(w.ctypes.data % ALIGNMENT == 0 for w in arrays):
        return arrays
    for k in used_whole(artifact.manifest):
        if arrays[k].ctypes.data % ALIGNMENT:
            made = aligned(arrays[k].shape, arrays[k].dtype)
            made[...] = arrays[k]
            arrays[k] = made
    return arrays


def used_whole(m: Manifest) -> dict[int, None]:
    """The weights of which a run reads every byte, in plan order.

    From others only some rows are read, as in Gather.

    These are weights for which a kernel does at least an operation per 8 bytes when all sizes are 1.
    """
    found: dict[int, None] = {}
    for plan in m.plans:
        for step in plan.steps:
            count = evaluate(step.operations, dict.fromkeys(symbols(step.operations), 1))
            storages = [plan.storages[plan.buffers[b].storage] for b in step.reads if b >= 0]
            found |= {s.index: None for s in storages if s.kind == "weight" and m.weights[s.index].nbytes <= 8 * count}
    return found


def _on_device(
    artifact: Artifact,
    threads: int | None,
    run_deferred: RunDeferred | None,
    device: Accelerator | None,
    options: Mapping[str, Any],
) -> DeviceEngine:
    m = artifact.manifest
    cpu_subgraphs: dict[str, CpuSubgraph] = {}
    for name in m.cpu_subgraphs:
        made = artifact.cpu_subgraph(name)
        cpu_subgraphs[name] = CpuSubgraph(made.manifest, open_artifact(made, threads, run_deferred=run_deferred).engine)
    if device is None:
        from occ.runtime.acl.ascend import AscendDevice
        from occ.runtime.acl.options import Options

        device = AscendDevice(Options.read(m.options, options))
    return DeviceEngine(m, artifact.weights, artifact.files, device, cpu_subgraphs)


def load(path: str | os.PathLike[str], threads: int | None = None) -> Session:
    """Load an artifact to run it without the compiler.

    Args:
        path: of the artifact.
        threads: of one run; OCC_NUM_THREADS or all processors if None.

    Raises:
        RunError: OCC0502 the artifact cannot be used.
    """
    return open_artifact(Artifact.load(path), threads)

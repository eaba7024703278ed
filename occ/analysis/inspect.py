"""`occ.inspect`: describes a model or an artifact."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from occ.runtime.dims import text

if TYPE_CHECKING:
    from occ.compiler.driver.source import Source
    from occ.compiler.ir.module import Module
    from occ.runtime.manifest import Manifest


def inspect(model: Source) -> dict[str, Any]:
    """Facts about a model or an artifact, as `occ inspect --json` prints them.

    Returns:
        Of a model: `model`, `stage`, `inputs`, `outputs`, `dims`, `operators` (counts by name), `weights`. Of an
        artifact: `artifact`, `target`, `machine`, `also` (further machines, if any), `producer`, `format`, `inputs`,
        `outputs`, `dims`, `constraints`, `steps` (counts by kind), `special` (extents with a plan of their own, if
        any), `kernels`, `entry` (`native`, or what keeps native code from having one, node by node), `weights`,
        `arena`, `needs` (which glibc), `members`; of one for Ascend besides `chip`, `precision`, `parts`,
        `ge_operators`, `on_the_cpu`, `kernel_tables`, `units`, `ai_cpu`, `placed`, `gears`, `ranges` and `atc`.

    Raises:
        CompileError: the model cannot be read. RunError: the artifact is damaged.
    """
    if isinstance(model, (str, os.PathLike)) and is_artifact(model):
        return _artifact(os.fspath(model))
    return _model(model)


def is_artifact(name: str | os.PathLike[str]) -> bool:
    """Whether a path is an artifact: a zip, or a folder."""
    path = Path(name)
    if path.is_dir():
        return True
    if path.suffix == ".pt2":
        return False  # also a zip: a program of torch.export
    try:
        with open(path, "rb") as f:
            return f.read(2) == b"PK"
    except (OSError, ValueError):
        return False


def _artifact(path: str) -> dict[str, Any]:
    from occ.analysis.device_facts import device_facts
    from occ.compiler.native_entry.read_routines import host_steps
    from occ.runtime.artifact import Artifact
    from occ.runtime.elf import needed_versions
    from occ.runtime.manifest import TensorInfo
    from occ.runtime.members import MANIFEST

    a = Artifact.load(path)
    a.verify()
    m = a.manifest
    labels = {d.name: d.label for d in m.dims}

    def show(t: TensorInfo) -> str:
        return f"{t.name}: {t.dtype}[{','.join(text(e, labels) for e in t.shape)}]"

    return {
        "artifact": m.name, "target": m.target, "machine": m.machine, **({"also": m.also} if m.also else {}),
        "producer": m.producer, "format": m.format,
        **device_facts(m, labels, a.files),
        "inputs": [show(t) for t in m.inputs], "outputs": [show(t) for t in m.outputs],
        "dims": [f"{d.label}: {_range(d.lo, d.hi, d.divisible_by)}" for d in m.dims],
        "constraints": [f"{text(c.lhs, labels)} = {text(c.rhs, labels)}, by node {c.node}" for c in m.constraints],
        "steps": dict(Counter(s.kind for s in m.plan.steps)),
        **({"special": special_facts(m)} if m.special else {}),
        "kernels": len({s.name for p in m.plans for s in p.steps if s.kind == "kernel"}),
        **({"entry": host_steps(m) or "native"} if m.engine == "native" else {}),
        "weights": f"{len(m.weights)}, {sum(w.nbytes for w in m.weights)} bytes",
        "arena": "sized per run" if m.plan.arena < 0 else f"{m.plan.arena} bytes",
        "needs": _libraries(needed_versions(a.code)),
        "members": sorted({*a.files, *m.digests, MANIFEST}),
    }  # fmt: skip


def special_facts(m: Manifest) -> list[str]:
    """The extents for which an artifact has plans in addition to the general plan, a line each: `x: f32[1,3,320,320], 81 steps`."""
    made: list[str] = []
    for s in m.special:
        labels = {d.name: d.label for d in s.dims}
        shapes = [f"{i.name}: {i.dtype}[{','.join(text(e, labels) for e in i.shape)}]" for i in s.inputs]
        made.append(f"{', '.join(shapes)}, {len(s.plan.steps)} steps")
    return made


def _libraries(versions: list[str]) -> str:
    """The oldest C library that has all symbol versions that the code needs."""
    numbers = [
        tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in versions if re.fullmatch(r"GLIBC_[\d.]+", v)
    ]
    return f"glibc {'.'.join(map(str, max(numbers)))} or newer" if numbers else "no symbols of a certain glibc"


def _model(source: Source) -> dict[str, Any]:
    from occ.compiler.driver.source import load_module

    m = load_module(source)
    weights = sum(w.data.nbytes for w in m.weights.values())
    facts = {
        "model": m.name,
        "stage": m.stage,
        "inputs": [f"{a.name}: {a.type}" for a in m.main.args],
        "outputs": [],
        "dims": [i.label if i.label == i.symbol.name else f"{i.symbol.name}: {i.label}" for i in m.symbols.values()],
        "operators": dict(Counter(op.name for op in m.walk() if not op.is_terminator).most_common()),
        "weights": f"{len(m.weights)}, {weights} bytes",
    }
    return facts | {"outputs": _outputs(m, source)}


def _outputs(m: Module, source: Source) -> list[str]:
    """Outputs with the types that a build infers; only names if the model has errors, which `occ check` reports."""
    known = inferred(source) if m.stage == "imported" else m
    if known is None:
        return m.main.result_names
    main = known.main
    return [f"{name}: {v.type}" for name, v in zip(main.result_names, main.results, strict=True)]


def inferred(source: Source) -> Module | None:
    """The module of a model with all types; None if the model has errors."""
    from occ.compiler.diagnostics import CompileError
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings

    try:
        return Compilation(source, Settings(target="interp")).advance("inferred")
    except CompileError:
        return None


def _range(lo: int, hi: int | None, step: int) -> str:
    """The values that a dim may take."""
    multiples = f", multiples of {step}" if step > 1 else ""
    return str(lo) if lo == hi else f"{lo} to {'any' if hi is None else hi}{multiples}"

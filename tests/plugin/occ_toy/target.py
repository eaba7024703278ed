"""The target `toy-c`: plain C, one loop nest for each stage, compiled by the C compiler of the machine."""

import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from occ.plugin import (
    LIBRARY,
    Artifact,
    Generated,
    LowerTe,
    Options,
    PlanMemory,
    Target,
    Text,
    entry_object,
    error,
    manifest,
    option,
    pipelines,
    stored_weights,
)
from occ_toy.emit import C_TYPES, source


@dataclass(frozen=True)
class ToyOptions(Options):
    """What `-C` sets."""

    optimise: Literal["0", "1", "2", "3"] = option("2", "level of the C compiler")


def pipeline(options):
    """That of `cpu-jit` up to `fused`; then every stage of a te function becomes a function of its own."""
    jit = pipelines.cpu_jit()
    return {**jit, "layout": (), "scheduled": (LowerTe(split=True),), "lowered": (PlanMemory(),)}


def text(build, m, form):
    """The C of a lowered module."""
    return source(m.te.values())


def generate(build, m):
    """The artifact of a lowered module."""
    made = manifest(m, library=LIBRARY, machine=platform.machine())
    weights = [w.data for w in stored_weights(m)]
    c = source(m.te.values())
    code = compiled(c, entry_object(made), build.options.optimise)
    return Generated(Artifact(made, weights, code, {"src/kernels.c": c.encode()}))


def compiled(c, entry, level):
    """The shared library of some C, and of the object file that calls it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise error("OCC0401", "`-t toy-c` needs a C compiler, and there is no `cc` in PATH")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernels.c").write_text(c)
        (Path(folder) / "entry.o").write_bytes(entry)
        flags = ["-std=gnu11", f"-O{level}", "-w", "-fPIC", "-fwrapv", "-ffp-contract=off", "-shared"]
        command = [compiler, *flags, "kernels.c", "entry.o", "-o", "model.so", "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise error("OCC0403", "the C compiler failed", notes=done.stderr.splitlines()[:12])
        return (Path(folder) / "model.so").read_bytes()


TOY = Target(
    name="toy-c",
    doc="plain C, one loop nest for each stage",
    pipeline=pipeline,
    generate=generate,
    options=ToyOptions(),
    texts={"c": Text(text)},
    dtypes=frozenset(C_TYPES),
)

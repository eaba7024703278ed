"""The machines that tests are for, whatever the machine is that runs them.

`OCC_TEST_MACHINE=x86-64-v3 make test` compiles for that one of them where a test leaves it open; `other` is one with other vectors
than this machine has.
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache

import pytest

from occ.compiler.frontend import channel_blocks
from occ.compiler.objects.processors import PROCESSORS, arch_of, default_target
from occ.compiler.targets import machine as compiler_machine
from occ.compiler.targets.machine import Machine, machine_of
from occ.runtime import machine as runtime_machine
from occ.runtime.artifact import Artifact
from occ.runtime.open import open_artifact
from occ.runtime.session import Session

# Halide targets by the names that tests have for them; that of ARM has dot products.
TARGETS = {n: PROCESSORS[n] for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2")} | {"arm-64": PROCESSORS["neoverse-n1"]}


def named(name: str) -> Machine:
    """The machine of a name: one of `TARGETS`, or another processor."""
    return machine_of(TARGETS.get(name) or PROCESSORS[name])


def other() -> str:
    """A machine whose vectors are not those of this one; one whose code runs here if there is one."""
    here = machine_of("host").vector_bits
    return min(TARGETS, key=lambda n: (named(n).vector_bits == here, not is_here(n)))


def current() -> Machine:
    """The machine that is compiled for where nothing names one."""
    return machine_of(default_target())


def is_here(name: str) -> bool:
    """Whether code for a machine runs on this one."""
    return arch_of(TARGETS[name]) == arch_of() and not runtime_machine.missing_feature(TARGETS[name])


def description() -> str:
    """The machine that runs the tests, and the one that they compile for."""
    kind = runtime_machine.KINDS.get(platform.machine(), platform.machine())
    here = "-".join([kind, *runtime_machine.features_of(runtime_machine.flags())])
    named = os.environ.get("OCC_TEST_MACHINE")
    return f"on {here}" + (f", compiled for {default_target()}, scheduled for {named}" if named else "")


def opened(artifact: Artifact, threads: int | None = None) -> Session:
    """A session of an artifact; where its code does not run on this machine, the test has compiled it, and is left out from there on."""
    if lacks := runtime_machine.missing_feature(artifact.manifest.machine):
        pytest.skip(f"needs a processor with {lacks} to run what it compiles")
    return open_artifact(artifact, threads)


def begin() -> None:
    """Have tests, and the processes that they start, compile for the machine that OCC_TEST_MACHINE names.

    Where its code does not run here, kernels are scheduled for it and compiled for this machine.

    Raises:
        pytest.UsageError: there is none of that name.
    """
    name = os.environ["OCC_TEST_MACHINE"]
    if name == "other":
        name = os.environ["OCC_TEST_MACHINE"] = other()
    if name not in TARGETS:
        raise pytest.UsageError(f"OCC_TEST_MACHINE is one of {', '.join(sorted(TARGETS))}, not {name!r}")
    blocks = channel_blocks._here()
    channel_blocks._here = lambda: blocks  # of onnxruntime, which does not hear of this
    if is_here(name):
        os.environ["OCC_TARGET_CPU"] = TARGETS[name]
        read, lacking = runtime_machine.flags.__wrapped__, _lacking(TARGETS[name])
        runtime_machine.flags = lru_cache(lambda: read() - lacking)  # what artifacts are compared with on opening
    compiler_machine._host = lambda: named(name)  # what passes ask of the host


def _lacking(target: str) -> set[str]:
    """Flags of features that a Halide target does not name."""
    has = {f for part in target.split("-") for f in runtime_machine.FEATURES.get(part, ())}
    return {f for flags in runtime_machine.FEATURES.values() for f in flags} - has

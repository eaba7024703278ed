"""The machines that tests are for, whatever the machine is that runs them.

`OCC_TEST_MACHINE=x86-64-v3 make test` compiles for that one of them where a test leaves it open.
"""

from __future__ import annotations

import os

import pytest

from occ.compiler.objects.processors import PROCESSORS, arch_of, default_target
from occ.compiler.targets import machine as machines
from occ.compiler.targets.machine import Machine, machine_of
from occ.runtime.machine import missing_feature

# Halide targets by the names that tests have for them; that of ARM has dot products.
TARGETS = {n: PROCESSORS[n] for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2")} | {"arm-64": PROCESSORS["neoverse-n1"]}


def named(name: str) -> Machine:
    """The machine of a name."""
    return machine_of(TARGETS[name])


def current() -> Machine:
    """The machine that is compiled for where nothing names one."""
    return machine_of(default_target())


def is_here(name: str) -> bool:
    """Whether code for a machine runs on this one."""
    return arch_of(TARGETS[name]) == arch_of() and not missing_feature(TARGETS[name])


def begin() -> None:
    """Have tests, and the processes that they start, compile for the machine that OCC_TEST_MACHINE names.

    Where its code does not run here, kernels are scheduled for it and compiled for this machine.

    Raises:
        pytest.UsageError: there is none of that name.
    """
    name = os.environ["OCC_TEST_MACHINE"]
    if name not in TARGETS:
        raise pytest.UsageError(f"OCC_TEST_MACHINE is one of {', '.join(sorted(TARGETS))}, not {name!r}")
    if is_here(name):
        os.environ["OCC_TARGET_CPU"] = TARGETS[name]
    machines._host = lambda: named(name)  # what passes ask of the host

"""The loops that `bench/instructions.py` finds in a disassembly, and what it takes them to multiply."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

LISTING = """
net.a(kernel.o): file format elf64-littleaarch64


0000000000000000 <kernel>:
       0: ldr q0, [x0], #16
       4: mul v1.4s, v1.4s, v2.4s
       8: sdot v16.4s, v0.16b, v1.4b[0]
       c: sdot v17.4s, v0.16b, v1.4b[1]
      10: cmp x0, #0x40
      14: b.ne 0x8 <kernel+0x8>
      18: subs x1, x1, #0x1
      1c: b.ne 0x0 <kernel>

0000000000000020 <widened>:
      20: smull v0.8h, v1.8b, v2.8b
      24: smlal2 v0.4s, v1.8h, v2.8h
      28: b.ne 0x20 <widened>

0000000000000040 <_ZN7runtimeEv>:
      40: vfmadd231ps %zmm0, %zmm1, %zmm2  # nothing of a kernel
      44: jne 0x40 <_ZN7runtimeEv>
"""


@pytest.fixture(scope="module")
def instructions() -> ModuleType:
    path = Path(__file__).parents[2] / "bench/instructions.py"
    spec = importlib.util.spec_from_file_location("instructions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["instructions"] = module
    spec.loader.exec_module(module)
    return module


def test_innermost_loops_of_kernels(instructions: ModuleType):
    first, second = instructions.loops(LISTING)
    assert (first.by, len(first.body), first.products) == ("sdot", 4, 2 * 16)
    assert (second.by, len(second.body), second.products) == ("smlal", 3, 4)
    assert first.least(units=2, vector_bytes=16) == 1


def test_immediates_of_arm_are_no_comments(instructions: ModuleType):
    (first, *_) = instructions.loops(LISTING)
    assert first.body[2] == "cmp x0, #0x40"

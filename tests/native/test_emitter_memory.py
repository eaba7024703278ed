"""Halide's nodes are in the lists of free pieces of the program that compiles kernels, not in the library's memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.programs import emitter
from occ.compiler.codegen_halide.toolchain import toolchain

pytestmark = pytest.mark.toolchain


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm")
def test_libraries_find_its_operators_new_and_delete(tools_only: Callable[[str], Path]) -> None:
    program = emitter(toolchain(), Cache(tools_only("cache")))
    command = ["nm", "-D", "--defined-only", str(program)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert {"_Znwm", "_ZdlPv", "_ZdlPvm"} <= {line.split()[-1] for line in listed.splitlines()}

"""Which symbols libHalide and the program that compiles kernels take from each other."""

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


def _exported(binary: Path) -> set[str]:
    """The names of functions that other binaries may call."""
    command = ["nm", "-D", "--defined-only", str(binary)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name.split("@")[0] for _, kind, name in map(str.split, listed.splitlines()) if kind in "TW"}


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm")
def test_libraries_find_its_operators_new_and_delete(tools_only: Callable[[str], Path]) -> None:
    """Halide's nodes are in its lists of free pieces, not in the library's memory."""
    program = emitter(toolchain(), Cache(tools_only("cache")))
    assert {"_Znwm", "_ZdlPv", "_ZdlPvm"} <= _exported(program)


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm")
def test_it_replaces_no_function_of_halide_by_accident(tools_only: Callable[[str], Path]) -> None:
    """Inline functions of Halide.h are not optimised in it: libHalide is to call its own."""
    tools = toolchain()
    replaced = _exported(emitter(tools, Cache(tools_only("cache")))) & _exported(tools.library)
    assert {name for name in replaced if "common_subexpression_elimination" not in name} == set()

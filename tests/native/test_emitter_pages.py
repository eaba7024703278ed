"""The program that compiles kernels has Halide's instructions on large pages, and runs them there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from occ.compiler.codegen_halide.programs import FLAGS, native
from occ.compiler.codegen_halide.toolchain import toolchain

pytestmark = pytest.mark.toolchain

# The file that an instruction of Halide is from, before and after; and what Halide computes then.
PROGRAM = r"""
#include "Halide.h"
#include "large_pages.h"
#include <fstream>
#include <iostream>
#include <sstream>
using namespace Halide;

static std::string file_of(const void *instruction) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        uintptr_t from, to;
        if (sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2 || (uintptr_t)instruction < from || (uintptr_t)instruction >= to) continue;
        std::istringstream words(line);
        std::string range, rights, offset, device, node, file;
        words >> range >> rights >> offset >> device >> node >> file;
        return rights + " " + file.substr(file.rfind('/') + 1);
    }
    return "none";
}

int main() {
    Expr (*const simplify)(const Expr &, bool, const Internal::Scope<Internal::Interval> &,
        const Internal::Scope<Internal::ModulusRemainder> &, const std::vector<Expr> &) = Internal::simplify;
    std::cout << large_pages::size() << ", " << file_of((void *)simplify);
    large_pages::use("libHalide");
    Var x("x");
    std::cout << ", " << file_of((void *)simplify) << ", " << Internal::simplify(x * 3 - x) << "\n";
}
"""


def test_instructions_of_halide_are_on_large_pages(tmp_path: Path) -> None:
    tools = toolchain()
    (tmp_path / "large_pages.h").write_text(native("large_pages.h"))
    (tmp_path / "program.cpp").write_text(PROGRAM)
    library = [str(tools.library), f"-Wl,-rpath,{tools.library.parent}"]
    # Else the address of a function may be that of a jump to it, in the program itself.
    flags = [*FLAGS, "-fPIC", f"-I{tools.include}"]
    subprocess.run([*tools.cxx.command, *flags, "program.cpp", *library, "-o", "program"], cwd=tmp_path, check=True)
    said = subprocess.run(["./program"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    size, before, after, result = said.strip().split(", ")
    assert before.strip() == "r-xp libHalide.so"
    assert after.strip() == ("r-xp" if int(size) else before)
    assert result == "(x*2)"

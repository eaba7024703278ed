"""The emitter's search for common subexpressions finds what Halide's does, and leaves only repetitions to it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from occ.compiler.codegen_halide.programs import FLAGS, native
from occ.compiler.codegen_halide.toolchain import toolchain

pytestmark = pytest.mark.toolchain

# Each expression, whether it is left to Halide, and whether it is if all parts that repeat are lifted.
PROGRAM = r"""
#include "repeats.h"
#include <cstdio>
using namespace Halide;
using namespace Halide::Internal;

int main() {
    Expr x = Variable::make(Int(32), "x"), y = Variable::make(Int(32), "y"), f = Variable::make(Float(32), "f");
    auto load = [](Expr at) { return Load::make(Float(32, at.type().lanes()), "p", at, {}, {}, const_true(at.type().lanes()), {}); };
    const Expr deep = [&] {
        Expr e = x * y;
        for (int k = 0; k < 200; k++) e = e * e;
        return e;
    }();
    struct { Expr e; bool left, left_if_all; } cases[] = {
        {x, false, false},
        {x * y + 3, false, false},
        {(x + 1) * (x + 1), false, true},
        {(x + y) * (x + y), true, true},
        {(x + y) * (x - y), false, false},
        {(x + y) * (y + x), false, false},
        {load(x * y + 1) + load(x * y + 2), true, true},
        {load(Ramp::make(x, 1, 8)) * Broadcast::make(load(x), 8), false, false},
        {load(Ramp::make(x, 1, 8)) * load(Ramp::make(x, 2, 8)), false, false},
        {load(x) + load(x), true, true},
        {cast<float>(x) * cast<float>(x), false, true},
        {cast<float>(x * y) * cast<float>(x * y), true, true},
        {select(f < 0.5f, f * 0.5f, f * 0.25f), false, false},
        {select(f < y, min(f, 1.0f), min(f, 1.0f)), true, true},
        {min(f, 1.0f) * max(f, 1.0f), false, false},
        {min(f, 1.0f) * min(f, 1.5f), false, false},
        {sqrt(f * f) + floor(f * f), true, true},
        {Let::make("t", x * y, Variable::make(Int(32), "t") + 1), true, true},
        {deep, true, true},
    };
    using Eliminate = Expr (*)(const Expr &, bool);
    const auto library = (Eliminate)dlsym(RTLD_NEXT, "_ZN6Halide8Internal32common_subexpression_eliminationERKNS_4ExprEb");
    int k = 0, wrong = 0;
    for (const auto &c : cases) {
        for (bool all : {false, true}) {
            const bool left = whole::Repeats(all).in(c.e);
            bool same = left;
            if (!left) same = equal(library(c.e, all), common_subexpression_elimination(c.e, all));
            if (left == (all ? c.left_if_all : c.left) && same) continue;
            printf("case %d, all %d: left %d, same %d\n", k, all, left, same);
            wrong++;
        }
        k++;
    }
    return wrong;
}
"""


def test_only_expressions_with_repetitions_are_left_to_halide(tmp_path: Path) -> None:
    tools = toolchain()
    (tmp_path / "repeats.h").write_text(native("repeats.h"))
    (tmp_path / "program.cpp").write_text(PROGRAM)
    library = [str(tools.library), f"-Wl,-rpath,{tools.library.parent}", "-rdynamic", "-ldl"]
    command = [*tools.cxx.command, *FLAGS, f"-I{tools.include}", "program.cpp", *library, "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./program"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

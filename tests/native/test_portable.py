"""`portable.cpp`, the runtime of other systems, compiled here as if this were not Linux."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import mlp, reference
from c_library import ROOT
from programs import said_by

from occ.compiler.standalone.libocc import FLAGS, HALIDE

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]


PORTABLE = """#include "mlp.h"
#include <stdio.h>
int main(void) {
    float x[3][8] = {{1, 2, 3}}, y[3][4];
    occ_model *model;
    if (mlp_open("out/none", &model) != OCC_ERROR_FILE || mlp_open("out/mlp.h", &model) != OCC_ERROR_DAMAGED) return 1;
    if (mlp_open("out/mlp.weights", &model) || occ_verify(model)) return puts(occ_error_text(NULL)), 2;
    mlp_ports ports = {.n = 3, .x = &x[0][0], .y = &y[0][0]};
    if (mlp_run(model, &ports)) return puts(occ_error_text(model)), 3;
    occ_close(model);
    if (occ_open("m.occ", &model) != OCC_ERROR_UNSUPPORTED || model) return 4;
    for (int k = 0; k < 4; k++) printf("%.6g ", y[0][k]);
    return 0;
}
"""


def test_the_runtime_of_other_systems(occ_cli: Any):
    """`portable.cpp`, compiled here as if this were not Linux."""
    Path("mlp.onnx").write_bytes(mlp().SerializeToString())
    Path("out").mkdir()
    assert occ_cli("build", "mlp.onnx", "--emit", "object", "-o", "out").code == 0
    Path("main.c").write_text(PORTABLE)
    renamed = [f"-D{n}=occ_{n}" for n in HALIDE]
    units = [str(p) for p in (ROOT / "runtime/c").glob("*.cpp")]
    subprocess.run(["g++", "-U__linux__", *FLAGS, *renamed, "-Werror", "-c", *units], check=True)
    subprocess.run(
        ["cc", "-Iout", "main.c", "out/mlp.o", *(f"{Path(u).stem}.o" for u in units), "-lm", "-o", "main"], check=True
    )
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    want = reference(mlp(), {"x": x})[0][0]
    np.testing.assert_allclose([float(v) for v in said_by("./main").split()], want, rtol=1e-4)


LENT = """#include "model.h"
#include <cstdio>
extern "C" int halide_do_par_for(void *, int (*)(void *, int, unsigned char *), int, int, unsigned char *);
static int code;
static int task(void *, int k, unsigned char *) { return k == 2 ? code : 0; }
static int all(void *, int (*run)(void *, int), void *closure, int count) {
    for (int k = 0; k < count; k++) run(closure, k);
    return 0;  // whatever the tasks returned
}
static int none(void *, int (*)(void *, int), void *, int) { return 0; }
int main() {
    occ_enter(2);
    const occ_parallel_for loops[] = {all, all, none};
    for (int k = 0; k < 3; k++) {
        code = k == 1 ? 7 : 0;
        occ_lend({loops[k], nullptr, 0});
        const int got = halide_do_par_for(nullptr, task, 0, 4, nullptr);
        printf("%d %d ", got != 0, occ_lend({}).failed != 0);
    }
}
"""


def test_a_lent_loop_that_loses_tasks_or_their_errors_fails():
    """As `test_a_parallel_loop_of_the_caller_that_fails` has it for Linux."""
    Path("main.cpp").write_text(LENT)
    flags = ["-U__linux__", *FLAGS, f"-I{ROOT / 'runtime/c'}"]
    units = ["main.cpp", *(str(p) for p in (ROOT / "runtime/c").glob("*.cpp"))]
    subprocess.run(["g++", *flags, *units, "-o", "main"], check=True)
    assert said_by("./main").split() == ["0", "0", "1", "1", "1", "1"]

"""A C program that runs a linked model on arm-64, under qemu."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from building import mlp, reference

from occ.compiler.objects.processors import ARCHES

ARM = next(a for a in ARCHES if a.name == "aarch64")
PROGRAM = """#include "mlp.h"
#include <stdio.h>
int main(int argc, char **argv) {
    float x[3][8] = {{1, 2, 3}}, y[3][4];
    occ_model *model;
    if (mlp_open(argc > 1 ? argv[1] : NULL, &model)) return puts(occ_error_text(NULL)), 1;
    mlp_ports ports = {.n = 3, .x = &x[0][0], .y = &y[0][0]};
    if (mlp_run(model, &ports)) return puts(occ_error_text(model)), 1;
    for (int k = 0; k < 4; k++) printf("%.6g ", y[0][k]);
    occ_close(model);
}
"""


def check_program(program: Path, weights: Path) -> None:
    """What the linked program prints is the first row of the model's result."""
    qemu = shutil.which("qemu-aarch64-static") or "qemu-aarch64"
    run = [qemu, "-L", f"/usr/{ARM.gnu}", str(program), str(weights)]
    shown = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    np.testing.assert_allclose([float(v) for v in shown.split()], reference(mlp(), {"x": x})[0][0], rtol=1e-4)

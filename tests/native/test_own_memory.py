"""Linked models in memory of the program: nothing comes from the heap, and too little is one error."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from c_library import block
from programs import said_by

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]
RNG = np.random.default_rng(0)

# Counts what the program asks the heap for; `--wrap` of the linker leads calls here.
COUNTED = """
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int calls;
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
int __real_posix_memalign(void **p, size_t a, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n) { return calls++, __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { return calls++, __real_calloc(n, m); }
int __wrap_posix_memalign(void **p, size_t a, size_t n) { return calls++, __real_posix_memalign(p, a, n); }
void __wrap_free(void *p) { calls++, __real_free(p); }
static char memory[4 << 20];
static float x[4 * 3 * 20 * 20], y[4 * 8 * 20 * 20], want[4 * 8 * 20 * 20];
static int run(occ_model *model, int n) {
    net_ports ports = {.n = n, .x = x, .y = y};
    return net_run(model, &ports);
}
int main(void) {
    occ_model *model;
    for (int k = 0; k < 4 * 3 * 20 * 20; k++) x[k] = (float)(k % 23) / 23 - 0.4f;
    if (net_open(NULL, &model) || run(model, 4)) return puts(occ_error_text(NULL)), 1;
    memcpy(want, y, sizeof y);
    occ_close(model);
    printf("heap %d\\n", calls > 0);
    calls = 0;
    if (occ_use_memory(memory + 3, sizeof memory - 3)) return 2;
    size_t first = 0;
    for (int k = 0; k < 20; k++) {
        memset(y, 0, sizeof y);
        if (net_open(NULL, &model) || run(model, 1 + k % 4) || run(model, 4)) return puts(occ_error_text(NULL)), 3;
        if (memcmp(want, y, sizeof y)) return 4;
        if (!occ_use_memory(NULL, 0)) return 5; /* in use */
        occ_close(model);
        if (k == 3) first = occ_memory_peak();
    }
    printf("calls %d, the peak %s\\n", calls, first == occ_memory_peak() ? "stays" : "grows");
    size_t enough = 0;
    int refused = 0;
    for (size_t bytes = 0; bytes <= first && !enough; bytes += 64) {
        if (occ_use_memory(memory, bytes)) continue;
        int status = net_open(NULL, &model);
        if (!status) status = run(model, 4);
        if (status && status != OCC_ERROR_MEMORY) return puts(occ_error_text(NULL)), 6;
        if (status) refused++;
        if (!status) enough = bytes;
        occ_close(model);
    }
    printf("enough %d, refused %d, calls %d\\n", enough <= first && enough > first - 128, refused > 3, calls);
    if (occ_use_memory(NULL, 0) || net_open(NULL, &model) || run(model, 4)) return 7;
    occ_close(model);
    return calls == 0 || memcmp(want, y, sizeof y) != 0;
}
"""
WRAPPED = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "posix_memalign", "free")]


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_nothing_comes_from_the_heap(target: str, occ_cli: Any):
    text = "g (float[n, 3, 20, 20] x) => (float[n, 8, 20, 20] y) { a = Conv<pads = [1, 1, 1, 1]>(x, w)  b = Relu(a)  y = Softmax<axis = 1>(b) }"
    onnx.save(model_of(text, {"w": RNG.standard_normal((8, 3, 3, 3), np.float32)}), "net.onnx")
    command = ("build", "net.onnx", "-t", target, "--emit", "static", "--weights", "embed", "-o", ".", "--json")
    ran = occ_cli(*command)
    assert ran.code == 0, ran.out
    made = json.loads(ran.out)
    Path("main.c").write_text(COUNTED)
    subprocess.run([*shlex.split(made["link"]), *WRAPPED, "-o", "main"], check=True)
    assert said_by("./main").splitlines() == [
        "heap 1",
        "calls 0, the peak stays",
        "enough 1, refused 1, calls 0",
    ]


def test_the_program_of_the_page(occ_cli: Any):
    onnx.save(mlp(), "mlp.onnx")
    made = json.loads(occ_cli("build", "mlp.onnx", "--emit", "static", "-o", ".", "--json").out)
    text = block("c.md", "c", 3)
    Path("main.c").write_text(text)
    subprocess.run([*shlex.split(made["link"]), "-o", "main"], check=True)
    said = re.fullmatch(r"(\S+), (\d+) bytes\n", said_by("./main"))
    assert said is not None
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    assert float(said[1]) == pytest.approx(float(reference(mlp(), {"x": x})[0][0, 0]), rel=1e-4)
    assert 500 < int(said[2]) < 65536

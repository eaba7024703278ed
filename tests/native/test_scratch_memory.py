"""Kernels that get no scratch memory: the run fails with a status that names the node, and the next one is right. What they
had is kept for the next run.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import model_of, reference

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]

# Kernels whose scratch memory has the size of rows, which is symbolic: they take it at the beginning and in tasks.
TEXT = """g (float[n, c, a, b] x) => (float[n, c, a, b] y, float[n, c, a, a] z) {
    y = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (x)
    t = Transpose <perm = [0, 1, 3, 2]> (y)
    p = MatMul(x, t)
    z = Softmax(p)
}"""
SHAPE = (2, 3, 40, 33)
# From the allocation on whose number is the argument all fail; those of the runs after the first do not.
PROGRAM = """
#include "OPENED"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
static long count, fails = -1;
int posix_memalign(void **made, size_t alignment, size_t size) {
    if (__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED) >= fails && fails >= 0) return ENOMEM;
    *made = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    return *made ? 0 : ENOMEM;
}
static float x[6 * 40 * 33], y[6 * 40 * 33], z[6 * 40 * 40];
int main(int argc, char **argv) {
    occ_model *model;
    const occ_tensor in = {.data = x, .rank = 4, .extents = {2, 3, 40, 33}};
    occ_tensor out[2] = {{.data = y, .bytes = sizeof y}, {.data = z, .bytes = sizeof z}};
    for (int k = 0; k < 6 * 40 * 33; k++) x[k] = (float)(k % 23) / 23 - 0.4f;
    if (OPEN || argc < 3 || occ_set_threads(model, atoi(argv[2]))) return 1;
    count = 0;
    fails = atol(argv[1]);
    const int status = occ_run(model, &in, 1, out, 2);
    printf("%d %ld %s\\n", status, count, status ? occ_error_text(model) : "");
    fails = -1;
    for (int k = 0; k < 3; k++)
        if (occ_run(model, &in, 1, out, 2)) return 2;
    fwrite(y, sizeof y, 1, stderr);
    fwrite(z, sizeof z, 1, stderr);
    occ_close(model);
    return 0;
}
"""


def linked(occ_cli: Any, how: str) -> list[str]:
    """The command that links a program with the model, or with libocc, which opens it."""
    opened = "net.h" if how == "linked" else "occ.h"
    call = "net_open(NULL, &model)" if how == "linked" else 'occ_open("net.occ", &model)'
    Path("main.c").write_text(PROGRAM.replace("OPENED", opened).replace("OPEN", call))
    if how == "linked":
        ran = occ_cli("build", "net.onnx", "--emit", "static", "--weights", "embed", "-o", ".", "--json")
        assert ran.code == 0, ran.out
        return shlex.split(json.loads(ran.out)["link"])
    assert occ_cli("build", "net.onnx", "-o", "net.occ").code == 0
    return ["cc", "main.c", *shlex.split(occ_cli("config", "--cflags", "--libs").out)]


@pytest.mark.parametrize("how", ["linked", "opened"])
def test_a_run_without_scratch_memory_fails_and_the_next_is_right(how: str, occ_cli: Any):
    model = model_of(TEXT)
    onnx.save(model, "net.onnx")
    subprocess.run([*linked(occ_cli, how), "-rdynamic", "-o", "main"], check=True)
    x = (np.arange(np.prod(SHAPE)) % 23).astype(np.float32) / 23 - np.float32(0.4)
    want = np.concatenate([r.ravel() for r in reference(model, {"x": x.reshape(SHAPE)})])
    for threads in (1, 3):
        texts = set()
        for k in range(100):
            ran = subprocess.run(["./main", str(k), str(threads)], capture_output=True, timeout=60)
            assert ran.returncode == 0, (k, ran)
            np.testing.assert_allclose(np.frombuffer(ran.stderr, np.float32), want, rtol=1e-4, atol=1e-5)
            status, _, text = ran.stdout.decode().split(" ", 2)
            if status == "0":
                break
            assert status == "7", ran.stdout
            texts.add(text)
        assert status == "0"
        assert any("the kernel of node" in t for t in texts)


# The first and the last kernel of a run want much more than the others.
UNLIKE = """g (float[a, b] x, float[c, d] z) => (float[a, a] p, float[c, c] q, float[a, a] r) {
    xt = Transpose <perm = [1, 0]> (x)
    zt = Transpose <perm = [1, 0]> (z)
    p = MatMul(x, xt)
    q = MatMul(z, zt)
    one = Constant <value_float = 1.0> ()
    y = Add(p, one)
    r = MatMul(y, p)
}"""
COUNTED = """
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
static long count;
int posix_memalign(void **made, size_t alignment, size_t size) {
    count++;
    *made = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    return *made ? 0 : 12;
}
static float x[200 * 300], z[20 * 30], p[200 * 200], q[20 * 20], r[200 * 200];
int main(void) {
    occ_model *model;
    const occ_tensor in[2] = {{.data = x, .rank = 2, .extents = {200, 300}}, {.data = z, .rank = 2, .extents = {20, 30}}};
    occ_tensor out[3] = {{.data = p, .bytes = sizeof p}, {.data = q, .bytes = sizeof q}, {.data = r, .bytes = sizeof r}};
    if (net_open(NULL, &model) || occ_set_threads(model, 1)) return 1;
    for (int k = 0; k < 4; k++) {
        if (occ_run(model, in, 2, out, 3)) return 2;
        printf("%ld ", count);
        count = 0;
    }
    occ_close(model);
    return 0;
}
"""


def test_kernels_of_unlike_sizes_leave_each_other_their_scratch_memory(occ_cli: Any):
    onnx.save(model_of(UNLIKE), "net.onnx")
    Path("main.c").write_text(COUNTED)
    ran = occ_cli("build", "net.onnx", "--emit", "static", "-o", ".", "--json")
    assert ran.code == 0, ran.out
    subprocess.run([*shlex.split(json.loads(ran.out)["link"]), "-rdynamic", "-o", "main"], check=True)
    first, *later = subprocess.run(["./main"], capture_output=True, check=True, timeout=60).stdout.split()
    assert int(first) > 0
    assert later == [b"0"] * 3


# An attention has blocks for all of its keys and values, and small ones too.
GROWING = """g (float[4, a, 64] x) => (float[4, a, 64] y) {
    t = Transpose <perm = [0, 2, 1]> (x)
    p = MatMul(x, t)
    s = Softmax(p)
    y = MatMul(s, x)
}"""
HELD = """
#include "net.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
static float x[4 * 800 * 64], y[4 * 800 * 64];
int main(int argc, char **argv) {
    occ_model *model;
    if (net_open(NULL, &model) || occ_set_threads(model, 1)) return 1;
    for (int k = 1; k < argc; k++) {
        const occ_tensor in = {.data = x, .rank = 3, .extents = {4, atoi(argv[k]), 64}};
        occ_tensor out = {.data = y, .bytes = sizeof y};
        if (occ_run(model, &in, 1, &out, 1)) return 2;
    }
    const struct mallinfo2 held = mallinfo2();
    printf("%zu", held.uordblks + held.hblkhd);
    occ_close(model);
    return 0;
}
"""


def test_scratch_memory_that_grows_from_run_to_run_is_held_once(occ_cli: Any):
    onnx.save(model_of(GROWING), "net.onnx")
    Path("main.c").write_text(HELD)
    ran = occ_cli("build", "net.onnx", "--emit", "static", "-o", ".", "--json")
    assert ran.code == 0, ran.out
    subprocess.run([*shlex.split(json.loads(ran.out)["link"]), "-o", "main"], check=True)

    def held(*rows: int) -> int:
        command = ["./main", *map(str, rows)]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)

    assert held(800) > held(100) + 100_000
    assert held(100, 200, 300, 400, 500, 600, 700, 800) < held(800) + 50_000

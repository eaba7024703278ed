"""Models whose batches run in slices, in artifacts and in C programs: any batch, results of onnxruntime."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from c_library import RUN, Failed, Model
from programs import said_by

import occ

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5,
    "v": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6,
    "half": np.float32(0.5),
    "table": RNG.standard_normal((5, 4, 1, 1)).astype(np.float32),
}
# Layers in slices, two of whose values later ops read, then ops that mix items, find sizes or refuse values.
MODEL = model_of(
    """g (float[n, 3, 10, 10] x, int64[n] k) => (float[n, 4, 8, 8] y, float[m, 4, 10, 10] twice, int64[4, q] found) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu(a)
    e = Gather <axis = 0> (table, k)
    s = Add(r, e)
    y = Conv(s, v)
    twice = Concat <axis = 0> (r, s)
    b = Greater(s, half)
    found = NonZero(b)
}""",
    {name: np.asarray(w) for name, w in WEIGHTS.items()},
)
BATCHES = (3, 1, 0, 7, 2)
PROGRAM = """
#include "m.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    occ_model *model;
    if (m_open(NULL, &model)) return puts(occ_error_text(NULL)), 1;
    occ_tensor found = {0};
    for (int k = 1; k < argc; k++) {
        const int n = atoi(argv[k]), in = n * 300, out = n * 256, both = n * 800;
        float *x = malloc(in * 4), *y = malloc(out * 4), *twice = malloc(both * 4);
        int64_t *codes = malloc(n * 8);
        for (int i = 0; i < in; i++) x[i] = (i * 37 % 101 - 50) / 40.0f;
        for (int i = 0; i < n; i++) codes[i] = i % 5;
        m_ports p = {.n = n, .x = x, .k = codes, .y = y, .twice = twice, .found = &found};
        if (m_run(model, &p)) return puts(occ_error_text(model)), 2;
        double sum = 0, all = 0;
        for (int i = 0; i < out; i++) sum += y[i] * (i % 7);
        for (int i = 0; i < both; i++) all += twice[i] * (i % 5);
        printf("%d %.9g %.9g %lld\\n", n, sum, all, (long long)found.extents[1]);
        free(x), free(y), free(twice), free(codes);
    }
    occ_free(&found);
    occ_close(model);
    return 0;
}
"""


def given(n: int) -> dict[str, np.ndarray]:
    x = (np.arange(n * 300) * 37 % 101 - 50).astype(np.float32) / np.float32(40)
    return {"x": x.reshape(n, 3, 10, 10), "k": np.arange(n) % 5}


def wanted(n: int) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(MODEL.SerializeToString()).run(None, given(n))


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_libocc(target: str) -> None:
    occ.build(MODEL, target, out="m.occ", options={"batch-slices": "1"})
    session = occ.load("m.occ", threads=1)
    with Model(Path("m.occ")) as model:
        for n in BATCHES:
            x = given(n)
            for found in (model.run(*x.values()), session.run(x).values()):
                for a, b in zip(found, wanted(n), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        with pytest.raises(Failed, match="`Gather` has an index outside of the tensor") as raised:
            model.run(given(3)["x"], np.array([0, 5, 0]))
        assert raised.value.code == RUN


@pytest.mark.parametrize(("emit", "target"), [("static", "cpu"), ("shared", "cpu-jit")])
def test_linked(emit: str, target: str, occ_cli: Any) -> None:
    onnx.save(MODEL, "m.onnx")
    flags = ["-C", "batch-slices=1", "--weights", "embed", "-o", "d"]
    ran = occ_cli("build", "m.onnx", "-t", target, "--emit", emit, *flags, "--json")
    assert ran.code == 0, ran.err
    Path("main.c").write_text(PROGRAM)
    link = shlex.split(json.loads(ran.out)["link"])
    subprocess.run([*link, "-Wall", "-Werror", "-g", "-fsanitize=address,undefined", "-o", "main"], check=True)
    lines = said_by("./main", *map(str, BATCHES), env={"OCC_NUM_THREADS": "2"}).splitlines()
    for n, line in zip(BATCHES, lines, strict=True):
        y, twice, found = wanted(n)
        sums = [float((a.ravel().astype(float) * (np.arange(a.size) % k)).sum()) for a, k in ((y, 7), (twice, 5))]
        np.testing.assert_allclose([float(s) for s in line.split()], [n, *sums, found.shape[1]], rtol=1e-5, atol=1e-4)

"""Models in C programs whose outputs have shapes that only a run determines, under AddressSanitizer."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from building import model_of
from programs import said_by

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]

# Nothing bounds the first output, its input bounds the second one, sizes decide the rank of the third one.
MODEL = """g (float[n, 3] x, int64 limit) => (int64[u] counted, int64[2, v] found, float[w] flat, float[n, 3] twice) {
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    counted = Range(zero, limit, one)
    found = NonZero(x)
    flat = Squeeze(x)
    twice = Add(x, x)
}"""
PROGRAM = """
#include "m.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *name, const occ_tensor *t) {
    printf("%s", name);
    for (int k = 0; k < t->rank; k++) printf(" %lld", (long long)t->extents[k]);
    printf(";\\n");
}

int main(void) {
    float x[6] = {1, 0, 2, 0, 0, 3}, twice[6];
    int64_t limit = 0, own[8];
    occ_model *model;
    occ_tensor counted = {0}, found = {0}, flat = {0};
    m_ports p = {.n = 2, .x = x, .limit = &limit, .counted = &counted, .found = &found, .flat = &flat, .twice = twice};
    if (m_open(NULL, &model)) return puts(occ_error_text(NULL)), 1;
    for (int run = 0; run < 6; run++) { /* memory grows, and is used again */
        limit = run * 50;
        p.n = run % 2 ? 1 : 2;
        if (m_run(model, &p)) return puts(occ_error_text(model)), 2;
        for (int64_t k = 0; k < limit; k++)
            if (((int64_t *)counted.data)[k] != k) return 3;
        say("counted", &counted);
        say("found", &found);
        say("flat", &flat);
        if (twice[2] != 4 || ((float *)flat.data)[2] != 2 || ((int64_t *)found.data)[found.extents[1] + 1] != 2) return 4;
    }
    void *before = counted.data;
    limit = 10;
    if (m_run(model, &p) || counted.data != before) return 5;
    occ_free(&counted);
    occ_tensor mine = {.data = own, .bytes = sizeof own};
    p.counted = &mine;
    limit = 8;
    if (m_run(model, &p) || mine.data != own || mine.extents[0] != 8 || own[7] != 7) return 6;
    limit = 9;
    if (m_run(model, &p) != OCC_ERROR_CAPACITY || own[7] != 7) return 7;
    if (mine.rank != 1 || mine.extents[0] || found.rank != 2 || found.extents[0] || found.extents[1]) return 8;
    p.counted = NULL;
    if (m_run(model, &p) != OCC_ERROR_ARGUMENT) return 9;
    puts(occ_error_text(model));
    limit = 0; /* an output without elements needs no memory */
    if (m_run(model, &p)) return 10;
    occ_free(&found);
    occ_free(&flat);
    occ_close(model);
    return 0;
}
"""
SAID = "".join(
    f"counted {50 * run};found 2 {2 if run % 2 else 3};flat {'3' if run % 2 else '2 3'};" for run in range(6)
)


@pytest.mark.parametrize(("emit", "target"), [("static", "cpu"), ("shared", "cpu-jit"), ("object", "cpu-jit")])
def test_outputs_are_tensors_of_occ_run(emit: str, target: str, occ_cli: Any) -> None:
    onnx.save(model_of(MODEL), "m.onnx")
    Path("d").mkdir()
    ran = occ_cli("build", "m.onnx", "-t", target, "--emit", emit, "--weights", "embed", "-o", "d", "--json")
    assert ran.code == 0, ran.err
    header = Path("d/m.h").read_text()
    for line in ("*counted; /* i64[?] */", "*found; /* i64[2,?] */", "*flat; /* f32[...] */"):
        assert f"occ_tensor {line}" in header
    assert "float *twice; /* f32[n,3] */" in header
    assert "m_twice_count" in header
    assert not any(f"m_{name}_count" in header for name in ("counted", "found", "flat"))
    Path("main.c").write_text(PROGRAM)
    link = shlex.split(json.loads(ran.out)["link"])
    subprocess.run([*link, "-Wall", "-Werror", "-g", "-fsanitize=address,undefined", "-o", "main"], check=True)
    said = said_by("./main", env={"ASAN_OPTIONS": "detect_leaks=1", "OCC_NUM_THREADS": "2"})
    assert said.replace("\n", "") == f"{SAID}there is no memory for the output `counted`"


def test_sources_of_a_model_have_them_too(occ_cli: Any) -> None:
    """They had ended in a KeyError."""
    onnx.save(model_of(MODEL), "m.onnx")
    assert occ_cli("build", "m.onnx", "-t", "cpu", "--emit", "generator", "-o", "src").code == 0
    assert "occ_tensor *counted; /* i64[?] */" in Path("src/m.h").read_text()
    assert "if (p->counted) *p->counted = outputs[0];" in Path("src/model.cpp").read_text()

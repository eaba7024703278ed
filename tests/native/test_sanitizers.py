"""libocc, compiled with sanitizers: eight threads with one model, and artifacts with damage of every kind."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from building import model_of
from c_library import ROOT

import occ

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]

THREE = """g (float[n, 8] x) => (float[n, 8] probabilities, float[n, 8] tanh, float[n, 8] exp) {
    probabilities = Softmax(x)
    tanh = Tanh(x)
    exp = Exp(x)
}"""
THREADS = """
#include <occ.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
static occ_model *model;
static float expected[8][64 * 8];
static const int sizes[8] = {1, 3, 64, 17, 5, 33, 2, 48};

static int run(int k, occ_tensor *out) {
    float x[64 * 8];
    for (int j = 0; j < sizes[k] * 8; j++) x[j] = (float)(j % 7) - (float)k;
    occ_tensor in = {.data = x, .rank = 2, .extents = {sizes[k], 8}}, bad = {.data = x, .rank = 2, .extents = {1, 7}};
    if (occ_run(model, &bad, 1, out, 3) != OCC_ERROR_INPUT || !strstr(occ_error_text(model), "axis 1")) return 1;
    return occ_run(model, &in, 1, out, 3);
}

static void *work(void *first) {
    occ_tensor out[3] = {{0}};
    for (int i = 0; i < 100; i++) {
        int k = (int)((long)first + i) % 8;
        if (run(k, out) || memcmp(out[2].data, expected[k], (size_t)sizes[k] * 32)) return (void *)1;
    }
    for (int k = 0; k < 3; k++) occ_free(&out[k]);
    return NULL;
}

int main(int argc, char **argv) {
    occ_tensor out[3] = {{0}};
    pthread_t threads[8];
    long wrong = 0;
    if (argc < 2 || occ_open(argv[1], &model) || occ_set_threads(model, 2)) return puts(occ_error_text(NULL)), 1;
    for (int k = 0; k < 8; k++) {
        if (run(k, out)) return 2;
        memcpy(expected[k], out[2].data, (size_t)sizes[k] * 32);
    }
    for (int k = 0; k < 3; k++) occ_free(&out[k]);
    for (long k = 0; k < 8; k++) pthread_create(&threads[k], NULL, work, (void *)k);
    for (int k = 0; k < 8; k++) {
        void *failed;
        pthread_join(threads[k], &failed);
        wrong |= (long)failed;
    }
    occ_close(model);
    return wrong ? 3 : 0;
}
"""
DAMAGE = """
#include <occ.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    static unsigned char whole[1 << 20];
    FILE *f = argc < 2 ? NULL : fopen(argv[1], "rb");
    if (!f) return 1;
    const size_t size = fread(whole, 1, sizeof whole, f);
    fclose(f);
    srand(1);
    int counts[9] = {0};
    for (int i = 0; i < 20000; i++) {
        const size_t n = i % 3 ? size : (size_t)rand() % (size + 1), end = n > 1200 ? 1200 : n;  // 1200: the directory
        unsigned char *copy = malloc(n);  // of this size, so that reading beyond it is seen
        memcpy(copy, whole, n);
        for (int k = i % 3 ? 1 + rand() % 6 : 0; k > 0; k--)
            copy[rand() % 4 ? n - 1 - (size_t)rand() % end : (size_t)rand() % n] = (unsigned char)(rand() % 3 ? rand() : 255);
        occ_model *model;
        counts[occ_open_memory(copy, n, &model)]++;
        if (model) occ_verify(model);
        occ_close(model);
        free(copy);
    }
    return counts[OCC_OK] && counts[OCC_ERROR_DAMAGED] && counts[OCC_OK] + counts[OCC_ERROR_DAMAGED] == 20000 ? 0 : 2;
}
"""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("program", [THREADS, DAMAGE], ids=["threads", "damage"])
def test_a_sanitizer_finds_nothing(program: str, sanitizer: str, tmp_path: Path):
    tool, flags = shutil.which("g++"), [f"-fsanitize={sanitizer}", "-g", "-O1"]
    if tool is None:
        pytest.skip("g++ is not installed")
    (tmp_path / "empty.cpp").write_text("int main() {}")
    probe = [tool, *flags, "empty.cpp", "-o", "empty"]
    if subprocess.run(probe, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip(f"g++ has no {sanitizer} sanitizer")
    units = sorted(map(str, (ROOT / "runtime/c").glob("*.cpp")))
    command = [tool, "-std=c++17", *flags, "-fno-exceptions", "-fno-rtti", "-c", *units]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "main.c").write_text(program)
    objects = sorted(p.name for p in tmp_path.glob("*.o"))
    compile_ = ["gcc", *flags, f"-I{ROOT / 'runtime/c'}", "main.c", *objects, "-lm", "-lstdc++", "-o", "main"]
    subprocess.run(compile_, cwd=tmp_path, check=True)
    still = (
        ["setarch", "-R"] if shutil.which("setarch") else []
    )  # the thread sanitizer wants addresses that do not move
    for target in ("cpu", "cpu-jit"):
        occ.build(model_of(THREE), target, out=str(tmp_path / f"{target}.occ"))
        ran = subprocess.run(
            [*still, "./main", f"{target}.occ"], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

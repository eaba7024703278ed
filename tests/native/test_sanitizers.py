"""libocc, compiled with sanitizers: threads with one model, artifacts with damage of every kind, and memory of the program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from building import model_of
from c_library import ROOT
from click.testing import CliRunner

import occ
from occ.cli import cli
from occ.compiler.standalone.libocc import HALIDE

pytestmark = [pytest.mark.toolchain, pytest.mark.slow]

THREE = """g (float[n, 8] x) => (float[n, 8] probabilities, float[n, 8] tanh, float[n, 8] exp) {
    probabilities = Softmax(x)
    tanh = Tanh(x)
    exp = Exp(x)
}"""
RANGE = """g (int64 n) => (int64[k] y, int64[k] z) {
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    y = Range (zero, n, one)
    z = Neg (y)
}"""
# Outputs that nothing bounds: in memory of the library, and in that of the caller, aligned, not aligned, and too small.
UNBOUNDED = """
#include <occ.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static occ_model *model;

static int run(int64_t n, int how, occ_tensor *kept) {
    occ_tensor in = {.data = &n}, out[2] = {kept[0], kept[1]};
    unsigned char *block = aligned_alloc(64, (size_t)(n * 8 + 128) / 64 * 64);
    if (how) out[1] = (occ_tensor){.data = block + (how == 2 ? 8 : 0), .bytes = (size_t)(n * 8 - (how == 3 ? 8 : 0))};
    const int status = occ_run(model, &in, 1, out, 2);
    int wrong = status != (how == 3 ? OCC_ERROR_CAPACITY : OCC_OK);
    for (int64_t k = 0; k < n && !status; k++) wrong |= ((int64_t *)out[0].data)[k] != k || ((int64_t *)out[1].data)[k] != -k;
    wrong |= !status && (out[0].extents[0] != n || out[1].extents[0] != n);
    kept[0] = out[0];
    if (!how) kept[1] = out[1];
    free(block);
    return wrong;
}

static void *work(void *first) {
    occ_tensor kept[2] = {{0}};
    long wrong = 0;
    for (int i = 0; i < 200; i++) wrong |= run(1 + (i * 37 + (long)first) % 300, i % 4, kept);
    for (int k = 0; k < 2; k++) occ_free(&kept[k]);
    return (void *)wrong;
}

/* An output of the library that grows past the memory there is: it is given back once. */
static int memory_ends(const char *path) {
    static _Alignas(64) char memory[1 << 20];
    const int64_t fits = 1000, many = 1000000;
    occ_tensor few = {.data = (void *)&fits}, all = {.data = (void *)&many}, out[2] = {{0}};
    if (occ_use_memory(memory, sizeof memory) || occ_open(path, &model)) return puts(occ_error_text(NULL)), 4;
    if (occ_run(model, &few, 1, out, 2)) return puts(occ_error_text(model)), 5;
    if (occ_run(model, &all, 1, out, 2) != OCC_ERROR_MEMORY) return 6;
    for (int k = 0; k < 2; k++) occ_free(&out[k]);
    occ_close(model);
    return occ_use_memory(NULL, 0) ? 7 : 0;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    long wrong = 0;
    if (argc < 2 || occ_open(argv[1], &model)) return puts(occ_error_text(NULL)), 1;
    for (long k = 0; k < 4; k++) pthread_create(&threads[k], NULL, work, (void *)k);
    for (int k = 0; k < 4; k++) {
        void *failed;
        pthread_join(threads[k], &failed);
        wrong |= (long)failed;
    }
    occ_close(model);
    return wrong ? 3 : memory_ends(argv[1]);
}
"""
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


# Four threads in memory that is enough for some of them at a time, and for none of them.
RESERVED = """
#include "net.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
static char memory[1 << 20];
static float x[2 * 3 * 40 * 33], want[2 * 3 * 40 * 33];
static occ_model *model;

static int run(float *y, int n) {
    net_ports ports = {.n = n, .c = 3, .a = 40, .b = 33, .x = x, .y = y};
    return net_run(model, &ports);
}

static void *work(void *first) {
    float y[2 * 3 * 40 * 33 + 1];
    long done = 0;
    for (int i = 0; i < 50; i++) {
        const int n = 1 + ((long)first + i) % 2;
        float *at = y + i % 2;  // outputs that are not aligned take memory too
        const int status = run(at, n);
        if (status && status != OCC_ERROR_MEMORY) return (void *)-1;
        if (!status && memcmp(at, want, (size_t)n * sizeof want / 2)) return (void *)-2;
        done += !status;
    }
    return (void *)done;
}

static long all(size_t bytes) {
    pthread_t threads[4];
    long sum = 0;
    if (occ_use_memory(memory, bytes) || net_open(NULL, &model)) return -3;
    for (long k = 0; k < 4; k++) pthread_create(&threads[k], NULL, work, (void *)k);
    for (int k = 0; k < 4; k++) {
        void *done;
        pthread_join(threads[k], &done);
        sum = (long)done < 0 ? -4 : sum + (long)done;
    }
    occ_close(model);
    return sum;
}

int main(void) {
    for (int k = 0; k < 2 * 3 * 40 * 33; k++) x[k] = (float)(k % 23) - 11;
    if (net_open(NULL, &model) || occ_set_threads(model, 3) || run(want, 2)) return 1;
    occ_close(model);
    const long most = all(sizeof memory), some = all(50000), none = all(6000);
    printf("%ld %ld %ld, peak %zu\\n", most, some, none, occ_memory_peak());
    return most != 200 || some < 1 || some == 200 || none != 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_a_sanitizer_finds_nothing_in_memory_of_the_program(sanitizer: str, tmp_path: Path):
    text = "g (float[n, c, a, b] x) => (float[n, c, a, b] y) { t = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (x) y = Softmax(t) }"
    (tmp_path / "net.onnx").write_bytes(model_of(text).SerializeToString())
    (tmp_path / "main.c").write_text(RESERVED)
    done = CliRunner().invoke(
        cli, ["build", str(tmp_path / "net.onnx"), "--emit", "object", "-o", str(tmp_path)], standalone_mode=False
    )
    assert done.exception is None, done.output
    runtime = sanitized(sanitizer, tmp_path, "-DOCC_LIBOCC", *(f"-D{n}=occ_{n}" for n in HALIDE))
    assert run(sanitizer, tmp_path, ["net.o", *runtime])


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize(
    ("program", "model"),
    [(THREADS, THREE), (DAMAGE, THREE), (UNBOUNDED, RANGE)],
    ids=["threads", "damage", "unbounded outputs"],
)
def test_a_sanitizer_finds_nothing(program: str, model: str, sanitizer: str, tmp_path: Path):
    (tmp_path / "main.c").write_text(program)
    runtime = sanitized(sanitizer, tmp_path)
    for target in ("cpu", "cpu-jit"):
        occ.build(model_of(model), target, out=str(tmp_path / f"{target}.occ"))
        run(sanitizer, tmp_path, runtime, f"{target}.occ")


def sanitized(sanitizer: str, folder: Path, *defined: str) -> list[str]:
    """The objects of libocc with a sanitizer."""
    tool, flags = shutil.which("g++"), [f"-fsanitize={sanitizer}", "-g", "-O1"]
    if tool is None:
        pytest.skip("g++ is not installed")
    (folder / "empty.cpp").write_text("int main() {}")
    probe = [tool, *flags, "empty.cpp", "-o", "empty"]
    if subprocess.run(probe, cwd=folder, capture_output=True).returncode:
        pytest.skip(f"g++ has no {sanitizer} sanitizer")
    units = sorted((ROOT / "runtime/c").glob("*.cpp"))
    command = [tool, "-std=c++17", *flags, "-fno-exceptions", "-fno-rtti", *defined, "-c", *map(str, units)]
    subprocess.run(command, cwd=folder, check=True)
    return [f"{u.stem}.o" for u in units]


def run(sanitizer: str, folder: Path, objects: list[str], *args: str) -> str:
    """What main.c says, linked with some objects and run without a report."""
    flags = [f"-fsanitize={sanitizer}", "-g", "-O1", f"-I{folder}", f"-I{ROOT / 'runtime/c'}"]
    subprocess.run(["gcc", *flags, "main.c", *objects, "-lm", "-lstdc++", "-o", "main"], cwd=folder, check=True)
    # The thread sanitizer wants addresses that do not move.
    still = ["setarch", "-R"] if shutil.which("setarch") else []
    ran = subprocess.run([*still, "./main", *args], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout

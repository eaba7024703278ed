"""Models as libraries for C programs, and the programs of docs/c.md, in C and in C++."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference
from c_library import block, compile_c, prefix
from machines import is_here
from programs import THREE, needs, said_by

import occ

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("here")]
RNG = np.random.default_rng(0)


# the programs of the page


@pytest.mark.parametrize(("language", "suffix"), [("c", ".c"), ("cpp", ".cpp")])
def test_the_program_of_the_page(language: str, suffix: str):
    model = model_of(THREE)
    occ.build(model, "cpu", out="model.occ")
    text = block("c.md", language, 0)
    assert text.strip().count("\n") < 15, "at most 15 lines"
    Path(f"main{suffix}").write_text(text)
    compile_c(Path(f"main{suffix}"), Path("main"), (), "-Wno-missing-field-initializers")
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    want = zip((o.name for o in model.graph.output), reference(model, {"x": x}), strict=True)
    for line, (name, y) in zip(said_by("./main").splitlines(), want, strict=True):
        said, first = line.split()
        assert said == name
        assert float(first) == pytest.approx(float(y.flat[0]), rel=1e-5)
    Path("model.occ").unlink()
    ran = subprocess.run(["./main"], capture_output=True, text=True)
    assert ran.returncode
    assert "`model.occ` cannot be opened: No such file" in ran.stdout + ran.stderr


def test_the_program_in_another_language():
    needs("luajit")
    model = model_of(THREE)
    occ.build(model, "cpu", out="model.occ")
    Path("main.lua").write_text(block("c.md", "lua", 0))
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    command = [str(shutil.which("luajit")), "main.lua", str(prefix() / "lib/libocc.so")]
    found = [float(n) for n in said_by(command[0], *command[1:]).split()]
    np.testing.assert_allclose(found, [y.flat[0] for y in reference(model, {"x": x})], rtol=1e-5)
    Path("model.occ").write_bytes(b"no artifact")
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "`model.occ` is not an artifact" in ran.stderr


def test_the_program_of_a_linked_model_on_the_page(occ_cli: Any):
    onnx.save(mlp(), "mlp.onnx")
    assert occ_cli("build", "mlp.onnx", "--emit", "static", "-o", "build/").code == 0
    assert block("c.md", "c", 1).strip() in Path("build/mlp.h").read_text()
    Path("main.c").write_text(block("c.md", "c", 2))
    build = next(line for line in block("c.md", "sh", 1).splitlines() if line.startswith("cc"))
    subprocess.run(shlex.split(build), check=True)
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    assert float(said_by("./main")) == pytest.approx(float(reference(mlp(), {"x": x})[0][0, 0]), rel=1e-5)


# valgrind knows no AVX-512
_VALGRIND = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]
_FOR_VALGRIND = ["--target-cpu", "x86-64-v3" if is_here("x86-64-v3") else "x86-64-v2"]
LOOP = """
#include <occ.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    float x[3][8] = {{1, 2, 3}};
    occ_model *model;
    if (argc < 3 || occ_open(argv[1], &model)) return 1;
    occ_tensor in = {.data = x, .rank = 2, .extents = {3, 8}}, out[3] = {0}, bad[3] = {0};
    for (int i = 0; i < atoi(argv[2]); i++) {
        in.extents[0] = 1 + i % 3;
        if (occ_run(model, &in, 1, out, 3)) return 2;
    }
    in.extents[1] = 7;
    if (occ_run(model, &in, 1, bad, 3) != OCC_ERROR_INPUT) return 3;
    for (int k = 0; k < 3; k++) occ_free(&out[k]);
    occ_close(model);
    return 0;
}
"""


def test_valgrind_finds_nothing_and_repeated_runs_allocate_nothing(occ_cli: Any):
    needs("valgrind")
    onnx.save(model_of(THREE), "three.onnx")
    assert occ_cli("build", "three.onnx", *_FOR_VALGRIND).code == 0
    Path("loop.c").write_text(LOOP)
    compile_c(Path("loop.c"), Path("loop"), (), "-Wno-missing-field-initializers")
    counts = []
    for runs in ("4", "40"):
        command = [*_VALGRIND, "-v", "--log-file=log", "./loop", "three.occ", runs]
        assert subprocess.run(command, timeout=300).returncode == 0, Path("log").read_text()
        counts.append(re.search(r"total heap usage: ([\d,]+) allocs", Path("log").read_text()))
    assert counts[0] is not None
    assert counts[0][1] == counts[1][1]


# linked models

TWO = """
#include "one.h"
#include "two.h"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    static float x[256 * 8], y[256 * 4], z[256 * 4];
    occ_model *a, *b;
    for (int k = 0; k < 256 * 8; k++) x[k] = (float)(k % 13) - 6;
    if (one_open("d/one.weights", &a) || two_open("d/two.weights", &b)) return puts(occ_error_text(NULL)), 1;
    one_ports p = {.n = 256, .x = x, .y = y};
    two_ports q = {.n = 256, .x = x, .y = z};
    if (one_y_count(&p) != 1024 || occ_verify(a) || occ_verify(b)) return 2;
    for (int k = 0; k < 20; k++)
        if (one_run(a, &p) || two_run(b, &q)) return puts(occ_error_text(NULL)), 3;
    printf("%.9g %.9g %.9g %.9g\\n", y[0], y[1023], z[0], z[1023]);
    q.y = NULL;
    if (two_run(b, &q) != OCC_ERROR_ARGUMENT || two_run(b, NULL) != OCC_ERROR_ARGUMENT) return 4;
    occ_close(a);
    occ_close(b);
    return 0;
}
"""


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("static", "file"),
        ("shared", "embed"),
        ("shared", "file"),
        ("object", "file"),
        ("whole program static", "embed"),
    ],
)
def test_two_models_in_one_program(kind: str, weights: str, occ_cli: Any):
    """They have the same kernels; the program needs neither Python nor the C++ library."""
    models = {"one": mlp(1), "two": mlp(2)}
    emit = kind.split()[-1]
    for (name, model), target in zip(models.items(), ("cpu", "cpu-jit" if emit == "object" else "cpu"), strict=True):
        onnx.save(model, f"{name}.onnx")
        how = ("-t", target, "--emit", emit, "--weights", weights, "-o", "d/")
        assert occ_cli("build", f"{name}.onnx", *how).code == 0
        assert Path(f"d/{name}.weights").exists() == (weights == "file")
    Path("main.c").write_text(TWO)
    suffix = {"static": ".a", "shared": ".so", "object": ".o"}[emit]
    parts = [f"d/{n}{suffix}" for n in models]
    extra = {"object": ["d/libocc.a"], "shared": [f"-Wl,-rpath,{Path.cwd()}/d"]}.get(kind, [])
    alone = ["-static"] if " " in kind else []
    command = [
        "cc",
        *alone,
        "-Wall",
        "-Werror",
        "-Id",
        "main.c",
        *parts,
        *extra,
        "-lpthread",
        "-lm",
        "-ldl",
        "-o",
        "main",
    ]
    subprocess.run(command, check=True)
    x = (np.arange(256 * 8) % 13 - 6).astype(np.float32).reshape(256, 8)
    found = np.array(said_by("./main").split(), float)
    results = [reference(m, {"x": x})[0] for m in models.values()]
    np.testing.assert_allclose(found, [y[at] for y in results for at in ((0, 0), (255, 3))], rtol=1e-4)
    needed = subprocess.run(["readelf", "-d", "main"], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" not in needed
    if emit == "shared":
        listed = subprocess.run(["nm", "-D", "--defined-only", "d/one.so"], capture_output=True, text=True, check=True)
        assert {n.split()[-1].split("_")[0] for n in listed.stdout.splitlines()} == {"occ", "one"}


def test_names_that_are_none_in_c(occ_cli: Any):
    model = model_of(
        "g (float[a, 2] x, float[a, 2] v) => (float[a, 2] y, bool[2] z) { y = Add(x, v) z = Constant <value = bool[2] {1, 0}> () }"
    )
    for info, name in zip([*model.graph.input, *model.graph.output], ("int", "x.1", "x/1", "*/ \\"), strict=True):
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [name if n == info.name else n for n in names]
        info.name = name
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch size"
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "batch size"
    onnx.save(model, "7 models.onnx")
    assert occ_cli("build", "7 models.onnx", "-t", "cpu-jit", "--emit", "static", "-o", "d").code == 0
    Path("main.c").write_text("""
#include "t_7_models.h"
#include <stdio.h>
int main(void) {
    float a[2] = {1, 2}, b[2] = {10, 20}, y[2];
    bool z[t_7_models_t_____count];
    occ_model *model;
    t_7_models_ports p = {.batch_size = 1, .int_2 = a, .x_1 = b, .x_1_2 = y, .t____ = z};
    if (t_7_models_open("d/t_7_models.weights", &model) || t_7_models_run(model, &p)) return 1;
    printf("%g %g %d %d\\n", y[0], y[1], z[0], z[1]);
    occ_close(model);
    return 0;
}
""")
    subprocess.run(
        ["cc", "-Wall", "-Werror", "-Id", "main.c", "d/t_7_models.a", "-lm", "-ldl", "-o", "main"], check=True
    )
    assert said_by("./main") == "11 22 1 0\n"


@pytest.mark.parametrize("name", ["model", "linked", "occ"])
def test_names_of_files_of_libocc(name: str, occ_cli: Any):
    Path(f"{name}.onnx").write_bytes(mlp().SerializeToString())
    Path("out").mkdir()
    made = occ_cli("build", f"{name}.onnx", "--emit", "static", "--weights", "embed", "-o", "out", "--json")
    assert made.code == 0, made.err
    own = name if name == "model" else f"{name}_2"
    calls = f"occ_model *m; if ({own}_open(0, &m)) return 1; occ_close(m);"
    Path("main.c").write_text(f'#include "{own}.h"\nint main(void) {{ {calls} return 0; }}')
    subprocess.run([*shlex.split(json.loads(made.out)["link"]), "-o", "main"], check=True)
    said_by("./main")


def test_weights_in_memory(occ_cli: Any):
    Path("mlp.onnx").write_bytes(mlp().SerializeToString())
    Path("out").mkdir()
    made = json.loads(occ_cli("build", "mlp.onnx", "--emit", "static", "-o", "out", "--json").out)
    Path("main.c").write_text("""#include "mlp.h"
#include <stdio.h>
static char weights[1 << 16];
int main(void) {
    float x[3][8] = {{1, 2, 3}}, y[3][4];
    occ_model *model;
    size_t bytes = fread(weights, 1, sizeof weights, stdin);
    if (mlp_open_memory(NULL, bytes, &model) != OCC_ERROR_ARGUMENT || model) return 1;
    if (mlp_open_memory(weights, bytes - 1, &model) != OCC_ERROR_DAMAGED || model) return 2;
    if (mlp_open_memory(weights, bytes, &model)) return 3;
    mlp_ports ports = {.n = 3, .x = &x[0][0], .y = &y[0][0]};
    if (mlp_run(model, &ports)) return 4;
    for (int k = 0; k < 4; k++) printf("%.6g ", y[0][k]);
    occ_close(model);
}""")
    subprocess.run([*shlex.split(made["link"]), "-o", "main"], check=True)
    with Path("out/mlp.weights").open("rb") as weights:
        ran = subprocess.run(["./main"], stdin=weights, capture_output=True, text=True, check=True)
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    np.testing.assert_allclose([float(v) for v in ran.stdout.split()], reference(mlp(), {"x": x})[0][0], rtol=1e-4)


def test_models_that_need_python_are_not_linked(occ_cli: Any):
    onnx.save(model_of("g (string[n] x) => (string[n] y) { [culprit] y = StringNormalizer(x) }"), "m.onnx")
    for emit in ("static", "shared", "object"):
        ran = occ_cli("build", "m.onnx", "--emit", emit, "-o", "d/")
        assert ran.code == 3
        assert "OCC0306" in ran.err
        assert "node `culprit`" in ran.err
    assert not Path("d").exists()


def test_weights_of_another_size_are_refused(occ_cli: Any):
    for name in ("one", "two"):
        onnx.save(mlp(), f"{name}.onnx")
        assert occ_cli("build", f"{name}.onnx", "--emit", "static", "-o", "d/").code == 0
    for path, said in (("d/one.weights", "have 832"), ("missing", "cannot be read: No such file")):
        with open("d/one.weights", "wb") as f:
            f.write(bytes(831))
        text = TWO.replace("d/one.weights", path)
        Path("main.c").write_text(text)
        subprocess.run(["cc", "-Id", "main.c", "d/one.a", "d/two.a", "-lm", "-ldl", "-o", "main"], check=True)
        ran = subprocess.run(["./main"], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 1
        assert said in ran.stdout

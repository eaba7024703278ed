"""Models as modules of WebAssembly: under wasmtime, in Node.js, linked into C programs, and on a page in a browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import mlp, model_of, reference
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt
from test_cross import MODELS

import occ
from occ.compiler.codegen_halide.toolchain import cross_compiler
from occ.compiler.diagnostics import CompileError
from occ.compiler.objects.wasm import with_symbols
from occ.compiler.standalone.module import WASM, missing

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEVICE = "CPU:wasm-32"
pytestmark = [pytest.mark.toolchain, pytest.mark.skipif(cross_compiler(WASM) is None, reason=missing())]
in_wasmtime = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def built(here: Path, occ_cli: Any) -> Any:
    """Builds a model for WebAssembly; what `occ build` says of it."""

    def build(model: Any, name: str, *options: str) -> dict[str, Any]:
        Path(f"{name}.onnx").write_bytes(model.SerializeToString())
        ran = occ_cli("build", f"{name}.onnx", "--target-cpu", "wasm32", "--json", *options)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return build


@in_wasmtime
@pytest.mark.parametrize("case", ["convolution", "half", "special", "recurrence"])
def test_results_are_those_of_onnxruntime(case: str):
    text, feed = MODELS[case]
    model = model_of(text)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[:1]
    got = occ.backend.prepare(model, DEVICE).run(feed)
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-5, strict=True)


@in_wasmtime
def test_one_instance_runs_again_at_other_sizes_and_with_errors_between():
    instance = occ.backend.prepare(mlp(), DEVICE)
    for n in (1, 5, 0, 1):
        x = np.random.default_rng(n).standard_normal((n, 8), np.float32)
        np.testing.assert_allclose(instance.run([x])[0], reference(mlp(), {"x": x})[0], rtol=1e-5, atol=1e-6)
        with pytest.raises(occ.RunError):
            instance.run([np.ones((2, 9), np.float32)])
    gather = model_of("g (float[3] x, int64[n] i) => (float[n] y) { y = Gather(x, i) }")
    with pytest.raises(occ.RunError, match=r"the run in WebAssembly failed: .*Gather"):
        occ.backend.prepare(gather, DEVICE).run([np.ones(3, np.float32), np.array([7])])


def test_an_artifact_is_refused_and_the_module_named():
    with pytest.raises(CompileError, match=r"it has no artifacts.*\n.*`--emit shared`"):
        occ.build(mlp(), "cpu", options={"halide.target": "wasm-32-wasmrt-wasm_simd128"})


@in_wasmtime
def test_what_only_python_runs_is_refused():
    with pytest.raises(BackendIsNotSupposedToImplementIt, match="OCC0306"):
        occ.backend.prepare(model_of("g (string[n] x) => (string[n] y) { y = Identity(x) }"), DEVICE)


# programs in C

PROGRAM = """#include "mlp.h"
#include "second.h"
#include <stdio.h>
int main(int argc, char **argv) {
    float x[3][8] = {{1, 2, 3}}, y[3][4];
    occ_model *one, *two;
    if (mlp_open("mlp.weights", &one) || second_open("second.weights", &two)) return puts(occ_error_text(NULL)), 1;
    mlp_ports ports = {.n = 3, .x = &x[0][0], .y = &y[0][0]};
    second_ports others = {.n = 3, .x = &x[0][0], .y = &y[0][0]};
    if (mlp_run(one, &ports)) return puts(occ_error_text(one)), 1;
    for (int k = 0; k < 4; k++) printf("%.6g ", y[0][k]);
    if (second_run(two, &others)) return puts(occ_error_text(two)), 1;
    for (int k = 0; k < 4; k++) printf("%.6g ", y[0][k]);
    occ_close(one), occ_close(two);
    if (!occ_open("m.occ", &one) || one) return 2;
    printf("%s", occ_error_text(NULL));
}
"""


@in_wasmtime
@pytest.mark.parametrize("emit", ["static", "object"])
def test_two_models_in_a_program_of_wasi(emit: str, built: Any, here: Path):
    from wasmtime import Engine, Linker, Module, Store, WasiConfig

    Path("main.c").write_text(PROGRAM)
    Path("out").mkdir()
    command = built(mlp(), "mlp", "--emit", emit, "-o", "out")["link"].split()
    built(mlp(), "second", "--emit", emit, "-o", "out")
    place = command.index("main.c") + 1
    end = {"static": ".a", "object": ".o"}[emit]
    subprocess.run([*command[:place], f"out/second{end}", *command[place:], "-o", "main.wasm"], check=True)
    store, linker, config = Store(Engine()), None, WasiConfig()
    config.preopen_dir(str(here / "out"), ".")
    config.stdout_file = str(here / "said")
    store.set_wasi(config)
    linker = Linker(store.engine)
    linker.define_wasi()
    linker.instantiate(store, Module.from_file(store.engine, "main.wasm")).exports(store)["_start"](store)
    x = np.zeros((3, 8), np.float32)
    x[0, :3] = 1, 2, 3
    want = reference(mlp(), {"x": x})[0][0]
    *values, said = Path("said").read_text().split(" ", 8)
    np.testing.assert_allclose([float(v) for v in values], [*want, *want], rtol=1e-4)
    assert said == "artifacts do not work on this system: link the model into the program (`--emit static`)"


def test_symbols_of_another_format_are_refused():
    with pytest.raises(ValueError, match="no object file of WebAssembly"):
        with_symbols(b"\x7fELF", lambda _: True, {})


# JavaScript

SCRIPT = """
import { readFileSync } from "node:fs";
const { load, OccError } = await import("./occ.mjs");
const model = await load(readFileSync("model.wasm"), %s);
const x = Float32Array.from({ length: 24 }, (_, k) => k / 10);
const said = { inputs: model.inputs, outputs: model.outputs };
for (let k = 0; k < 3; k++) said.y = model.run({ x: { data: x, dims: [3, 8] } }).y;
said.y.data = [...said.y.data];
said.errors = [{}, { x: { data: x, dims: [3, 7] } }, { x: { data: x, dims: [4, 6] } }, { x: { data: [...x], dims: [3, 8] } }, { x: { data: x, dims: [3, 8] }, z: 0 }]
  .map((feeds) => { try { model.run(feeds); } catch (error) { return [error instanceof OccError, error.message]; } });
model.close();
console.log(JSON.stringify(said));
"""


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
def test_the_script_of_the_page(built: Any, here: Path):
    """The block of docs/webassembly.md; Node fetches no files, so they are handed to it."""
    built(mlp(), "model", "--emit", "shared", "-o", "model.wasm")
    shutil.copy("occ.js", "occ.mjs")
    page = (ROOT / "docs/webassembly.md").read_text()
    script = page.partition("```js\n")[2].partition("```")[0].replace("./occ.js", "./occ.mjs")
    files = 'import { readFileSync } from "node:fs"; globalThis.fetch = async (p) => new Response(readFileSync(p));\n'
    Path("main.mjs").write_text(files + script)
    ran = subprocess.run([str(NODE), "main.mjs"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("[ 3, 4 ] Float32Array(12)")


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
@pytest.mark.parametrize("weights", ["file", "embed"])
def test_the_script_runs_it(weights: str, built: Any, here: Path):
    made = built(mlp(), "model", "--emit", "shared", "--weights", weights, "-o", "model.wasm")
    assert made["out"] == "model.wasm"
    assert "link" not in made
    shutil.copy("occ.js", "occ.mjs")
    Path("main.mjs").write_text(SCRIPT % ('readFileSync("model.weights")' if weights == "file" else "undefined"))
    assert Path("model.weights").exists() == (weights == "file")
    ran = subprocess.run([str(NODE), "main.mjs"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    want = reference(mlp(), {"x": np.arange(24, dtype=np.float32).reshape(3, 8) / 10})[0]
    np.testing.assert_allclose(np.reshape(said["y"]["data"], said["y"]["dims"]), want, rtol=1e-4)
    assert (said["inputs"][0]["name"], said["inputs"][0]["dtype"], said["inputs"][0]["dims"]) == ("x", "f32", [None, 8])
    assert said["outputs"][0]["dims"] == [None, 4]
    assert all(ours for ours, _ in said["errors"])
    for (_, message), words in zip(
        said["errors"],
        [
            "`x` is missing",
            "24 elements, its dims say 21",
            "axis 1 of the input `x` is 6",
            "give a Float32Array",
            "no input `z`",
        ],
        strict=True,
    ):
        assert words in message


# the page

PROBE = """<script>
document.addEventListener("classified", (event) => { document.title = JSON.stringify(event.detail); });
document.addEventListener("ready", () => {
  const bytes = Uint8Array.from(atob("%s"), (c) => c.charCodeAt(0)), given = new DataTransfer();
  given.items.add(new File([bytes], "picture.png", { type: "image/png" }));
  const file = document.getElementById("file");
  file.files = given.files;
  file.dispatchEvent(new Event("change"));
});
</script>"""


def png(gray: np.ndarray) -> bytes:
    """A picture of u8[H,W]."""
    rows = b"".join(b"\0" + row.tobytes() for row in gray)
    chunks = [
        (b"IHDR", struct.pack(">2I5B", gray.shape[1], gray.shape[0], 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    framed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_picture_in_and_a_class_out(here: Path):
    model = ROOT / "examples/digits.onnx"
    command = [sys.executable, str(ROOT / "examples/browser/page.py"), str(model), "-o", "page.html"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    page = Path("page.html").read_text()
    assert not re.search(r'(src|href)="?https?:', page), "nothing is fetched"
    pixels = np.round(np.load(ROOT / "examples/three.npy").reshape(8, 8) * 255).astype(np.uint8)
    Path("page.html").write_text(page.replace("</head>", PROBE % base64.b64encode(png(pixels)).decode() + "</head>", 1))
    browser = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]
    home = {"HOME": str(here), "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(
        [*browser, f"file://{here}/page.html"], capture_output=True, text=True, timeout=120, env=home, check=False
    )
    said = json.loads(re.findall(r"<title>(.*?)</title>", shown.stdout)[0])
    feed = {"picture": (pixels / 255).astype(np.float32).reshape(1, 1, 8, 8)}
    (want,) = onnxruntime.InferenceSession(model.read_bytes()).run(None, feed)
    assert said["best"] == int(want.argmax()) == 3
    np.testing.assert_allclose(said["scores"], want[0], rtol=1e-4, atol=1e-6)
    assert re.search(r"<li><span>class 3</span>", shown.stdout)

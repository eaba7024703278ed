"""Names from a model are data: whatever they spell, nothing of it is executed, and the model builds, prints and runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of, reference

import occ
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.frontend.text import parse
from occ.runtime.open import open_artifact

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8), dtype=np.float32)


def names(canary: Path) -> list[str]:
    """Fragments of C++, shell, make, printf, HTML, JSON and the text IR; `canary` is what they would create."""
    touch = f"touch {canary}"
    return [
        f'"; system("{touch}"); //',
        f"*/ system(\"{touch}\"); /*",
        f"\n#include <cstdlib>\nstatic int x = system(\"{touch}\");\n//",
        f"\\\n system(\"{touch}\"); // after a line that goes on",
        f"$({touch})", f"`{touch}`", f"; {touch} ;", f"$(shell {touch})", f"| {touch}", f"&& {touch}", f"'; {touch}; '",
        "%n%n%n%s%s%s%99999999d", "??/\n??=include", "R\"(\")\"", "{0} {x!r} {{", "</script><script>",
        "x" * 10_000, "‮ reversed ⁦ bidi ⁩", "\x1b[2J\x1b]0;title\x07", "\x00null", "日本語 ñ 😀", "\r\n\t\v\f\x85\u2028",
        "", " ", "-o", "--emit", "../../../etc/passwd", "CON", "int", "class", "main", "generate", "x0", "p0", "D0",
        "%x", "@w", "#", '" : f32[1] loc("', "}\n}\nte @evil", "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
    ]  # fmt: skip


def hostile(canary: Path) -> onnx.ModelProto:
    """Conv, Add, Relu, MatMul, ... on a symbolic size, every name of it hostile."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.standard_normal((8, 3, 3, 3), dtype=np.float32),
        "b": rng.standard_normal((8, 1, 1), dtype=np.float32),
        "w": rng.standard_normal((8, 5), dtype=np.float32),
        "axes": np.array([2, 3]),
    }
    text = """g (float[n, 3, h, 8] x) => (float[n, 5] y, float[n, 8, h, 8] r) {
        c = Conv<pads = [1, 1, 1, 1]>(x, k)
        a = Add(c, b)
        r = Relu(a)
        m = ReduceMean<keepdims = 0>(r, axes)
        t = Tanh(m)
        y = MatMul(t, w)
    }"""
    model = model_of(text, weights)
    pool = iter(names(canary))
    new: dict[str, str] = {"": ""}

    def rename(old: str) -> str:
        if old not in new:
            new[old] = next(n for n in pool if n)
        return new[old]

    g = model.graph
    g.name = next(pool)
    for info in (*g.input, *g.output):
        info.name = rename(info.name)
        for d in info.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_param = rename(f"dim {d.dim_param}")
    for t in g.initializer:
        t.name = rename(t.name)
    for node in g.node:
        node.input[:] = map(rename, node.input)
        node.output[:] = map(rename, node.output)
        node.name, node.doc_string = next(pool), next(pool)
    return model


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    canary = folder / "canary"
    model = hostile(canary)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    plain = model_of(
        """g (float[n, 3, h, 8] x) => (float[n, 5] y, float[n, 8, h, 8] r) {
        c = Conv<pads = [1, 1, 1, 1]>(x, k)  a = Add(c, b)  r = Relu(a)
        m = ReduceMean<keepdims = 0>(r, axes)  t = Tanh(m)  y = MatMul(t, w)
    }"""
    )
    for t, name in zip(model.graph.initializer, ("k", "b", "w", "axes"), strict=True):
        plain.graph.initializer.add().CopyFrom(t)
        plain.graph.initializer[-1].name = name
    return folder, canary, model, reference(plain, {"x": X})


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
def test_it_builds_runs_and_prints_on_every_target(scene, target, tmp_path):
    folder, canary, model, wanted = scene
    compilation = Compilation(folder / "m.onnx", Settings(target, save_stages=True, verify=True))
    artifact = compilation.artifact()
    for as_folder in (False, True):
        path = artifact.save(tmp_path / f"{as_folder}.occ", folder=as_folder)
        m = occ.load(path)
        assert m.inputs[0].name == model.graph.input[0].name
        assert list(m.run({m.inputs[0].name: X})) == [o.name for o in model.graph.output]
        for got, want in zip(m(X), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    for name, data in artifact.files.items():
        if name.endswith(".occ"):
            parse(data.decode(), path=tmp_path / "True.occ" / name)
    assert not canary.exists()


def test_the_names_do_not_appear_as_code(scene):
    folder, canary, _, _ = scene
    sources = Compilation(folder / "m.onnx", Settings("cpu")).artifact().files
    generated = {n: data.decode("ascii") for n, data in sources.items() if "kernels_" in n or "Makefile" in n}
    assert len(generated) == 3
    for name, text in generated.items():
        for line in text.splitlines():
            assert str(canary) not in line.partition("//")[0], f"{name}: {line[:200]}"
            assert name.endswith("Makefile") or not line.rstrip().endswith(("\\", "??/")), f"{name}: {line[:200]}"
            assert line.replace("\t", "").isprintable(), f"{name}: {line[:200]!r}"


def test_the_emitted_makefile_rebuilds_the_library_and_gives_the_same_numbers(scene, tmp_path):
    folder, canary, _, wanted = scene
    artifact = occ.build(folder / "m.onnx", "cpu", tmp_path / "m.occ", folder=True)
    src = tmp_path / "m.occ" / "src"
    done = subprocess.run(
        ["make", f"HALIDE={halide()}", f"PYTHON={sys.executable}"], cwd=src, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    artifact.code = (src / "model.so").read_bytes()
    for got, want in zip(open_artifact(artifact)(X), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert not canary.exists()


def halide() -> Path:
    from occ.compiler.codegen_halide.toolchain import find_halide

    found = find_halide()
    assert found is not None
    return found


COMMANDS = [
    ["inspect"], ["inspect", "--json"], ["check", "-t", "cpu-jit"], ["dump", "--stage", "fused"],
    ["dump", "--stage", "fused", "--format", "json"], ["dump", "--stage", "halide"], ["dump", "--stage", "llvm", "-t", "cpu-jit"],
    ["run", "-t", "cpu-jit"], ["run", "-t", "cpu-jit", "--json"], ["diff", "-t", "cpu-jit", "--against", "interp"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_print_it_safely(scene, command, occ_cli):
    folder, canary, _, _ = scene
    ran = occ_cli(command[0], folder / "m.onnx", *command[1:])
    assert ran.code == 0, ran.err
    shown = ran.out + ran.err
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "‮" not in shown
    assert not canary.exists()


def test_outputs_are_written_inside_of_the_folder(scene, occ_cli, tmp_path):
    folder, _, _, _ = scene
    ran = occ_cli("run", folder / "m.onnx", "-t", "cpu-jit", "--output", tmp_path / "out")
    assert ran.code == 0
    files = list((tmp_path / "out").iterdir())
    assert len(files) == 2
    assert all(f.suffix == ".npy" for f in files)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_python_is_not_executed_either(scene):
    """The interpreter of another process sees the names as arguments only."""
    folder, canary, model, _ = scene
    name = model.graph.input[0].name
    code = "import sys, occ; m = occ.compile(sys.argv[1], 'cpu-jit'); assert m.inputs[0].name == sys.argv[2]"
    subprocess.run([sys.executable, "-c", code, str(folder / "m.onnx"), name], check=True)
    assert not canary.exists()

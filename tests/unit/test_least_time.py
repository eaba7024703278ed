"""`-O1`, the least time to a first result: `cpu-jit` compiles instead of `cpu`, without a C++ compiler."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from building import mlp, model_of, reference

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import compile_soon
from occ.compiler.driver.settings import Settings
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.targets.registry import target_for
from occ.tiered import TieredSession

X = {"x": np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)}


@pytest.mark.parametrize(
    ("given", "compiles"),
    [
        ({}, "cpu-jit"),
        ({"resize": "exact", "halide.target": "host"}, "cpu-jit"),
        ({"halide.target": PROCESSORS["x86-64-v3"]}, "cpu-jit"),
        ({"halide.target": PROCESSORS["cortex-a76"]}, "cpu-jit"),
        ({"halide.target": PROCESSORS["armv7-a"]}, "cpu"),
        ({"halide.target": PROCESSORS["wasm32"]}, "cpu"),
        ({"precision": "bf16"}, "cpu"),
        ({"sanitize": "address"}, "cpu"),
        ({"also": "x86-64-v3"}, "cpu"),
    ],
)
def test_who_compiles(given, compiles):
    target, options = target_for("cpu", {"optimize": "1", **given})
    assert target.name == compiles
    assert options.table.keys() == target.options.table.keys()
    assert target_for("cpu", {"optimize": "2", **given})[0].name == "cpu"
    assert target_for("cpu-jit", {"optimize": "1"})[0].name == "cpu-jit"
    assert target_for("interp", {})[0].name == "interp"


def test_options_are_checked_as_those_of_the_named_target():
    for given, said in ({"llvm.optimize": "always"}, "`cpu` has no option"), ({"resize": "x"}, "`resize` cannot be"):
        with pytest.raises(occ.CompileError, match=said):
            target_for("cpu", {"optimize": "1", **given})


def test_it_needs_no_compiler(monkeypatch, tmp_path, occ_cli):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OCC_CXX", raising=False)
    onnx.save(mlp(), tmp_path / "m.onnx")
    made = json.loads(occ_cli("build", tmp_path / "m.onnx", "-t", "cpu", "-O1", "-o", tmp_path / "m.occ", "--json").out)
    assert (made["compiled"], made["reused"]) == (made["kernels"], 0)
    np.testing.assert_allclose(occ.load(tmp_path / "m.occ").run(X)["y"], reference(mlp(), X)[0], rtol=1e-5)
    ran = occ_cli("run", tmp_path / "m.onnx", "-t", "cpu", "-O1", "--dim", "n=3")
    assert ran.code == 0, ran.err


def test_nothing_replaces_it_in_the_background():
    settings = Settings("cpu", options={"optimize": "1"})
    assert compile_soon(mlp(), settings).missing == 0
    session = occ.compile(mlp(), "cpu", options={"optimize": 1}, specialise="background")
    assert not isinstance(session, TieredSession) or session.is_settled
    wanted = occ.compile(mlp(), "cpu-jit").run(X)["y"]
    np.testing.assert_array_equal(session.run(X)["y"], wanted)


@pytest.mark.toolchain
def test_its_kernels_are_warmed(monkeypatch, tmp_path, occ_cli, tools_only):
    tools_only("cache")
    onnx.save(mlp(), tmp_path / "m.onnx")
    warmed = json.loads(occ_cli("warm", tmp_path / "m.onnx", "-O1", "--json").out)
    assert warmed["models"] == 1
    assert warmed["compiled"] > 0
    made = json.loads(occ_cli("build", tmp_path / "m.onnx", "-t", "cpu", "-O1", "-o", tmp_path / "m.occ", "--json").out)
    assert (made["compiled"], made["reused"]) == (0, warmed["compiled"])


def test_generators_are_made_at_other_levels(occ_cli, tmp_path):
    onnx.save(mlp(), tmp_path / "m.onnx")
    ran = occ_cli("build", tmp_path / "m.onnx", "-t", "cpu", "-O1", "--emit", "generator", "-o", tmp_path / "out")
    assert ran.code == 2
    assert "`-t cpu -O2` would" in ran.err


def test_a_stage_of_the_named_target_alone() -> None:
    compilation = Compilation(mlp(), Settings("cpu", options={"optimize": "1"}))
    with pytest.raises(occ.CompileError, match=r"(?s)no stage `halide`.*`-O1` of target `cpu` is code of `cpu-jit`"):
        compilation.advance("halide")


def test_layers_share_kernels_whatever_their_sizes() -> None:
    """Filters are in tiles of 16 or 8 and the rest are sizes of the call; rows of 20 are a kernel of their own."""
    shapes = {"x": (1, 16, 14, 150), "y": (1, 32, 17, 200), "z": (1, 16, 14, 20)}
    filters = {"u": (32, 16, 3, 3), "v": (64, 32, 3, 3), "w": (32, 16, 3, 3)}
    given = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in {**shapes, **filters}.items())
    model = model_of(
        f"g ({given}) => (float[a,b,c,d] p, float[e,f,g,h] q, float[i,j,k,l] r) "
        "{ p = Conv (x, u) q = Conv (y, v) r = Conv (z, w) }"
    )
    rng = np.random.default_rng(5)
    feed = {n: rng.integers(-4, 5, shape).astype(np.float32) for n, shape in {**shapes, **filters}.items()}
    for level, kernels in ("1", 2), ("3", 3):
        compilation = Compilation(model, Settings("cpu-jit", options={"optimize": level}))
        assert len(compilation.advance("lowered").te) == kernels
    got = occ.compile(model, "cpu", options={"optimize": "1"}).run(feed)
    for y, want in zip(got.values(), reference(model, feed), strict=True):
        np.testing.assert_array_equal(y, want)


def test_reads_at_positions_that_are_read() -> None:
    """A function for any sizes that reads more often than the one for its sizes is not made."""
    model = model_of(
        "g (float[1, 2, 32, 32] x, float[1, 4] b, int64[1] i) => (float[1, 2, 3, 2] y) "
        "{ y = RoiAlign <output_height = 3, output_width = 2> (x, b, i) }"
    )
    x = np.random.default_rng(3).standard_normal((1, 2, 32, 32), dtype=np.float32)
    feed = {"x": x, "b": np.array([[1, 2, 30, 20]], np.float32), "i": np.zeros(1, np.int64)}
    got = occ.compile(model, "cpu", options={"optimize": "1"}).run(feed)["y"]
    np.testing.assert_allclose(got, reference(model, feed)[0], rtol=1e-5, atol=1e-6)

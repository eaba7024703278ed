"""An installed package that adds a target, a pass, a rule and an operator: `tests/plugin`, put into a folder by pip."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--disable-pip-version-check"]


def install(source: Path, work: Path, site: Path) -> None:
    """Install a package into a folder, from a copy, because building writes next to the sources."""
    copy = work / source.name
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    subprocess.run([*PIP, "--target", str(site), str(copy)], check=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the plugin is installed."""
    folder = tmp_path_factory.mktemp("site")
    install(ROOT / "plugin", tmp_path_factory.mktemp("work"), folder)
    return folder


def run(site: Path, folder: Path, *command: object, code: int = 0) -> str:
    """A command of occ with the plugin installed, in a process of its own: entry points are read once in a process."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    words = [sys.executable, *(("-m", "occ.cli") if command[0] != "-c" else ()), *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


NET = """<ir_version: 10, opset_import: ["" : 21, "com.example.toy" : 1]>
g (float[n, 3, 9, 8] x, int64[n] k) => (float[n, 6] y, int64[n, 6] best, float[m, 6] rows) {
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, w, b)
    s = Softplus (c)  t = Tanh (s)  u = Mul (c, t)
    p = MaxPool <kernel_shape = [3, 2]> (u)
    best = ArgMax <axis = 1, keepdims = 0> (flat)
    g0 = GlobalAveragePool (p)  f = Flatten (g0)
    h = com.example.toy.Halve (f)  o = Neg (h)  q = Neg (o)
    y = Softmax (q)
    shape = Constant <value_ints = [0, 6, -1]> ()
    r = Reshape (p, shape)
    flat = Transpose <perm = [0, 2, 1]> (r)
    z = Gather (f, k)
    i = Constant <value_ints = [0]> ()
    rows = CumSum (z, i)
}"""


def net() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(NET)
    for name, shape in {"w": (6, 3, 3, 3), "b": (6,)}.items():
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        )
    return model


def test_an_installed_target_compiles_and_its_artifact_runs_without_it(site, tmp_path) -> None:
    onnx.save(net(), tmp_path / "net.onnx")
    assert re.search(r"^toy-c +plain C", run(site, tmp_path, "targets"), re.M)
    assert "-C optimise=2" in run(site, tmp_path, "targets", "toy-c")
    same = run(site, tmp_path, "diff", "net.onnx", "-t", "toy-c", "--against", "interp", "--dim", "n=3")
    assert same.count("same ") == 3, same
    run(site, tmp_path, "build", "net.onnx", "-t", "toy-c", "-C", "optimise=1", "-o", "net.occ")
    bare = dict(os.environ)
    command = [sys.executable, "-m", "occ.cli", "run", "net.occ", "--dim", "n=2"]
    subprocess.run(command, cwd=tmp_path, env=bare, check=True, capture_output=True, timeout=120)
    assert "for (int64_t i0 = 0;" in run(site, tmp_path, "dump", "net.onnx", "-t", "toy-c", "--stage", "c")


def test_an_installed_pass_rule_and_operator_take_part(site, tmp_path) -> None:
    onnx.save(net(), tmp_path / "net.onnx")
    canonical = run(site, tmp_path, "dump", "net.onnx", "-t", "cpu-jit", "--stage", "canonical", "--statistics")
    assert "Mish(" in canonical
    assert "com.example.toy.Halve(" in canonical
    assert "Neg(" not in canonical
    assert re.search(r"^ +1  double-negation$", canonical, re.M)
    assert re.search(r"^ +1  mish\b", run(site, tmp_path, "rules", "net.onnx"), re.M)
    assert "double-negation" in run(site, tmp_path, "opt", "net.onnx", "--list")


CASES = {
    "integers": (
        """g (int32[6] a, int32[6] b, uint8[6] c) => (int32[6] p, int32[6] q, int32[6] r, uint8[6] s, float[6] t, bool[6] u) {
        p = Div (a, b)  q = Mod (a, b)  r = Mod <fmod = 1> (a, b)  s = BitShift <direction = "LEFT"> (c, c)
        t = Cast <to = 1> (a)  u = Less (a, b) }"""
    ),
    "floats": (
        """g (float[7] a, float[7] b) => (float[7] p, float[7] q, int32[7] r, float[7] s, float[7] t, bool[7] u) {
        p = Max (a, b)  q = Mod <fmod = 1> (a, b)  r = Cast <to = 6> (a)  s = Sign (a)  t = Round (a)  u = IsNaN (a) }"""
    ),
    "scatter": (
        """g (float[4, 5] x, int64[2, 5] i, float[2, 5] v) => (float[4, 5] y, float[5] m, int64[5] k) {
        y = ScatterElements <axis = 0, reduction = "add"> (x, i, v)  m = ReduceMax <keepdims = 0> (y, zero)
        k = ArgMin <axis = 0, keepdims = 0> (x) }"""
    ),
}
INPUTS = {
    "integers": {"a": np.int32([7, -7, 7, -7, -(2**31), 5]), "b": np.int32([2, 2, -2, -2, 3, 7]), "c": np.uint8([1, 2, 3, 7, 8, 9])},
    "floats": {
        "a": np.float32([1.5, -2.5, np.nan, 3e9, -np.inf, -0.0, 0.5]), "b": np.float32([-1, 2, 1, 7, 2, 3, np.nan]),
    },
    "scatter": {"x": None, "i": np.int64([[0, 1, 2, 3, 0], [0, 0, 2, 1, 3]]), "v": None},
}  # fmt: skip
CODE = """
import numpy as np, occ
given = dict(np.load("given.npz"))
for name, made in occ.compile("case.onnx", "toy-c").run(given).items():
    np.testing.assert_allclose(made, np.load("want.npz")[name], rtol=1e-6)
"""


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_installed_target_means_what_te_means(case, site, tmp_path) -> None:
    import occ

    rng = np.random.default_rng(0)
    model = model_of(CASES[case], {"zero": np.int64([0])} if case == "scatter" else {})
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    given = {n: rng.standard_normal(shapes[n]).astype(np.float32) if x is None else x for n, x in INPUTS[case].items()}
    with np.errstate(all="ignore"):
        want = occ.compile(model, "interp").run(given)
    onnx.save(model, tmp_path / "case.onnx")
    np.savez(tmp_path / "given.npz", **given)
    np.savez(tmp_path / "want.npz", **want)
    run(site, tmp_path, "-c", CODE)


CONTROL = """g (float[n, 4] x, int64 m) => (float[n, 4] y, int64[2, u] where, seq(float[4]) rows, int64 count) {
    y = Loop (m, , x) <body = b (int64 i, bool c, float[n, 4] v) => (bool d, float[n, 4] w) { d = Identity (c) w = Sin (v) }>
    big = Greater (y, zero)
    where = NonZero (big)
    rows = SplitToSequence <axis = 0, keepdims = 0> (y)
    count = SequenceLength (rows)
}"""
RUN_CONTROL = """
import numpy as np, occ
session = occ.compile("control.onnx", "toy-c")
x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
got = session.run({"x": x, "m": np.array(2)})
want = np.sin(np.sin(x))
np.testing.assert_allclose(got["y"], want, rtol=1e-6)
np.testing.assert_array_equal(got["where"], np.nonzero(want > 0))
np.testing.assert_allclose(got["rows"], want, rtol=1e-6)
assert got["count"] == 3
"""


def test_plans_of_the_installed_target_have_control_flow_found_sizes_and_sequences(site, tmp_path) -> None:
    onnx.save(model_of(CONTROL, {"zero": np.float32([0])}), tmp_path / "control.onnx")
    run(site, tmp_path, "-c", RUN_CONTROL)


def test_the_profile_times_the_kernels_of_the_installed_target(site, tmp_path) -> None:
    onnx.save(net(), tmp_path / "net.onnx")
    said = run(site, tmp_path, "run", "net.onnx", "-t", "toy-c", "--dim", "n=3", "--profile")
    assert re.search(r"^ +\d+\.\d+ +\d+\.\d+% .* gather_\w+: Gather#16$", said, re.M), said


# A package whose kernel is C that it has not written itself, and the library of which is linked by `LINKED`.
BARE = """
import subprocess
from dataclasses import replace
from pathlib import Path
from occ.plugin import LIBRARY, Artifact, Generated, entry_object, link, manifest, stored_weights
from occ_toy.emit import source
from occ_toy.target import TOY

def generate(build, m):
    made = manifest(m, library=LIBRARY, machine="MACHINE")
    Path("k.c").write_text(source(m.te.values()).replace("return 0;", "return CODE;"))
    subprocess.run(["cc", "-std=gnu11", "-w", "-O1", "-c", "-fPIC", "k.c"], check=True)
    kernels = Path("k.o").read_bytes()
    return Generated(Artifact(made, [w.data for w in stored_weights(m)], LINKED))

BARE = replace(TOY, name="bare", generate=generate)
"""


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, 0, ""),
        ({"CODE": "7"}, 1, "error[OCC0505]: the kernel of node `Add#1` failed: code 7"),
        ({"MACHINE": "z80"}, 2, "error[OCC0603]: there are no native entries for the machine `z80`"),
        ({"LINKED": "link(kernels)"}, 4, "error[OCC0403]: the code of target `bare` has no native entry"),
    ],
)
def test_packages_link_the_native_entry_with_their_kernels(changes, code, message, site, tmp_path) -> None:
    both = tmp_path / "site"
    shutil.copytree(site, both)
    text = BARE
    for word, value in {
        "MACHINE": platform.machine(),
        "CODE": "0",
        "LINKED": "link(kernels, entry_object(made))",
        **changes,
    }.items():
        text = text.replace(word, value)
    (both / "occ_bare.py").write_text(text)
    package = both / "occ_bare-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.4\nName: occ-bare\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[occ.targets]\nbare = occ_bare:BARE\n")
    onnx.save(model_of("g (float[n] x) => (float[n] y) { y = Add (x, x) }"), tmp_path / "m.onnx")
    if not message:
        same = run(both, tmp_path, "diff", "m.onnx", "-t", "bare", "--against", "interp", "--dim", "n=3")
        assert same.count("same ") == 1, same
    else:
        assert message in run(both, tmp_path, "run", "m.onnx", "-t", "bare", "--dim", "n=3", code=code)


def test_element_types_that_the_target_has_not_are_refused(site, tmp_path) -> None:
    onnx.save(model_of("g (float16[n] x) => (float16[n] y) { y = Exp (x) }"), tmp_path / "half.onnx")
    assert "error[OCC0302]: target `toy-c` has no kernels for the element type f16" in run(
        site, tmp_path, "build", "half.onnx", "-t", "toy-c", code=3
    )


@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("occ.targets", "cpu2", "math:pi", "`cpu2` of the package `occ-broken` is not a target of that name"),
        (
            "occ.targets",
            "cpu2",
            "no_such:X",
            "`cpu2` of the package `occ-broken` cannot be loaded: ModuleNotFoundError",
        ),
        ("occ.rules", "mish", "no_such:X", "two packages install `mish` in occ.rules"),
        ("occ.ops", "other", "occ_toy.extras:mish", ""),  # loaded twice is loaded once
    ],
)
def test_packages_that_do_not_fit_are_named(group, key, value, message, site, tmp_path) -> None:
    both = tmp_path / "site"
    shutil.copytree(site, both)
    package = both / "occ_broken-1.dist-info"  # all that pip would leave of one that has entry points and nothing else
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.4\nName: occ-broken\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{group}]\n{key} = {value}\n")
    onnx.save(mlp(), tmp_path / "m.onnx")
    said = run(
        both, tmp_path, "build", "m.onnx", "-t", "cpu2" if "targets" in group else "interp", code=1 if message else 0
    )
    assert f"error[OCC0610]: {message}" in said if message else "error" not in said


def test_the_project_names_its_rules(tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.occ]\nrules = ["rules/mine.py"]\n')
    (tmp_path / "rules").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "rules/mine.py").write_text(
        "import occ\n\n@occ.fusion\ndef my_pair(p, x, w, b):\n    return p.Relu(p.MatMul(x, w) + b)\n"
    )
    onnx.save(mlp(), tmp_path / "deep/m.onnx")
    dump = ("dump", "m.onnx", "--stage", "fused", "-t", "cpu-jit")
    assert 'kind="my_pair"' in run(tmp_path, tmp_path / "deep", *dump)
    (tmp_path / "deep/pyproject.toml").write_text("[tool.other]\n")
    assert 'kind="my_pair"' not in run(tmp_path, tmp_path / "deep", *dump)
    (tmp_path / "deep/pyproject.toml").write_text('[tool.occ]\nrules = ["gone.py"]\n')
    assert "error[OCC0610]: there is no rule file" in run(tmp_path, tmp_path / "deep", *dump, code=1)

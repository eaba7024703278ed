"""Every diagnostic code: a command that brings it about, its exit code, and its text, which lies next to this file.

`pytest tests/errors --update` writes the texts again; read the difference before you keep it.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import mlp, model_of

import occ
from occ.compiler.codes import CODES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES: dict[str, Callable[[Scene], list[str]]] = {}


@dataclass
class Scene:
    """Where a case plays."""

    folder: Path
    patch: pytest.MonkeyPatch

    def model(self, text: str, weights: dict[str, np.ndarray] | None = None, **how: int) -> str:
        """The path of a model with the given graph."""
        return self.save(model_of(text, weights, **how))

    def save(self, model: onnx.ModelProto) -> str:
        path = self.folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)

    def text(self, text: str) -> str:
        path = self.folder / "model.occ"
        path.write_text(text)
        return str(path)

    def array(self, name: str, value: np.ndarray) -> str:
        np.save(self.folder / f"{name}.npy", value)
        return f"--input={name}={self.folder / name}.npy"


def case(code: str):
    def add(fn: Callable[[Scene], list[str]]) -> None:
        assert code not in CASES
        CASES[code] = fn

    return add


RELU = "g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }"


@case("OCC0101")
def _(s: Scene):
    return ["build", str(s.folder / "missing.onnx")]


@case("OCC0102")
def _(s: Scene):
    path = Path(s.save(mlp()))
    path.write_bytes(path.read_bytes()[:700])
    return ["build", str(path)]


@case("OCC0103")
def _(s: Scene):
    model = model_of(RELU)
    model.opset_import[0].version, model.ir_version = 999, 99
    return ["build", s.save(model)]


@case("OCC0104")
def _(s: Scene):
    return ["build", s.model("g (float[2] x) => (float[2] y) { a = Blorp(x)  y = Relu(a) }")]


@case("OCC0105")
def _(s: Scene):
    return ["build", s.model("g (float[2] x) => (float[2] y) { a = Add(x, b)  b = Relu(a)  y = Relu(b) }")]


@case("OCC0106")
def _(s: Scene):
    model = mlp()
    for tensor, location in zip(
        model.graph.initializer, ("weights.bin", "../../etc/passwd", "/etc/passwd"), strict=True
    ):
        onnx.external_data_helper.set_external_data(tensor, location)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    return ["build", s.save(model)]


@case("OCC0107")
def _(s: Scene):
    return [
        "build",
        s.model("g (float[2] x) => (float[2] y) { a = Relu(x, x)  b = Cast(a)  y = Relu<alpha = 1.0>(b) }"),
    ]


@case("OCC0108")
def _(s: Scene):
    model = mlp()
    model.graph.initializer[0].dims[:] = [8, 17]
    return ["build", s.save(model)]


@case("OCC0201")
def _(s: Scene):
    return ["build", s.model("g (float[2] x, int64[2] i) => (float[2] y, bool[2] z) { y = Add(x, i)  z = Not(x) }")]


@case("OCC0202")
def _(s: Scene):
    weights = {"k": np.zeros((4, 3, 3, 3), np.float32)}
    return ["build", s.model("g (float[1, 4, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv(x, k) }", weights)]


@case("OCC0203")
def _(s: Scene):
    return [
        "build",
        s.model("g (float[2] x, int64[k] s) => (float[a, b] y) { y = Reshape(x, s) }"),
        "-t",
        "cpu-jit",
        "-C",
        "deferred=off",
    ]


@case("OCC0204")
def _(s: Scene):
    model = model_of(RELU)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    return ["build", s.save(model)]


@case("OCC0205")
def _(s: Scene):
    return ["build", s.model(RELU), "--shape", "z=1,2", "--dim", "batch=4"]


@case("OCC0206")
def _(s: Scene):
    text = "g (float[1, 2, 4] x, float[2, 2] m) => (float[1, 2, 4] y) { y = BatchNormalization (x, m, m, m, m) }"
    return ["build", s.model(text)]


@case("OCC0301")
def _(s: Scene):
    from occ.compiler.ir import ops

    without = {name: spec for name, spec in ops.builtin().items() if name != "Relu"}
    s.patch.setattr(ops, "builtin", lambda: without)
    return ["build", s.model(RELU)]


@case("OCC0302")
def _(s: Scene):
    return [
        "build",
        s.model("g (complex64[2] x) => (complex64[4] y) { y = Concat<axis = 0>(x, x) }"),
        "-t",
        "cpu-jit",
        "-C",
        "deferred=off",
    ]


@case("OCC0303")
def _(s: Scene):
    return ["build", s.model(RELU), "-t", "gpu"]


@case("OCC0305")
def _(s: Scene):
    return ["build", s.model(RELU), "-t", "ascend310"]


@case("OCC0306")
def _(s: Scene):
    text = "g (float[n] x) => (float[k] y) { r = Relu(x) [culprit] y = Unique(r) }"
    return ["build", s.model(text), "-t", "cpu-jit", "--emit", "static"]


@case("OCC0401")
def _(s: Scene):
    from occ.compiler.codegen_halide.toolchain import toolchain

    toolchain.cache_clear()
    s.patch.delenv("OCC_CXX", raising=False)
    s.patch.setenv("PATH", str(s.folder))
    return ["build", s.model(RELU), "-t", "cpu"]


@case("OCC0402")
def _(s: Scene):
    from occ.compiler.codegen_halide import toolchain

    toolchain.toolchain.cache_clear()
    s.patch.setattr(toolchain, "find_halide", lambda: None)
    return ["build", s.model(RELU), "-t", "cpu"]


@case("OCC0403")
def _(s: Scene):
    from occ.compiler.codegen_halide.toolchain import toolchain

    toolchain.cache_clear()
    compiler = s.folder / "broken-c++"
    compiler.write_text("#!/bin/sh\necho 'broken-c++: out of order' >&2\nexit 3\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    s.patch.setenv("OCC_CXX", str(compiler))
    return ["build", s.model(RELU), "-t", "cpu", "--no-cache"]


@case("OCC0404")
def _(s: Scene):
    s.patch.setenv("PATH", "/nowhere")
    s.patch.delenv("ASCEND_HOME_PATH", raising=False)
    return ["build", s.model(RELU), "-t", "ascend310p", "--shape", "x=1,2", "--emit", "om"]


@case("OCC0406")
def _(s: Scene):
    s.patch.delenv("ASCEND_HOME_PATH", raising=False)
    s.patch.delenv("OCC_ASCENDCL", raising=False)
    occ.build(s.model(RELU), "ascend310p", s.folder / "m.occ", shapes={"x": [1, 2]})
    return ["run", str(s.folder / "m.occ")]


@case("OCC0501")
def _(s: Scene):
    return ["run", s.model(RELU), "-t", "interp", s.array("x", np.zeros((2, 2), np.float64))]


@case("OCC0502")
def _(s: Scene):
    path = s.folder / "m.occ"
    occ.build(mlp(), "cpu-jit", path, folder=True)
    (path / "weights.bin").unlink()
    return ["run", str(path)]


@case("OCC0503")
def _(s: Scene):
    text = (
        "g (float[n, m] x, float[k, l] y) => (float[o] z) { a = Reshape(x, all)  b = Reshape(y, all)  z = Add(a, b) }"
    )
    x, y = s.array("x", np.zeros((2, 6), np.float32)), s.array("y", np.zeros((4, 4), np.float32))
    return ["run", s.model(text, {"all": np.array([-1])}), "-t", "interp", x, y]


@case("OCC0504")
def _(s: Scene):
    model = s.model("g (float[3] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }")
    return ["run", model, "-t", "interp", s.array("x", np.zeros(3, np.float32)), s.array("i", np.array([0, 3]))]


@case("OCC0505")
def _(s: Scene):
    """A library whose kernels all give an error code."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    from occ.compiler.codegen_llvm.build import _machine
    from occ.compiler.objects.elf import link

    artifact = occ.build(mlp(), "cpu-jit")
    module = ir.Module("broken")
    module.triple = llvm.get_process_triple()
    i32, pointer = ir.IntType(32), ir.PointerType(ir.IntType(8))
    for name in {step.name for step in artifact.manifest.plan.steps}:
        f = ir.Function(module, ir.FunctionType(i32, [pointer, i32, i32]), name)
        ir.IRBuilder(f.append_basic_block()).ret(ir.Constant(i32, 7))
    artifact.code = link(_machine(3).emit_object(llvm.parse_assembly(str(module))))
    return ["run", str(artifact.save(s.folder / "m.occ"))]


@case("OCC0506")
def _(s: Scene):
    return [
        "diff",
        s.model("g (float[9] x) => (float[9] y) { a = Exp(x)  y = Softmax(a) }"),
        "-t",
        "cpu-jit",
        "--tolerance",
        "1e-30",
    ]


@case("OCC0601")
def _(s: Scene):
    return ["build", s.text('module @m {stage="inferred"} { func @main(%x: f32[2]) -> f32[2] { %y = Relu(%x : f32[2]')]


@case("OCC0602")
def _(s: Scene):
    return ["dump", s.model(RELU), "--stage", "polished"]


@case("OCC0603")
def _(s: Scene):
    return ["build", s.model(RELU), "-t", "interp", "-C", "speed=11"]


@case("OCC0604")
def _(s: Scene):
    return ["build", s.text(
        'module @m {stage="inferred", weights="lost.bin"} {\n weight @w : f32[32] = ref(0, 128)\n'
        " func @main(%x: f32[32]) -> f32[32] { %y = Add(%x, @w) : f32[32] return %y } }"
    )]  # fmt: skip


@case("OCC0605")
def _(s: Scene):
    return ["build", s.model(RELU), "-t", "interp", "-o", "/dev/null/m.occ"]


RULES = """
from occ import rewrite
@rewrite
def to_max(p, x): return p.{}(x)
@to_max.into
def _(b, x): return b.Max(x, 0.0 / {})
@rewrite
def to_relu(p, x): return p.Max(x, 0.0)
@to_relu.into
def _(b, x): return b.Relu(x)
"""


def with_rules(s: Scene, *parts: object) -> list[str]:
    file = s.folder / "rules.py"
    file.write_text(RULES.format(*parts))
    return ["build", s.model(RELU), "-t", "interp", "--rules", str(file)]


@case("OCC0606")
def _(s: Scene):
    return ["build", s.save(mlp()), "-t", "interp", "--timeout", "1e-6"]


@case("OCC0607")
def _(s: Scene):
    return ["build", s.save(mlp()), "-t", "interp", "--memory-limit", "100"]


@case("OCC0610")
def _(s: Scene):
    return with_rules(s, "Relux", 1)


@case("OCC0611")
def _(s: Scene):
    return with_rules(s, "Relu", 1)


@case("OCC0612")
def _(s: Scene):
    return with_rules(s, "Relu", 0)


@case("OCC0616")
def _(s: Scene):
    file = s.folder / "ops.py"
    body = "t.map(x.shape, lambda *i: lambd(x[i]))"
    meaning = f'operands = ("x",)\n    def body(t, x, *, a):\n        return {body}\n'
    file.write_text(f'import occ\n@occ.operator("com.example.Bad")\nclass Bad:\n    {meaning}')
    node = onnx.helper.make_node("Bad", ["x"], ["y"], domain="com.example")
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    sets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.example", 1)]
    model = s.save(onnx.helper.make_model(graph, opset_imports=sets, ir_version=10))
    return ["build", model, "-t", "interp", "--rules", str(file)]


@case("OCC0615")
def _(s: Scene):
    file = s.folder / "rules.py"
    file.write_text('import occ\nkernel = occ.c_kernel("libscale.so", "int scale(const float *x, float *y)")\n')
    return ["build", s.model(RELU), "-t", "interp", "--rules", str(file)]


@case("OCC0901")
def _(s: Scene):
    from occ.compiler.passes.canonical.fold import Fold

    def fail(*_: object) -> bool:
        raise ZeroDivisionError("a fault")

    s.patch.setattr(Fold, "run", fail)
    return ["build", s.model(RELU), "-t", "interp"]


@case("OCC0902")
def _(s: Scene):
    from occ.compiler.passes.canonical.cse import Cse

    def break_(_: object, m: object, __: object) -> bool:
        m.main.body.body[0].result.type = None
        return True

    s.patch.setattr(Cse, "run", break_)
    return ["build", s.model(RELU), "-t", "interp", "--verify"]


def source(*packages: str) -> str:
    """The text of all modules but the table of codes."""
    files = [p for name in packages for p in (ROOT / name).rglob("*.py")]
    return "\n".join(p.read_text() for p in files if p.name != "codes.py")


def test_every_code_that_is_raised_is_in_the_table():
    assert set(re.findall(r"OCC\d{4}", source("compiler", "runtime", "occ"))) <= set(CODES)


def test_every_code_has_a_test():
    """A case and a text here, or, where it takes more than a command to bring it about, a test that names it."""
    raised = source("compiler", "runtime", "occ")
    others = "\n".join(p.read_text() for p in HERE.parent.rglob("test_*.py") if p.parent != HERE)
    assert [c for c in CODES if c in raised and c not in CASES and c not in others] == []
    assert sorted(p.stem for p in HERE.glob("*.txt")) == sorted(CASES)
    assert set(CASES) <= set(CODES)


def plain(text: str, folder: Path) -> str:
    """A message without what differs from machine to machine."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"/\S*/(occ-\w+-)\w+", r"TMP/\1X", text)
    text = re.sub(r"\w+\.py:\d+", "FILE.py:LINE", text)
    text = re.sub(r"command: .*", "command: ...", text)
    return re.sub(r"\d\.\d+e-\d+|\d+\.\d{4,}(e[-+]\d+)?", "NUMBER", text)


@pytest.fixture
def fresh_toolchain():
    from occ.compiler.codegen_halide.toolchain import toolchain

    yield
    toolchain.cache_clear()


@pytest.mark.parametrize("code", sorted(CASES))
def test_code(code, tmp_path, monkeypatch, occ_cli, request, fresh_toolchain):
    monkeypatch.chdir(tmp_path)
    args = CASES[code](Scene(tmp_path, monkeypatch))
    ran = occ_cli(*args)
    got = f"exit {ran.code}\n{plain(ran.err, tmp_path)}"
    file = HERE / f"{code}.txt"
    if request.config.getoption("--update"):
        file.write_text(got)
    assert f"error[{code}]: " in ran.err
    assert "Traceback" not in ran.err
    assert got == file.read_text()
    for line in ran.err.splitlines():
        if line.startswith("error["):
            assert not line.endswith("."), "a message has no final period"


@pytest.mark.parametrize("code", sorted(CODES))
def test_explain(code, occ_cli):
    ran = occ_cli("explain", code.lower())
    assert ran.code == 0
    assert ran.out.startswith(f"{code}: {CODES[code].title}\n\n")
    assert CODES[code].explanation.split()[0] in ran.out

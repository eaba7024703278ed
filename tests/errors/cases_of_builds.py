"""The codes of tools, texts, options and rule files, and those of faults of the compiler."""

from __future__ import annotations

import stat
import sys

import onnx
from building import mlp
from scenes import RELU, Scene, case

import occ


@case("OCC0308")
def _(s: Scene):
    return ["build", "-t", "cpu-jit", s.text(
        'module @m {stage="lowered", target="cpu-jit"} {\n func @main(%x: f32[3]) -> f32[] as "y" {\n'
        '  %y = alloc() {output=0} : f32[]\n  kernel(%x, %y) {te="sum", writes=1} loc("total")\n  return %y\n }\n'
        " te @sum[](%p: f32[3]) -> (s: f32[]) { s[] = sum[r<9007199254740992](%p[r % 3]) } }"
    )]  # fmt: skip


@case("OCC0309")
def _(s: Scene):
    return [
        "build",
        "-t",
        "cpu",
        s.model("g (uint8[65536, 1] a, uint8[1, 65536] b) => (uint8[n, m] y) { y = BitwiseXor (a, b) }"),
    ]


@case("OCC0310")
def _(s: Scene):
    return ["build", "-t", "cpu-jit", s.text(
        'module @m {stage="imported"} {\n dim M "rows"\n dim N "columns"\n func @main(%x: f32[M*N]) -> ? as "y" {\n'
        '  %y = Relu(%x)\n  return %y\n }\n}'
    )]  # fmt: skip


@case("OCC0401")
def _(s: Scene):
    from occ.compiler.codegen_halide.toolchain import toolchain

    toolchain.cache_clear()
    s.patch.delenv("OCC_CXX", raising=False)
    s.patch.setenv("PATH", str(s.folder))
    s.patch.setenv("OCC_CACHE_DIR", str(s.folder / "cache"))  # which has no kernels
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


@case("OCC0409")
def _(s: Scene):
    s.patch.setitem(sys.modules, "onnxruntime.quantization", None)
    return ["quantize", s.model(RELU), "-o", str(s.folder / "q.onnx")]


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


@case("OCC0617")
def _(s: Scene):
    coded = "g (float[n, 2] x) => (uint8[n, 2] y) { s = Constant <value = float {0.5}> ()  y = QuantizeLinear(x, s) }"
    return ["quantize", s.model(coded), "-o", str(s.folder / "q.onnx")]


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

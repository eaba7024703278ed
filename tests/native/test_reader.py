"""Kernels from the text of their generators are those that a C++ compiler makes of it, byte for byte."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from building import model_of

import occ
from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide import build, compile_kernels, programs
from occ.compiler.codegen_halide.kernels import UNIT_FLAGS, units
from occ.compiler.codegen_halide.programs import emitter, native
from occ.compiler.codegen_halide.toolchain import toolchain
from occ.compiler.driver.compilation import Compilation, Settings

pytestmark = pytest.mark.toolchain

WEIGHTS: dict[str, np.ndarray] = {
    "w": np.random.default_rng(0).standard_normal((32, 16, 3, 3), np.float32),
    "at": np.array([[2], [0]], np.int64),
    "scale": np.array(0.1, np.float32),
    "zero": np.array(3, np.uint8),
    "axis": np.array(1),
    "codes": np.arange(64 * 32, dtype=np.uint8).reshape(64, 32),
}
NETS = {
    "winograd": "g (float[n, 16, 24, 24] x) => (float[n, 32, 24, 24] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu(a) }",
    "softmax": "g (float[n, 33] x) => (float[n, 33] y) { a = Softmax <axis = 1> (x)  y = Erf(a) }",
    "first": "g (float[n, 33] x) => (int64[n, 1] y, float[n, 33] z) { y = ArgMax <axis = 1> (x)  z = CumSum(x, axis) }",
    "places": 'g (float[3, 5] x, float[2, 5] u) => (float[3, 5] y) { y = ScatterND <reduction = "add"> (x, at, u) }',
    "halves": "g (float16[n, 7] x) => (float16[n, 7] y) { a = Exp(x)  b = Sin(a)  y = Pow(b, a) }",
    "integers": "g (int64[n] x, int64[n] s) => (int64[n] y) { a = Mod(x, s)  b = Div(a, s)  c = BitwiseNot(b)  y = BitwiseXor(c, s) }",
    "codes": """g (float[n, 64] x) => (float[n, 32] y) {
        q = QuantizeLinear(x, scale, zero)  p = MatMulInteger(q, codes)  y = Cast <to = 1> (p) }""",
    "pool": "g (float[1, 8, 17, 19] x) => (float[1, 8, 9, 10] y) { y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) }",
}


@pytest.mark.parametrize("net", NETS)
def test_objects_are_those_of_compiled_generators(net: str, tools_only: Callable[[str], Path], tmp_path: Path) -> None:
    cache = Cache(tools_only("cache"))
    setup, _ = build.setup_for("host", cache)
    needed = {name: value for name, value in WEIGHTS.items() if re.search(rf"[(, ]{name}[,)]", NETS[net])}
    c = Compilation(model_of(NETS[net], needed), Settings("cpu"))
    c.advance("lowered")
    kernels = [setup.kernel(f) for f in c.module.te.values()]
    assert kernels
    (text,) = units(kernels, 1).values()
    (tmp_path / "kernels_0.cpp").write_text(text)
    (tmp_path / "te.h").write_text(native("te.h"))
    compiled = [*setup.tools.cxx.command, *UNIT_FLAGS, "kernels_0.cpp", "-o", "kernels_0.so"]
    subprocess.run(compiled, cwd=tmp_path, check=True)
    for folder, unit in (("read", "./kernels_0.cpp"), ("compiled", "./kernels_0.so")):
        (tmp_path / folder).mkdir()
        command = [emitter(setup.tools, cache), folder, setup.target, "1", "0", unit, *(k.name for k in kernels)]
        subprocess.run(command, cwd=tmp_path, check=True)
    for k in kernels:
        read, whole = ((tmp_path / folder / f"{k.name}.o").read_bytes() for folder in ("read", "compiled"))
        assert read == whole, k.name


def test_whatever_generators_can_call_is_read() -> None:
    """A function or a directive that te.h gets is one that the reader knows."""
    declared = native("te.h").split("// Expressions.")[1].split("// Generators, by name.")[0]
    declared = re.sub(r"//[^\n]*", "", declared)
    functions = set(re.findall(r"\b([a-z]\w+)\((?:Expr|Type|List|const Func|const Stage|\))", declared))
    reader = native("reader.h")
    missing = {f for f in functions if not re.search(rf'["(.]{f}[,")(]', reader)}
    assert missing <= {"begin", "end", "operator"}


def test_a_text_that_is_not_understood_is_an_error_of_its_kernel(
    tools_only: Callable[[str], Path], tmp_path: Path
) -> None:
    cache = Cache(tools_only("cache"))
    setup, _ = build.setup_for("host", cache)
    text = "\nclass k : public Generator<k> {\npublic:\n    void generate() {\n        no_such(1);\n    }\n};\n"
    (tmp_path / "kernels_0.cpp").write_text(text)
    command = [emitter(setup.tools, cache), ".", setup.target, "1", "0", "./kernels_0.cpp", "k"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "k: no function `no_such` of such operands at `;`\n")


def test_a_wheel_s_program_compiles_kernels_without_a_compiler(
    tools_only: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the program that compiles kernels and the runtime are in the wheel, nothing needs a C++ compiler."""
    cache = Cache(tools_only("cache"))
    tools = toolchain()
    made = {"emit.bin": emitter(tools, cache), "runtime.o": programs.runtime_object(tools, cache)}
    kept = {name: Path(shutil.copy(path, tmp_path / name)) for name, path in made.items()}
    monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path / "empty"))
    for module in (build, compile_kernels, programs):
        monkeypatch.setattr(module, "prebuilt_emitter", lambda _: kept["emit.bin"])
    monkeypatch.setattr(programs, "prebuilt", lambda name, _: kept[name])
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("OCC_CXX", raising=False)
    toolchain.cache_clear()
    try:
        x = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
        session = occ.compile(model_of("g (float[n, 5] x) => (float[n, 5] y) { y = Abs(x) }"), "cpu")
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.abs(x))
    finally:
        toolchain.cache_clear()

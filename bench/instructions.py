"""`python bench/instructions.py`: instructions and cycles of inner loops in emitted code, as rows of a Markdown table.

No processor of the kind is needed: kernels are built for it and disassembled, and llvm-mca reckons the cycles that a
pass of the loop takes on a core. The peak is what its multiplications alone would take, a vector per unit and cycle.
Needs llvm-objdump and llvm-mca, 19 or later, which know all of these cores.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.targets.machine import machine_of

# Processors that code is made for, the cores that llvm-mca reckons for each, and how many multiply-adds of a whole
# vector of the target a core begins in a cycle.
CORES = {
    "x86-64-v3": {"haswell": 2, "skylake": 2, "znver3": 2},
    "x86-64-v4": {"skylake-avx512": 2},
    "znver4": {"znver4": 1},
    "cortex-a72": {"cortex-a72": 2},
    "cortex-a76": {"neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 4, "apple-m1": 4},
}

# Instructions that multiply, those that decide what a kernel does first, and their products in a byte of the register.
MULTIPLIES = (
    ("vpdpbusd", 1), ("vpmaddubsw", 1), ("sdot", 1), ("udot", 1), ("smmla", 2), ("vpmaddwd", 0.5), ("pmaddwd", 0.5),
    ("smlal", 0.5), ("smull", 0.5), ("vfmadd", 0.25), ("vfnmadd", 0.25), ("fmla", 0.25), ("vmulps", 0.25),
    ("fmul", 0.25),
)  # fmt: skip
_WIDTHS = {"zmm": 64, "ymm": 32, "xmm": 16, "v": 16}
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)\s*(?:\s#\s.*|//.*)?$")
_JUMP = re.compile(r"^(j[a-z]+|b|b\.[a-z]+|cbn?z|tbn?z)$")


@dataclass(frozen=True)
class Loop:
    """The body of a loop, an instruction a line, and what it multiplies.

    Attributes:
        body: with the jump at its end.
        by: the instruction that multiplies.
        products: multiplications of a pass.
        each: products in a byte of its registers.
    """

    body: tuple[str, ...]
    by: str
    products: float
    each: float

    def least(self, units: int, vector_bytes: int) -> float:
        """Cycles of the products alone, if units of a core take a whole vector each."""
        return self.products / (units * vector_bytes * self.each)


def loops(listing: str) -> Iterator[Loop]:
    """The innermost loops that multiply in disassembled kernels; functions of the runtime are C++."""
    parts = re.split(r"\n\n[0-9a-f]+ <(.*)>:\n", listing)
    for function in (code for name, code in zip(parts[1::2], parts[2::2], strict=True) if not name.startswith("_Z")):
        lines = [(int(m[1], 16), m[2], m[3]) for m in map(_LINE.match, function.splitlines()) if m]
        at = {address: k for k, (address, _, _) in enumerate(lines)}
        back = [(at[t], k) for k, (a, op, rest) in enumerate(lines) for t in _target(op, rest) if t <= a and t in at]
        for first, last in back:
            if any((f, x) != (first, last) and first <= f and x <= last for f, x in back):
                continue
            yield from _loop([f"{op} {rest}" for _, op, rest in lines[first : last + 1]])


def _target(op: str, rest: str) -> list[int]:
    found = re.search(r"(?:0x)?([0-9a-f]+) <", rest) if _JUMP.match(op) else None
    return [int(found[1], 16)] if found else []


def _loop(body: list[str]) -> Iterator[Loop]:
    for name, each in MULTIPLIES:
        of = [line for line in body if line.startswith(name)]
        if of:
            yield Loop(tuple(body), name, sum(_bytes(line) for line in of) * each, each)
            return


def _bytes(line: str) -> int:
    """Of the vectors that an instruction multiplies: `smull v0.8h, v1.8b, v2.8b` takes 16-bit lanes for bytes."""
    if lanes := re.search(r" v\d+\.(8h|4s|2d), v\d+\.(?:8b|16b|4h|8h),", line):
        return 16 if "dot" in line else 2 * int(lanes[1][0])
    found = re.search(r"(?:%|\b)(zmm|ymm|xmm|v)\d+", line)
    return _WIDTHS[found[1]] if found else 0


def cycles(loop: Loop, core: str, kind: str) -> float:
    """Cycles of a pass by llvm-mca, whose jump and relocations are left out."""
    text = "\n".join(re.sub(r"<.*>", "", line) for line in loop.body if not _JUMP.match(line.split()[0]))
    triple = "aarch64" if kind.startswith("arm") else "x86_64"
    command = [_tool("llvm-mca"), f"-mtriple={triple}", f"-mcpu={core}", "-iterations=200"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", ran.stdout)
    if total is None:
        raise SystemExit(f"llvm-mca of {core}: {ran.stderr[:400]}")
    return int(total[1]) / 200


def _tool(name: str) -> str:
    found = next((p for v in ("-22", "-21", "-20", "-19", "") if (p := shutil.which(name + v))), None)
    if found is None:
        raise SystemExit(f"no {name}: apt install llvm-19")
    return found


def inner_loop(model: onnx.ModelProto, processor: str, by: Sequence[str]) -> Loop:
    """The loop of a model's kernels that multiplies most in a pass, by one of some instructions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx.save(model, path)
        build = [sys.executable, "-m", "occ.cli", "build", str(path), "--emit", "static", "-o", f"{folder}/net.a"]
        ran = subprocess.run([*build, "--target-cpu", processor], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{processor}: {ran.stderr}")
        path = next(Path(folder).rglob("*.a"))
        dump = [_tool("llvm-objdump"), "-d", "--no-show-raw-insn", "--x86-asm-syntax=att", str(path)]
        listing = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    found = [x for x in loops(listing) if not by or x.by in by]
    if not found:
        raise SystemExit(f"{processor}: no loop that multiplies")
    return max(found, key=lambda x: x.products)


# Models of one kernel


def _graph(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    imports = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{imports} {text}")
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return model


def _random(*shape: int, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype is np.float32:
        return rng.normal(size=shape).astype(np.float32)
    return rng.integers(*{np.int8: (-64, 64), np.uint8: (0, 256)}[dtype], shape).astype(dtype)


def gemm() -> onnx.ModelProto:
    return _graph("g (float[128,256] x) => (float[128,256] y) { y = MatMul (x, w) }", w=_random(256, 256))


def winograd() -> onnx.ModelProto:
    text = "g (float[1,64,28,28] x) => (float[1,64,28,28] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
    return _graph(text, w=_random(64, 64, 3, 3))


def depthwise() -> onnx.ModelProto:
    text = "g (float[1,64,28,28] x) => (float[1,64,28,28] y) { y = Conv <group = 64, pads = [1, 1, 1, 1]> (x, w) }"
    return _graph(text, w=_random(64, 1, 3, 3))


def int8() -> onnx.ModelProto:
    return _graph(
        "g (uint8[128,256] x) => (int32[128,256] y) { y = MatMulInteger (x, w, z) }",
        w=_random(256, 256, dtype=np.int8), z=np.array(128, np.uint8),
    )  # fmt: skip


def blocks(bits: int) -> onnx.ModelProto:
    sizes = f"K = 256, N = 256, bits = {bits}, block_size = 32, accuracy_level = 4"
    return _graph(
        f"g (float[128,256] x) => (float[128,256] y) {{ y = com.microsoft.MatMulNBits <{sizes}> (x, w, s) }}",
        w=_random(256, 8, 4 * bits, dtype=np.uint8), s=np.abs(_random(256, 8)),
    )  # fmt: skip


KERNELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "f32 product": gemm, "Winograd 3x3": winograd, "depthwise 3x3": depthwise, "int8 product": int8,
    **{f"int{bits} blocks": partial(blocks, bits) for bits in (4, 2, 8)},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target-cpu", default=",".join(CORES), help="processors, comma-separated")
    parser.add_argument("--kernel", default=",".join(KERNELS), help="kernels, comma-separated")
    parser.add_argument("--show", action="store_true", help="print the loops too")
    given = parser.parse_args()
    print("| kernel | processor | by | instructions for 64 products | cycles for 64 products (share of the peak) |")
    print("|---|---|---|---|---|")
    for kernel in given.kernel.split(","):
        for processor in given.target_cpu.split(","):
            row(kernel, processor, show=given.show)


def row(kernel: str, processor: str, *, show: bool = False) -> None:
    loop = inner_loop(KERNELS[kernel](), processor, ())
    share = 64 / loop.products
    kind = PROCESSORS[processor]
    wide = machine_of(kind).vector_bits // 8
    cells: list[str] = []
    for core, units in CORES[processor].items():
        taken = cycles(loop, core, kind)
        cells.append(f"{core} {taken * share:.2f} ({loop.least(units, wide) / taken:.0%})")
    print(f"| {kernel} | {processor} | `{loop.by}` | {len(loop.body) * share:.1f} | {', '.join(cells)} |", flush=True)
    if show:
        print("\n".join(f"    {line}" for line in loop.body))


if __name__ == "__main__":
    main()

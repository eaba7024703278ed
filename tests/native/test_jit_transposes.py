"""Transposes on `cpu-jit`: tiles of whole vectors, transposed in registers, also at the ends of rows and of memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from building import model_of
from guarded_child import check_guarded
from machines import is_here

from occ.compiler.codegen_llvm.build import emit_module
from occ.compiler.codegen_llvm.machine import code_machine
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.objects.processors import PROCESSORS
from occ.compiler.targets.machine import machine_of

HERE = ["host", *(n for n in ("x86-64-v4", "x86-64-v3", "x86-64-v2") if is_here(n))]
RNG = np.random.default_rng(3)
TYPES = {"bool": np.bool_, "uint8": np.uint8, "float16": np.float16, "float": np.float32, "int64": np.int64}
CASES = [
    ((64, 48), (1, 0)),
    ((37, 61), (1, 0)),
    ((5, 131), (1, 0)),
    ((131, 5), (1, 0)),
    ((3, 50), (1, 0)),
    ((1, 70), (1, 0)),
    ((0, 70), (1, 0)),
    ((17, 7, 21), (2, 0, 1)),
    ((9, 18, 23), (2, 1, 0)),
    ((3, 5, 20, 18), (0, 3, 1, 2)),
]


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("shape", "perm"), CASES)
def test_transposes(shape: tuple[int, ...], perm: tuple[int, ...], name: str, cpu: str) -> None:
    x = RNG.integers(0, 100 if name != "bool" else 2, shape).astype(TYPES[name])
    out = ",".join(f"o{k}" for k in perm)
    for given in (",".join(map(str, shape)), ",".join(f"d{k}" for k in range(len(shape)))):
        model = model_of(f"g ({name}[{given}] x) => ({name}[{out}] y) {{ y = Transpose <perm = {list(perm)}> (x) }}")
        check_guarded(model, cpu, {"x": x}, x.transpose(perm))


@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("shape", [(37, 61), (64, 16), (4, 9)])
def test_transposes_among_arithmetic(shape: tuple[int, int], cpu: str) -> None:
    """Of several operands, one of which is not transposed, and of one that is narrower than the result."""
    n, m = shape
    x, z = (RNG.integers(-9, 9, s).astype(np.float32) for s in ((n, m), (m, n)))
    k = RNG.integers(-9, 9, (n, m)).astype(np.int8)
    text = (
        f"g (float[{n}, {m}] x, int8[{n}, {m}] k, float[{m}, {n}] z) => (float[{m}, {n}] y) "
        "{ a = Cast <to = 1> (k)  b = Add (x, a)  c = Transpose <perm = [1, 0]> (b)  y = Mul (c, z) }"
    )
    check_guarded(model_of(text), cpu, {"x": x, "k": k, "z": z}, ((x + k).T * z).astype(np.float32))


@pytest.mark.parametrize("cpu", ["x86-64-v4", "x86-64-v3", "cortex-a76"])
def test_no_element_is_loaded_alone(cpu: str) -> None:
    model = model_of("g (float[64, 96] x) => (float[96, 64] y) { y = Transpose <perm = [1, 0]> (x) }")
    target = PROCESSORS[cpu]
    m = Compilation(model, Settings("cpu-jit", options={"halide.target": target})).advance("lowered")
    text = str(emit_module(m.te.values(), code_machine(target, machine_of(target).vector_bits)))
    assert "shufflevector" in text
    assert not re.search(r"insertelement|load float,", text)

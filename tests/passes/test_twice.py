"""Every pass run twice changes nothing the second time, and says so."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from building import model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.stages import STAGES

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_round_trip import MODELS


def branches() -> object:
    """Shape arithmetic, a transposition that a later pass turns around, quantisation, host ops and control flow."""
    rng = np.random.default_rng(0)
    text = """g (float[n, 16, 12, 12] x, bool flag) => (float[n, 8, p, q] y, float[k] v, float[a, b, c, d] t, int64[r, 2] w) {
        s = QuantizeLinear(x, scale, zero)
        e = DequantizeLinear(s, scale, zero)
        c1 = Conv<pads = [1, 1, 1, 1]>(e, k1)
        r1 = Relu(c1)
        g1 = Conv<group = 4>(r1, k2)
        y = ConvTranspose<strides = [2, 2]>(g1, k3)
        t0 = Transpose<perm = [0, 2, 3, 1]>(c1)
        t1 = Softmax<axis = -1>(t0)
        t = Transpose<perm = [0, 3, 1, 2]>(t1)
        m = ReduceMean<keepdims = 0>(y, axes)
        i = If (flag) <then_branch = g1 () => (float[j] z1) { z1 = Neg(m) }, else_branch = g2 () => (float[j] z2) { z2 = Abs(m) }>
        f = ReduceSum<keepdims = 0>(x, axes)
        v = Add(i, f)
        nz = NonZero(f)
        nt = Transpose(nz)
        w = Concat<axis = 1>(nt, nt)
    }"""
    weights = {"k1": (16, 16, 3, 3), "k2": (16, 4, 3, 3), "k3": (16, 8, 2, 2)}
    made = {n: rng.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    made |= {"scale": np.float32(0.05), "zero": np.uint8(128), "axes": np.int64([1, 2, 3])}
    return model_of(text, made)


@pytest.mark.parametrize(
    "target", ["cpu", "cpu -C precision=bf16", "cpu -C precision=int8", "cpu-jit", "interp", "ascend310p"]
)
@pytest.mark.parametrize("model", [*sorted(MODELS), "branches"])
def test_a_pass_run_twice_changes_nothing_the_second_time(model, target) -> None:
    name, _, option = target.partition(" -C ")
    options = dict([option.split("=")]) if option else {}
    c = Compilation({**MODELS, "branches": branches}[model](), Settings(name, options=options))
    for stage in STAGES[1:]:
        for p in c.pipeline.get(stage.name, ()):
            p.run(c.module, c.context)
            once = module_text(c.module)
            assert p.run(c.module, c.context) is False, f"`{p}` says that it changed something again"
            assert module_text(c.module) == once, f"`{p}` changed something again"
        c.module.stage = stage.name

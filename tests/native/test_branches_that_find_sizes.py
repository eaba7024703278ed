"""Branches and loops around sizes that the data decide, in the native entry: results are those of onnxruntime and of the runner."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of, on_threads

from occ.compiler.driver.compilation import Compilation, Settings

FINDS = """then_branch = t () => (int64[1, u] p) { r = Relu (x)  p = NonZero (r) },
           else_branch = e () => (int64[1, v] p) { p = NonZero (x) }"""
MODELS = {
    # a branch finds the extent of its result, and kernels after it compute with that
    "finds": f"""g (float[n] x, bool c) => (float[k] y, float s) {{
        i = If (c) <{FINDS}>
        f = Cast <to = 1> (i)
        minus = Constant <value = int64[1] {{-1}}> ()
        flat = Reshape (f, minus)
        y = Neg (flat)
        s = ReduceSum <keepdims = 0> (y)
    }}""",
    # one of the branches alone finds something
    "else has none": """g (float[n] x, bool c) => (int64[1, k] y) {
        y = If (c) <then_branch = t () => (int64[1, u] p) { p = NonZero (x) },
                    else_branch = e () => (int64[1, w] p) { p = Constant <value = int64[1, 2] {5, 6}> () }>
    }""",
    # a branch in a branch, and what it found taken once more
    "nested": """g (float[n] x, bool c, bool d) => (int64[1, k] y) {
        y = If (c) <then_branch = t () => (int64[1, u] p) {
                q = If (d) <then_branch = tt () => (int64[1, uu] z) { z = NonZero (x) },
                            else_branch = te () => (int64[1, uv] z) { a = Neg (x)  b = Relu (a)  z = NonZero (b) }>
                p = Concat <axis = 1> (q, q)
            },
            else_branch = e () => (int64[1, v] p) { r = Relu (x)  p = NonZero (r) }>
    }""",
    # a branch is given a tensor of an extent that was found before, and needs memory for it
    "takes": """g (float[n] x, bool c) => (float[1, k] y) {
        i = NonZero (x)
        f = Cast <to = 1> (i)
        y = If (c) <then_branch = t () => (float[1, u] p) { s = Softmax (f)  e = Exp (s)  p = Mul (e, s) },
                    else_branch = e () => (float[1, v] p) { p = Neg (f) }>
    }""",
    # both, one after the other
    "takes and finds": """g (float[n] x, bool c) => (int64[1, k] y) {
        i = NonZero (x)
        y = If (c) <then_branch = t () => (int64[1, u] p) { two = Constant <value = int64 {2}> ()  m = Mod (i, two)
                        b = Cast <to = 9> (m)  z = NonZero (b)  one = Constant <value = int64 {1}> ()
                        row = Gather <axis = 0> (z, one)  p = Gather <axis = 1> (i, row) },
                    else_branch = e () => (int64[1, v] p) { p = Identity (i) }>
    }""",
    # a loop that takes a tensor of an extent that was found
    "loop": """g (float[n] x, int64 times) => (float y) {
        i = NonZero (x)
        f = Cast <to = 1> (i)
        yes = Constant <value = bool {1}> ()
        zero = Constant <value = float {0}> ()
        y = Loop (times, yes, zero) <body = step (int64 j, bool going, float before) => (bool more, float after) {
            t = Tanh (f)
            e = Exp (t)
            p = Mul (t, e)
            s = ReduceSum <keepdims = 0> (p)
            after = Add (before, s)
            more = Identity (going)
        }>
    }""",
}


@pytest.mark.thinned
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_results_are_those_of_onnxruntime(name: str, target: str):
    m = model_of(MODELS[name])
    sessions = on_threads(Compilation(m, Settings(target)).artifact())
    ort = onnxruntime.InferenceSession(m.SerializeToString())
    rng = np.random.default_rng(3)
    flags = [i.name for i in m.graph.input if i.name in ("c", "d")]
    for n in (0, 1, 2, 7, 130, 5):
        for bits in range(1 << len(flags)):
            x = rng.integers(-1, 2, n).astype(np.float32)
            feed = {"x": x} | {f: np.array(bool(bits >> k & 1)) for k, f in enumerate(flags)}
            if name == "loop":
                feed["times"] = np.array(n % 4)
            expected = ort.run(None, feed)
            for s in sessions:
                for got, want in zip(s.run(feed).values(), expected, strict=True):
                    assert got.shape == want.shape
                    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)

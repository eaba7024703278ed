"""The last lanes of a row on `cpu-jit`: nothing behind a tensor is read, whatever is done with them."""

import multiprocessing

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ
from tools.fuzz.guard import all_guarded

# A masked load whose value goes into one operation under the same mask: a product and a sum, a product, an extremum.
MODELS = {
    "sums": "g (float[n,5,m] x) => (float[n] y)"
    " <float[5,1] a = {1, 2, 3, 4, 5}, float[5,1] b = {5, 4, 3, 2, 1}, int64[2] k = {1, 2}>"
    " { p = Mul(x, a) q = Add(p, b) y = ReduceSum <keepdims = 0> (q, k) }",
    "normalised": "g (float[n,5,m] x) => (float[n,5,m] y)"
    " <float[5,1] a = {1, 2, 3, 4, 5}, float[5] s = {1, 2, 3, 4, 5}, float[5] b = {5, 4, 3, 2, 1}>"
    " { p = Mul(x, a) y = GroupNormalization <num_groups = 1> (p, s, b) }",
    "doubles": "g (double[n,m] x) => (double[n] y) <double a = {3}, double b = {2}, int64[1] k = {1}>"
    " { p = Mul(x, a) q = Add(p, b) y = ReduceSum <keepdims = 0> (q, k) }",
    "whole numbers": "g (int32[n,m] x) => (int32[n] y) <int32 a = {3}, int32 b = {2}, int64[1] k = {1}>"
    " { p = Mul(x, a) q = Add(p, b) y = ReduceSum <keepdims = 0> (q, k) }",
    "greatest": "g (float[n,m] x) => (float[n] y) <float a = {-3}, float b = {2}, int64[1] k = {1}>"
    " { p = Mul(x, a) q = Add(p, b) y = ReduceMax <keepdims = 0> (q, k) }",
    "bytes": "g (uint8[n,m] x) => (int32[n] y) <int32 a = {3}, int64[1] k = {1}>"
    " { c = Cast <to = 6> (x) p = Mul(c, a) y = ReduceSum <keepdims = 0> (p, k) }",
    "halves": "g (float16[n,m] x) => (float[n] y) <float a = {3}, float b = {2}, int64[1] k = {1}>"
    " { c = Cast <to = 1> (x) p = Mul(c, a) q = Add(p, b) y = ReduceSum <keepdims = 0> (q, k) }",
}


def _compare(name: str, length: int) -> None:
    model = model_of(MODELS[name])
    dtype = onnxruntime.InferenceSession(model.SerializeToString()).get_inputs()[0].type
    kind = {"float": "f4", "double": "f8", "int32": "i4", "uint8": "u1", "float16": "f2"}[dtype[7:-1]]
    shape = (9, 5, length) if name in ("sums", "normalised") else (9, length)
    x = np.random.default_rng(length).integers(0, 20, shape).astype(kind)
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    compiled = occ.compile(model, "cpu-jit")
    for side in ("end", "start"):
        np.testing.assert_allclose(compiled.run(all_guarded({"x": x}, side))["y"], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [5, 23])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_behind_a_tensor_is_read(name: str, length: int) -> None:
    child = multiprocessing.get_context("fork").Process(target=_compare, args=(name, length))
    child.start()
    child.join()
    assert child.exitcode == 0, "a read past the end ends the process"

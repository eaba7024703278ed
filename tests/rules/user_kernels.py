"""A library of a user in C, and rule files with operators that it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

C_SOURCE = """
#include <math.h>
#include <stdint.h>
int swish(const float *x, int64_t x_size, float beta, float *y) {
    for (int64_t k = 0; k < x_size; k++) y[k] = x[k] / (1 + expf(-beta * x[k]));
    return 0;
}
int row_sums(const float *x, const int64_t *x_shape, int32_t x_rank, int64_t x_dim0, float *y) {
    int64_t width = x_rank == 2 ? x_shape[1] : 1;
    for (int64_t i = 0; i < x_dim0; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < width; j++) y[i] += x[i * width + j];
    }
    return 0;
}
void split(const float *x, int64_t x_size, const float *bias, bool_t twice, float *low, float *high) {
    for (int64_t k = 0; k < x_size; k++) {
        float v = (twice ? 2 : 1) * x[k] + (bias ? bias[0] : 0);
        low[k] = v < 0 ? v : 0;
        high[k] = v < 0 ? 0 : v;
    }
}
int fails(const float *x, float *y) { return 7; }
int conv_relu(const float *x, const int64_t *x_shape, const float *w, const int64_t *w_shape, const float *b, int64_t group,
              float *y, const int64_t *y_shape) {
    for (int64_t n = 0; n < y_shape[0]; n++)
        for (int64_t o = 0; o < y_shape[1]; o++)
            for (int64_t p = 0; p < y_shape[2]; p++)
                for (int64_t q = 0; q < y_shape[3]; q++) {
                    float sum = b ? b[o] : 0;
                    for (int64_t c = 0; c < w_shape[1]; c++)
                        for (int64_t k = 0; k < w_shape[2]; k++)
                            for (int64_t l = 0; l < w_shape[3]; l++)
                                sum += x[((n * x_shape[1] + o / (y_shape[1] / group) * w_shape[1] + c) * x_shape[2] + p + k)
                                         * x_shape[3] + q + l]
                                    * w[((o * w_shape[1] + c) * w_shape[2] + k) * w_shape[3] + l];
                    y[((n * y_shape[1] + o) * y_shape[2] + p) * y_shape[3] + q] = sum > 0 ? sum : 0;
                }
    return 0;
}
""".replace("bool_t", "_Bool")

HEAD = "import occ\n\n\n"
SWISH = """
@occ.operator("com.example.Swish")
class Swish:
    operands = ("x",)
    attributes = {"beta": 1.0}
    kernel = %s

    def infer(x, *, a):
        return x.type
"""
C_SWISH = SWISH % 'occ.c_kernel("libuser.so", "int swish(const float *x, int64_t x_size, float beta, float *y)")'
BODY = """
    def body(t, x, *, a):
        from occ.compiler.ir.te.expr import call

        return t.map(x.shape, lambda *i: x[i] / (call("exp", x[i] * -a.beta) + 1.0), name="swish")
"""
HALIDE_SWISH = (
    SWISH.replace('{"beta": 1.0}', "{}")
    % '''occ.halide_kernel("""
        Var i, j;
        y(i, j) = x(i, j) / (1 + exp(-x(i, j)));
        y.vectorize(i, 8, TailStrategy::GuardWithIf);
    """)'''
)
TE_SWISH = (
    HEAD
    + '''
@occ.operator("com.example.Swish")
class Swish:
    operands = ("x",)
    kernel = occ.te_kernel("""
        te @swish[n, c](%x: f32[n, c]) -> (y: f32[n, c]) {
            e[i<n, j<c] = exp(-1.0 * %x[i, j])
            y[i<n, j<c] = %x[i, j] / (e[i, j] + 1.0)
        }
    """)
'''
)
NET = """<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>
g (float[n, 5] x) => (float[n, 5] y) { a = Neg (x)  s = com.example.Swish (a)  y = Relu (s) }"""


def rules(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(text if text.startswith(HEAD) else HEAD + text)
    return str(path)


def swished(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    x = -x.astype(np.float64)
    return np.maximum(x / (1 + np.exp(-beta * x)), 0)


def sample(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)

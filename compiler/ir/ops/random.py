"""Random tensors. Without a seed, every run draws different numbers."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from occ.compiler.ir.dtype import F32, I32
from occ.compiler.ir.operator.spec import OpSpec, op
from occ.compiler.ir.types import TensorType


class _Shaped:
    def infer(*, a):
        return TensorType(a.dtype or F32, tuple(a.shape))


class _Like:
    def infer(x, *, a):
        return TensorType(a.dtype or x.dtype, x.type.shape)


RandomNormal = op("RandomNormal", host="RandomNormal", pure=False)(_Shaped)
RandomUniform = op("RandomUniform", host="RandomUniform", pure=False)(_Shaped)
RandomNormalLike = op("RandomNormalLike", host="RandomNormalLike", pure=False)(_Like)
RandomUniformLike = op("RandomUniformLike", host="RandomUniformLike", pure=False)(_Like)
Bernoulli = op("Bernoulli", host="Bernoulli", pure=False)(_Like)


@op("Multinomial", host="Multinomial", pure=False)
class Multinomial:
    """Class numbers drawn by unnormalised log-probabilities."""

    def infer(x, *, a):
        return TensorType(a.dtype or I32, (x.shape[0], a.sample_size))


ALL: tuple[OpSpec, ...] = (
    RandomNormal, RandomUniform, RandomNormalLike, RandomUniformLike, Bernoulli, Multinomial,
)  # fmt: skip

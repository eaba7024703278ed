"""What passes ask of operators that multiply by a matrix, their second operand."""

from __future__ import annotations

from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class MatrixProduct:
    """`alpha * x' @ w' + beta * c`, with the operands `x`, `w` and perhaps `c`, as BLAS's GEMM has it.

    Attributes:
        left_transposed, right_transposed: whether `x'` and `w'` are the transposed operands.
        alpha, beta: the factors.
    """

    left_transposed: bool = False
    right_transposed: bool = False
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def is_scaled(self) -> bool:
        """Whether a factor is not 1."""
        return (self.alpha, self.beta) != (1, 1)

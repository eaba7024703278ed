"""DynamicQuantizeLSTM of com.microsoft."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.operator.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.ops.contrib.domain import DOMAIN
from occ.compiler.ir.ops.recurrent import fit_hidden_size, fit_operand, quantized_lstm
from occ.compiler.ir.ops.recurrent_cells import Codes
from occ.compiler.ir.types import TensorType


@op(
    f"{DOMAIN}.DynamicQuantizeLSTM",
    signature=FormalSignature.of(
        "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point", "Y? Y_h? Y_c?",
        activation_alpha=None, activation_beta=None, activations=None, clip=None, direction="forward", hidden_size=None,
        input_forget=0,
    ),
)  # fmt: skip
class DynamicQuantizeLSTM:
    """LSTM with quantised weights, `[directions, inputs, 4 * h]`; input and states are quantised by their range."""

    def infer(x, w, r, bias=None, lens=None, h=None, c=None, peephole=None, *quant, a):
        if (x.rank, w.rank, r.rank) != (3, 3, 3):
            raise Invalid(f"X, W and R have rank 3, not {x.rank}, {w.rank} and {r.rank}")
        steps, batch, width = x.shape
        directions, hidden = 2 if a.direction == "bidirectional" else 1, r.shape[1]
        fit_hidden_size(a, hidden)
        columns = (directions, 4 * hidden)
        fit_operand("W", w, (directions, width, 4 * hidden))
        fit_operand("R", r, (directions, hidden, 4 * hidden))
        fit_operand("B", bias, (directions, 8 * hidden))
        fit_operand("sequence_lens", lens, (batch,))
        fit_operand("P", peephole, (directions, 3 * hidden))
        for state in (h, c):
            fit_operand("an initial state", state, (directions, batch, hidden))
        for v in quant:
            fit_operand("a scale or zero point", v, columns if v is not None and v.rank == 2 else columns[:1])
        last = TensorType(x.dtype, (directions, batch, hidden))
        return TensorType(x.dtype, (steps, directions, batch, hidden)), last, last

    def composite(b, x, w, r, bias=None, lens=None, h=None, c=None, peephole=None, *quant, a):
        attrs = SimpleNamespace(**vars(a), layout=0)
        return quantized_lstm(b, x, w, r, bias, lens, [h, c], peephole, Codes(*quant), attrs)


ALL: tuple[OpSpec, ...] = (DynamicQuantizeLSTM,)

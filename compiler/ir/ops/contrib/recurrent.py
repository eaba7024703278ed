"""The LSTM of com.microsoft that onnxruntime's dynamic quantiser writes."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from types import SimpleNamespace

from occ.compiler.ir.ops.contrib.operators import DOMAIN
from occ.compiler.ir.ops.recurrent import Codes, quantized_lstm
from occ.compiler.ir.ops.spec import FormalSignature, OpSpec, op
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
    """LSTM with weights as codes, `[directions, inputs, 4 * h]`; the input and each state are quantised by their range."""

    def infer(x, w, r, *_, a):
        steps, batch = x.shape[:2]
        directions, hidden = r.shape[:2]
        last = TensorType(x.dtype, (directions, batch, hidden))
        return TensorType(x.dtype, (steps, directions, batch, hidden)), last, last

    def composite(b, x, w, r, bias=None, lens=None, h=None, c=None, peephole=None, *quant, a):
        attrs = SimpleNamespace(**vars(a), layout=0)
        return quantized_lstm(b, x, w, r, bias, lens, [h, c], peephole, Codes(*quant), attrs)


ALL: tuple[OpSpec, ...] = (DynamicQuantizeLSTM,)

"""Calls onnxruntime's quantisers: static and dynamic int8, and weight-only."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, cast

import onnx
from onnx import GraphProto, ModelProto

from occ.compiler.diagnostics import CompileError, closest, error, shorten
from occ.quantization.calibration import Reader, Samples
from occ.quantization.prepare import named, nodes_of
from occ.quantization.settings import BITS, METHODS, QuantizationRequest, form_of
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError

_PASSED_ON = ("AveragePool", "Clip", "LeakyRelu", "MaxPool", "Relu")


@dataclass(frozen=True)
class Coded:
    """The library's result.

    Attributes:
        floats: the model after preprocessing, before quantisation.
        codes: the result.
        left: nodes that stay in floats.
        types: of operators that compute with codes; None for all whose form changed. Others in a QDQ model read
            dequantised values.
        runs: number of calibration runs.
    """

    floats: ModelProto
    codes: ModelProto
    left: Sequence[str]
    types: Sequence[str] | None = None
    runs: int = 0

    @property
    def changed(self) -> dict[str, str]:
        """The nodes that compute with codes, in model order: the type of each by name."""
        from occ.quantization.losses import replaced

        nodes = (node for node, _ in replaced(self.floats, self.codes) if node.name not in self.left)
        return {n.name: n.op_type for n in nodes if self.types is None or n.op_type in self.types}


def run_quantizer(
    floats: ModelProto, original: ModelProto, asked: QuantizationRequest, samples: Samples | None, scratch: Path
) -> Coded:
    """Let the library quantise a model; its errors are converted to ours."""
    known = {n.op_type for n in (*nodes_of(floats.graph), *original.graph.node)}
    if strange := next((t for t in asked.operators if t not in known), None):
        help_ = closest(strange, known) or f"it has {', '.join(sorted(known)[:12])}"
        raise error("OCC0205", f"the model has no operator `{shorten(strange)}`", help=help_)
    try:
        if asked.weights is not None:
            return _weights_alone(floats, original, asked)
        if samples is None:
            return _dynamic(floats, original, asked, scratch)
        return _static(floats, original, asked, samples, scratch)
    except (CompileError, RunError, MemoryError, KeyboardInterrupt):
        raise
    except ImportError as e:
        text = f"quantising needs `{e.name or 'onnxruntime'}`, which is not installed"
        raise error("OCC0409", text, help="pip install 'occ-compiler[quantize]'") from None
    except Exception as e:  # the library, and onnxruntime below it, raise various exceptions
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        help_ = (
            "leave nodes out with --keep, or types of operators with --operators; `occ diff MODEL` says whether "
            "onnxruntime runs the model at all"
        )
        raise error("OCC0617", f"onnxruntime cannot quantise the model: {shorten(reason, 240)}", help=help_) from e


def _static(
    floats: ModelProto, original: ModelProto, asked: QuantizationRequest, samples: Samples, scratch: Path
) -> Coded:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    form = form_of(asked.target)
    floats = _optimised(floats, scratch)
    left = [*named(floats.graph, original.graph, asked.keep), *_plain_sums(floats.graph)]
    types = list(asked.operators or form.operators)
    saved_at, made_at, reader = scratch / "floats.onnx", scratch / "codes.onnx", Reader(samples)
    _write(floats, saved_at)
    quantize_static(
        str(saved_at), str(made_at), cast(Any, reader), QuantFormat.QDQ, types, asked.per_channel,
        asked.reduce_range, QuantType.QInt8 if form.signed else QuantType.QUInt8, QuantType.QInt8,
        nodes_to_exclude=left, use_external_data_format=True, calibrate_method=CalibrationMethod[METHODS[asked.method]],
        extra_options=dict(form.options),
    )  # fmt: skip
    return Coded(floats, onnx.load(str(made_at)), left, types, reader.count)


def _plain_sums(graph: GraphProto) -> list[str]:
    """Additions that stay in floats: those whose operands do not all come from convolutions, as in residual nets.

    An addition of a constant is a step of a function such as HardSwish, one in a transformer leads to a normalisation,
    and the range of a mask leaves no steps for the values that it masks.
    """
    made: set[str] = set()  # by convolutions, and ops that pass their codes on
    left: list[str] = []
    for node in graph.node:
        of_codes = all(name in made for name in node.input[: 1 if node.op_type in _PASSED_ON else None])
        if node.op_type in ("Add", "Sum") and not of_codes:
            left.append(node.name)
        elif node.op_type in ("Conv", "ConvTranspose") or (of_codes and node.op_type in (*_PASSED_ON, "Add", "Sum")):
            made |= {*node.output}
    return left


def _optimised(floats: ModelProto, scratch: Path) -> ModelProto:
    """The model with BatchNormalization folded into its Convs, and constants folded, since ops in between lose most."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    given, made = scratch / "given.onnx", scratch / "optimised.onnx"
    _write(floats, given)
    quant_pre_process(
        str(given), str(made), skip_symbolic_shape=True, save_as_external_data=True, all_tensors_to_one_file=True,
        external_data_location="optimised.data",
    )  # fmt: skip
    return onnx.load(str(made))


def _dynamic(floats: ModelProto, original: ModelProto, asked: QuantizationRequest, scratch: Path) -> Coded:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    left = named(floats.graph, original.graph, asked.keep)
    given, made = scratch / "floats.onnx", scratch / "codes.onnx"
    _write(floats, given)
    quantize_dynamic(
        str(given), str(made), list(asked.operators) or None, asked.per_channel, asked.reduce_range, QuantType.QInt8,
        nodes_to_exclude=left, use_external_data_format=True,
    )  # fmt: skip
    return Coded(floats, onnx.load(str(made)), left)


def _weights_alone(floats: ModelProto, original: ModelProto, asked: QuantizationRequest) -> Coded:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    assert asked.weights is not None, "asked for"
    plain = ONNXModel(floats)
    plain.replace_gemm_with_matmul()
    floats = ModelProto()
    floats.CopyFrom(plain.model)
    left = named(floats.graph, original.graph, asked.keep)
    quantizer = MatMulNBitsQuantizer(
        plain.model,
        BITS[asked.weights],
        asked.block,
        nodes_to_exclude=left,
        op_types_to_quantize=tuple(asked.operators) or None,
    )
    quantizer.process()
    return Coded(floats, cast(Any, quantizer.model).model, left)


def _write(model: ModelProto, path: Path) -> None:
    """Write a copy with its weights in a file next to it, whatever their size."""
    copy = ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, str(path), save_as_external_data=True, location=f"{path.stem}.data")


@contextmanager
def quiet() -> Generator[None]:
    """Keep the library's output and logs out of the command's streams."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        _silence_sessions(3)
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
        _silence_sessions(2)


def _silence_sessions(level: int) -> None:
    try:
        import onnxruntime
    except ImportError:
        return  # said where it is needed
    onnxruntime.set_default_logger_severity(level)

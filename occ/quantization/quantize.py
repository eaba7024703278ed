"""`occ.quantize`: a model with weights, or weights and activations, in 8 or 4 bits."""

from __future__ import annotations

import io
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import onnx
from onnx import GraphProto, ModelProto, TensorProto

from occ.analysis.onnx_graph import loaded
from occ.compiler.diagnostics import CompileError, closest, error, shorten
from occ.compiler.driver.outputs import check_out
from occ.compiler.targets.default import DEFAULT
from occ.compiler.targets.registry import get_target
from occ.quantization.calibration import Data, Reader, Samples, samples_of
from occ.quantization.prepare import named, nodes_of, prepared, saved
from occ.quantization.settings import BITS, METHODS, Method, QuantizationRequest, Weights, form_of
from occ.runtime.errors import RunError

if TYPE_CHECKING:
    from occ.quantization.losses import Loss


@dataclass(frozen=True)
class Quantized:
    """A model that was quantised.

    Attributes:
        path: where it was written.
        form: what was done, for people.
        floats: the model that was quantised, with its weights inside.
        codes: the model that was written, the same.
        nodes: of `floats` that became others, by name: the type of each.
        samples: runs that ranges were found by.
        bytes_before, bytes_after: of the files, those of external data too.
    """

    path: Path
    form: str
    floats: ModelProto
    codes: ModelProto
    nodes: dict[str, str]
    samples: int
    bytes_before: int
    bytes_after: int

    def losses(self, inputs: dict[str, Any]) -> list[Loss]:
        """What each node loses alone for some inputs, the most first; see `losses.Loss`."""
        from occ.quantization.losses import losses

        return [one for one in losses(self.floats, self.codes, inputs) if one.node in self.nodes]

    @property
    def types(self) -> str:
        """The types of operators that changed, with how many: `Conv 52, Gemm 1`."""
        return ", ".join(f"{kind} {n}" for kind, n in Counter(self.nodes.values()).most_common())


def quantize(
    model: str | os.PathLike[str] | bytes | ModelProto,
    out: str | os.PathLike[str],
    *,
    calibrate: Data | None = None,
    weights: Weights | None = None,
    target: str = DEFAULT,
    method: Method = "minmax",
    keep: Sequence[str] = (),
    operators: Sequence[str] = (),
    block: int = 32,
    per_channel: bool = True,
    reduce_range: bool = False,
) -> Quantized:
    """Write a model whose weights, or weights and activations, are codes of 8 or 4 bits; the forms are docs/quantize.md's.

    Args:
        model: path, bytes or message of an ONNX model in f32.
        out: the ONNX file to write.
        calibrate: inputs of typical runs, for static quantisation: see `calibration.samples_of`.
        weights: `int8` or `int4` for codes of weights alone. Without this and `calibrate`, activations are coded as they come.
        target: what the codes are for: Ascend targets want those of AMCT.
        method: how ranges are found: `minmax`, `entropy`, `percentile`.
        keep: nodes, or values that nodes give, that stay in floats.
        operators: types of operators to quantise, instead of those that the target's form has.
        block: elements of a column of a weight that share a scale, with `weights`: 16, 32, 64, 128 or 256.
        per_channel: whether each channel of a weight has a scale of its own.
        reduce_range: whether weights have 7 bits, for runtimes that saturate.

    Raises:
        CompileError: OCC0101, OCC0102, OCC0106 the model cannot be read; OCC0103 its operator set is too old; OCC0205 `keep`
            names nothing; OCC0409 the library is missing; OCC0603 an argument has no
            such value; OCC0605 the file cannot be written; OCC0617 the model cannot be
            quantised. RunError: OCC0501 the inputs of `calibrate` do not fit the model.
    """
    get_target(target)
    asked = QuantizationRequest(weights, target, method, keep, operators, block, per_channel, reduce_range)
    asked.check(calibrate is not None)
    place = check_out(Path(out), [model])
    message, folder = loaded(model)
    before = _size(message, folder, model)
    floats = prepared(message, folder, halves=weights is not None, upgrade=weights is None)
    samples = samples_of(calibrate, floats.graph) if calibrate is not None else None
    with tempfile.TemporaryDirectory(prefix="occ-quantize-") as scratch, _quiet():
        made = _coded(floats, message, asked, samples, Path(scratch))
    nodes = made.changed
    if not nodes:
        types = ", ".join(sorted({n.op_type for n in floats.graph.node})[:12])
        raise error("OCC0617", f"nothing was quantised: {_WANTED[_kind(asked, samples)]}; the model has {types}")
    written = _written(made.codes, place)
    told = _told(asked, samples, made.runs)
    return Quantized(place, told, made.floats, made.codes, nodes, made.runs, before, written)


_PASSED_ON = ("AveragePool", "Clip", "LeakyRelu", "MaxPool", "Relu")
_WANTED = {
    "static": "codes are made of products, and of what is between them, with weights in f32",
    "dynamic": "codes are made of Conv, MatMul, Gemm, LSTM and Attention with constant weights in f32",
    "weights": "codes are made of the constant matrices of MatMul and Gemm",
}


def _kind(asked: QuantizationRequest, samples: Samples | None) -> str:
    return "weights" if asked.weights is not None else "static" if samples is not None else "dynamic"


def _told(asked: QuantizationRequest, samples: Samples | None, count: int) -> str:
    match _kind(asked, samples):
        case "weights":
            return f"weights of {BITS[cast(str, asked.weights)]} bits in blocks of {asked.block}"
        case "static":
            return f"static int8, ranges of {count} run{'s' if count != 1 else ''}"
        case _:
            return "dynamic int8"


@dataclass(frozen=True)
class _Coded:
    """What the library made.

    Attributes:
        floats: what was quantised: the model, with what is done to it before.
        codes: the result.
        left: nodes that stay in floats.
        types: of operators that compute with codes; None for all whose form changed. Others of a QDQ model read what codes stand for.
        runs: how many ranges are of.
    """

    floats: ModelProto
    codes: ModelProto
    left: Sequence[str]
    types: Sequence[str] | None = None
    runs: int = 0

    @property
    def changed(self) -> dict[str, str]:
        """The nodes that compute with codes, in the order of the model: the type of each by its name."""
        from occ.quantization.losses import replaced

        nodes = (node for node, _ in replaced(self.floats, self.codes) if node.name not in self.left)
        return {n.name: n.op_type for n in nodes if self.types is None or n.op_type in self.types}


def _coded(
    floats: ModelProto, original: ModelProto, asked: QuantizationRequest, samples: Samples | None, scratch: Path
) -> _Coded:
    """Let the library quantise a model; its errors are ours."""
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
    except Exception as e:  # the library raises what it likes, onnxruntime below it too
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        help_ = "leave nodes out with --keep, or types of operators with --operators; `occ diff MODEL` says whether onnxruntime runs the model at all"
        raise error("OCC0617", f"onnxruntime cannot quantise the model: {shorten(reason, 240)}", help=help_) from e


def _static(
    floats: ModelProto, original: ModelProto, asked: QuantizationRequest, samples: Samples, scratch: Path
) -> _Coded:
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
        nodes_to_exclude=left, use_external_data_format=True, calibrate_method=CalibrationMethod[METHODS[asked.method]], extra_options=dict(form.options),
    )  # fmt: skip
    return _Coded(floats, onnx.load(str(made_at)), left, types, reader.count)


def _plain_sums(graph: GraphProto) -> list[str]:
    """Sums that stay in floats: those whose operands are not all of convolutions, as in residual nets.

    A sum with a constant is a step of a function such as HardSwish, one in a transformer leads to a normalisation, and a mask
    has a range that leaves no steps for what it masks.
    """
    made: set[str] = set()  # by convolutions, and what passes their codes on
    left: list[str] = []
    for node in graph.node:
        of_codes = all(name in made for name in node.input[: 1 if node.op_type in _PASSED_ON else None])
        if node.op_type in ("Add", "Sum") and not of_codes:
            left.append(node.name)
        elif node.op_type in ("Conv", "ConvTranspose") or (of_codes and node.op_type in (*_PASSED_ON, "Add", "Sum")):
            made |= {*node.output}
    return left


def _optimised(floats: ModelProto, scratch: Path) -> ModelProto:
    """The model with BatchNormalization in its Convs and constants folded: what is between a product and its codes loses most."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    given, made = scratch / "given.onnx", scratch / "optimised.onnx"
    _write(floats, given)
    quant_pre_process(
        str(given), str(made), skip_symbolic_shape=True, save_as_external_data=True, all_tensors_to_one_file=True,
        external_data_location="optimised.data",
    )  # fmt: skip
    return onnx.load(str(made))


def _dynamic(floats: ModelProto, original: ModelProto, asked: QuantizationRequest, scratch: Path) -> _Coded:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    left = named(floats.graph, original.graph, asked.keep)
    given, made = scratch / "floats.onnx", scratch / "codes.onnx"
    _write(floats, given)
    quantize_dynamic(
        str(given), str(made), list(asked.operators) or None, asked.per_channel, asked.reduce_range, QuantType.QInt8,
        nodes_to_exclude=left, use_external_data_format=True,
    )  # fmt: skip
    return _Coded(floats, onnx.load(str(made)), left)


def _weights_alone(floats: ModelProto, original: ModelProto, asked: QuantizationRequest) -> _Coded:
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
    return _Coded(floats, cast(Any, quantizer.model).model, left)


def _write(model: ModelProto, path: Path) -> None:
    """Write a copy with its weights in a file beside it, whatever their size."""
    copy = ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, str(path), save_as_external_data=True, location=f"{path.stem}.data")


def _size(message: ModelProto, folder: Path, model: object) -> int:
    """Bytes of a model and of the files that its weights are in."""
    own = os.path.getsize(cast(Any, model)) if isinstance(model, (str, os.PathLike)) else message.ByteSize()
    files = {
        folder / entry.value
        for t in message.graph.initializer
        if t.data_location == TensorProto.EXTERNAL
        for entry in t.external_data
        if entry.key == "location"
    }
    return own + sum(f.stat().st_size for f in files if f.is_file())


def _written(codes: ModelProto, place: Path) -> int:
    """Write the model instead of what is there, whole or not at all; its size in bytes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".occ-", dir=place.parent) as folder:
        made = Path(folder) / place.name
        copy = ModelProto()
        copy.CopyFrom(codes)
        saved(copy, made)
        files = sorted(Path(folder).iterdir(), key=lambda f: f == made)  # the model last: it names the data
        size = sum(f.stat().st_size for f in files)
        for file in files:
            file.replace(place.parent / file.name)
    return size


@contextmanager
def _quiet() -> Generator[None]:
    """Keep what the library prints and logs from the streams of the command."""
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

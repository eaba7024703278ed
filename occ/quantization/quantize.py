"""`occ.quantize`: a model with weights, or weights and activations, in 8 or 4 bits."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onnx import ModelProto, TensorProto

from occ.analysis.onnx_graph import loaded
from occ.arguments import names_of
from occ.compiler.diagnostics import error
from occ.compiler.driver.outputs import check_out
from occ.compiler.targets.default import DEFAULT
from occ.compiler.targets.registry import get_target
from occ.quantization.calibration import Data, Samples, samples_of
from occ.quantization.onnxruntime_quantizer import quiet, run_quantizer
from occ.quantization.prepare import prepared, saved
from occ.quantization.settings import BITS, Method, QuantizationRequest, Weights
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.quantization.losses import Loss


@dataclass(frozen=True)
class Quantized:
    """A quantised model.

    Attributes:
        path: where it was written.
        form: a description of what was done.
        floats: the model that was quantised, with its weights inside.
        codes: the model that was written, the same.
        nodes: nodes of `floats` that changed, by name: the type of each.
        samples: number of calibration runs.
        bytes_before, bytes_after: of the files, including external data.
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
        """The loss of each node by itself for some inputs, largest first; see `losses.Loss`."""
        from occ.quantization.losses import losses

        return [one for one in losses(self.floats, self.codes, inputs) if one.node in self.nodes]

    @property
    def types(self) -> str:
        """The types of operators that changed, with counts: `Conv 52, Gemm 1`."""
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
    """Write a model whose weights, or weights and activations, are codes of 8 or 4 bits; see docs/quantize.md.

    Args:
        model: path, bytes or message of an ONNX model in f32.
        out: the ONNX file to write.
        calibrate: inputs of typical runs, for static quantisation: see `calibration.samples_of`.
        weights: `int8` or `int4` for weight-only quantisation. Without this and `calibrate`, activations are quantised
            dynamically.
        target: the target of the codes: Ascend targets need AMCT's form.
        method: calibration method: `minmax`, `entropy`, `percentile`.
        keep: nodes, or results of nodes, that stay in floats.
        operators: types of operators to quantise, instead of the target's default.
        block: elements of a weight column that share a scale, with `weights`: 16, 32, 64, 128 or 256.
        per_channel: whether each channel of a weight has a scale of its own.
        reduce_range: whether weights have 7 bits, for runtimes that saturate.

    Raises:
        CompileError: OCC0101, OCC0102, OCC0106 the model cannot be read; OCC0103 its operator set is too old; OCC0205
            `keep` names nothing; OCC0409 the library is missing; OCC0603 an invalid argument; OCC0605 the file cannot
            be written; OCC0617 the model cannot be quantised. RunError: OCC0501 the inputs of `calibrate` do not match
            the model.
    """
    get_target(target)
    asked = QuantizationRequest(
        weights, target, method, names_of(keep), names_of(operators), block, per_channel, reduce_range
    )
    asked.check(calibrate is not None)
    place = check_out(Path(out), [model])
    message, folder = loaded(model)
    before = _size(message, folder, model)
    floats = prepared(message, folder, halves=weights is not None, upgrade=weights is None)
    samples = samples_of(calibrate, floats.graph) if calibrate is not None else None
    with tempfile.TemporaryDirectory(prefix="occ-quantize-") as scratch, quiet():
        made = run_quantizer(floats, message, asked, samples, Path(scratch))
    nodes = made.changed
    if not nodes:
        types = ", ".join(sorted({n.op_type for n in floats.graph.node})[:12])
        raise error("OCC0617", f"nothing was quantised: {_WANTED[_kind(asked, samples)]}; the model has {types}")
    written = _written(made.codes, place)
    told = _told(asked, samples, made.runs)
    return Quantized(place, told, made.floats, made.codes, nodes, made.runs, before, written)


_WANTED = {
    "static": "only products with f32 weights, and nodes between them, are quantised",
    "dynamic": "only Conv, MatMul, Gemm, LSTM and Attention with constant f32 weights are quantised",
    "weights": "only constant matrices of MatMul and Gemm are quantised",
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


def _size(message: ModelProto, folder: Path, model: object) -> int:
    """Bytes of a model including its weight files."""
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
    """Replace a file by the model, completely or not at all; returns its size in bytes."""
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

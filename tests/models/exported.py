"""Models in folders: two sets of inputs for each, and allowed differences from onnxruntime.

OCC_TEST_MODELS names folders, with the path separator between them; a model is any NAME.onnx in them, and NAME/model.onnx. Its
inputs are `inputs.npz` and `inputs.alt.npz` next to it, or, for a model A/B.onnx, A__B.npz and A__B.alt.npz in the folder
OCC_TEST_INPUTS; what is missing is made up, with a fixed seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Arrays = Mapping[str, np.ndarray]
NUMPY = {f"tensor({kind})": name for kind, name in (
    ("float", "float32"), ("double", "float64"), ("float16", "float16"), ("int64", "int64"), ("int32", "int32"),
    ("uint8", "uint8"), ("int8", "int8"), ("bool", "bool"),
)}  # fmt: skip
# Operators whose first result is an integer code; a graph is cut into its layers after them.
CODING = (
    "QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QLinearConcat",
    "QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QGemm",
)  # fmt: skip


def session(model: Path | bytes, *, plain: bool = False) -> onnxruntime.InferenceSession:
    """onnxruntime on one thread; `plain` keeps it from rewriting the graph, so that nodes run as they are defined."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Exported:
    """A model in a folder."""

    path: Path
    name: str

    @cached_property
    def proto(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    @cached_property
    def ops(self) -> set[str]:
        return {n.op_type for n in self.proto.graph.node}

    @property
    def is_coded(self) -> bool:
        """Whether activations are quantised."""
        return bool(self.ops & set(CODING))

    @property
    def is_dynamic(self) -> bool:
        """Whether the range of the data decides how they are quantised."""
        return "DynamicQuantizeLinear" in self.ops

    @property
    def tolerance(self) -> float:
        """Of the largest value of an output."""
        half = any(w.data_type == TensorProto.FLOAT16 for w in self.proto.graph.initializer)
        return 2e-3 if half else 1e-4

    def quantum(self, output: str) -> float | None:
        """The step of an output: the scale of the DequantizeLinear that computes it; None where none does."""
        weights = {w.name: w for w in self.proto.graph.initializer}
        for node in self.proto.graph.node:
            if output in node.output and node.op_type == "DequantizeLinear":
                return float(np.max(numpy_helper.to_array(weights[node.input[1]])))
        return None

    def inputs(self) -> Iterator[Arrays]:
        """The two sets; the second is another size, where the model has dims of its own name."""
        others = Path(os.environ.get("OCC_TEST_INPUTS", "/nowhere"))
        label = f"{self.path.parent.name}__{self.path.stem}"
        first = [self.path.with_name("inputs.npz"), others / f"{label}.npz"]
        second = [self.path.with_name("inputs.alt.npz"), others / f"{label}.alt.npz"]
        infos = session(self.path).get_inputs()
        made = _read(first) or _random(infos)
        yield made
        yield _read(second) or self._other(infos, made)

    def _other(self, infos: list[onnxruntime.NodeArg], made: Arrays) -> Arrays:
        """A second set: twice the size, or the same where the model has a size inside that does not go with its inputs."""
        doubled = _drawn(infos, made, 2)
        try:
            session(self.path).run(None, dict(doubled))
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            return _drawn(infos, made, 1)
        return doubled


def folders() -> list[Exported]:
    """All of them."""
    roots = [Path(r) for r in os.environ.get("OCC_TEST_MODELS", "").split(os.pathsep) if r]
    paths = sorted(p for r in roots for pattern in ("*.onnx", "*/*.onnx") for p in r.glob(pattern))
    return [Exported(p, p.parent.name if p.stem == "model" else f"{p.parent.name}-{p.stem}") for p in paths]


def _read(paths: list[Path]) -> Arrays | None:
    found = [p for p in paths if p.exists()]
    return dict(np.load(found[0])) if found else None


def _random(infos: list[onnxruntime.NodeArg]) -> Arrays:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for p in infos:
        shape, kind = [d if isinstance(d, int) else 2 for d in p.shape], np.dtype(NUMPY[p.type])
        drawn = rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 2, shape)
        made[p.name] = np.asarray(drawn).astype(kind)
    return made


def _drawn(infos: list[onnxruntime.NodeArg], first: Arrays, times: int) -> Arrays:
    """Other data, every named dim so many times as long, which keeps sums such as `past + sequence` right."""
    rng = np.random.default_rng(1)
    made: dict[str, np.ndarray] = {}
    for p in infos:
        old = first[p.name]
        shape = tuple(n if isinstance(d, int) else times * n for d, n in zip(p.shape, old.shape, strict=True))
        if "mask" in p.name:
            new = np.ones(shape)
        elif "position" in p.name:
            new = 2 * old.min() * (shape != old.shape) + np.broadcast_to(np.arange(shape[-1]), shape)
        elif old.dtype.kind == "f":
            new = rng.standard_normal(shape) * old.std()
        else:
            new = rng.integers(0, old.max(initial=0) + 1, shape)
        made[p.name] = np.asarray(new).astype(old.dtype)
    return made


@dataclass
class Layers:
    """A quantised model, cut after every code.

    Attributes:
        model: the layers side by side; `cut.X` is what the readers of X read.
        inputs: what it takes: the inputs of the whole, and codes as onnxruntime has computed them.
        expected: those codes, and the outputs of the whole.
    """

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


def layers_of(exported: Exported, inputs: Arrays) -> Layers:
    """Cut a model, so that what one layer rounds differently is not carried into the next one."""
    tapped, cut = onnx.ModelProto(), onnx.ModelProto()
    tapped.CopyFrom(exported.proto)
    last = {o.name for o in tapped.graph.output}
    names = [o for n in tapped.graph.node if n.op_type in CODING for o in n.output if o not in last]
    tapped.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    outputs = [o.name for o in tapped.graph.output]
    values = session(tapped.SerializeToString(), plain=True).run(outputs, dict(inputs))
    expected = dict(zip(outputs, map(np.asarray, values), strict=True))
    cut.CopyFrom(tapped)
    for node in cut.graph.node:
        node.input[:] = [f"cut.{k}" if k in names else k for k in node.input]
    read = {k for n in cut.graph.node for k in n.input}
    made = {f"cut.{k}": expected[k] for k in names if f"cut.{k}" in read}
    for name, x in made.items():
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        cut.graph.input.append(helper.make_tensor_value_info(name, kind, x.shape))
    return Layers(cut, {**inputs, **made}, expected)

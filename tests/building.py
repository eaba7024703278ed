"""Small models for tests, written in the ONNX text syntax (onnx.parser)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import onnx.reference
from onnx import numpy_helper

from occ.runtime.artifact import Artifact
from occ.runtime.open import open_artifact
from occ.runtime.session import Session

if TYPE_CHECKING:
    import onnxruntime

TARGETS = ("interp", "cpu-jit", "cpu")


def model_of(text: str, weights: Mapping[str, np.ndarray] | None = None, *, opset: int = 21) -> onnx.ModelProto:
    """A model from the text of its graph, `g (float[2] x) => (float[2] y) { y = Relu(x) }`, and its weights."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>\n' if not text.lstrip().startswith("<") else ""
    model = onnx.parser.parse_model(head + text)
    for name, value in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def reference(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of onnx.reference."""
    return list(onnx.reference.ReferenceEvaluator(model).run(None, dict(inputs)))


def onnxruntime_of(model: onnx.ModelProto, *, optimized: bool = True) -> onnxruntime.InferenceSession:
    """A session of onnxruntime on one thread, since freeing a pool of threads never ends in a process forked later."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def on_threads(artifact: Artifact) -> list[Session]:
    """Sessions of one artifact on one thread and on two."""
    return [open_artifact(artifact, threads) for threads in (1, 2)]


def mlp(seed: int = 0, sizes: Sequence[int] = (8, 16, 4)) -> onnx.ModelProto:
    """MatMul, Add, Relu, MatMul on a symbolic batch, with weights too large to print."""
    rng = np.random.default_rng(seed)
    a, b, c = sizes
    weights = {
        "w1": rng.standard_normal((a, b), dtype=np.float32),
        "b1": rng.standard_normal(b, dtype=np.float32),
        "w2": rng.standard_normal((b, c), dtype=np.float32),
    }
    text = f"""g (float[n, {a}] x) => (float[n, {c}] y) {{
        h = MatMul(x, w1)
        s = Add(h, b1)
        r = Relu(s)
        y = MatMul(r, w2)
    }}"""
    return model_of(text, weights)

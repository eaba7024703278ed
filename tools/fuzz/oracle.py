"""The result of a node according to independent runtimes: onnxruntime, node by node and without optimisation, and
onnx.reference for what that does not implement.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from occ.compiler.ir.dtype import from_numpy

Arrays = Mapping[str, np.ndarray]
ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
onnxruntime.set_default_logger_severity(4)
# What onnx.reference has wrong in corners: ceil_mode and SAME pads, and LRN where there are more channels than batches.
UNTRUSTED = frozenset(("AveragePool", "LpPool", "MaxPool", "LRN"))
# Before operator set 13, which onnx.reference does not know.
OF_MATRICES = frozenset(("Softmax", "LogSoftmax", "Hardmax"))
OF_CODES = frozenset(("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger"))
# Whose sums onnx.reference, the only oracle of bf16, keeps in bf16, whatever `stash_type` says.
SUMMED = frozenset(("LayerNormalization", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceSumSquare"))  # fmt: skip
ROUNDED = frozenset(("Shrink",))  # of doubles too, onnxruntime computes these in f32
_NOT_THERE = set[tuple[Any, ...]]()  # operators with types that onnxruntime does not implement


class Reject(Exception):
    """The node is not valid, or no oracle knows it."""


def options(threads: int = 1) -> onnxruntime.SessionOptions:
    """Of sessions that compute what the model says, without optimisation."""
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = threads, 1
    made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return made


def run_onnxruntime(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a whole model."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    names = [o.name for o in model.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_reference(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a whole model by onnx.reference."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = ReferenceEvaluator(model).run(None, dict(feeds))
    return {o.name: np.asarray(x) for o, x in zip(model.graph.output, found, strict=True)}


def run_other(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a whole model: by onnx.reference node by node, and by onnxruntime where that has none, or a wrong one."""
    opset = model.opset_import[0].version
    known = dict(feeds) | {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        reads = {n: known[n] for n in names_read([node])}
        try:
            found = None if _is_mistaken(node) else list(run_reference(node_model(node, reads, opset), reads).values())
        except Exception:
            found = None
        found = run_node(node, reads, opset) if found is None else found
        known |= dict(zip([n for n in node.output if n], found, strict=True))
    return {o.name: known[o.name] for o in model.graph.output}


def run_node(node: NodeProto, feeds: Arrays, opset: int) -> list[np.ndarray]:
    """The results of one node.

    Raises:
        Reject: it is not valid, or no oracle knows it.
    """
    if _is_disputed(node, feeds):
        raise Reject("runtimes disagree on what this means")
    model = node_model(node, feeds, opset)
    key = (node.op_type, opset, *(x.dtype.str for x in feeds.values()))
    plain = all(x.dtype != ml_dtypes.bfloat16 for x in feeds.values())
    plain &= node.op_type not in ROUNDED or all(x.dtype != np.float64 for x in feeds.values())
    if plain and key not in _NOT_THERE:
        try:
            return list(run_onnxruntime(model, feeds).values())
        except Exception as e:
            untyped = "No corresponding Numpy type" in str(e)  # of a result: bfloat16
            closed = _is_mistaken(node) or any(a.HasField("g") for a in node.attribute)
            if closed or not (untyped or "NOT_IMPLEMENTED" in str(e)):
                raise Reject(str(e)) from None
            if not untyped:
                _NOT_THERE.add(key)
    if _is_mistaken(node) or (opset < 13 and node.op_type in OF_MATRICES):
        raise Reject("the reference has this wrong")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        found = list(run_reference(model, feeds).values())
    except Exception as e:
        raise Reject(str(e)) from None
    if not all(_fits(x, info) for x, info in zip(found, inferred.graph.output, strict=True)):
        raise Reject("the reference gives another shape than inference")
    return found


def _given(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _is_mistaken(node: NodeProto) -> bool:
    """Whether onnx.reference has an operator wrong: it adds the bias of the first group to every group, takes the sum of elements for the
    norm of their sizes, and runs no step of a Loop that is given no condition.
    """
    given = _given(node)
    biased = node.op_type == "ConvTranspose" and len(node.input) > 2 and given.get("group", 1) > 1
    signed = node.op_type == "LpNormalization" and given.get("p", 2) == 1
    idle = node.op_type == "Loop" and not node.input[1]
    return biased or signed or idle or node.op_type in UNTRUSTED


def _is_disputed(node: NodeProto, feeds: Arrays) -> bool:
    """Whether onnxruntime and onnx.reference answer what ONNX leaves open: the place of the only corner of a grid, the last corner of a size that is scaled to a fraction,
    a line that is scaled to one point, a transposed convolution that is to have the SAME size with strides longer than its kernel, the
    scale of nothing but zeros, products of codes over nothing, logarithms of integers, and sums in bf16, which are kept in it.
    """
    given = _given(node)
    dtypes = [x.dtype for x in feeds.values()]
    if node.op_type in ("ReduceLogSum", "ReduceLogSumExp") and dtypes[0].kind in "iu":
        return True
    if node.op_type in SUMMED and dtypes[0] == ml_dtypes.bfloat16:
        return True
    if node.op_type == "AffineGrid" and given.get("align_corners"):
        return 1 in feeds[node.input[1]][2:].tolist()
    if node.op_type == "CDist":
        x, y = (feeds[n].astype(np.float64) for n in node.input[:2])
        squares = np.square(x).sum(-1)[:, None] + np.square(y).sum(-1)
        return bool((np.square(x[:, None] - y).sum(-1) < squares / 64).any())
    if node.op_type == "DynamicQuantizeLinear":
        return not feeds[node.input[0]].any()
    if node.op_type in OF_CODES and not all(x.size for x in feeds.values()):
        return True  # sums of nothing, which onnxruntime does not write
    if node.op_type == "ConvTranspose" and str(given.get("auto_pad", b"")).find("SAME") >= 0:
        taps = feeds[node.input[1]].shape[2:]
        return any(s > k for s, k in zip(given.get("strides", ()), taps, strict=False))
    mode = given.get("coordinate_transformation_mode") if node.op_type == "Resize" else None
    if mode == b"tf_crop_and_resize":
        return _falls_by_rounding(node, feeds)
    if mode in (b"align_corners", b"pytorch_half_pixel"):
        scales = [feeds[n] for n in node.input[1:3] if n and feeds[n].dtype == np.float32 and feeds[n].size]
        return any(float(s) * n % 1 for x in scales for s, n in zip(x, feeds[node.input[0]].shape, strict=False))
    return False


def _falls_by_rounding(node: NodeProto, feeds: Arrays) -> bool:
    """Whether rounding decides where positions of a crop fall: at an end, or half-way; whole axes do not count."""
    shape, (region, scales, *sizes) = feeds[node.input[0]].shape, [feeds.get(n, np.zeros(0)) for n in node.input[1:]]
    axes = _given(node).get("axes", range(len(shape)))
    starts, ends = region[: len(axes)].astype(np.float64), region[len(axes) :].astype(np.float64)
    outs = (
        sizes[0] if sizes and sizes[0].size else [shape[a] * float(f) // 1 for a, f in zip(axes, scales, strict=True)]
    )
    for a, start, end, out in zip(axes, starts, ends, outs, strict=True):
        last = shape[a] - 1
        at = last * np.linspace(start, end, max(int(out), 1))
        near = np.min([np.abs(at), np.abs(at - last), np.abs(2 * at - np.rint(2 * at))], axis=0) < 1e-4 * max(last, 1)
        if (start, end) != (0, 1) and near.any():
            return True
    return False


def _fits(x: np.ndarray, info: ValueInfoProto) -> bool:
    """Whether a value has the inferred type and shape."""
    stated = info.type.tensor_type
    if stated.elem_type != from_numpy(x.dtype).onnx:
        return False
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in stated.shape.dim]
    known = stated.HasField("shape")
    return not known or (len(dims) == x.ndim and all(d in (-1, n) for d, n in zip(dims, x.shape, strict=True)))


def node_model(node: NodeProto, feeds: Arrays, opset: int) -> ModelProto:
    """A model of one node; all that it reads is an input."""
    inputs = [helper.make_tensor_value_info(n, from_numpy(x.dtype).onnx, x.shape) for n, x in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    return model_of(helper.make_graph([_unnamed(node)], "g", inputs, outputs), opset)


def _unnamed(node: NodeProto) -> NodeProto:
    """A node without names of nodes, which onnxruntime refuses where they repeat in one graph."""
    made = NodeProto()
    made.CopyFrom(node)
    made.ClearField("name")
    for a in (a for a in made.attribute if a.HasField("g")):
        bodies = [_unnamed(n) for n in a.g.node]
        del a.g.node[:]
        a.g.node.extend(bodies)
    return made


def model_of(graph: GraphProto, opset: int) -> ModelProto:
    """A model in the oldest file format with the operator set in which initialisers need not be inputs."""
    imports = [helper.make_opsetid("", opset)]
    if any(n.domain == ML for n in graph.node):
        imports.append(helper.make_opsetid(ML, 3))  # the last one with TreeEnsembleRegressor
    if any(n.domain == MICROSOFT for n in graph.node):
        imports.append(helper.make_opsetid(MICROSOFT, 1))
    return helper.make_model(
        graph, opset_imports=imports, ir_version=max(helper.find_min_ir_version_for(imports, ignore_unknown=True), 4)
    )


def names_read(nodes: Sequence[NodeProto]) -> list[str]:
    """The names that nodes read from outside, those of their sub-graphs too."""
    made = {o for n in nodes for o in n.output}
    found: dict[str, None] = {}
    for n in nodes:
        found |= dict.fromkeys(n.input)
        for a in n.attribute:
            inside = {i.name for i in a.g.input} | {i.name for i in a.g.initializer}
            found |= dict.fromkeys(k for k in [*names_read(a.g.node), *_yields(a.g)] if k not in inside)
    return [n for n in found if n and n not in made]


def _yields(g: GraphProto) -> list[str]:
    made = {o for n in g.node for o in n.output}
    return [o.name for o in g.output if o.name not in made]

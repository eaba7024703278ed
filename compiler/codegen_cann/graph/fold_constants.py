"""Constant folding of GE graphs: casts, views, transpositions, slices and gathers of constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from occ.compiler.codegen_cann.graph.formats import occ_type, stored_size
from occ.compiler.codegen_cann.graph.graph import Desc, Graph, Node, Ref, drop_dead

_SMALL = 1 << 10  # bytes by which a constant may grow the model


def _cast(node: Node, x: np.ndarray, out: Desc) -> np.ndarray | None:
    return x.astype(occ_type(out.dtype).numpy)


def _view(node: Node, x: np.ndarray, out: Desc, *_: np.ndarray) -> np.ndarray | None:
    return x.reshape(out.shape)


def _transpose(node: Node, x: np.ndarray, out: Desc, perm: np.ndarray) -> np.ndarray | None:
    return np.ascontiguousarray(x.transpose([int(k) for k in perm.reshape(-1)]))


def _gather(node: Node, x: np.ndarray, out: Desc, at: np.ndarray, axis: np.ndarray) -> np.ndarray | None:
    k = int(axis.reshape(()))
    inside = at.size and at.min() >= 0 and at.max() < x.shape[k]
    return np.asarray(x.take(at, k)) if inside and not node.attrs.get("batch_dims") else None


def _slice(node: Node, x: np.ndarray, out: Desc, *bounds: np.ndarray) -> np.ndarray | None:
    """With constant bounds on some axes; negative steps are left to the device."""
    if len(bounds) != 4 or any(node.attrs.values()) or bounds[3].min(initial=1) < 1:
        return None
    cut = [slice(None)] * x.ndim
    for begin, end, axis, step in zip(*(v.reshape(-1).tolist() for v in bounds), strict=True):
        cut[axis] = slice(begin, end, step)
    return np.ascontiguousarray(x[tuple(cut)])


_Fold = Callable[..., np.ndarray | None]
_FOLDS: Mapping[str, _Fold] = {
    "Cast": _cast, "GatherV2": _gather, "Reshape": _view, "Squeeze": _view, "StridedSliceV2": _slice,
    "Transpose": _transpose, "Unsqueeze": _view,
}  # fmt: skip


def fold_constants(top: Graph) -> None:
    """Replace nodes that only read constants by constants, if the model grows little.

    Not folded: what would enlarge a large constant, or keep two forms of one; half-precision weights are cast on the
    device. Outputs of a graph stay nodes. Extents must be final, since several graphs are merged node by node.
    """
    for graph in top.all():
        outputs = {r.node for r in graph.outputs}
        readers: dict[Node, list[Node]] = {}
        for n in graph.nodes:
            for r in n.inputs:
                if r is not None:
                    readers.setdefault(r.node, []).append(n)
        for node in graph.nodes:
            if node not in outputs and (made := _folded(node, readers)) is not None:
                node.type, node.inputs, node.input_names = "Const", [], []
                node.attrs, node.output_names = {"value": made}, ["y"]
        drop_dead(graph)


def _folded(node: Node, readers: Mapping[Node, list[Node]]) -> np.ndarray | None:
    """The value of a node; None if it is not constant, or too large."""
    fold = _FOLDS.get(node.type)
    operands = [r for r in node.inputs if r is not None]
    out = node.outputs[0]
    if fold is None or not all(_is_const(r) for r in operands) or min(out.shape, default=0) < 0:
        return None
    source, *rest = operands
    shares = any(not _foldable(u) for u in readers[source.node])
    added = out.nbytes if shares else out.nbytes - stored_size(source.node.value)
    if added > _SMALL or (shares and out.nbytes > _SMALL):
        return None
    with np.errstate(all="ignore"):
        made = fold(node, source.node.value, out, *(r.node.value for r in rest))
    return made if made is not None and made.shape == out.shape else None


def _foldable(node: Node) -> bool:
    """Whether a node is constant by now, or may become so."""
    return node.type == "Const" or (node.type in _FOLDS and all(r is None or _is_const(r) for r in node.inputs))


def _is_const(r: Ref) -> bool:
    return r.node.type == "Const"

"""Fusions of GE nodes into kernels for language models, such as RMSNorm and SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from occ.compiler.codegen_cann.graph.graph import Desc, Node, Ref
from occ.compiler.codegen_cann.mapping.attention_kernel import attention
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.mapping.matching import Users, constant, either, made_by, scalar, through
from occ.compiler.codegen_cann.mapping.rotary_kernel import rotary

Rule = Callable[[Emitter, Node, Users], Ref | None]
_LEAST_ROW = 32  # minimum bytes that RmsNorm normalises


def rms_norm(e: Emitter, root: Node, users: Users) -> Ref | None:
    """`x * Rsqrt(ReduceMean(x * x) + epsilon)`, optionally times a vector, as RmsNorm."""
    if root.type != "Mul":
        return None
    for y, gamma in either(root):
        weights = constant(gamma)
        if weights is not None and (found := _normalised(y)) is not None and weights.shape == found[0].shape[-1:]:
            return _rms_node(e, *found, gamma)
    found = _normalised(Ref(root))
    if found is None or any(u is not None and _is_scaled(u) for u in users[root]):
        return None
    x = found[0]
    return _rms_node(e, *found, e.cast(e.constant(np.ones(x.shape[-1:], np.float32)), x.dtype))


def _is_scaled(node: Node) -> bool:
    """Whether a Mul by a vector reads a normalised row; it is then the root."""
    return node.type == "Mul" and any(
        r is not None and (w := constant(r)) is not None and w.ndim == 1 for r in node.inputs
    )


def _normalised(y: Ref) -> tuple[Ref, float] | None:
    """The operand and the epsilon of the normalisation that computes a value."""
    if y.node.type != "Mul":
        return None
    for x, inverse in either(y.node):
        inner = made_by(inverse, "Rsqrt")
        if inner is None and (root := made_by(inverse, "Reciprocal")) is not None:
            inner = made_by(root, "Sqrt")
        mean, epsilon = _plus(inner)
        square = made_by(mean, "ReduceMean")
        if square is None or mean is None or not mean.node.attrs.get("keep_dims", False):
            continue
        axes = constant(mean.node.inputs[1])
        if (
            axes is not None
            and [int(k) % len(x.shape) for k in axes.reshape(-1)] == [len(x.shape) - 1]
            and made_by(square, "Square") == x
        ):
            return x, epsilon
    return None


def _plus(x: Ref | None) -> tuple[Ref | None, float]:
    """The operand and the constant of an addition with a constant."""
    if x is None:
        return None, 0.0
    if x.node.type == "Adds":
        return x.node.inputs[0], float(x.node.attrs["value"])
    for inner, other in either(x.node) if x.node.type == "Add" else ():
        if (value := scalar(other)) is not None:
            return inner, value
    return None, 0.0


def _rms_node(e: Emitter, x: Ref, epsilon: float, gamma: Ref) -> Ref | None:
    if (
        not e.chip.has("RmsNorm")
        or gamma.dtype != x.dtype
        or x.shape[-1] * (2 if x.dtype != "FLOAT" else 4) < _LEAST_ROW
    ):
        return None
    if x.dtype not in ("FLOAT", "FLOAT16", "BF16"):
        return None
    stats = Desc("FLOAT", (*x.shape[:-1], 1))
    return e.op("RmsNorm", x, gamma, out=[x.desc, stats], epsilon=epsilon)[0]


def swiglu(e: Emitter, root: Node, users: Users) -> Ref | None:
    """`swish(x @ a) * (x @ b)` as one product with both matrices and SwiGlu."""
    if root.type != "Mul" or not e.chip.has("SwiGlu"):
        return None
    for gate, up in either(root):
        left, right = _gated(gate), up
        if left is None or left.node.type not in ("BatchMatMulV2", "MatMulV2") or left.node.type != right.node.type:
            continue
        (x, a, *more), (y, b, *others) = left.node.inputs, right.node.inputs
        weights = _weights(a), _weights(b)
        plain = not any((*more, *others)) and not any(left.node.attrs.values()) and not any(right.node.attrs.values())
        if (
            x != y
            or not plain
            or weights[0] is None
            or weights[1] is None
            or a is None
            or b is None
            or a.shape != b.shape
        ):
            continue
        alone = len(users[right.node]) == len(users[gate.node]) == 1
        if (
            len(a.shape) != 2
            or a.dtype != b.dtype
            or weights[0].dtype != weights[1].dtype
            or not alone
            or len(users[left.node]) > 1 + (gate.node.type == "Mul")
        ):
            continue
        both = e.cast(e.constant(np.concatenate([w for w in weights if w is not None], 1)), a.dtype)
        wide = Desc(left.dtype, (*left.shape[:-1], both.shape[1]))
        made = e.op(left.node.type, x, both, out=wide, **left.node.attrs)
        return e.op("SwiGlu", made, out=left.desc, dim=-1)
    return None


def _weights(v: Ref | None) -> np.ndarray | None:
    """A constant matrix as stored: one in half precision may be read as FLOAT."""
    return constant(v.node.inputs[0] if v is not None and v.node.type == "Cast" else v)


def _gated(v: Ref) -> Ref | None:
    """The operand of the swish that computes a value."""
    if v.node.type == "Swish":
        return v.node.inputs[0] if v.node.attrs.get("scale", 1.0) == 1.0 else None
    for x, gate in either(v.node) if v.node.type == "Mul" else ():
        if made_by(gate, "Sigmoid") == x:
            return x
    return None


def add_norms(e: Emitter) -> None:
    """Replace each RmsNorm of a sum of two tensors of its shape by AddRmsNorm.

    Readers of the sum read its third result.

    It takes the place of the Add, since nodes between the two may read the sum.
    """
    nodes = e.graph.nodes
    for norm in [n for n in nodes if n.type == "RmsNorm"] if e.chip.has("AddRmsNorm") else ():
        x, gamma = norm.inputs
        weights = _constants(gamma)
        if (
            x is None
            or x.node.type != "Add"
            or not weights
            or any(r is None or r.desc != x.desc for r in x.node.inputs)
        ):
            continue
        add = x.node
        made = e.op("AddRmsNorm", *add.inputs, gamma, out=[*norm.outputs, x.desc], **norm.attrs)
        node = made[0].node
        node.name, node.source = norm.name, (*add.source, *norm.source)
        through(e.graph, x, made[2])
        through(e.graph, Ref(norm), made[0])
        late = [n for n in nodes[nodes.index(add) :] if n in weights]  # others may read those that come before the Add
        moved = {*late, node, norm}
        nodes[:] = [m for n in nodes if n not in moved for m in ((*late, node) if n is add else (n,))]


def _constants(x: Ref | None) -> list[Node]:
    """The nodes that compute a constant, possibly stored as another type; none if it is not constant."""
    if x is None or x.node.type not in ("Cast", "Const"):
        return []
    return [x.node] if x.node.type == "Const" else [*_constants(x.node.inputs[0]), x.node]


RULES: tuple[Rule, ...] = (attention, rms_norm, rotary, swiglu)


def fuse(e: Emitter) -> None:
    """Fuse each matching group of a graph into one node.

    Nodes without readers stay until dead nodes are removed.
    """
    users = Users(e.graph)
    for root in list(e.graph.nodes):
        if not users[root]:
            continue
        start = len(e.graph.nodes)
        made = next(_tried(e, root, users), None)
        new = e.graph.nodes[start:]
        del e.graph.nodes[start:]
        if made is not None:
            at = e.graph.nodes.index(root)
            e.graph.nodes[at:at] = new
            through(e.graph, Ref(root), made)
            for node in new:
                node.source = root.source
            made.node.name, root.name = root.name, ""
            users = Users(e.graph)
    add_norms(e)


def _tried(e: Emitter, root: Node, users: Users) -> Iterator[Ref]:
    for rule in RULES:
        if (made := rule(e, root, users)) is not None:
            yield made

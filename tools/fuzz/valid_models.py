"""Small valid models, some of each operator, with inputs: what the fuzzer of misfits changes.

Those of ONNX are the node cases of its own suite, those of other domains the cases of the tests in tests/numeric.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper, parser

from occ.compiler.ir.dtype import from_numpy

_OF_AN_OPERATOR = 2  # cases that are taken
_LARGEST = 100_000  # elements of an operand
_TESTS = Path(__file__).parents[2] / "tests"


@dataclass(frozen=True)
class Valid:
    """A model and inputs for it.

    Attributes:
        name: of the case.
        model: the model; all its inputs are tensors, and no graph of it has types of outputs.
        feeds: an array for each input.
    """

    name: str
    model: ModelProto
    feeds: Mapping[str, np.ndarray]


@cache
def valid_models() -> tuple[Valid, ...]:
    """All of them, in an order that stays."""
    return (*_of_onnx(), *_of_tests(), *_written())


def of_tests(module: str) -> Any:
    """A module of the tests: what they know of models is not written twice."""
    for folder in (_TESTS, _TESTS / "numeric", _TESTS / "backend"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return import_module(module)


def _forget_outputs(model: ModelProto) -> None:
    for o in model.graph.output:
        o.CopyFrom(helper.make_empty_tensor_value_info(o.name))


def _usable(feeds: Mapping[str, Any]) -> bool:
    arrays = all(isinstance(x, (np.ndarray, np.generic)) for x in feeds.values())
    return arrays and sum(np.asarray(x).size for x in feeds.values()) <= _LARGEST


def _of_onnx() -> Iterator[Valid]:
    cases = sorted(of_tests("suite").node_cases(), key=lambda c: c.name)
    taken: dict[str, set[object]] = {}
    for c in cases:
        if "_expanded" in c.name or c.model.graph.node[0].domain == "ai.onnx.preview.training":
            continue
        names = [i.name for i in c.model.graph.input]
        feeds = dict(zip(names, c.data_sets[0][0], strict=True)) if c.data_sets else {}
        if len(feeds) != len(names) or not feeds or not _usable(feeds):
            continue
        operator = "-".join(n.op_type for n in c.model.graph.node)
        form = tuple(np.ndim(x) for x in feeds.values()), tuple(sorted(a.name for a in c.model.graph.node[0].attribute))
        if len(taken.setdefault(operator, set())) < _OF_AN_OPERATOR and form not in taken[operator]:
            taken[operator].add(form)
            model = ModelProto()
            model.CopyFrom(c.model)
            _forget_outputs(model)
            yield Valid(c.name.removeprefix("test_"), model, {n: np.asarray(x) for n, x in feeds.items()})


def _of_tests() -> Iterator[Valid]:
    """The cases of com.microsoft's operators in tests/numeric."""
    for module in ("test_contrib", "test_contrib_exported"):
        for case, (name, operands, attrs, n, *rest) in of_tests(module).CASES.items():
            constant = rest[1] if len(rest) > 1 else tuple(k for k in operands if k == "total")
            feeds = {k: v for k, v in operands.items() if not k.startswith("_") and k not in constant}
            if feeds and _usable(feeds):
                model = of_tests(module).model(name, operands, attrs, n, constant)
                _forget_outputs(model)
                yield Valid(case, model, feeds)


def _node(
    name: str, operands: Mapping[str, np.ndarray], results: int = 1, *, domain: str = "", opset: int = 23, case: str = "", **attrs: Any
) -> Valid:  # fmt: skip
    """A model of one node; operands named `_...` are constants."""
    node = helper.make_node(name, list(operands), [f"y{k}" for k in range(results)], domain=domain, **attrs)
    feeds = {k: v for k, v in operands.items() if not k.startswith("_")}
    infos = [helper.make_tensor_value_info(k, from_numpy(v.dtype).onnx, v.shape) for k, v in feeds.items()]
    graph = helper.make_graph(
        [node], name, infos, [helper.make_empty_tensor_value_info(o) for o in node.output],
        [numpy_helper.from_array(v, k) for k, v in operands.items() if k not in feeds],
    )  # fmt: skip
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return Valid(case or f"{name}-{opset}", helper.make_model(graph, opset_imports=sets, ir_version=10), feeds)


def _texts_and_functions() -> Iterator[Valid]:
    """Numbers that become texts which others look up, and functions with defaults and operator sets of their own."""
    head = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3, "my" : 1]>'
    x = np.array([[-1.5, 2.0, 0.25], [3.0, -4.0, 1.0]], np.float32)
    k = np.array([1, -2, 3])
    for case, text, feeds in (
        ("texts-of-numbers", "g (int64[3] k) => (y) { y = Cast<to = 8>(k) }", {"k": k}),
        ("texts-that-are-keys", """g (float[3] k) => (y) { s = Cast<to = 8>(k)
            y = ai.onnx.ml.LabelEncoder<keys_strings = ["0.1", "2.5"], values_int64s = [10, 20]>(s) }""",
         {"k": np.float32([0.1, 2.5, -0.3])}),
        ("texts-that-are-equal", """g (int64[3] k) => (y) { s = Cast<to = 8>(k)
            t = Constant<value_strings = ["1", "-2", "3"]>() y = Equal(s, t) }""", {"k": k}),
        ("default-of-a-function", """g (float[2,3] x) => (y) { y = my.f(x) }
            <opset_import: ["" : 20], domain: "my"> f <k: float = 0.5> (x) => (y) { y = Elu<alpha: float = @k>(x) }""", {"x": x}),
        ("axis-of-a-function", """g (float[2,3] x) => (y) { y = my.f(x) }
            <opset_import: ["" : 20], domain: "my"> f <k: int = 0> (x) => (y) { y = Softmax<axis: int = @k>(x) }""", {"x": x}),
        ("opset-of-a-function", """g (float[2,3] x, float[3] z) => (y) { y = my.f(x, z) }
            <opset_import: ["" : 18], domain: "my"> f (x, z) => (y) { y = Add(x, z) }""", {"x": x, "z": x[0]}),
    ):  # fmt: skip
        yield Valid(case, parser.parse_model(head + text), feeds)


def _written() -> Iterator[Valid]:
    """Operators, forms of old operator sets, texts and functions that neither has."""
    yield from _texts_and_functions()
    rng = np.random.default_rng(34)

    def f(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    ms = {"domain": "com.microsoft"}
    qkv = {"q": f(2, 5, 16), "k": f(2, 5, 16), "v": f(2, 5, 16)}
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    state = {"past": f(2, 2, 8, 8)}
    decay, beta = {"decay": -abs(f(2, 5, 2))}, {"beta": abs(f(2, 5, 2))}
    yield _node("LinearAttention", qkv | state, 2, update_rule="linear", case="linear", **heads, **ms)
    yield _node("LinearAttention", qkv | state | decay, 2, update_rule="gated", case="gated", **heads, **ms)
    yield _node(
        "LinearAttention", qkv | state | decay | beta, 2, update_rule="gated_delta", case="delta", **heads, **ms
    )
    experts = {"x": f(3, 8), "p": f(3, 4), "a": f(4, 12, 8), "b": f(4, 12), "c": f(4, 8, 12), "d": f(4, 8)}
    yield _node("MoE", experts, case="MoE", **ms)
    rois = np.array([[0, 0, 0, 3, 3], [1, 1, 1, 5, 4]], np.float32)
    yield _node("MaxRoiPool", {"x": f(2, 2, 6, 6), "r": rois}, pooled_shape=[2, 2])
    yield _node("AffineGrid", {"t": f(2, 2, 3), "_s": np.array([2, 1, 3, 4])}, case="AffineGrid-2d")
    yield _node("AffineGrid", {"t": f(2, 3, 4), "_s": np.array([2, 1, 3, 4, 5])}, case="AffineGrid-3d")
    yield _node("GroupNormalization", {"x": f(2, 4, 3), "s": f(2), "b": f(2)}, opset=18, num_groups=2)
    yield _node("BatchNormalization", {"x": f(2, 3, 4), "s": f(3), "b": f(3), "m": f(3), "v": abs(f(3))}, opset=9)
    yield _node("PRelu", {"x": f(2, 3, 4), "s": f(3)}, opset=6)
    yield _node("Add", {"x": f(2, 3, 4), "y": f(3)}, opset=6, axis=1, broadcast=1)
    yield _node("Softmax", {"x": f(2, 3, 4)}, opset=11, axis=1)
    yield _node("Upsample", {"x": f(1, 2, 3, 4), "_s": np.float32([1, 1, 2, 2])}, opset=9)
    yield _node("Tile", {"x": f(2, 3), "_n": np.float32(2), "_a": np.float32(1)}, opset=1)
    yield _node("LRN", {"x": f(2, 5, 3, 3)}, size=3)
    yield _node("Multinomial", {"x": abs(f(2, 3))}, sample_size=4)
    x, w, r, bias = f(5, 2, 3), f(1, 16, 3), f(1, 16, 4), f(1, 32)
    start = {"_n": np.array([5, 4], np.int32), "h": f(1, 2, 4), "c": f(1, 2, 4), "p": f(1, 12)}
    yield _node("LSTM", {"x": x, "w": w, "r": r, "b": bias} | start, 3, hidden_size=4, case="lstm-all")
    gru = {"x": x, "w": f(1, 12, 3), "r": f(1, 12, 4), "b": f(1, 24), "n": np.array([5, 4], np.int32), "h": f(1, 2, 4)}
    yield _node("GRU", gru, 2, hidden_size=4, case="gru-all")
    rnn = {"x": x, "w": f(1, 4, 3), "r": f(1, 4, 4), "b": f(1, 8), "n": np.array([5, 4], np.int32), "h": f(1, 2, 4)}
    yield _node("RNN", rnn, 2, hidden_size=4, case="rnn-all")

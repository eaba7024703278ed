"""Strings: expressions as RE2 reads them, and com.microsoft's Tokenizer, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import model_of
from onnx import TensorProto, helper

import occ

WORDS = np.array(["the quick, brown  fox", "", "äöü Straße ab", "a,b,,c ", "١٢ 12"], object)
TABLE = np.array([["  x", "yy zz"], ["", ",,,"]], object)


def _model(
    operator: str, rank: int, made: int = TensorProto.STRING, domain: str = "com.microsoft", **attrs: object
) -> bytes:
    node = helper.make_node(operator, ["x"], ["y"], domain=domain, **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", "m"][:rank])
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", made, None)])
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    "how",
    [
        {"separators": [" "]}, {"separators": [" ", ","]}, {"separators": [",", " +"]}, {"separators": [""]},
        {"separators": [" *"]}, {"separators": ["", "a"]}, {"separators": ["[ ,]"], "mincharnum": 2},
        {"tokenexp": "[a-z]+"}, {"tokenexp": "\\b\\w\\w+\\b", "mincharnum": 3}, {"tokenexp": "."}, {"tokenexp": "x*"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("x", [WORDS, TABLE], ids=["vector", "matrix"])
def test_tokens_are_those_of_onnxruntime(x: np.ndarray, how: dict[str, object], mark: int) -> None:
    model = _model("Tokenizer", x.ndim, **{"pad_value": "#", "mark": mark, "mincharnum": 1, **how})
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_array_equal(occ.compile(model, "interp").run({"x": x})["y"], wanted, strict=True)


@pytest.mark.parametrize(
    "how",
    [{"mincharnum": 1}, {"separators": [" "], "mincharnum": 0}, {"separators": [""], "mincharnum": 2},
     {"separators": [" "], "tokenexp": "a", "mincharnum": 1}],
)  # fmt: skip
def test_a_tokenizer_without_a_meaning_is_refused(how: dict[str, object]) -> None:
    with pytest.raises(occ.CompileError, match="OCC0107"):
        occ.compile(_model("Tokenizer", 1, pad_value="#", mark=0, **how), "interp")


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize("pattern", [r"\w+", r"\d+ \d+", r"[\w ]*", r".*\bab", r"[^\W\d]+", r"(?i)THE.*"])
def test_classes_know_ascii_alone(pattern: str, target: str) -> None:
    words = np.append(WORDS, ["Straße", "abc", "12 12", "١٢ 12"])
    model = _model("RegexFullMatch", 1, TensorProto.BOOL, "", pattern=pattern)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": words})
    np.testing.assert_array_equal(occ.compile(model, target).run({"x": words})["y"], wanted, strict=True)


@pytest.mark.parametrize("pattern", ["[[:alpha:]]+", "(?i)ä", "\\pL"])
def test_an_expression_that_python_reads_otherwise_is_refused(pattern: str) -> None:
    session = occ.compile(_model("RegexFullMatch", 1, TensorProto.BOOL, "", pattern=pattern), "interp")
    with pytest.raises(occ.RunError, match="the pattern"):
        session.run({"x": WORDS})


@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_texts_are_moved_without_compiling(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor expression on texts was interpreted in each run, which took sixty times as long as onnxruntime."""
    from occ.compiler.driver.deferred import DeferredCompiler

    compiled: list[str] = []
    known = DeferredCompiler.__init__

    def watched(self: DeferredCompiler, compile: Any, registry: Any, interpret: Any = None) -> None:  # noqa: A002
        known(self, lambda m: compiled.append(m.name) or compile(m), registry, interpret)

    monkeypatch.setattr(DeferredCompiler, "__init__", watched)
    text = """g (string[n, 3] x, int64[k] at) => (string[n, k] y, string[m, 1] z, string[3, n] t) {
        shape = Constant<value_ints = [-1, 1]>()
        y = Gather<axis = 1>(x, at)
        z = Reshape(x, shape)
        t = Transpose<perm = [1, 0]>(x)
    }"""
    session = occ.compile(model_of(text), target)
    x = np.array([["a", "b", "c"], ["", "ä", "日本"]], object)
    for at in ([0], [2, -1, 1], []):
        got = session.run({"x": x, "at": np.array(at, np.int64)})
        np.testing.assert_array_equal(got["y"], x[:, np.array(at, int)])
        np.testing.assert_array_equal(got["z"], x.reshape(-1, 1))
        np.testing.assert_array_equal(got["t"], x.T)
        assert {v.dtype.kind for v in got.values()} == {"O"}
    assert not compiled
    with pytest.raises(occ.RunError, match="Gather"):
        session.run({"x": x, "at": np.array([3], np.int64)})

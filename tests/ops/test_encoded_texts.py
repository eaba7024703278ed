"""Operators that compare texts with constants, which are compiled on places in a vocabulary, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from building import model_of

import occ

HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 4]>\n'
WORDS = ["a", "b", "ä", "", "b ", "c", "日本"]

MODELS = {
    "one-hot of columns": """g (string[n, 3] x) => (float[n, k] y) {
        zero = Constant <value_ints = [0]> ()
        two = Constant <value_ints = [2]> ()
        a = Gather <axis = 1> (x, zero)
        b = Gather <axis = 1> (x, two)
        p = ai.onnx.ml.OneHotEncoder <cats_strings = ["b", "a", "b"], zeros = 1> (a)
        q = ai.onnx.ml.OneHotEncoder <cats_strings = ["", "日本"], zeros = 1> (b)
        c = Concat <axis = -1> (p, q)
        s = Constant <value_ints = [-1, 5]> ()
        y = Reshape (c, s)
    }""",
    "labels of moved texts": """g (string[n, 3] x) => (int64[3, n] y, float[n, 3] z, int64[n, 3] k) {
        t = Transpose (x)
        y = ai.onnx.ml.LabelEncoder <keys_strings = ["b", "a", "b"], values_int64s = [4, 5, 6], default_int64 = -3> (t)
        z = ai.onnx.ml.LabelEncoder <keys_strings = ["ä"], values_floats = [1.5], default_float = 0.25> (x)
        k = ai.onnx.ml.CategoryMapper <cats_strings = ["c", "a", "c"], cats_int64s = [9, 8, 7], default_int64 = -7> (x)
    }""",
    "classes": """g (string[n, 3] x) => (int64[n, 3] y, int64[3, n] z) {
        y = ai.onnx.ml.LabelEncoder <classes_strings = ["b", "a", "b"], default_int64 = -3> (x)
        t = Transpose (x)
        z = ai.onnx.ml.LabelEncoder <classes_strings = ["c"], default_int64 = 9> (t)
    }""",
    "constants of other texts": """g (string[n, 3] x) => (bool[n, 3] e, float[2, 2] y, int64[2] z, int64[3, n] k) {
        c = Constant <value_strings = ["a"]> ()
        w = Constant <value_strings = ["q", "a"]> ()
        e = Equal (x, c)
        y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b"], zeros = 1> (w)
        z = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [5], default_int64 = -3> (w)
        t = Transpose (x)
        k = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [4], default_int64 = -3> (t)
    }""",
    "equal to a constant": """g (string[n, 3] x) => (bool[n, 3] y, bool[n, 1] z) {
        row = Constant <value_strings = ["a", "", "b "]> ()
        one = Constant <value_strings = ["c"]> ()
        y = Equal (x, row)
        p, q, r = Split <axis = 1, num_outputs = 3> (x)
        z = Equal (one, q)
    }""",
    "texts of two inputs": """g (string[n, 3] x, string[m, 3] w) => (int64[k, 3] y) {
        c = Concat <axis = 0> (x, w)
        y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [4, 5]> (c)
    }""",
    "texts that are used as such too": """g (string[n, 3] x) => (string[n, 3] y, int64[n, 3] z) {
        y = StringConcat (x, x)
        w = Identity (x)
        t = Transpose (y)
        u = Transpose (t)
        z = ai.onnx.ml.LabelEncoder <keys_strings = ["aa", "bb"], values_int64s = [4, 5]> (u)
    }""",
    "in a branch": """g (string[n, 3] x, bool c) => (bool[n, 3] y) {
        y = If (c) <
            then_branch = a () => (bool[n, 3] p) {
                row = Constant <value_strings = ["a", "", "b "]> ()
                p = Equal (x, row)
            },
            else_branch = b () => (bool[n, 3] q) {
                t = Transpose (x)
                u = Transpose (t)
                one = Constant <value_strings = ["c"]> ()
                q = Equal (u, one)
            }>
    }""",
}


def inputs_of(name: str, rows: int) -> list[dict[str, np.ndarray]]:
    made = {"x": np.array([WORDS[k % 7] for k in range(3 * rows)], object).reshape(rows, 3)}
    if "two" in name:
        return [{**made, "w": made["x"][:1]}, {**made, "w": made["x"][::-1]}]
    return [{**made, "c": np.array(c)} for c in (True, False)] if "branch" in name else [made]


@pytest.mark.parametrize("target", ["cpu-jit", "cpu", "interp"])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_onnxruntime(name: str, target: str) -> None:
    head = HEAD.replace("4]", "1]") if name == "classes" else HEAD
    model = model_of(head + MODELS[name])
    session, theirs = occ.compile(model, target, threads=1), onnxruntime.InferenceSession(model.SerializeToString())
    for inputs in (i for rows in (1, 4, 7, 0) for i in inputs_of(name, rows)):
        if not inputs["x"].size and "two" in name:
            continue  # the last row of none
        for y, wanted in zip(session.run(inputs).values(), theirs.run(None, inputs), strict=True):
            np.testing.assert_array_equal(y, wanted, strict=y.dtype != object)


@pytest.mark.parametrize(
    ("name", "most"), [("one-hot of columns", 1), ("labels of moved texts", 1), ("equal to a constant", 1)]
)
def test_the_host_looks_texts_up_once(name: str, most: int) -> None:
    plan = occ.compile(model_of(HEAD + MODELS[name]), "cpu-jit").artifact.manifest.plan
    assert [s.kind for s in plan.steps if s.kind != "kernel"] == ["host"] * most


def test_texts_of_other_kinds() -> None:
    session = occ.compile(model_of(HEAD + MODELS["equal to a constant"]), "cpu-jit")
    x = np.array([["a", "x", "b "], ["c", "c", "c"]])
    wanted = [[True, False, True], [False] * 3]
    for given in (x, x.astype(object), np.char.encode(x).astype(object), np.asfortranarray(x.astype(object))):
        np.testing.assert_array_equal(session.run({"x": given})["y"], wanted)
    with pytest.raises(occ.RunError, match="an element of the input `x` is int"):
        session.run({"x": np.array([["a", 3, "b"]], object)})

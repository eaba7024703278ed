"""Nodes of ai.onnx.ml compared with onnxruntime: every operator, its old forms, element types and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TypeProto, helper, numpy_helper

import occ
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import load_module
from occ.compiler.ir.printer import module_text

onnxruntime.set_default_logger_severity(4)
TARGETS = ("interp", "cpu-jit")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
ONNX = {"f": 1, "d": 11, "l": 7, "i": 6, "O": 8, "e": 10, "h": 5}


def model_of(operator: str, types: list[TypeProto], results: int, version: int, attrs: dict[str, Any]) -> ModelProto:
    inputs = [helper.make_value_info(f"x{k}", t) for k, t in enumerate(types)]
    outputs = [helper.make_empty_tensor_value_info(f"y{k}") for k in range(results)]
    names = [i.name for i in inputs], [o.name for o in outputs]
    node = helper.make_node(operator, *names, domain="ai.onnx.ml", **attrs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)


def compare(model: ModelProto, *feeds: Any) -> None:
    given = {f"x{k}": x for k, x in enumerate(feeds)}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, given)
    for target in TARGETS:
        for got, expected in zip(occ.compile(model, target).run(given).values(), wanted, strict=True):
            assert got.shape == expected.shape
            if expected.dtype == object:
                assert got.tolist() == expected.tolist()
            else:
                assert got.dtype == expected.dtype
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def check(operator: str, *xs: np.ndarray, results: int = 1, version: int = 3, **attrs: Any) -> None:
    types = [helper.make_tensor_type_proto(ONNX[x.dtype.char], x.shape) for x in xs]
    compare(model_of(operator, types, results, version, attrs), *xs)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def listed(*shape: int, seed: int = 1) -> list[float]:
    return normal(*shape, seed=seed).ravel().tolist()


def text(*words: str) -> np.ndarray:
    return np.array(words, object)


NUMBERS = [normal(3, 4), normal(4), normal(3, 4).astype(np.float64), (normal(3, 4) * 9).astype(np.int64), normal(0, 4)]


@pytest.mark.thinned
@pytest.mark.parametrize("x", NUMBERS, ids=lambda x: f"{x.dtype}{list(x.shape)}")
def test_arithmetic(x: np.ndarray) -> None:
    check("Scaler", x, offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 1.0, 2.0, 3.0])
    check("Scaler", x, offset=[1.0], scale=[2.0])
    for norm in ("MAX", "L1", "L2"):
        check("Normalizer", x, norm=norm)
    check("FeatureVectorizer", x, inputdimensions=[4])
    check("OneHotEncoder", x, cats_int64s=[0, 1, 2, 5])
    check("ArrayFeatureExtractor", x, np.array([[1, 3, 1]]))
    if x.dtype == np.float32:  # onnxruntime has no kernels for the others
        check("Binarizer", x, threshold=0.3)
        check("LinearRegressor", x, coefficients=listed(8), intercepts=[1.0, 2.0], targets=2)


def test_rows_of_zero_and_missing_values() -> None:
    x = normal(3, 4)
    x[1] = 0
    for norm in ("MAX", "L1", "L2"):
        check("Normalizer", x, norm=norm)
    x[0, 1], x[2] = np.nan, 7
    check("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan"))
    check("Imputer", x, imputed_value_floats=[9.0], replaced_value_float=7.0)
    check("Imputer", np.arange(12).reshape(3, 4), imputed_value_int64s=[5, 6, 7, 8], replaced_value_int64=3)


@pytest.mark.thinned
@pytest.mark.parametrize("how", TRANSFORMS)
def test_linear(how: str) -> None:
    x = normal(5, 4)
    check("LinearRegressor", x, coefficients=listed(8), intercepts=[0.1, 0.2], targets=2, post_transform=how)
    three = {"coefficients": listed(12), "intercepts": [0.1, 0.2, 0.3], "post_transform": how}
    check("LinearClassifier", x, results=2, classlabels_ints=[5, 6, 9], **three)
    check("LinearClassifier", x, results=2, classlabels_strings=["u", "v", "w"], **three)
    two = {"coefficients": listed(8), "intercepts": [0.1, 0.2], "post_transform": how}
    check("LinearClassifier", x, results=2, classlabels_ints=[0, 1], **two)


def test_features() -> None:
    for x in (normal(3, 4), normal(4), normal(2, 3, 4), np.arange(12).reshape(3, 4), text("a", "b", "c", "d")):
        check("ArrayFeatureExtractor", x, np.array([0, 2]))
    check("FeatureVectorizer", normal(3, 2), normal(3, 3), normal(3, 1), inputdimensions=[2, 3, 1])
    check("FeatureVectorizer", normal(3, 2), normal(3, 3), inputdimensions=[3, 2])
    check("OneHotEncoder", np.array([["a", "q"], ["b", "a"]], object), cats_strings=["a", "b"])


def test_tables() -> None:
    words, numbers = text("a", "q", "b"), np.array([[3, 4], [9, 3]])
    pairs: dict[str, Any] = {"cats_strings": ["a", "b"], "cats_int64s": [3, 4]}
    check("CategoryMapper", words, default_int64=-7, **pairs)
    check("CategoryMapper", numbers, default_string="none", **pairs)
    check("LabelEncoder", words, version=1, classes_strings=["a", "b"], default_int64=-7)
    check("LabelEncoder", np.array([0, 1, 9]), version=1, classes_strings=["a", "b"], default_string="none")
    for version in (2, 4):
        check("LabelEncoder", numbers, version=version, keys_int64s=[3, 4, 3], values_floats=[0.5, 0.25, 0.1])
        check("LabelEncoder", numbers, version=version, keys_int64s=[3, 4], values_strings=["p", "q"])
        check("LabelEncoder", words, version=version, keys_strings=["a", "b"], values_int64s=[7, 8])
        check("LabelEncoder", normal(3), version=version, keys_floats=[1.0, 2.0], values_int64s=[7, 8])
    missing = np.array([1, np.nan, 9], np.float32)
    check("LabelEncoder", missing, version=4, keys_floats=[1.0, float("nan")], values_int64s=[7, 8])
    tensors = [
        numpy_helper.from_array(x) for x in (text("a", "b"), np.array([1, 2], np.int16), np.array([7], np.int16))
    ]
    names = ("keys_tensor", "values_tensor", "default_tensor")
    check("LabelEncoder", words, version=4, **dict(zip(names, tensors, strict=True)))


@pytest.mark.thinned
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    x = normal(6, 3)
    given: dict[str, Any] = {"kernel_params": [0.4, 0.1, 2.0], "kernel_type": kernel, "post_transform": "NONE"}
    two: dict[str, Any] = {"coefficients": [0.5, -0.3], "support_vectors": listed(6), "n_supports": 2, "rho": [0.2]}
    check("SVMRegressor", x, **two, **given)
    check("SVMRegressor", x, one_class=1, **two, **given)
    three = {"coefficients": listed(8), "support_vectors": listed(12), "vectors_per_class": [1, 2, 1], **given}
    for more in ({}, {"prob_a": [-1.0, -2.0, -1.5], "prob_b": [0.1, 0.2, 0.3]}):
        check("SVMClassifier", x, results=2, rho=[0.2, 0.1, -0.1], classlabels_ints=[3, 4, 8], **three, **more)
    linear: dict[str, Any] = {"kernel_params": [0.0] * 3, "kernel_type": "LINEAR", "post_transform": "NONE"}
    check("SVMRegressor", x, coefficients=[0.5, -0.3, 0.1], rho=[0.2], **linear)
    check(
        "SVMClassifier",
        x,
        results=2,
        coefficients=listed(9),
        rho=[0.2],
        classlabels_ints=[1, 2, 3],
        **linear,
    )


def trees(mode: str = "BRANCH_LEQ", missing: int = 0) -> dict[str, Any]:
    """Two trees of three and of two leaves, which are the nodes 1, 3, 4 and 1, 2."""
    return {
        "nodes_treeids": [0] * 5 + [1] * 3, "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 0, 1, 0, 0, 2, 0, 0], "nodes_values": [0.1, 0, -0.2, 0, 0, 0, 0, 0],
        "nodes_modes": [mode, "LEAF", mode, "LEAF", "LEAF", mode, "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [missing] * 8,
    }  # fmt: skip


def tree_rows() -> np.ndarray:
    x = normal(20, 3)
    x[3, 0], x[4], x[5, 0] = np.nan, 0, np.float32(0.1)
    return x


@pytest.mark.thinned
@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
def test_tree_regressor(mode: str) -> None:
    leaves: dict[str, Any] = {"target_treeids": [0, 0, 0, 1, 1], "target_nodeids": [1, 3, 4, 1, 2]}
    leaves["target_weights"] = [0.5, -1.0, 2.0, 0.25, -0.75]
    for missing in (0, 1):
        for how in ("SUM", "AVERAGE", "MIN", "MAX"):
            given = {**trees(f"BRANCH_{mode}", missing), **leaves, "aggregate_function": how}
            check("TreeEnsembleRegressor", tree_rows(), n_targets=2, target_ids=[0, 1, 0, 1, 0], **given)
            check("TreeEnsembleRegressor", tree_rows(), n_targets=1, target_ids=[0] * 5, base_values=[0.3], **given)


@pytest.mark.thinned
@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("weights", [[0.5, 0.1, 0.2, 0.25, 0.75], [0.5, -1.0, 2.0, 0.25, -0.75]])
def test_tree_classifier(how: str, weights: list[float]) -> None:
    leaves = {"class_treeids": [0, 0, 0, 1, 1], "class_nodeids": [1, 3, 4, 1, 2], "class_weights": weights}
    given: dict[str, Any] = {**trees(), **leaves, "post_transform": how}
    for x in (tree_rows(), tree_rows().astype(np.float64)):
        if how in ("NONE", "LOGISTIC"):  # onnxruntime leaves out the others where two classes share a score
            check("TreeEnsembleClassifier", x, results=2, class_ids=[0] * 5, classlabels_int64s=[4, 5], **given)
            more = {"class_ids": [0] * 5, "classlabels_int64s": [4, 5], "base_values": [0.1]}
            check("TreeEnsembleClassifier", x, results=2, **more, **given)
        check("TreeEnsembleClassifier", x, results=2, class_ids=[1] * 5, classlabels_strings=["n", "p"], **given)
        more = {"class_ids": [0, 1, 2, 0, 1], "classlabels_int64s": [4, 5, 6], "base_values": [2.1, 2.2, 2.3]}
        check("TreeEnsembleClassifier", x, results=2, **more, **given)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", range(4))
def test_tree_ensemble(dtype: Any, how: int) -> None:
    splits, weights = (numpy_helper.from_array(np.array(v, dtype)) for v in ([0.1, -0.2, 0], [1, 2, 3, 4, 5]))
    check(
        "TreeEnsemble", tree_rows().astype(dtype), version=5, n_targets=2, tree_roots=[0, 2], nodes_featureids=[0, 1, 2],
        nodes_modes=numpy_helper.from_array(np.array([0, 1, 3], np.uint8)), nodes_splits=splits, leaf_weights=weights,
        nodes_truenodeids=[1, 0, 2], nodes_trueleafs=[0, 1, 1], nodes_falsenodeids=[3, 1, 4], nodes_falseleafs=[1, 1, 1],
        leaf_targetids=[0, 1, 0, 1, 0], aggregate_function=how, nodes_missing_value_tracks_true=[1, 0, 1],
    )  # fmt: skip


def map_model(operator: str, key: int, value: int, **attrs: Any) -> ModelProto:
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    return model_of(operator, [kind], 1, 1, attrs)


def test_maps() -> None:
    x = {3: 1.5, 1: 2.25}
    for to in ("TO_FLOAT", "TO_INT64", "TO_STRING"):
        compare(map_model("CastMap", 7, 1, cast_to=to), x)
        compare(map_model("CastMap", 7, 1, cast_to=to, map_form="SPARSE", max_map=6), x)
    compare(map_model("DictVectorizer", 8, 1, string_vocabulary=["q", "b", "a"]), {"a": 1.5, "q": 2.0})


def test_text_of_a_map_is_read_back() -> None:
    made = module_text(load_module(map_model("DictVectorizer", 8, 1, string_vocabulary=["a"])))
    assert "map<str,f32[]>" in made
    assert module_text(load_module(made)) == made


def test_damaged_trees_are_refused() -> None:
    types = [helper.make_tensor_type_proto(1, [2, 3])]
    leaves = {"target_treeids": [0], "target_nodeids": [1], "target_ids": [0], "target_weights": [1.0], "n_targets": 1}
    circle = {**trees(), **leaves, "nodes_truenodeids": [0] * 8, "nodes_falsenodeids": [0] * 8}
    far = {**trees(), **leaves, "nodes_featureids": [9] * 8}
    lost = {**trees(), **leaves, "nodes_truenodeids": [77] * 8}
    for attrs, said in ((circle, "has a cycle"), (far, "outside of the 3"), (lost, "no node 77")):
        model = model_of("TreeEnsembleRegressor", types, 1, 3, attrs)
        for target in TARGETS:
            with pytest.raises(CompileError, match=f"OCC0107.*{said}"):
                occ.compile(model, target)

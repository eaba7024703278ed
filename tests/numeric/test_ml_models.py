"""Models of scikit-learn, converted by skl2onnx, compared with onnxruntime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import occ

pytest.importorskip("skl2onnx", reason="skl2onnx, of the dev extra, makes the models")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onnxruntime
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import (
        DictionaryType,
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )
    from sklearn import (
        datasets,
        ensemble,
        feature_extraction,
        impute,
        linear_model,
        neighbors,
        preprocessing,
        svm,
        tree,
    )

TARGETS = ("interp", "cpu-jit")
CLASSIFIERS: dict[str, Any] = {
    "logistic": lambda: linear_model.LogisticRegression(max_iter=300),
    "ridge": linear_model.RidgeClassifier,
    "forest": lambda: ensemble.RandomForestClassifier(10, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=6, random_state=0),
    "tree": lambda: tree.DecisionTreeClassifier(random_state=0),
    "svc": svm.SVC,
    "svc_probability": lambda: svm.SVC(probability=True, random_state=0),
    "svc_poly": lambda: svm.SVC(kernel="poly"),
    "svc_sigmoid": lambda: svm.SVC(kernel="sigmoid"),
    "linear_svc": svm.LinearSVC,
    "neighbours": neighbors.KNeighborsClassifier,
}
REGRESSORS: dict[str, Any] = {
    "linear": linear_model.LinearRegression,
    "forest": lambda: ensemble.RandomForestRegressor(8, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=6, random_state=0),
    "svr": svm.SVR,
    "svr_poly": lambda: svm.SVR(kernel="poly"),
    "tree": lambda: tree.DecisionTreeRegressor(random_state=0),
}
TRANSFORMERS: dict[str, Any] = {
    "standard": preprocessing.StandardScaler,
    "robust": preprocessing.RobustScaler,
    "min_max": preprocessing.MinMaxScaler,
    "l1": lambda: preprocessing.Normalizer("l1"),
    "l2": lambda: preprocessing.Normalizer("l2"),
    "binarizer": lambda: preprocessing.Binarizer(threshold=2.0),
    "imputer": impute.SimpleImputer,
}


def iris() -> tuple[np.ndarray, np.ndarray]:
    x, y = datasets.load_iris(return_X_y=True)
    return x.astype(np.float32), y


def converted(model: Any, x: Any, y: Any, kind: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y) if y is not None else model.fit(x)
        more = {"options": {id(model): options}} if options else {}
        return convert_sklearn(model, initial_types=[("X", kind)], target_opset={"": 18, "ai.onnx.ml": 3}, **more)


def compare(model: Any, x: Any) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"X": x}), strict=True))
    for target in TARGETS:
        got = occ.compile(model, target).run({"X": x})
        for name, expected in wanted.items():
            same(got[name], expected)


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert [list(g) for g in got] == [list(e) for e in expected]
        np.testing.assert_allclose(
            [list(g.values()) for g in got], [list(e.values()) for e in expected], rtol=1e-4, atol=1e-5
        )
        return
    assert got.shape == expected.shape
    if expected.dtype.kind in "OU":
        assert got.astype(str).tolist() == expected.astype(str).tolist()
        return
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1, float(np.abs(expected).max(initial=0))))


@pytest.mark.thinned
@pytest.mark.parametrize("labels", ["numbers", "two", "strings"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name: str, labels: str) -> None:
    x, y = iris()
    y = {"numbers": y, "two": (y > 0).astype(np.int64), "strings": np.array(["a", "b", "c"])[y]}[labels]
    model = CLASSIFIERS[name]()
    with_maps = {} if name in ("ridge", "linear_svc") else {"zipmap": labels == "strings"}
    made = converted(model, x, y, FloatTensorType([None, 4]), **with_maps)
    compare(made, (x + np.random.RandomState(0).randn(*x.shape) * 0.3).astype(np.float32))


@pytest.mark.thinned
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressor(name: str) -> None:
    x, y = datasets.load_diabetes(return_X_y=True)
    x = x.astype(np.float32)
    compare(converted(REGRESSORS[name](), x, y, FloatTensorType([None, 10])), x)


@pytest.mark.thinned
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer(name: str) -> None:
    x, y = iris()
    if name == "imputer":
        x = np.where(np.random.RandomState(0).rand(*x.shape) < 0.1, np.float32("nan"), x)
    compare(converted(TRANSFORMERS[name](), x, y, FloatTensorType([None, 4])), x)


def test_categories() -> None:
    words = np.array([["a", "x"], ["b", "y"], ["c", "x"]], object)
    for encoder in (preprocessing.OneHotEncoder(handle_unknown="ignore"), preprocessing.OrdinalEncoder()):
        compare(converted(encoder, words, None, StringTensorType([None, 2])), words)
    numbers = np.array([[1, 2], [3, 4], [5, 2]])
    compare(converted(preprocessing.OneHotEncoder(), numbers, None, Int64TensorType([None, 2])), numbers)
    compare(converted(preprocessing.LabelEncoder(), np.array(["a", "b"]), None, StringTensorType([None])), words[:2, 0])


def test_map_input() -> None:
    vectorizer = feature_extraction.DictVectorizer()
    kind = DictionaryType(StringTensorType([1]), FloatTensorType([]))
    model = converted(vectorizer, [{"a": 1.0, "b": 2.0}, {"c": 3.0}], None, kind)
    compare(model, {"a": 5.0, "c": 2.0})
    for target in TARGETS:
        compiled = occ.compile(model, target)
        with pytest.raises(occ.RunError, match=r"OCC0501.*the model takes map of f32"):
            compiled.run({"X": np.zeros(3, np.float32)})
        with pytest.raises(occ.RunError, match=r"OCC0501.*the value of 'a'"):
            compiled.run({"X": {"a": "text"}})

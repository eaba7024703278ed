"""Forests with symbolic batches on all targets, compared with onnxruntime: bit for bit, since both add up in order."""

from __future__ import annotations

import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import occ
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.frontend.text import parse
from occ.compiler.ir.printer import module_text, weight_bytes
from occ.compiler.ir.trees import EQ, GTE, LEAF, LEQ, LT, MEMBER, NEQ, Trees, pack
from occ.compiler.native_entry.read_routines import host_steps
from occ.compiler.targets.registry import OWN
from occ.runtime.open import open_artifact
from occ.runtime.session import Session

FEATURES = 4


def forest(
    modes: list[str], depths: list[int], *, targets: int, spread: bool, missing: int, chain: bool = False
) -> dict[str, Any]:
    """Unbalanced trees: a node below the root may be a leaf, and in a `chain` one of each pair is. `spread`: leaves give to
    several targets.
    """
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {k: [] for k in ("tree", "node", "mode", "feature", "value", "yes", "no", "nan")}
    leaves: list[tuple[int, int, int, float]] = []
    for tree, depth in enumerate(depths):
        waiting, count = [(0, 0)], 1
        while waiting:
            node, level = waiting.pop()
            is_leaf = level == depth or ((node % 2 == level % 2 if chain else rng.random() < 0.2) and level > 0)
            yes, no = (0, 0) if is_leaf else (count, count + 1)
            count += 0 if is_leaf else 2
            waiting += [] if is_leaf else [(yes, level + 1), (no, level + 1)]
            mode = "LEAF" if is_leaf else f"BRANCH_{rng.choice(modes)}"
            feature, split = int(rng.integers(FEATURES)), float(rng.integers(-2, 3))
            row = (tree, node, mode, feature, split, yes, no, missing and int(rng.integers(2)))
            for column, v in zip(columns.values(), row, strict=True):
                column.append(v)
            if is_leaf:
                for target in range(targets) if spread else [tree % targets]:
                    leaves.append((tree, node, target, float(np.float32(rng.standard_normal()))))
    ids = dict(zip(("treeids", "nodeids", "ids", "weights"), map(list, zip(*leaves, strict=True)), strict=True))
    names = (
        "treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true",
    )  # fmt: skip
    nodes = {f"nodes_{n}": v for n, v in zip(names, columns.values(), strict=True)}
    return {**nodes, **{f"target_{n}": v for n, v in ids.items()}, "n_targets": targets}


def model(attrs: dict[str, Any], operator: str = "TreeEnsembleRegressor", elem: int = 1) -> ModelProto:
    node = helper.make_node(operator, ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    x, y = (
        helper.make_tensor_value_info(n, e, ["n", k])
        for n, e, k in (("x", elem, FEATURES), ("y", 1, attrs["n_targets"]))
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=9)


def reference(made: ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime on one thread: several share the trees of a batch, and add up what each has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def rows(n: int) -> np.ndarray:
    """Numbers of which many are those that nodes compare with, or missing."""
    rng = np.random.default_rng(n)
    x = rng.integers(-2, 3, (n, FEATURES)).astype(np.float32) + rng.choice([0, 0, 0.25, -1e-7], (n, FEATURES)).astype(
        np.float32
    )
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.02] = -np.inf
    x[rng.random(x.shape) < 0.02] = np.inf
    return x


FORESTS = {
    "one target": forest(["LEQ"], [3, 5, 1, 0, 7], targets=1, spread=False, missing=0),
    "a tree": forest(["LEQ"], [4], targets=1, spread=False, missing=0),
    "a stump": forest(["LEQ"], [1], targets=3, spread=True, missing=1),
    "of xgboost": forest(["LT"], [6] * 9, targets=1, spread=False, missing=1),
    "a target a tree": forest(["LEQ"], [4] * 12, targets=3, spread=False, missing=0),
    "few trees of a target": forest(["LEQ", "LT"], [3] * 4, targets=3, spread=False, missing=1),
    "all targets": forest(["LEQ"], [2, 6], targets=5, spread=True, missing=0),
    "all modes": forest(["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"], [5] * 6, targets=2, spread=True, missing=1),
    "deep": forest(["LEQ"], [40, 2], targets=1, spread=False, missing=0, chain=True),
}  # fmt: skip


ON_CPU = ("a tree", "a stump", "of xgboost", "a target a tree", "few trees of a target", "all targets")


@pytest.mark.parametrize(
    ("case", "target"), [*((c, t) for c in FORESTS for t in ("interp", "cpu-jit")), *((c, "cpu") for c in ON_CPU)]
)
def test_forests_of_any_batch(case: str, target: str) -> None:
    made = model(FORESTS[case])
    artifact = occ.build(made, target=target)
    session = occ.compile(made, target) if target == "interp" else open_artifact(artifact, 2)
    other = reference(made)
    for n in (0, 1, 3, 33, 200):
        x = rows(n)
        got = session.run({"x": x})["y"]
        if n:  # onnxruntime refuses none
            np.testing.assert_array_equal(got, other.run(None, {"x": x})[0])
        else:
            assert got.shape == (0, FORESTS[case]["n_targets"])
    if target != "interp":
        assert not host_steps(artifact.manifest)


@pytest.mark.parametrize(("case", "n"), [("a target a tree", 33), ("few trees of a target", 5)])
def test_forests_of_fixed_batches(case: str, n: int) -> None:
    """Rows that are not multiples of a block of them, and less than one."""
    made, x = model(FORESTS[case]), rows(n)
    right = reference(made).run(None, {"x": x})[0]
    for target in ("cpu", "cpu-jit"):
        with open_artifact(occ.build(made, target, shapes={"x": x.shape}), 2) as session:
            np.testing.assert_array_equal(session.run({"x": x})["y"], right)


def test_rows_of_f64_are_compared_as_such() -> None:
    attrs = FORESTS["of xgboost"]
    x = rows(100).astype(np.float64)
    x[::3] += 1e-12
    made = model(attrs, elem=11)
    right = reference(made).run(None, {"x": x})[0]
    for target in ("interp", "cpu-jit"):
        np.testing.assert_allclose(occ.compile(made, target).run({"x": x})["y"], right, rtol=1e-6, atol=1e-6)


def lone(mode: int, split: float, *, nan_is_yes: bool, members: tuple[float, ...] = ()) -> Trees:
    """One node, with 1 for yes and 2 for no."""
    made = (np.array(v) for v in ([mode, LEAF, LEAF], [0, 0, 0], [split, 0.0, 0.0], [1, 0, 0], [2, 0, 0]))
    leaf = (np.array([1, 2]), np.array([0, 0]), np.array([1.0, 2.0]))
    return Trees(*made, np.array([nan_is_yes] * 3), np.array([0]), *leaf, {0: np.array(members)})


NUMBERS = np.array([-np.inf, -1e30, -1, -1e-45, -0.0, 0.0, 1e-45, 1, np.nextafter(np.float32(1), np.float32(2)), 2.5, np.inf, np.nan], np.float32)  # fmt: skip
COMPARE = {LEQ: np.less_equal, LT: np.less, GTE: np.greater_equal, 3: np.greater, EQ: np.equal, NEQ: np.not_equal}


@pytest.mark.parametrize("nan_is_yes", [False, True])
def test_every_comparison_is_one_below_or_equal(nan_is_yes: bool) -> None:
    splits = [*NUMBERS.astype(np.float64), 1 + 1e-12, 1 - 1e-12, 1e300, -1e300, 1e-300]
    for mode, compare in COMPARE.items():
        for split in splits:
            goes = compare(NUMBERS.astype(np.float64), split) | (np.isnan(NUMBERS) & nan_is_yes)
            assert walked(lone(mode, split, nan_is_yes=nan_is_yes)) == np.where(goes, 1, 2).tolist(), (mode, split)
    members = (1.0, -np.inf, 0.0, 7.0, 2.5)
    goes = np.isin(NUMBERS, members) | (np.isnan(NUMBERS) & nan_is_yes)
    assert walked(lone(MEMBER, 0, nan_is_yes=nan_is_yes, members=members)) == np.where(goes, 1, 2).tolist()


def walked(t: Trees) -> list[float]:
    """What `NUMBERS` come to, by the rules that the op `forest` states."""
    p = pack(t, np.dtype(np.float32), 1, "SUM")
    found: list[float] = []
    for value in NUMBERS:
        at = 0
        for _ in range(p.depth):
            x = np.float32(-np.inf) if p.missing and p.features[at] % 2 and np.isnan(value) else value
            at = int(p.links[at]) + (not x <= p.splits[at])
        found.append(float(p.weights[at, 0]))
    return found


def test_categories_are_a_search() -> None:
    sets = np.array([1.0, 3.0, np.nan, *range(20), np.nan], np.float32)
    tensors = {
        "nodes_modes": np.array([6, 6], np.uint8), "nodes_splits": np.zeros(2, np.float32),
        "membership_values": sets, "leaf_weights": np.array([1, 2, 4], np.float32),
    }  # fmt: skip
    attrs = {k: numpy_helper.from_array(v) for k, v in tensors.items()}
    made = model({**attrs, "n_targets": 1, "tree_roots": [0], "nodes_featureids": [0, 1], "nodes_truenodeids": [0, 1], "nodes_trueleafs": [1, 1], "nodes_falsenodeids": [1, 2], "nodes_falseleafs": [0, 1], "leaf_targetids": [0, 0, 0], "aggregate_function": 1}, "TreeEnsemble")  # fmt: skip
    made.opset_import[1].version = 5
    x = np.random.default_rng(0).integers(-2, 25, (50, FEATURES)).astype(np.float32)
    first, second = np.isin(x[:, 0], [1, 3]), np.isin(x[:, 1], np.arange(20))
    for target in ("interp", "cpu-jit"):
        got = occ.compile(made, target).run({"x": x})["y"][:, 0]
        np.testing.assert_array_equal(got, np.where(first, 1, np.where(second, 2, 4)))


def test_folds_are_read_as_they_are_written(tmp_path: Path) -> None:
    m = Compilation(model(FORESTS["deep"]), Settings("cpu", verify=True)).advance("scheduled")
    text = module_text(m, "w.bin")
    assert "settle[" in text
    (tmp_path / "w.bin").write_bytes(b"".join(bytes(p) for p in weight_bytes(m)))
    again = parse(text, path=tmp_path / "m.occ")
    assert again.te == m.te
    assert module_text(again, "w.bin") == text


@pytest.mark.toolchain
def test_a_target_of_a_package_writes_folds_in_its_own_language(monkeypatch: pytest.MonkeyPatch):
    """The guide's, in plain C: the walk down a tree, and the sum of trees in their order."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugin"))
    monkeypatch.setitem(OWN, "toy-c", EntryPoint("toy-c", "occ_toy.target:TOY", "occ.targets"))
    made, x = model(forest(["LEQ"], [6] * 20, targets=1, spread=False, missing=0)), rows(7)
    (want,) = reference(made).run(None, {"x": x})
    np.testing.assert_array_equal(occ.compile(made, "toy-c").run({"x": x})["y"], want)


def chains(trees: int, depth: int) -> dict[str, Any]:
    """Trees of which each inner node has a leaf: numbers up to its own leave the chain there."""
    inner, leaf = range(depth), range(depth, 2 * depth + 1)
    one: dict[str, list[Any]] = {
        "nodeids": [*inner, *leaf], "modes": ["BRANCH_LEQ"] * depth + ["LEAF"] * len(leaf),
        "featureids": [0] * (2 * depth + 1), "values": [float(k) for k in inner] + [0.0] * len(leaf),
        "truenodeids": [*leaf[:-1], *[0] * len(leaf)], "falsenodeids": [*inner[1:], leaf[-1], *[0] * len(leaf)],
    }  # fmt: skip
    nodes = {f"nodes_{n}": v * trees for n, v in one.items()}
    ids = [t for t in range(trees) for _ in leaf]
    given = {
        "treeids": ids,
        "nodeids": [*leaf] * trees,
        "ids": [0] * len(ids),
        "weights": [float(k) for k in leaf] * trees,
    }
    owners = [t for t in range(trees) for _ in range(2 * depth + 1)]
    return {**nodes, "nodes_treeids": owners, **{f"target_{n}": v for n, v in given.items()}, "n_targets": 1}


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("trees", [3, 8, 11])
def test_rows_that_come_to_a_leaf_early_take_no_more_steps(trees: int, target: str) -> None:
    """Leaves of one level and of 900: steps that change nothing would cost as much as those that do."""
    made = model(chains(trees, 900))
    near, far = (np.full((40, FEATURES), v, np.float32) for v in (-1, 1e6))
    with open_artifact(occ.build(made, target), 1) as session:
        for x in (near, far):
            np.testing.assert_array_equal(session.run({"x": x})["y"], reference(made).run(None, {"x": x})[0])
        took = [min(seconds(session, x) for _ in range(5)) for x in (near, far)]
    assert took[0] * 5 < took[1], took


def seconds(session: Session, x: np.ndarray) -> float:
    start = time.thread_time()
    session.run({"x": x})
    return time.thread_time() - start

"""What a build does for each node of a forest, of which files have millions: nothing that makes objects or texts of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from occ.compiler.diagnostics import Invalid
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.operator.onnx_values import attr_value
from occ.compiler.ir.ops import ml_trees
from occ.compiler.passes.canonical import cse

PAIR = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y, float[4] z, float[4] w) {
    y = LeakyRelu <alpha = 0.25> (x)
    z = LeakyRelu <alpha = 0.25> (x)
    w = Elu <alpha = 0.5> (x)
}"""


def test_attributes_are_compared_where_two_ops_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[object]()
    frozen = cse.frozen
    monkeypatch.setattr(cse, "frozen", lambda value: (seen.update([value]), frozen(value))[1])
    m = Compilation(onnx.parser.parse_model(PAIR), Settings("interp")).advance("canonical")
    assert sorted(op.name for op in m.walk() if op.results) == ["Elu", "LeakyRelu"]
    assert set(seen) == {0.25}, "no other op reads x as Elu does"


def test_nodes_are_found_by_tree_and_number() -> None:
    """The last of those that are listed twice, as a dict has it."""
    rng = np.random.default_rng(0)
    tree, number = rng.integers(-3, 9, 400), rng.integers(0, 2**40, 40)[rng.integers(0, 40, 400)]
    place = {key: k for k, key in enumerate(zip(tree.tolist(), number.tolist(), strict=True))}
    asked = rng.permutation(400)[:100]
    found = ml_trees._Places(tree, number).of(tree[asked], number[asked])
    assert found.tolist() == [place[key] for key in zip(tree[asked].tolist(), number[asked].tolist(), strict=True)]
    assert ml_trees._Places(tree, number).of(tree[:0], number[:0]).size == 0


@pytest.mark.parametrize(("tree", "number"), [(0, 7), (5, 1), (-1, 0), (1, 2**62)])
def test_a_node_that_is_not_listed_is_named(tree: int, number: int) -> None:
    places = ml_trees._Places(np.array([0, 0, 1]), np.array([0, 1, 7]))
    with pytest.raises(Invalid, match=f"there is no node {number} in tree {tree}"):
        places.of(np.array([0, tree]), np.array([1, number]))


def test_words_that_repeat_are_decoded_once() -> None:
    words = attr_value(onnx.helper.make_attribute("nodes_modes", ["LEAF", "größer", "LEAF", ""]))
    assert words == ("LEAF", "größer", "LEAF", "")
    assert words[0] is words[2]

"""Layouts: packing against an index-by-index definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occ.compiler.ir.dim import symbol
from occ.compiler.ir.layout import ROW, Layout, pack, panels, unpack


@st.composite
def shapes_and_layouts(draw):
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    tiled = draw(st.lists(st.sampled_from(range(len(shape))), unique=True, max_size=len(shape)))
    return shape, Layout(order, tuple((axis, draw(st.integers(2, 5))) for axis in tiled))


def physical_index(index, layout):
    """The offset of the element at `index`, by the definition."""
    tiles = dict(layout.tiles)
    outer = [index[a] // tiles[a] if a in tiles else index[a] for a in layout.order]
    return (*outer, *(index[a] % size for a, size in layout.tiles))


@settings(max_examples=300)
@given(shapes_and_layouts())
def test_every_element_lies_where_the_layout_says_and_the_rest_is_zero(case):
    shape, layout = case
    data = np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    packed = pack(data, layout)
    assert packed.shape == layout.physical_shape(shape)
    assert packed.flags.c_contiguous
    for index in itertools.product(*map(range, shape)):
        assert packed[physical_index(index, layout)] == data[index]
    assert np.count_nonzero(packed) == data.size


@settings(max_examples=300)
@given(shapes_and_layouts())
def test_unpack_undoes_pack(case):
    shape, layout = case
    data = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    assert np.array_equal(unpack(pack(data, layout), layout, shape), data)


@settings(max_examples=300)
@given(shapes_and_layouts())
def test_a_tag_reads_back(case):
    _, layout = case
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("layout", "tag", "physical"),
    [
        (ROW, "row", (2, 20, 5, 7)),
        (Layout((0, 1, 2, 3), ((1, 16),)), "NCHW16c", (2, 2, 5, 7, 16)),
        (panels(4, 0, 32), "Abcd32a", (1, 20, 5, 7, 32)),
        (Layout((0, 2, 3, 1)), "acdb", (2, 5, 7, 20)),
    ],
)
def test_named_layouts(layout, tag, physical):
    assert str(layout) == tag
    assert Layout.parse(tag) == layout
    assert layout.physical_shape((2, 20, 5, 7)) == physical


def test_a_symbolic_extent_is_rounded_up_to_whole_tiles():
    n = symbol("N")
    blocked = Layout((0, 1), ((1, 8),))
    assert blocked.physical_shape((3, n)) == (3, (n + 7) // 8, 8)
    assert blocked.physical_shape((3, 8 * n)) == (3, n, 8)


@pytest.mark.parametrize("tag", ["", "a1", "abd", "aa", "ab8c", "abc 8b", "8a", "row2"])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(ValueError, match="is not a layout"):
        Layout.parse(tag)

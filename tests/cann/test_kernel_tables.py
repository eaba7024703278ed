"""What the simulator knows of chips: it refuses graphs that have no kernel, however they were made."""

from __future__ import annotations

import numpy as np
import pytest
from building import model_of
from simulating import built, simulated

from occ.compiler.codegen_cann.graph.graph import Desc, Graph
from occ.compiler.codegen_cann.mapping.emitter import Emitter
from occ.compiler.codegen_cann.options import SOCS
from occ.compiler.codegen_cann.output.air import air
from occ.compiler.ge_simulator.device import precision_on
from occ.compiler.ge_simulator.kernel_table import CHIPS, UNITS, chip_of, kernels_of, operators, sources
from occ.compiler.ge_simulator.limits import MEASURES, formats, limits
from occ.compiler.ge_simulator.reader import BadGraph
from occ.compiler.ge_simulator.simulate import Simulator

RNG = np.random.default_rng(17)
OLD = ("ascend310", "ascend310p", "ascend910")


def loaded(make, soc: str = "Ascend310P3", mode: str = "cube_fp16in_fp32out", dtype: str = "FLOAT", *shapes):
    """A simulator of one node on Data nodes of a type: `make` emits it."""
    graph = Graph("planted", output_names=["y"])
    e = Emitter(graph, lambda *_: None)
    from occ.compiler.codegen_cann.graph.graph import Ref, data_node

    for k, shape in enumerate(shapes):
        node = data_node(f"x{k}", Desc(dtype, shape, "NCHW" if len(shape) == 4 else "ND"), k)
        graph.nodes.append(node)
        graph.data.append(node)
    graph.outputs.append(make(e, *(Ref(n) for n in graph.data)))
    for k, node in enumerate(graph.nodes):
        node.name = node.name or f"planted{k}"
    return Simulator(air(graph)[0], {}, precision_on(mode, soc))


def conv(e, x, w, **how):
    given = {"strides": [1, 1, 1, 1], "pads": [0] * 4, "dilations": [1] * 4, "groups": 1, "data_format": "NCHW"}
    out, layout = how.pop("out", (1, 2, 3, 3)), how.pop("layout", "NCHW")
    made = e.op("Conv2D", x, w, out=Desc(x.dtype, out, "NCHW"), **{**given, **how})
    made.node.formats = {"x": layout, "filter": layout}
    return made


def pad(e, x):
    return e.op(
        "PadV3",
        x,
        e.ints([0] * 2 * len(x.shape)),
        e.scalar(0, x),
        out=x.desc,
        mode="constant",
        paddings_contiguous=False,
    )


def test_every_row_has_a_source_with_a_date():
    rows = [r for name in operators() for r in kernels_of(name)]
    assert {r.source for r in rows} | {x.source for x in (*limits(), *formats())} == set(sources())
    assert all(date[:2] == "20" and what for date, what in sources().values())
    assert {c for r in rows for c in r.chips} == set(CHIPS)
    assert {x.what for x in limits()} == set(MEASURES)
    assert {r.unit for r in rows} == {*UNITS, "PASS"}


def test_every_combination_has_a_type_for_each_operand():
    """And those of AI CPU the types that each operand takes."""
    wrong = [
        r for name in operators() for r in kernels_of(name) for c in r.combinations or () if len(c) != len(r.operands)
    ]
    assert not wrong, wrong[:3]


def test_exact_chips_are_of_a_kind():
    assert {t: {chip_of(s) for s in socs} for t, socs in SOCS.items()} == {
        "ascend310": {"310"}, "ascend310b": {"310B"}, "ascend310p": {"310P"}, "ascend910": {"910"}, "ascend910b": {"910B"}, "ascend910_93": {"910B"},
    }  # fmt: skip


PLANTED = {
    "strides": (lambda e, x, w: conv(e, x, w, strides=[1, 1, 64, 1]), "strides of Conv2D are"),
    "pads": (lambda e, x, w: conv(e, x, w, pads=[256, 0, 0, 0]), "pads of Conv2D are"),
    "dilations": (lambda e, x, w: conv(e, x, w, dilations=[1, 1, 1, 300]), "dilations of Conv2D are"),
    "axes": (lambda e, x, w: pad(e, e.reshape(x, (1,) * 5 + x.shape)), "rank of PadV3 are"),
    "a format": (lambda e, x, w: conv(e, x, w, layout="ND"), "`x` of Conv2D is ND, Ascend310P takes NCHW, NHWC"),
    "groups of weights": (
        lambda e, x, w: e.op(
            "WeightQuantBatchMatmulV2",
            e.cast(e.reshape(x, (1, 100)), "FLOAT16"),
            e.constant(np.zeros((9, 100), np.int8)),
            e.constant(np.ones((9, 4), np.float16)),
            out=Desc("FLOAT16", (1, 9)),
            transpose_weight=True,
            antiquant_group_size=32,
        ),
        "weight groups of WeightQuantBatchMatmulV2 are",
    ),
    "operands": (lambda e, x, w: e.op("ConcatD", [x] * 64, out=x.desc, concat_dim=0, N=64), "inputs of ConcatD are"),
    "an operator without a kernel": (
        lambda e, x, w: e.op("Einsum", [x, x], out=x.desc, equation="abcd,abcd->abcd", N=2),
        "no kernel of Einsum for FLOAT",
    ),
}


@pytest.mark.parametrize(("make", "said"), PLANTED.values(), ids=PLANTED)
def test_what_a_chip_does_not_take_is_refused(make, said: str):
    with pytest.raises(BadGraph, match=rf"planted\d: .*{said}|planted\d: {said}"):
        loaded(make, "Ascend310P3", "cube_fp16in_fp32out", "FLOAT", (1, 4, 5, 5), (2, 4, 3, 3))


@pytest.mark.parametrize("target", OLD)
def test_origin_has_no_kernel_in_a_matrix_unit_without_fp32(target: str):
    """The simulator refuses the node; the code generator leaves it to the CPU, and says why."""
    sizes = (1, 4, 5, 5), (2, 4, 3, 3)
    with pytest.raises(BadGraph, match="no kernel of Conv2D for FLOAT: AICore has FLOAT16, INT8 giving INT32"):
        loaded(conv, SOCS[target][0], "origin", "FLOAT", *sizes)
    model = model_of("g (float[1, 4, 5, 5] x) => (float[1, 2, 3, 3] y) { y = Conv(x, w) }",
                     {"w": RNG.standard_normal(sizes[1], dtype=np.float32)})  # fmt: skip
    x = {"x": RNG.standard_normal(sizes[0], dtype=np.float32)}
    made = built(model, target, precision_mode_v2="origin")
    assert made.manifest.summary["cpu_operators"] == ["Conv"]
    assert not built(model, target).manifest.summary["cpu_operators"]
    simulated(built(model, "ascend910b", precision_mode_v2="origin"), x)


def test_results_are_rounded_as_the_kernel_gives_them():
    """Products of half precision are summed to fp32 on every chip, convolutions return half precision on the older ones."""
    sizes = (1, 4, 5, 5), (2, 4, 3, 3)
    x, w = (RNG.standard_normal(s, dtype=np.float32) for s in sizes)
    half = {
        s: loaded(conv, s, "cube_fp16in_fp32out", "FLOAT", *sizes).run([x, w])[0]
        for s in ("Ascend310P3", "Ascend910B1")
    }
    assert np.array_equal(half["Ascend310P3"], half["Ascend310P3"].astype(np.float16).astype(np.float32))
    assert not np.array_equal(half["Ascend910B1"], half["Ascend910B1"].astype(np.float16).astype(np.float32))

    def matmul(e, a, b):
        return e.op("MatMulV2", a, b, out=Desc("FLOAT", (3, 5)))

    a, b = RNG.standard_normal((3, 4), dtype=np.float32), RNG.standard_normal((4, 5), dtype=np.float32)
    (got,) = loaded(matmul, "Ascend310P3", "cube_fp16in_fp32out", "FLOAT", (3, 4), (4, 5)).run([a, b])
    want = a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not np.array_equal(got, got.astype(np.float16).astype(np.float32))


def test_an_operator_falls_back_to_half_precision_or_to_the_ai_cpu():
    """Exp has no FLOAT on a 310; SelectV2 has INT64 on the AI CPU of it alone."""
    x = np.array([[0.1, 1.7]], np.float32)
    (got,) = loaded(lambda e, v: e.op("Exp", v), "Ascend310", "cube_fp16in_fp32out", "FLOAT", (1, 2)).run([x])
    assert np.array_equal(got, got.astype(np.float16).astype(np.float32))
    (got,) = loaded(lambda e, v: e.op("Exp", v), "Ascend310P3", "cube_fp16in_fp32out", "FLOAT", (1, 2)).run([x])
    assert np.array_equal(got, np.exp(x))

    def select(e, v):
        return e.op("SelectV2", e.op("Less", v, e.scalar(0, v), out=Desc("BOOL", (3,))), v, v, out=v.desc)

    given = np.array([-1, 0, 2**40])
    np.testing.assert_array_equal(loaded(select, "Ascend310", "origin", "INT64", (3,)).run([given])[0], given)

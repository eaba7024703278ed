"""Attention as one kernel: against onnxruntime, on odd sizes, masks of every form, rows that attend to nothing."""

import numpy as np
import onnx
import onnxruntime
import pytest
from machines import TARGETS
from onnx import TensorProto, helper, numpy_helper

import occ
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.ir.te.roles import ATTENTION
from occ.compiler.passes.schedule.stage_facts import stages_by_role

pytestmark = pytest.mark.toolchain


def attention(
    q: list,
    k: list,
    v: list,
    *,
    mask: list | None = None,
    safe: bool = False,
    heads_last: bool = False,
    after: float = 1,
) -> onnx.ModelProto:
    """`Softmax(scale * q @ k' + mask) @ v` of operands `[N, H, S, D]`, or `[N, S, H, D]` with `heads_last`."""
    perm = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]} if heads_last else {"k": [0, 1, 3, 2]}
    nodes = [helper.make_node("Transpose", [n], [f"{n}t"], perm=p) for n, p in perm.items()]
    at = {n: f"{n}t" if n in perm else n for n in "qkv"}
    nodes += [helper.make_node("Mul", [at[n], "root"], [f"{n}s"]) for n in "qk"]
    nodes += [helper.make_node("MatMul", ["qs", "ks"], ["scores"])]
    nodes += [helper.make_node("Div", ["scores", "after"], ["scaled"])]
    nodes += [helper.make_node("Add", ["scaled", "mask"], ["masked"])] if mask is not None else []
    nodes += [helper.make_node("Softmax", ["masked" if mask is not None else "scaled"], ["p"], axis=-1)]
    if safe:
        nodes += [helper.make_node("IsNaN", ["p"], ["bad"]), helper.make_node("Where", ["bad", "zero", "p"], ["p2"])]
    nodes += [helper.make_node("MatMul", ["p2" if safe else "p", at["v"]], ["y" if not heads_last else "yt"])]
    nodes += [helper.make_node("Transpose", ["yt"], ["y"], perm=[0, 2, 1, 3])] if heads_last else []
    ports = [("q", q), ("k", k), ("v", v)] + ([("mask", mask)] if mask is not None else [])
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports]
    weights = [
        numpy_helper.from_array(np.array(x, np.float32), n) for n, x in (("root", 0.35), ("after", after), ("zero", 0))
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, [output], weights), ir_version=10,
        opset_imports=[helper.make_opsetid("", 21)],
    )  # fmt: skip


def ops(m: onnx.ModelProto) -> list[str]:
    return [op.name for op in Compilation(m, Settings("cpu")).advance("fused").walk()]


def check(m: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], *, fused: bool = True) -> None:
    """One build, every feed: the same as onnxruntime."""
    assert ("attend" in ops(m)) is fused
    peer = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    with occ.compile(m, "cpu") as model:
        for feed in feeds:
            (want,) = peer.run(None, feed)
            np.testing.assert_allclose(model.run(feed)["y"], want, rtol=2e-5, atol=2e-6)


def random(seed: int, **shapes: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize(
    ("n", "h", "s", "k", "d", "e"),
    [(1, 2, 37, 37, 64, 64), (2, 3, 5, 50, 32, 80), (1, 1, 100, 16, 80, 48), (1, 3, 9, 7, 24, 5), (2, 2, 33, 1031, 64, 33)],
)  # fmt: skip
def test_sizes_that_are_no_multiple_of_a_tile(n: int, h: int, s: int, k: int, d: int, e: int) -> None:
    q, key, v = [n, h, s, d], [n, h, k, d], [n, h, k, e]
    check(attention(q, key, v, after=3.0), [random(s, q=q, k=key, v=v)])


def test_heads_between_rows_and_columns() -> None:
    q, k = [2, 21, 3, 64], [2, 19, 3, 64]
    check(attention(q, k, k, heads_last=True), [random(1, q=q, k=k, v=k)])


@pytest.mark.parametrize("mask", [[1, 1, 21, 19], [2, 1, 1, 19], [2, 3, 21, 19], [21, 1], [19]], ids=str)
def test_masks_broadcast(mask: list[int]) -> None:
    q, k = [2, 3, 21, 64], [2, 3, 19, 64]
    feed = random(2, q=q, k=k, v=k, mask=mask)
    feed["mask"][feed["mask"] < -0.5] = -np.inf
    feed["mask"].flat[0] = 0.0  # no row may be all -inf here
    check(attention(q, k, k, mask=mask), [feed])


@pytest.mark.parametrize("safe", [False, True])
def test_rows_without_a_finite_score(safe: bool) -> None:
    """NaN as ONNX has it, or zeros where the model says so; the other rows stay right."""
    q, k = [1, 2, 13, 32], [1, 2, 40, 32]
    feed = random(3, q=q, k=k, v=k, mask=[1, 1, 13, 40])
    feed["mask"][0, 0, 4] = -np.inf
    feed["mask"][0, 0, 7, 1:] = -np.inf
    nan = {**feed, "q": feed["q"].copy()}
    nan["q"][0, 1, 2, 3] = np.nan
    m = attention(q, k, k, mask=[1, 1, 13, 40], safe=safe)
    with occ.compile(m, "cpu") as model:
        got = model.run(feed)["y"]
        assert np.isnan(got[0, :, 4]).all() != safe
        assert (got[0, :, 4] == 0).all() == safe
        np.testing.assert_allclose(got[0, :, 7], feed["v"][0, :, 0], rtol=1e-6)
        assert np.isnan(model.run(nan)["y"][0, 1, 2]).all() != safe
    check(m, [feed, nan])


def test_causal_mask_keeps_fused_multiply_add() -> None:
    q = [1, 2, 45, 64]
    causal = np.triu(np.full((45, 45), -np.inf, np.float32), 1)
    m = attention(q, q, q, mask=[45, 45], safe=True)
    m.graph.initializer.append(numpy_helper.from_array(causal, "mask"))
    del m.graph.input[3]
    check(m, [random(4, q=q, k=q, v=q)])
    scheduled = Compilation(m, Settings("cpu")).advance("scheduled")
    (f,) = (f for f in scheduled.te.values() if stages_by_role(f, ATTENTION))
    for role in ("scores", "sum"):  # what asks for NaN asks the total of a row, not its product
        name = stages_by_role(f, ATTENTION)[role].name
        (update,) = (
            line for line in generator(f).splitlines() if f"= {name}(" in line or f"strict_float({name}(" in line
        )
        assert "strict_float" not in update


@pytest.mark.parametrize(
    ("queries", "computed"), [(197, 200), (37, 40), (184, 192), (1500, 1504), (128, 128), (64, 64)]
)
def test_blocks_compute_few_rows_beyond_the_end(queries: int, computed: int) -> None:
    q = [1, 2, queries, 64]
    settings = Settings("cpu", options={"halide.target": TARGETS["x86-64-v4"]})
    scheduled = Compilation(attention(q, q, q), settings).advance("scheduled")
    (f,) = (f for f in scheduled.te.values() if stages_by_role(f, ATTENTION))
    out = stages_by_role(f, ATTENTION)["out"]
    block = next(d.args[3] for d in f.schedule if d.stage == out.name and d.call == "split")
    assert block <= queries
    assert -(-queries // block) * block == computed


@pytest.mark.parametrize("safe", [False, True])
def test_symbolic_sizes(safe: bool) -> None:
    q, k = ["n", 3, "s", 64], ["n", 3, "k", 64]
    m = attention(q, k, k, mask=["n", 1, "s", "k"], safe=safe)
    feeds = []
    for n, s, keys in ((1, 1, 1), (2, 17, 33), (1, 64, 64), (3, 5, 100), (1, 3, 2), (1, 40, 15)):
        shapes = {"q": [n, 3, s, 64], "k": [n, 3, keys, 64], "v": [n, 3, keys, 64], "mask": [n, 1, s, keys]}
        feeds.append(random(s, **shapes))
    check(m, feeds)


@pytest.mark.parametrize("depth", [5, 15])  # sums that no vectors are made of
def test_symbolic_sizes_of_short_heads(depth: int) -> None:
    m = attention(*[["n", 3, "s", depth]] * 3)
    check(
        m, [random(s, **{key: [n, 3, s, depth] for key in "qkv"}) for n, s in ((1, 1), (2, 3), (1, 4), (2, 5), (1, 40))]
    )


def test_without_queries_or_keys() -> None:
    m = attention(["n", 2, "s", 32], ["n", 2, "k", 32], ["n", 2, "k", 32])
    with occ.compile(m, "cpu") as model:
        for n, s, keys in ((1, 0, 4), (0, 3, 4), (1, 3, 0)):
            feed = random(6, q=[n, 2, s, 32], k=[n, 2, keys, 32], v=[n, 2, keys, 32])
            got = model.run(feed)["y"]
            assert got.shape == (n, 2, s, 32)
            assert not got.any()  # a product over no keys


def test_a_single_query_stays_apart() -> None:
    q, k = [1, 2, 1, 64], [1, 2, 30, 64]
    check(attention(q, k, k), [random(7, q=q, k=k, v=k)], fused=False)


def test_scores_that_are_read_again_stay_apart() -> None:
    q = [1, 2, 20, 32]
    m = attention(q, q, q)
    m.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, None))
    assert "attend" not in ops(m)


@pytest.mark.parametrize("causal", [0, 1])
def test_the_operator_attention(causal: int) -> None:
    """Opset 23, three-dimensional operands; onnxruntime has it too."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], q_num_heads=4, kv_num_heads=4, is_causal=causal)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 23, 4 * 48]) for n in "qkv"]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    m = helper.make_model(
        helper.make_graph([node], "g", ports, [output]), ir_version=11, opset_imports=[helper.make_opsetid("", 23)]
    )
    check(m, [random(8, q=[2, 23, 192], k=[2, 23, 192], v=[2, 23, 192])])

"""The two laws of `.occ` text, for every stage: what is printed reads back as the same module, and prints the same."""

from __future__ import annotations

import numpy as np
import pytest
from building import mlp, model_of

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.frontend.text import parse
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Region, Weight
from occ.compiler.ir.printer import module_text, weight_bytes
from occ.compiler.ir.stages import STAGES


def conv() -> object:
    rng = np.random.default_rng(0)
    text = """g (float[n, 3, 12, w] x) => (float[n, 8, p, q] y, float[n, 8] z) {
        c = Conv<pads = [1, 1, 1, 1], strides = [2, 1]>(x, k, b)
        r = Relu(c)
        a = BatchNormalization(r, s, b, m, v)
        y = Identity(a)
        g1 = GlobalAveragePool(a)
        shape = Shape(g1)
        two = Slice(shape, zero, twos)
        z = Reshape(g1, two)
    }"""
    floats = {n: rng.random(8, dtype=np.float32) + 0.5 for n in ("s", "b", "m", "v")}
    weights = {"k": rng.standard_normal((8, 3, 3, 3), dtype=np.float32), **floats}
    return model_of(text, weights | {"zero": np.array([0]), "twos": np.array([2])})


def types() -> object:
    """Odd names, odd element types, attributes of all kinds, an empty tensor."""
    weights = {
        'a"%n\n*/': np.array([[1, 2], [3, 4]], np.uint8),
        "half": np.array([1.5, np.inf, -0.0, np.nan], np.float16),
        "wörter": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32),
    }
    model = model_of(
        """g (uint8[2, 2] x, float16[4] h, bool[2] t, float[d, 3] e) => (uint8[2, 2] y, float16[4] i, bool[2] u, float[k, 3] f) {
        y = Max(x, x)
        i = Clip(h, h, h)
        u = And(t, t)
        f = Concat<axis = 0>(e, e)
    }""",
        weights,
    )
    model.graph.node[0].input[1] = 'a"%n\n*/'
    model.graph.node[1].op_type, model.graph.node[1].input[:] = "Add", ["h", "half"]
    model.graph.node[2].input[1] = "wörter"
    model.graph.node[3].input[1] = "none"
    model.graph.node[0].name = '"; } quoted \\ "'
    return model


MODELS = {"mlp": mlp, "conv": conv, "types": types}


def same(a: Module, b: Module) -> None:
    """Fail unless two modules have the same structure."""
    assert (a.name, a.stage, a.target, a.symbols, a.constraints, a.te) == (
        b.name, b.stage, b.target, b.symbols, b.constraints, b.te,
    )  # fmt: skip
    assert list(a.weights) == list(b.weights)
    for name, w in a.weights.items():
        assert w.type == b.weights[name].type
        assert np.ascontiguousarray(w.data).tobytes() == np.ascontiguousarray(b.weights[name].data).tobytes()
    assert list(a.funcs) == list(b.funcs)
    for name, f in a.funcs.items():
        assert f.result_names == b.funcs[name].result_names
        same_region(f.body, b.funcs[name].body, {})


def same_region(a: Region, b: Region, values: dict) -> None:
    assert [x.type for x in a.args] == [x.type for x in b.args]
    values |= dict(zip(a.args, b.args, strict=True))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x.name, x.loc) == (y.name, y.loc)
        for v, w in zip(x.operands, y.operands, strict=True):
            assert w is None if v is None else v.name == w.name if isinstance(v, Weight) else values[v] is w
        assert [r.type for r in x.results] == [r.type for r in y.results]
        assert sorted(x.attrs) == sorted(y.attrs)
        for k, v in x.attrs.items():
            np.testing.assert_equal(v, y.attrs[k])
        for p, q in zip(x.regions, y.regions, strict=True):
            same_region(p, q, values)
        values |= dict(zip(x.results, y.results, strict=True))


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_stage_reads_back(model, target, tmp_path):
    compilation = Compilation(MODELS[model](), Settings(target, verify=True))
    for stage in STAGES:
        m = compilation.advance(stage.name)
        text = module_text(m, "w.bin")
        (tmp_path / "w.bin").write_bytes(b"".join(bytes(p) for p in weight_bytes(m)))
        again = parse(text, path=tmp_path / "m.occ")
        same(m, again)
        assert module_text(again, "w.bin") == text
        assert not list(stage.check(again))


def test_comments_and_white_space_are_free():
    text = '# a comment\nmodule @m {stage="inferred"} {\n func @main(%x:f32[2])->f32[2] { # here too\n return %x } }'
    m = parse(text)
    assert [a.name for a in m.main.args] == ["x"]

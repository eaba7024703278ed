"""Names that mean something to C++, JSON, the shell or atc: they survive in the graph, and are escaped elsewhere."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ge_stub
import numpy as np
import onnx
import pytest
from building import model_of, reference
from simulating import built, simulated, worst

from occ.compiler.codegen_cann.output.cpp import literal
from occ.compiler.diagnostics import CompileError
from occ.compiler.ge_simulator.reader import read

Occ = Callable[..., Any]  # the fixture `occ_cli`
RNG = np.random.default_rng(3)
HOSTILE = (
    'a"; system("x"); // \\ \n %s `id` $(id) ??/ \u00fc',
    "*/ b /* \t\r\n #define x",
    "../../c:0",
    "'d'; touch hostile #",
    'e", "type": "Mul',
    "\x00\x7f\x1b[31m",
)
NET = """g (float[2, 3, 6, 6] x, bool c) => (float[2, 4, 6, 6] y, float[2, 4, 6, 6] z) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    p, q = Split <axis = 1, num_outputs = 2> (a)
    j = Concat <axis = 1> (q, p)
    y = Clip(j, low, high)
    z = If (c) <
        then_branch = t () => (float[2, 4, 6, 6] u) { u = Mul(y, y) },
        else_branch = e () => (float[2, 4, 6, 6] v) { v = Sub(y, low) }
    >
}"""


WEIGHTS = {
    "w": RNG.standard_normal((4, 3, 3, 3), dtype=np.float32), "low": np.array(-np.inf, np.float32),
    "high": np.array(1.5, np.float32),
}  # fmt: skip


def model() -> onnx.ModelProto:
    return model_of(NET, WEIGHTS)


def renamed(names: tuple[str, ...]) -> onnx.ModelProto:
    """The model with hostile names of nodes, values, weights, and of the graph."""
    made = model()
    new = {
        n: f"{names[k % len(names)]}{n}"
        for k, n in enumerate(("x", "c", "y", "z", "a", "p", "q", "j", "w", "low", "high"))
    }
    _rename(made.graph, new, names)
    return made


def _rename(graph: onnx.GraphProto, new: dict[str, str], names: tuple[str, ...]) -> None:
    graph.name = names[0]
    for port in (*graph.input, *graph.output, *graph.initializer):
        port.name = new.get(port.name, port.name)
    for k, node in enumerate(graph.node):
        node.name = names[k % len(names)]
        node.input[:] = [new.get(i, i) for i in node.input]
        node.output[:] = [new.get(o, o) for o in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, new, names)


def inputs(m: onnx.ModelProto) -> dict[str, np.ndarray]:
    x, c = (p.name for p in m.graph.input)
    return {x: RNG.standard_normal((2, 3, 6, 6), dtype=np.float32), c: np.array(True)}


@pytest.fixture(params=range(len(HOSTILE)))
def hostile(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return renamed(HOSTILE[request.param :] + HOSTILE[: request.param])


def test_names_survive_in_ge(hostile: onnx.ModelProto):
    made = built(hostile)
    given = inputs(hostile)
    (want, _), (got, _) = reference(model(), dict(zip("xc", given.values(), strict=True))), simulated(made, given)
    assert worst([got], [want]) < 1e-6
    graph = next(iter(read(made.files["device/part0.air"]).values()))
    names = {n.name for n in graph.nodes}
    assert {p.name for p in hostile.graph.input} <= names
    assert any(n.name in names for n in hostile.graph.node)


def test_the_dumps_escape_them(hostile: onnx.ModelProto, occ_cli: Occ, tmp_path: Path):
    (tmp_path / "m.onnx").write_bytes(hostile.SerializeToString())
    common = ("dump", tmp_path / "m.onnx", "-t", "ascend310p", "--stage", "ge")
    listed = json.loads(occ_cli(*common, "--format", "json").out)
    assert {e["op"] for e in listed} >= {"Conv2D", "SplitV", "ConcatD"}
    text = occ_cli(*common).out
    assert all(c.isprintable() or c == "\n" for c in text)
    assert len(text.splitlines()) < 60
    out = tmp_path / "view.onnx"
    assert occ_cli(*common, "--format", "onnx", "-o", out).code == 0
    onnx.load(out)


def test_the_commands_quote_them(hostile: onnx.ModelProto, tmp_path: Path):
    script = built(hostile).files["device/compile.sh"].decode()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "atc").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > called\n')
    (bin_ / "atc").chmod(0o755)
    (tmp_path / "compile.sh").write_text(script)
    subprocess.run(["/bin/sh", "compile.sh"], cwd=tmp_path, env={"PATH": f"{bin_}:/usr/bin:/bin"}, check=True)
    assert "--framework=1" in (tmp_path / "called").read_text().splitlines()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "called", "compile.sh"]


@pytest.mark.parametrize("name", ["x y", "$(id)", "`id`", "a'b", "*", "a:b", "a,b"])
def test_gears_quote_the_names_of_inputs(name: str):
    m = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    m.graph.input[0].name = m.graph.node[0].input[0] = name
    made = built(m, dynamic_batch_size="1,2")
    line = made.files["device/compile.sh"].decode().splitlines()[-1]
    assert f"--input_shape={name}:-1,4" in shlex.split(line)


@pytest.mark.parametrize("name", ["a;b", 'a"b', "a\nb", "a\x00b"])
def test_gears_refuse_names_that_atc_cannot_read(name: str):
    m = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    m.graph.input[0].name = m.graph.node[0].input[0] = name
    with pytest.raises(CompileError, match="atc takes no gears for an input named"):
        built(m, dynamic_batch_size="1,2")


@pytest.mark.parametrize("text", ['"', "\\", "??/", "\n", "\u00fc", "\udc80", "a" * 3])
def test_literals_hold_plain_characters_only(text: str):
    inside = literal(text)[1:-1]
    assert inside.isascii()
    assert inside.isprintable()
    assert '"' not in inside
    assert "?" not in inside
    assert inside.replace("\\", "").replace("/", "").isalnum()


@pytest.mark.thinned
@pytest.mark.parametrize("names", [(), HOSTILE], ids=["plain", "hostile"])
def test_the_cpp_builds_the_graph_of_the_air_file(names: tuple[str, ...], tmp_path: Path):
    """Compiled against headers of our own, the C++ makes the nodes and edges that the file has."""
    made = built(renamed(names) if names else model(), dump_graphs="true")
    for name, data in made.files.items():
        if name.startswith("src/"):
            (tmp_path / name.removeprefix("src/")).write_bytes(data)
    want: set[tuple[str, ...]] = set()
    graphs = read(made.files["device/part0.air"])
    for g in graphs.values():
        ports = {(n.name, k): d.name for n in g.nodes for k, d in enumerate(n.output_descs)}
        for n in g.nodes:
            if n.type != "NetOutput":
                fed = [(d.name, e) for d, e in zip(n.input_descs, n.inputs, strict=n.type != "Data") if e is not None]
                edges = sorted((p, _hex(e[0]), ports[e]) for p, e in fed)
                value = ("value", n.attrs["value"].tobytes().hex()) if n.type == "Const" else ()
                want.add((_hex(g.name), _hex(n.name), n.type, *value, *(w for edge in edges for w in edge)))
    types = {n.type for g in graphs.values() for n in g.nodes} - {"NetOutput"}
    built_there = {tuple(line.split()) for line in ge_stub.run(tmp_path / "part0.cpp", types)}
    assert built_there == want


def _hex(name: str) -> str:
    return name.encode().hex() or "-"

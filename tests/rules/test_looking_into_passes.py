"""Looking into passes: printing, timing, validation, bisection, reproducers, reduction."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import model_of

import occ
from occ.compiler.passes.pipeline import pipeline_for
from occ.compiler.passes.registry import parse_pipeline
from occ.compiler.targets.registry import OWN, get_target

PASSES = """
from dataclasses import dataclass
from typing import ClassVar

import occ
from occ.compiler.ir.rewriter import Rewriter


@dataclass(frozen=True)
class DropRelu(occ.Pass):
    name: ClassVar[str] = "drop-relu"
    stage: ClassVar[str] = "canonical"

    def run(self, m, ctx):
        relus = [op for op in m.walk() if op.name == "Relu"]
        if relus:
            Rewriter(m).replace(relus[-1], [relus[-1].operands[0]])
        return bool(relus)
"""
CRASH = PASSES.replace("Rewriter(m).replace(relus[-1], [relus[-1].operands[0]])", "1 // 0")
NET = """g (float[n,3,8,8] x) => (float[n,4,8,8] y) {
    a = Conv <pads = [1,1,1,1]> (x, w)
    b = BatchNormalization (a, s, t, mu, var)
    c = Sigmoid (b)
    d = Mul (b, c)
    e = Relu (d)
    f = Transpose <perm = [0,1,3,2]> (e)
    g1 = Transpose <perm = [0,1,3,2]> (f)
    h = Tanh (g1)
    y = Neg (h)
}"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    weights |= {k: rng.uniform(0.5, 1, 4).astype(np.float32) for k in ("s", "t", "mu", "var")}
    path = tmp_path / "net.onnx"
    path.write_bytes(model_of(NET, weights).SerializeToString())
    (tmp_path / "broken.py").write_text(PASSES)
    (tmp_path / "crash.py").write_text(CRASH)
    return path


def test_passes_print_to_numbered_files(net, occ_cli, tmp_path) -> None:
    folder = tmp_path / "printed"
    how = ["--print-before", "fold", "--print-after", "cse", "--print-after-change", "--print-to", folder]
    assert occ_cli("dump", net, "--stage", "fused", "-o", tmp_path / "out.occ", *how).code == 0
    names = sorted(p.name for p in folder.iterdir())
    assert "001-after-infer.occ" in names
    assert any(re.fullmatch(r"\d{3}-before-fold.occ", n) for n in names)
    assert any(re.fullmatch(r"\d{3}-after-cse.occ", n) for n in names)
    again = occ_cli("opt", folder / next(n for n in names if "after-cse" in n), "-p", "dce")  # what is printed is read
    assert again.out.startswith("module @")


def test_times_are_a_tree_and_a_trace(net, occ_cli, tmp_path) -> None:
    trace = tmp_path / "trace.json"
    ran = occ_cli("dump", net, "--stage", "lowered", "--time-passes", "--statistics", "--trace", trace)
    rows = re.findall(r"^ +[\d.]+ ms( +)(\S.*)$", ran.err, re.M)
    depth = {text.split()[-1] if len(indent) < 6 else text: len(indent) for indent, text in rows}
    assert depth["total"] < depth["canonical"] < next(d for t, d in depth.items() if t.endswith("lower-te"))
    assert re.search(r"^ +1  batch_norm$", ran.err, re.M)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"infer", "canonical", "plan-memory"} <= {e["name"] for e in events}
    assert all(e["ph"] == "X" and e["dur"] >= 0 for e in events)


def test_passes_stop_where_they_are_told_to(net, occ_cli) -> None:
    stopped = occ_cli("dump", net, "--stage", "lowered", "--stop-after", "canonicalize")
    assert 'stage="inferred"' in stopped.out
    assert "BatchNormalization(" in stopped.out
    assert "Transpose(" not in stopped.out
    one = occ_cli("dump", net, "--stage", "lowered", "--bisect-limit", "1")
    assert "Transpose" in one.out
    assert occ_cli("dump", net, "--stop-after", "canonicalize").out == stopped.out


@pytest.mark.parametrize("option", [["--bisect-limit", "1"], ["--stop-after", "fuse"]])
def test_a_build_cannot_stop_and_says_what_can(option, net, occ_cli) -> None:
    refused = occ_cli("build", net, *option)
    assert refused.code == 2
    (command,) = re.findall(r"`occ (dump .*)`", refused.err)
    assert command == f"dump {net} {' '.join(option)}"
    assert occ_cli(*command.split()).code == 0
    assert option[0] not in occ_cli("build", "--help").out
    assert "stopped early" in occ_cli("dump", net, "--stage", "halide", *option).err


def test_a_pipeline_prints_in_the_form_that_is_typed(net, occ_cli) -> None:
    listed = occ_cli("opt", net, "-t", "cpu-jit", "--list").out.splitlines()
    stages = dict(line.split() for line in listed if len(line.split()) == 2)
    assert stages["scheduled"] == "lower-te{split=true}"
    m = occ_cli("opt", net, "-p", stages["inferred"] + "," + stages["canonical"], "--verify")
    assert m.code == 0
    assert "BatchNormalization(" not in m.out


@pytest.mark.parametrize(
    ("options", "added", "removed"),
    [
        ("strassen=auto", {"use-strassen"}, set()),
        ("strassen=on", {"use-strassen{everywhere=true}"}, set()),
        ("winograd=off", {"use-byte-products"}, {"use-winograd", "use-byte-products{winograd=true}"}),
        ("precision=bf16", {"round-operands"}, {"pointwise-to-matmul"}),
        (
            "precision=int8",
            {"round-operands{to=int8}", "use-block-products{rounded=true}"},
            {"use-block-products"},
        ),
        ("qdq=float", set(), {"use-integers"}),
        ("deferred=off", {"defer{refuse=true}"}, {"defer"}),
        ("schedule=fallback", {"schedule{fallback=true}"}, {"schedule"}),
    ],
)
def test_options_decide_what_runs(occ_cli, options, added, removed) -> None:
    before, after = (
        {p for line in occ_cli("opt", "-", "--list", *given).out.splitlines() for p in line.split()[1].split(",")}
        for given in ((), ("-C", options))
    )
    assert (after - before, before - after) == (added, removed)


@pytest.mark.parametrize("name", OWN)
def test_every_pass_of_a_pipeline_is_read_as_it_is_printed(name) -> None:
    target = get_target(name)
    other = {key: o.choices[-1] for key, o in target.options.table.items() if o.choices and "ascend" not in name}
    for options in (target.options, target.options.read(name, other)):
        for passes in pipeline_for(target, options).values():
            assert parse_pipeline(",".join(map(str, passes))) == list(passes)


def test_an_option_that_the_target_has_not_is_named(occ_cli) -> None:
    refused = occ_cli("opt", "-", "--list", "-t", "interp", "-C", "strassen=on")
    assert refused.code == 2
    assert "`interp` has no option `strassen`" in refused.err


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_validation_accepts_the_own_passes(net, occ_cli, target) -> None:
    ran = occ_cli("dump", net, "--stage", "lowered", "-t", target, "--validate")
    assert re.search(r"validated after \d+ passes", ran.err), ran.err


def test_validation_reads_sizes_off_values_whatever_the_order_of_their_axes(occ_cli, tmp_path) -> None:
    """With channels last the third axis of an array is the fourth of its type; equal sizes would not show it."""
    weight = np.ones((4, 3, 3, 3), np.float32)
    text = "g (float[n, h, w, 3] x) => (float[a, b, c, 4] y) { t = Transpose <perm = [0, 3, 1, 2]> (x) r = Conv (t, k) "
    text += "s = Softmax <axis = 1> (r) y = Transpose <perm = [0, 2, 3, 1]> (s) }"
    onnx.save(model_of(text, {"k": weight}), tmp_path / "m.onnx")
    ran = occ_cli(
        "dump", tmp_path / "m.onnx", "--stage", "lowered", "-t", "cpu", "--validate", "--dim", "h=5", "--dim", "w=8"
    )
    assert (ran.code, "validated after" in ran.err) == (0, True), ran.err
    ran = occ_cli("dump", tmp_path / "m.onnx", "--stage", "lowered", "-t", "cpu", "--validate")
    assert (ran.code, "validated after" in ran.err) == (0, True), ran.err


def test_validation_names_a_broken_pass_and_the_value(net, occ_cli, tmp_path) -> None:
    ran = occ_cli("dump", net, "--stage", "lowered", "--validate", "--rules", tmp_path / "broken.py")
    assert ran.code == 5
    assert "OCC0614" in ran.err
    assert "the pass `drop-relu` changed what the model computes" in ran.err
    assert "from the nodes Mul#4, Relu#5" in ran.err


@pytest.mark.parametrize("against", ["onnxruntime", "reference", "interp"])
def test_bisect_finds_the_pass_and_the_op(net, occ_cli, tmp_path, against) -> None:
    ran = occ_cli("bisect", net, "--against", against, "--rules", tmp_path / "broken.py", "--json")
    assert ran.code == 5
    found = json.loads(ran.out)
    assert found["pass"] == "drop-relu"
    assert found["stage"] == "canonical"
    assert "Relu#5" in found["nodes"]
    text = Path(found["reproducer"])
    words = shlex.split(text.read_text().splitlines()[0].removeprefix("# occ "))
    again = occ_cli(*(str(text) if w == text.name else w for w in words))
    assert "the pass `drop-relu` changed what the model computes" in again.err


def test_bisect_refuses_a_file_that_has_no_arrays(net, occ_cli) -> None:
    for file, why in ((net, "is not a file of arrays"), ("missing.npz", "cannot be read")):
        ran = occ_cli("bisect", net, "--inputs", file)
        assert ran.code == 1
        assert "error[OCC0501]" in ran.err
        assert why in ran.err


def test_bisect_finds_nothing_where_nothing_is_wrong(net, occ_cli) -> None:
    ran = occ_cli("bisect", net)
    assert (ran.code, ran.out) == (0, "results are correct after every pass\n")


@pytest.mark.parametrize("how", [[], ["--verify"]])
def test_a_crash_gives_a_reproducer_that_crashes_again(net, occ_cli, tmp_path, how) -> None:
    ran = occ_cli("build", net, "-t", "interp", "--rules", tmp_path / "crash.py", *how)
    assert ran.code == 70
    text = Path(re.search(r"reproducer: (\S+)", ran.err)[1])
    words = shlex.split(text.read_text().splitlines()[0].removeprefix("# occ "))
    assert "-p" in words
    again = occ_cli(*(str(text) if w == text.name else w for w in words))
    assert again.code == 70
    assert "ZeroDivisionError" in again.err
    assert [p.name for p in text.parent.iterdir()] == ["reproducer.occ"]  # it stands alone


def test_a_fault_of_the_code_generator_gives_a_reproducer(net, occ_cli, tmp_path, monkeypatch) -> None:
    from occ.compiler.codegen_llvm import build

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(build, "build", fail)
    ran = occ_cli("build", net, "-t", "cpu-jit", "-o", tmp_path / "m.occ")
    assert ran.code == 70
    text = Path(re.search(r"reproducer: (\S+)", ran.err)[1])
    assert text.read_text().startswith("# occ build reproducer.occ -t cpu-jit\n")
    assert occ_cli("build", text, "-t", "cpu-jit", "-o", tmp_path / "m.occ").code == 70


@pytest.mark.parametrize("rules", ["broken.py", "crash.py"])
def test_reduce_leaves_what_fails(net, occ_cli, tmp_path, rules) -> None:
    small = tmp_path / "small.occ"
    ran = occ_cli("reduce", net, "-t", "cpu-jit", "--rules", tmp_path / rules, "-o", small)
    assert ran.code == 0, ran.err
    text = small.read_text()
    assert len(re.findall(r"^    %", text, re.M)) <= 2
    assert "Relu" in text
    words = shlex.split(text.splitlines()[0].removeprefix("# occ "))
    again = occ_cli(*(str(small) if w == small.name else w for w in words))
    assert again.code == {"broken.py": 5, "crash.py": 70}[rules]


def test_reduce_takes_a_command(net, occ_cli, tmp_path) -> None:
    small = tmp_path / "small.occ"
    ran = occ_cli("reduce", net, "--test", "grep -q Sigmoid {}", "-o", small)
    assert ran.code == 2
    assert "does not fail" in ran.err
    ran = occ_cli("reduce", net, "--test", "sh -c '! grep -q Sigmoid {}'", "-o", small)
    assert ran.code == 0, ran.err
    assert re.findall(r"= (\w+)\(%", small.read_text()) == ["Sigmoid"]


def test_a_pass_of_a_user_runs_in_its_stage_with_options(net) -> None:
    from dataclasses import dataclass
    from typing import ClassVar

    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings

    @dataclass(frozen=True)
    class Count(occ.Pass):
        times: int = 1
        name: ClassVar[str] = "count"
        stage: ClassVar[str] = "canonical"
        targets: ClassVar[str] = "cpu*"

        def run(self, m, ctx):
            ctx.hits["counted"] += self.times
            return False

    for target, expected in (("cpu", 3), ("interp", 0)):
        compilation = Compilation(net, Settings(target, rules=[Count(times=3)]))
        compilation.advance("canonical")
        assert compilation.context.hits["counted"] == expected


@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_times_name_the_kernels_that_take_longest_to_compile(
    net, occ_cli, tmp_path, monkeypatch, request, target
) -> None:
    if target == "cpu":
        request.getfixturevalue("tools_only")("cache")
    else:
        monkeypatch.setenv("OCC_CACHE_DIR", str(tmp_path))
    ran = occ_cli("build", net, "-t", target, "--time-passes", "-o", tmp_path / "out.occ")
    assert ran.code == 0, ran.err
    times = [float(ms) for ms in re.findall(r"^ +([\d.]+) ms {6}\w+_[0-9a-f]{12}: \S.*$", ran.err, re.M)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 0

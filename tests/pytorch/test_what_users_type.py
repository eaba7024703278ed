"""`torch.compile` and `occ.torch.export` as users of PyTorch call them: numbers, modes, autocast, mistakes, and what is said then."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import numpy as np
import pytest

import occ

torch = pytest.importorskip("torch", reason="torch is not installed (the extra `nnsmith` has it)")
pytest.importorskip("onnxscript", reason="torch's exporter needs onnxscript")
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]
JIT = {"target": "cpu-jit"}
STRICT = JIT | {"strict": True}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4, eps=0.1)
        )

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize(
    ("net", "shapes"),
    [
        (ConvNet(), [(2, 3, 8, 9), (4, 3, 9, 7)]),
        (nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.LayerNorm(16), nn.LeakyReLU(0.2)), [(4, 8), (7, 8)]),
    ],
    ids=["conv", "mlp"],
)
def test_dynamic_compilation_takes_the_numbers_of_norms(net, shapes):
    net.eval()
    for m in net.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            m.running_mean.uniform_()
            m.running_var.uniform_(0.5, 2)
    fast = torch.compile(net, backend="occ", dynamic=True, options=STRICT)
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(occ.torch.explain().graphs) == 1, "one graph for both sizes"


def test_numbers_that_change_between_calls():
    """Those of arithmetic are inputs of one graph; those that are attributes are constants of one graph each, up to a limit."""

    def f(x, a, slope):
        return nn.functional.leaky_relu(x * a + a * a, slope)

    fast = torch.compile(f, backend="occ", options=JIT)
    x = torch.randn(5, 3)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        for k in range(12):
            for a, slope in ((0.5 + k, 0.1), (0.5, 0.1 + k / 20)):
                torch.testing.assert_close(fast(x, a, slope), f(x, a, slope))
    graphs = occ.torch.explain().graphs
    assert sum(not g.reason for g in graphs) >= 8
    reasons = {g.reason for g in graphs if g.reason}
    assert reasons == {"a graph is compiled for at most 8 values of its numeric arguments"}
    assert [str(w.message) for w in said if "occ leaves" in str(w.message)] == [
        f"occ leaves a graph to PyTorch: {reasons.pop()}"
    ]


def test_arithmetic_alone_compiles_once_for_all_numbers():
    fast = torch.compile(lambda x, a: x * a + a / 2, backend="occ", dynamic=True, options=STRICT)
    with torch.no_grad():
        for a in (0.5, 1.5, -2.0, 1e-3):
            x = torch.randn(4, 3)
            torch.testing.assert_close(fast(x, a), x * a + a / 2)
    assert len(occ.torch.explain().graphs) == 1


def test_a_graph_break_before_a_number_at_a_second_size():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Sequential(nn.BatchNorm1d(8), nn.ReLU())

        def forward(self, x):
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(y) * float(len(x))

    net = Broken().eval()
    fast = torch.compile(net, backend="occ", options=STRICT)
    with torch.no_grad():
        for n in (2, 5, 9):
            x = torch.randn(n, 8)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


class OwnAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.body(x)
        return y.float() + 1


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1)),
        nn.Sequential(nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LazyLinear(3)),
        OwnAutocast(),
    ],
    ids=["linear", "norm", "conv", "own"],
)
def test_autocast_gives_what_pytorch_gives(net, guard):
    net.eval()
    x = torch.randn((3, 1, 8) if isinstance(net[0] if isinstance(net, nn.Sequential) else None, nn.Conv1d) else (3, 8))
    with guard(), torch.autocast("cpu", torch.bfloat16, enabled=not isinstance(net, OwnAutocast)):
        want = net(x)
        got = torch.compile(net, backend="occ", options=STRICT)(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert [g.reason for g in occ.torch.explain().graphs] == [""]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_of_pytorch_are_taken(mode):
    net = nn.Linear(4, 3).eval()
    with torch.no_grad():
        x = torch.randn(2, 4)
        # torch.compile itself refuses a mode together with options
        torch.testing.assert_close(torch.compile(net, backend="occ", mode=mode)(x), net(x), rtol=1e-4, atol=1e-5)
    assert [g.reason for g in occ.torch.explain().graphs] == [""]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"taget": "cpu"}, "has no option `taget`"),
        ({"target": "gpu"}, "gpu"),
        ({"target": "cpu-jit", "fast-math": "perhaps"}, "fast-math"),
    ],
)
def test_mistakes_of_the_user_are_errors(options, told):
    with torch.no_grad(), pytest.raises(Exception, match="backend='occ' raised") as e:
        torch.compile(nn.Linear(4, 3), backend="occ", options=options)(torch.randn(2, 4))
    assert "CompileError" in str(e.value)
    assert told in str(e.value)
    with torch.no_grad(), pytest.raises(Exception, match="there is no mode 'fast'"):
        torch.compile(nn.Linear(4, 3), backend=occ.torch.backend, mode="fast")(torch.randn(2, 4))


def test_export_refuses_training_mode(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"call `module.eval\(\)` first"):
        occ.torch.export(net, (torch.randn(2, 4),), target="cpu-jit")
    x = torch.randn(2, 4)
    occ.torch.export(net.eval(), (x,), target="cpu-jit", out=tmp_path / "m.occ")
    np.testing.assert_allclose(
        occ.load(tmp_path / "m.occ")(x.numpy())[0], net(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    program = torch.export.export(net, (x,))
    occ.torch.export(program, (), target="cpu-jit")


def test_the_reason_of_a_fallback_is_its_cause_in_one_plain_line():
    def f(x):
        return torch.special.bessel_j0(x) + 1  # which ONNX has not

    with torch.no_grad(), pytest.warns(RuntimeWarning, match="occ leaves a graph to PyTorch") as said:
        torch.compile(f, backend="occ", options=JIT)(torch.ones(3))
    (graph,) = occ.torch.explain().graphs
    assert "bessel_j0" in graph.reason
    assert "\x1b" not in graph.reason
    assert "\n" not in graph.reason
    assert "Next steps" not in graph.reason
    assert any(graph.reason in str(w.message) for w in said)
    assert graph.reason in str(occ.torch.explain())


def test_compiling_says_nothing_and_leaves_loggers_alone():
    before = logging.getLogger("torch.onnx._internal.exporter._registration").level
    code = """
import torch, occ
with torch.no_grad():
    torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).eval(), backend="occ", dynamic=True,
        options={"target": "cpu-jit", "strict": True})(torch.randn(2, 4))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout + ran.stderr == ""
    assert logging.getLogger("torch.onnx._internal.exporter._registration").level == before


def test_explain_forgets_with_dynamo():
    with torch.no_grad():
        torch.compile(nn.Linear(4, 3), backend="occ", options=JIT)(torch.randn(2, 4))
    assert len(occ.torch.explain().graphs) == 1
    torch._dynamo.reset()
    assert occ.torch.explain().graphs == []

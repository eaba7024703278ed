"""Modules of PyTorch: exported, and compiled by `torch.compile`. Skipped where torch is not installed."""

from __future__ import annotations

import tomllib
import warnings
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import occ

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="torch's exporter needs onnxscript")
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.toolchain, pytest.mark.filterwarnings("ignore")]
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
OPTIONS = {"target": "cpu-jit", "strict": True}


class Residual(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        self.head = nn.Linear(channels, 5)

    def forward(self, x):
        y = self.first(x)
        return self.head(torch.relu(self.second(y) + y).mean((2, 3)))


class Inverted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 1),
            nn.ReLU6(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1, groups=12),
            nn.Hardswish(),
            nn.Conv2d(12, 4, 1),
        )

    def forward(self, x):
        return self.body(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.out = (
            nn.Conv2d(3, 6, 3, stride=2, padding=1),
            nn.ConvTranspose2d(6, 4, 2, stride=2),
            nn.Conv2d(7, 1, 1),
        )

    def forward(self, x):
        return torch.sigmoid(self.out(torch.cat([self.up(torch.relu(self.down(x))), x], 1)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
        )

    def forward(self, ids):
        return self.layers(self.embed(ids))


class Decoder(nn.Module):
    """One causal attention layer, by scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, ids):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.embed(ids)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Broken(nn.Module):
    """Dynamo breaks its graph at `item`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.b(y) if float(y.sum().item()) >= 0 else -self.b(y)


class Several(nn.Module):
    """Results that are inputs, repeated, constant, integers."""

    def forward(self, x):
        y = x.exp()
        return x, y, y, None, 3, y.argmax(-1)


def image(n: int = 2):
    return (torch.randn(n, 3, 16, 16),)


def ids(n: int = 2):
    return (torch.randint(0, 50, (n, 7)),)


MODELS = {
    "residual": (Residual, image), "inverted": (Inverted, image), "unet": (UNet, image), "encoder": (Encoder, ids),
    "decoder": (Decoder, ids), "broken": (Broken, lambda n=2: (torch.randn(n, 8),)),
    "several": (Several, lambda n=2: (torch.randn(n, 4),)),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2)), lambda n=2: (torch.randn(n, 8),)),
    "mixer": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.SiLU(), nn.Softmax(-1)), image),
}  # fmt: skip


def close(got, want) -> None:
    got, want = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        else:
            assert a == b


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    occ.torch.explain(clear=True)
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_compiled_models_are_right_at_two_sizes(name):
    make, inputs = MODELS[name]
    module = make().eval()
    compiled = torch.compile(module, backend=occ.torch.backend, options=OPTIONS)
    with torch.no_grad():
        for n in (2, 5, 3):
            given = inputs(n)
            close(compiled(*given), module(*given))
    found = occ.torch.explain()
    assert found.graphs
    assert not any(g.reason for g in found.graphs), str(found)
    assert bool(found.breaks) == (name == "broken")


@pytest.mark.parametrize("name", ["residual", "encoder", "decoder"])
def test_export(name, tmp_path):
    make, inputs = MODELS[name]
    module, given = make().eval(), inputs(2)
    batch = torch.export.Dim("batch", min=2)
    artifact = occ.torch.export(module, given, ({0: batch},), target="cpu-jit", out=tmp_path / "m.occ")
    assert artifact.manifest.target == "cpu-jit"
    session = occ.load(tmp_path / "m.occ")
    for n in (2, 5):
        x = inputs(n)
        with torch.no_grad():
            want = module(*x).numpy()
        np.testing.assert_allclose(session(*[t.numpy() for t in x])[0], want, rtol=1e-4, atol=1e-4)


def test_the_backend_is_found_by_its_name():
    points = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    assert points == {"occ": "occ.torch:backend"}
    if not entry_points(group="torch_dynamo_backends", name="occ"):
        pytest.skip("occ is not installed here as a package")
    assert "occ" in torch._dynamo.list_backends()


def test_the_fast_path_of_transformers_is_named():
    torch.backends.mha.set_fastpath_enabled(True)
    module = Encoder().eval()
    with torch.no_grad(), pytest.raises(Exception, match="set_fastpath_enabled"):
        torch.compile(module, backend=occ.torch.backend, options=OPTIONS)(*ids())


@pytest.mark.parametrize("strict", [True, False])
def test_a_recurrent_layer_is_one_graph_at_every_length(strict):
    module = nn.LSTM(4, 6, batch_first=True).eval()
    options = {"target": "cpu-jit", "strict": strict}
    compiled = torch.compile(module, backend=occ.torch.backend, options=options)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        for batch, length in ((2, 5), (2, 9), (2, 7), (3, 7), (2, 5)):
            x = torch.randn(batch, length, 4)
            close(compiled(x)[0], module(x)[0])
    found = occ.torch.explain()
    assert not found.breaks
    assert not any(g.reason for g in found.graphs), str(found)


def test_lstm_is_left_to_torch_or_right():
    module = nn.LSTM(4, 6, batch_first=True).eval()
    compiled = torch.compile(module, backend=occ.torch.backend, options={"target": "cpu-jit"})
    x = torch.randn(2, 5, 4)
    with torch.no_grad():
        close(compiled(x)[0], module(x)[0])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen.add_(1)
        return x * self.seen


def test_a_buffer_that_is_changed_is_left_to_torch_with_one_warning():
    module, other = Counting(), Counting()
    compiled = torch.compile(module, backend=occ.torch.backend, options={"target": "cpu-jit"})
    x = torch.ones(3)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            close(compiled(x), other(x))
    assert sum("occ leaves a graph" in str(w.message) for w in told) <= 1
    assert occ.torch.explain().graphs[0].reason
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="changes"):
        torch.compile(Counting(), backend=occ.torch.backend, options=OPTIONS)(x)


def test_gradients_are_left_to_torch():
    module = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    torch.compile(module, backend=occ.torch.backend)(x).sum().backward()
    assert module.weight.grad is not None
    assert "gradients" in occ.torch.explain().graphs[0].reason


def test_parameters_that_change_are_seen():
    module = nn.Linear(4, 2).eval()
    compiled = torch.compile(module, backend=occ.torch.backend, options=OPTIONS)
    x = torch.randn(3, 4)
    with torch.no_grad():
        close(compiled(x), module(x))
        module.weight.mul_(2)
        close(compiled(x), module(x))


def test_parameters_of_inference_mode_take_the_place_of_others():
    module = nn.Linear(4, 2).eval()
    compiled = torch.compile(module, backend=occ.torch.backend, options=OPTIONS)
    x = torch.randn(3, 4)
    with torch.no_grad():
        close(compiled(x), module(x))
    with torch.inference_mode():
        module.weight = nn.Parameter(torch.randn(2, 4), requires_grad=False)
        close(compiled(x), module(x))
        close(compiled(x), module(x))


def test_a_run_that_fails_is_left_to_torch(monkeypatch):
    module = nn.Linear(4, 2).eval()
    for strict in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(module, backend=occ.torch.backend, options=OPTIONS | {"strict": strict})
        with torch.no_grad(), monkeypatch.context() as patched:
            x = torch.randn(3, 4)
            compiled(x)
            patched.setattr("occ.runtime.session.Session.__call__", lambda *_: 1 / 0)
            if strict:
                with pytest.raises(Exception, match="ZeroDivisionError"):
                    compiled(x)
            else:
                close(compiled(x), module(x))


def test_bfloat16_and_strided_inputs():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval().to(torch.bfloat16)
    compiled = torch.compile(module, backend=occ.torch.backend, options=OPTIONS)
    with torch.no_grad():
        x = torch.randn(4, 6).to(torch.bfloat16).T[:6]
        got, want = compiled(x), module(x)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)

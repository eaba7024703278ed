"""`-C cache=int8`: caches of codes with a scale for each head of each token, against attention in float64 on those codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import decoder
from test_kv_cache_in_place import SIZE, attended, attention, halves, normal

import occ
from occ.runtime.buffers import aligned

OPTIONS = {"cache": "int8"}


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of rows, as the option says what they are."""
    scales = np.abs(x.astype(np.float32)).max(-1) / np.float32(127)
    return np.rint(x.astype(np.float32) / np.where(scales == 0, 1, scales)[..., None]).astype(np.int8), scales


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize(("heads", "groups", "size"), [(6, 2, SIZE), (3, 3, SIZE), (8, 2, 64), (5, 1, 24)])
def test_steps_append_codes_and_attend_to_their_values(target: str, heads: int, groups: int, size: int) -> None:
    session = occ.compile(attention(heads, groups, size=size), target, options=OPTIONS)
    assert {i.name: i.dtype for i in session.inputs if i.name[0] == "p"} == {
        "pk": "i8", "pv": "i8", "pk.scale": "f32", "pv.scale": "f32",
    }  # fmt: skip
    codes = {x: aligned((300, 1, groups, size), np.dtype(np.int8)) for x in "KV"}
    scales = {x: aligned((300, 1, groups), np.dtype(np.float32)) for x in "KV"}
    for array in scales.values():
        array[:] = np.nan  # positions after the end are never read
    past = 0
    for new in (5, 1, 1, 4, 70, 1, 140, 1, 3):
        given = {"q": normal(1, heads, new, size), "mask": np.zeros((1, 1, new, past + new), np.float32)}
        given["mask"][0, 0] = np.where(np.tri(new, past + new, past) > 0, 0, -np.inf)
        given |= {x: normal(1, groups, new, size) for x in "kv"}
        old = {f"p{x.lower()}": codes[x][:past] for x in "KV"}
        old |= {f"p{x.lower()}.scale": scales[x][:past] for x in "KV"}
        end = past + new
        into = {x: codes[x][:end] for x in "KV"} | {f"{x}.scale": scales[x][:end] for x in "KV"}
        got = session.run({**given, **old}, into)
        for x in "KV":
            want, steps = quantised(given[x.lower()].transpose(2, 0, 1, 3))
            np.testing.assert_allclose(scales[x][past:end], steps, rtol=1e-6)
            apart = np.abs(codes[x][past:end].astype(np.int32) - want)
            assert apart.max() <= 1  # a quotient near a half may round either way
            assert (apart > 0).mean() < 1e-3
        past = end
        keys, values = (codes[x][:past, 0].astype(np.float64) * scales[x][:past, 0, :, None] for x in "KV")
        q = given["q"][0].transpose(1, 0, 2) * (0.25 * np.sqrt(size))  # the model's own scale is 0.25
        np.testing.assert_allclose(got["y"][0].transpose(1, 0, 2), attended(q, keys, values), atol=5e-6)
        assert all(np.isnan(array[past:]).all() for array in scales.values())


def test_caches_of_halves_have_codes_too() -> None:
    session = occ.compile(halves(8, 2, 64), "cpu", options=OPTIONS)
    q, k, v = normal(1, 3, 512), normal(1, 3, 128), normal(1, 3, 128)
    feed = {name: x.astype(np.float16) for name, x in (("q", q), ("k", k), ("v", v))}
    feed |= {x: np.zeros((0, 1, 2, 64), np.int8) for x in ("pk", "pv")}
    got = session.run(feed | {f"{x}.scale": np.zeros((0, 1, 2), np.float32) for x in ("pk", "pv")})
    keys, values = (got[x][:, 0].astype(np.float64) * got[f"{x}.scale"][:, 0, :, None] for x in "KV")
    want = attended(feed["q"].reshape(3, 8, 64), keys, values)
    assert np.abs(got["y"].reshape(want.shape) - want).max() <= 4e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_no_number_is_none_in_the_cache(bad: float) -> None:
    session = occ.compile(attention(2, 2), "cpu", options=OPTIONS)
    given = {"q": normal(1, 2, 2, SIZE), "mask": normal(1, 1, 2, 2)} | {x: normal(1, 2, 2, SIZE) for x in "kv"}
    given["k"][0, 0, 1, 3] = bad
    given["v"][0, 1, 0] = 0  # a row of zeros is one
    given |= {x: np.zeros((0, 1, 2, SIZE), np.int8) for x in ("pk", "pv")}
    got = session.run(given | {f"{x}.scale": np.zeros((0, 1, 2), np.float32) for x in ("pk", "pv")})
    assert not np.isfinite(got["K.scale"][1, 0, 0])
    assert np.isfinite(np.delete(got["K.scale"].ravel(), 2)).all()
    assert np.isnan(got["y"][0, 0]).all()
    assert np.isfinite(got["y"][0, 1]).all()
    assert (got["V"][0, 0, 1] == 0).all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    onnx.save(decoder(), path / "model.onnx")
    return path


def test_a_language_model_needs_a_fraction_of_the_memory_and_is_near(tmp_path: Path) -> None:
    onnx.save(
        decoder(softcap=2.0), tmp_path / "model.onnx"
    )  # random weights have scores that one bit of a code decides
    plain, small = (
        occ.LanguageModel(tmp_path, 1, 100, target="cpu-jit", options=how).decoders.take([]) for how in (None, OPTIONS)
    )
    ids = np.random.default_rng(0).integers(1, 30, 60).tolist()
    parts = [ids[:40], *([t] for t in ids[40:])]
    want, got = (np.array([d.append(part) for part in parts]) for d in (plain, small))
    assert 0 < np.sqrt(np.mean((got - want) ** 2)) <= 0.005 * np.ptp(want)
    held, all_of_it = (sum(c.rows.nbytes for c in d._caches) for d in (small, plain))
    size = plain._caches[0].rows.shape[-1]
    assert held == all_of_it * (size + 4) // (4 * size)


def test_batches_beams_and_drafts_take_such_caches(folder: Path) -> None:
    how = {"threads": 1, "capacity": 100, "target": "cpu-jit", "options": OPTIONS}
    lm = occ.LanguageModel(folder, **how)
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    alone = [lm.generate(p, 12) for p in prompts]
    assert lm.generate(prompts, 12, batch_size=3) == alone
    assert len(lm.generate(prompts[0], 12, num_beams=3)) == 12
    assert occ.LanguageModel(folder, draft="ngram", **how).generate(prompts[0], 12) == alone[0]


def test_the_command_takes_the_option(folder: Path, occ_cli) -> None:
    given = ("generate", folder, "--tokens", "1,2,3", "--max-new-tokens", "4", "--greedy", "--threads", "1")
    want = occ.LanguageModel(folder, 1, 64, options=OPTIONS).generate([1, 2, 3], 4)
    ran = occ_cli(*given, "-C", "cache=int8")
    assert (ran.code, [int(t) for t in ran.out.split()]) == (0, want), ran.err
    refused = occ_cli(*given, "-C", "cache=int3")
    assert (refused.code, "int8" in refused.err) == (2, True), refused.err

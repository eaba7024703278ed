"""occ.LanguageModel: tokens of onnxruntime, choices by chance, folders, and what goes wrong."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import WORDS, Reference, decoder, in_blocks, merged, tokens_of_runs

import occ

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return decoder()


@pytest.fixture(scope="module")
def folder(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder")
    onnx.save(model, path / "model.onnx")
    return path


@pytest.fixture(scope="module")
def lm(folder: Path) -> occ.LanguageModel:
    return occ.LanguageModel(folder, threads=1, capacity=200, target="cpu-jit")


@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 6}, {"softcap": 2.0}])
def test_greedy_tokens_are_those_of_onnxruntime(target: str, attributes: dict[str, float], tmp_path: Path) -> None:
    made = decoder(**attributes)
    onnx.save(made, tmp_path / "model.onnx")
    reference = Reference(made)
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target=target)
    for ids in (PROMPT, [7], list(range(40))):
        got = lm.generate(ids, max_new_tokens=24)
        want = reference.logits([*ids, *got])[len(ids) - 1 : -1]
        assert [int(x) for x in got] == want.argmax(-1).tolist()


def test_merged_decoders_take_the_branch_with_caches(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(merged(model), tmp_path / "decoder_model_merged.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit")
    assert lm.generate(PROMPT, max_new_tokens=6) == Reference(model).greedy(PROMPT, 6)
    assert not [s for s in lm.session.artifact.manifest.plan.steps if s.kind == "if"]


def test_results_are_found_by_their_names(tmp_path: Path) -> None:
    """Caches were continued by the results in their order, and hidden states before the logits refused."""
    made = decoder()
    reference = Reference(made)
    logits, *presents = made.graph.output
    hidden = next(n for n in made.graph.node if logits.name in n.output).input[0]
    del made.graph.output[:]
    made.graph.output.extend([onnx.helper.make_empty_tensor_value_info(hidden), *reversed(presents), logits])
    onnx.save(made, tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit")
    assert lm.generate(PROMPT, max_new_tokens=6) == reference.greedy(PROMPT, 6)
    assert hidden not in {o.name for o in lm.session.outputs}


@pytest.mark.thinned
@pytest.mark.parametrize("target", ["cpu", "cpu-jit"])
def test_products_in_codes_are_as_near_the_truth_as_those_of_onnxruntime(
    target: str, model: onnx.ModelProto, tmp_path: Path
) -> None:
    """Level 4 lets activations be rounded to 8 bits, which moves logits that are near each other past each other. `cpu` rounds
    as onnxruntime does, and `cpu-jit` not at all: where its tokens are others, those of onnxruntime are the wrong ones.
    """
    onnx.save(in_blocks(model, level=4), tmp_path / "model.onnx")
    ids = np.random.default_rng(5).integers(0, WORDS, 40).tolist()
    truth, theirs = (Reference(in_blocks(model, k)).logits(ids).astype(np.float64) for k in (0, 4))
    decoder = occ.LanguageModel(tmp_path, threads=1, capacity=64, target=target).decoders.idle[0]
    ours = np.array([decoder.append([t]) for t in ids])
    off, allowed = (float(np.sqrt(np.mean((x - truth) ** 2)) / truth.std()) for x in (ours, theirs))
    assert allowed > 3e-3
    assert off < (1.05 * allowed if target == "cpu" else 1e-4)
    if target == "cpu":  # a code in which the two differ moves what comes after it
        assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.5 * allowed * truth.std()


def test_long_prompts_are_read_in_parts(
    lm: occ.LanguageModel, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = tokens_of_runs(lm, monkeypatch)
    monkeypatch.setattr("occ.generation.decoder.PREFILL_CHUNK", 16)
    ids = np.random.default_rng(8).integers(0, WORDS, 60).tolist()
    want = Reference(model).logits(ids)
    with lm.decoders.holding([]) as decoder:
        for count, parts in ((60, [15, 15, 15, 15]), (23, [23]), (25, [13, 12]), (1, [1])):
            decoder.trim(0)
            sizes.clear()
            np.testing.assert_allclose(decoder.append(ids[:count]), want[count - 1], rtol=1e-4, atol=1e-4)
            assert sizes == parts
            assert decoder.tokens == ids[:count]


def test_all_texts_share_the_beginning_that_they_have_in_common(lm: occ.LanguageModel, model: onnx.ModelProto) -> None:
    reference = Reference(model)
    for ids in (PROMPT, [*PROMPT, 8, 8], PROMPT[:3], PROMPT, [1]):
        assert lm.generate(ids, max_new_tokens=5) == reference.greedy(ids, 5)


def test_states_that_sum_up_a_text_go_on_with_it_and_start_again(tmp_path: Path) -> None:
    made = decoder(taps=4)
    onnx.save(made, tmp_path / "model.onnx")
    lm = occ.LanguageModel(tmp_path, threads=1, capacity=64, target="cpu-jit")
    reference = Reference(made)
    for ids in (PROMPT, [*PROMPT, 8, 8], PROMPT[:3], PROMPT, [1]):
        assert lm.generate(ids, max_new_tokens=5) == reference.greedy(ids, 5)


def test_it_stops_where_asked_or_where_the_cache_is_full(lm: occ.LanguageModel) -> None:
    every = lm.generate(PROMPT, max_new_tokens=30)
    third = every[2]
    assert lm.generate(PROMPT, max_new_tokens=30, stop=[third]) == every[: every.index(third) + 1]
    assert len(lm.generate(PROMPT, max_new_tokens=1000)) == lm.capacity - len(PROMPT)
    assert lm.generate(PROMPT, max_new_tokens=0) == []


def test_chance_follows_its_seed(lm: occ.LanguageModel) -> None:
    how = {"max_new_tokens": 20, "do_sample": True, "temperature": 2.0}
    one, again, other = (lm.generate(PROMPT, seed=s, **how) for s in (1, 1, 2))
    assert one == again != other
    for certain in ({"top_k": 1}, {"temperature": 0}, {"temperature": 1e-308}, {"top_p": 1e-9}):
        assert lm.generate(PROMPT, **how | certain) == lm.generate(PROMPT, max_new_tokens=20)
    assert lm.generate(PROMPT, **how | {"top_k": 10**6, "stop": None}) == lm.generate(PROMPT, **how)


def test_prompts_of_any_lengths_are_continued_as_each_alone(lm: occ.LanguageModel) -> None:
    prompts = [PROMPT, [7], PROMPT[:5]]
    how = {"max_new_tokens": 6, "do_sample": True, "temperature": 2.0, "seed": 3}
    assert lm.generate(prompts, **how) == [lm.generate(p, **how) for p in prompts]
    assert lm.generate([np.array(PROMPT)], **how) == [lm.generate(PROMPT, **how)]


def test_several_threads_write_at_once(lm: occ.LanguageModel) -> None:
    prompts = [[k, k + 1] for k in range(4)]
    alone = [lm.generate(p, max_new_tokens=20) for p in prompts]
    got: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda k=k: got.update({k: lm.generate(prompts[k], max_new_tokens=20)}))
        for k in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[k] for k in range(4)] == alone


def test_a_stream_that_nobody_reads_to_its_end_gives_its_cache_back(lm: occ.LanguageModel) -> None:
    for _ in range(3):
        stream = lm.stream(PROMPT, 50)
        next(stream)
        stream.close()
    assert len(lm.decoders.idle) <= 4
    assert lm.generate(PROMPT, max_new_tokens=4) == lm.generate(PROMPT, max_new_tokens=4)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"seed": -1}, "seed"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"texts": True}, "tokenizer"),
    ],
)
def test_values_that_make_no_sense_are_errors(lm: occ.LanguageModel, how: dict[str, float], said: str) -> None:
    with pytest.raises(occ.RunError, match=said):
        lm.generate(PROMPT, do_sample=True, **how)


def test_prompts_that_do_not_fit_are_errors(lm: occ.LanguageModel) -> None:
    for prompt, said in (
        ([], "0 tokens"),
        ([1] * 200, "200 tokens"),
        ("text", "tokenizer.json"),
        ([1, WORDS], f"token {WORDS}"),
        ([-1], "token -1"),
    ):
        with pytest.raises(occ.RunError, match=said):
            lm.generate(prompt, max_new_tokens=1)


def test_folders_say_what_they_lack(tmp_path: Path, model: onnx.ModelProto) -> None:
    with pytest.raises(occ.RunError, match="does not exist"):
        occ.LanguageModel(tmp_path / "none")
    with pytest.raises(occ.RunError, match="no model"):
        occ.LanguageModel(tmp_path)
    (tmp_path / "genai_config.json").write_text("[")
    with pytest.raises(occ.RunError, match="genai_config"):
        occ.LanguageModel(tmp_path)
    config = {"model": {"decoder": {"filename": "it.onnx"}, "eos_token_id": [4, 7], "context_length": 32}}
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    onnx.save(model, tmp_path / "it.onnx")
    lm = occ.LanguageModel(tmp_path, target="cpu-jit")
    assert (lm.capacity, lm.eos_ids) == (32, (4, 7))


def test_a_model_that_is_no_decoder_is_an_error(tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", 1, [2])
    y = onnx.helper.make_tensor_value_info("y", 1, [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)]),
        tmp_path / "model.onnx",
    )
    with pytest.raises(occ.RunError, match="not a decoder"):
        occ.LanguageModel(tmp_path)

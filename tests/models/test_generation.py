"""A decoder with a key-value cache writes 64 tokens from one build, the past growing by one each step: the same tokens that
onnxruntime writes. Nothing is compiled on the way: no step of the plan waits for its operands.

The models are those in the folders of OCC_TEST_MODELS that take `input_ids`, `position_ids`, `attention_mask` and `past_...`,
and give `logits` and `present_...`, with named extents of the sequence and of the past.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from exported import Arrays, Exported, folders, session

import occ

STEPS, PROMPT, BATCH = 64, 5, 2
Run = Callable[[Arrays], Sequence[np.ndarray]]

pytestmark = pytest.mark.slow


def is_decoder(exported: Exported) -> bool:
    """Whether it takes a past of any length."""
    shapes = {i.name: i.type.tensor_type.shape.dim for i in exported.proto.graph.input}
    past = next((s for n, s in shapes.items() if n.startswith("past_")), None)
    return past is not None and bool(past[2].dim_param) and bool(shapes["input_ids"][1].dim_param)


def generate(run: Run, exported: Exported, prompt: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Greedy tokens [batch, STEPS], none of them twice, since a net of random weights would repeat one for ever; and the
    gap between the best and the second best logit of each step.
    """
    empty = {
        i.name: np.zeros((BATCH, d[1].dim_value, 0, d[3].dim_value), np.float32)
        for i in exported.proto.graph.input
        if i.name.startswith("past_")
        for d in [i.type.tensor_type.shape.dim]
    }
    past: dict[str, np.ndarray] = empty
    tokens, written, margins, seen = prompt, [], [], 0
    for _ in range(STEPS):
        length = tokens.shape[1]
        positions = np.broadcast_to(np.arange(seen, seen + length), (BATCH, length))
        mask = np.ones((BATCH, seen + length), np.int64)
        given = {"input_ids": tokens, "position_ids": np.ascontiguousarray(positions), "attention_mask": mask, **past}
        logits, *present = run(given)
        past = dict(zip(empty, present, strict=True))
        seen += length
        assert present[0].shape[2] == seen
        scores = logits[:, -1].copy()
        np.put_along_axis(scores, np.concatenate([prompt, *written], 1), -np.inf, 1)
        best = np.sort(scores, axis=-1)
        margins.append(float((best[:, -1] - best[:, -2]).min()))
        tokens = scores.argmax(-1)[:, None]
        written.append(tokens)
    return np.concatenate(written, 1), margins


@pytest.mark.parametrize("target", ["interp", "cpu-jit", "cpu"])
@pytest.mark.parametrize("exported", [m for m in folders() if is_decoder(m)], ids=lambda m: m.name)
def test_tokens_are_those_of_onnxruntime(exported: Exported, target: str) -> None:
    ours, theirs = occ.compile(exported.path, target), session(exported.path)
    manifest = ours.artifact.manifest
    plans = [manifest.plan, *(f.plan for f in manifest.functions.values())]
    assert not [s for p in plans for s in p.steps if s.kind == "deferred"]
    prompt = np.random.default_rng(3).integers(0, 8000, (BATCH, PROMPT))
    expected, margins = generate(lambda x: theirs.run(None, dict(x)), exported, prompt)
    got, _ = generate(lambda x: list(ours.run(x).values()), exported, prompt)
    assert np.array_equal(got, expected)
    print(f"{exported.name} on {target}: {got.shape[1]} steps alike, smallest margin {min(margins):.1e}")

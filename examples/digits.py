"""Trains `digits.onnx`, a network that reads handwritten digits of 8x8 pixels, and writes `three.npy`, a picture that it has not seen.

    pip install torch onnxscript scikit-learn; python examples/digits.py

The pictures are scikit-learn's copy of the UCI data set "Optical Recognition of Handwritten Digits".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

HERE = Path(__file__).parent
TESTED = 300  # pictures at the end, which are not trained on


def network() -> nn.Module:
    """f32[N,1,8,8], pixels in [0, 1] -> f32[N,10], a probability of each digit."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10), nn.Softmax(-1),
    )  # fmt: skip


def main() -> None:
    """Train for 30 epochs, report the share of correct predictions, and export."""
    torch.manual_seed(0)
    data = load_digits()
    x = torch.from_numpy(data.images.astype(np.float32)[:, None] / 16)
    y = torch.from_numpy(data.target)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(30):
        for batch in torch.randperm(len(x) - TESTED).split(64):
            optimizer.zero_grad()
            nn.functional.nll_loss(model(x[batch]).clamp_min(1e-9).log(), y[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        print(
            f"{(model(x[-TESTED:]).argmax(-1) == y[-TESTED:]).float().mean():.1%} of {TESTED} new pictures are read right"
        )
    program = torch.onnx.export(
        model, (x[:2],), dynamo=True, input_names=["picture"], output_names=["digit"],
        dynamic_shapes=({0: torch.export.Dim("N")},), verbose=False,
    )  # fmt: skip
    made = program.model_proto
    for node in made.graph.node:
        del node.metadata_props[:]  # paths of this machine
    del made.graph.metadata_props[:]
    for value in [*made.graph.value_info, *made.graph.input, *made.graph.output]:
        del value.metadata_props[:]
    (HERE / "digits.onnx").write_bytes(made.SerializeToString())
    three = next(k for k in range(len(x) - TESTED, len(x)) if y[k] == 3)
    np.save(HERE / "three.npy", x[three : three + 1].numpy())


if __name__ == "__main__":
    main()

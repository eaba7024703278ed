"""Options of the provider in onnxruntime: what the compiler sees, memory, dumps."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from ascend_standin import Standin
from building import mlp, model_of
from ort_device import ABC, NAME, RNG, agree, session

import occ

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain


def compiled(device: Standin) -> list[dict[str, object]]:
    """The arguments that sessions passed to the stand-in for atc."""
    found = []
    for claim in occ.onnxruntime.claimed():
        payload = claim.artifact.read_bytes().partition(b"payload ")[2].partition(b"\n")[2]
        found.append(json.loads(payload.partition(b"\n")[0]))
    return found


def test_options_of_a_session_are_seen_by_the_compiler(device):
    occ.onnxruntime.register("ascend310p", options={"precision_mode_v2": "cube_fp16in_fp32out"})
    how = {
        "op_select_impl_mode": "high_precision",
        "optypelist_for_implmode": "Gelu",
        "enable_cann_graph": True,
        "input_format": "ND",
    }
    model = mlp(seed=3)
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session(model, options, **how)
    told = compiled(device)[0]
    assert told["precision"] == "cube_fp16in_fp32out"
    assert {"--op_select_implmode=high_precision", "--optypelist_for_implmode=Gelu"} <= set(told["flags"])
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    occ.onnxruntime.register("ascend310p")
    session(mlp(seed=3), options, precision_mode="force_fp16")
    assert compiled(device)[0]["precision"] == "fp16"


@pytest.mark.parametrize("strategy", ["kNextPowerOfTwo", "kSameAsRequested"])
def test_memory_of_a_session(strategy, device):
    occ.onnxruntime.register("ascend310p")
    model = model_of("g (float[1000,1000] x) => (float[1000,1000] y) { y = Relu(x) }")
    x = {"x": RNG.standard_normal((1000, 1000), dtype=np.float32)}
    opened = session(model, arena_extend_strategy=strategy, npu_mem_limit=40_000_000)
    agree(opened, model, x)
    peak = device.memory[1]
    assert (8_000_000 < peak < 8_400_000) if strategy == "kSameAsRequested" else 8_400_000 < peak < 20_000_000
    for _ in range(5):
        opened.run(None, x)
    assert device.memory[1] == peak  # blocks are used again
    del opened
    small = session(model, npu_mem_limit=5_000_000)
    with pytest.raises(Exception, match=r"[Ff]ailed to allocate|OCC0511"):
        small.run(None, x)


def test_what_is_dumped(device, tmp_path):
    occ.onnxruntime.register("ascend310p")
    session(model_of(ABC), dump_graphs=True, dump_om_model="True")
    made = sorted(p.suffix for p in tmp_path.glob(f"{NAME}_*"))
    assert made == [".om", ".om", ".onnx", ".onnx"]
    for path in tmp_path.glob("*.onnx"):
        onnx.checker.check_model(onnx.load(path))


def test_a_file_that_an_option_names_is_part_of_what_is_compiled(device, tmp_path):
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    told = []
    for text in ("{}", '{"black-list": {}}'):
        (tmp_path / "mix.json").write_text(text)
        occ.onnxruntime.register("ascend310p", options={"atc.modify_mixlist": "mix.json"})
        session(model)
        told.append(occ.onnxruntime.claimed()[0].artifact)
    assert told[0] != told[1]
    assert "--modify_mixlist=modify_mixlist.json" in compiled(device)[0]["flags"]

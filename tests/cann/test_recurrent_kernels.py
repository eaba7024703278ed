"""LSTM and GRU as one kernel for all steps where attributes allow it, written out where not; on every chip, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import model_of
from simulating import built, simulated, worst

from occ.compiler.codegen_cann.options import SOCS

RNG = np.random.default_rng(71)
STEPS, BATCH, INPUTS, SIZE = 6, 2, 5, 4
KERNELS = {"DynamicRNN", "DynamicGRUV2"}


def f(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 2).astype(np.float32)


def recurrent(kind: str, *, steps: int | str = STEPS, ways: str = "forward", bias: bool = True, state: bool = True, dtype: str = "float", **attrs: str) -> onnx.ModelProto:  # fmt: skip
    """A model of one operator with all of its results; `attrs` as text."""
    count, d = {"LSTM": 4, "GRU": 3}[kind], 2 if ways == "bidirectional" else 1
    weights: dict[str, np.ndarray] = {"w": f(d, count * SIZE, INPUTS), "r": f(d, count * SIZE, SIZE)}
    if bias:
        weights["b"] = f(d, 2 * count * SIZE)
    given = ["x", "w", "r", "b" if bias else "", ""]
    ports = f"{dtype}[{steps}, {BATCH}, {INPUTS}] x"
    for name in (("h", "c") if kind == "LSTM" else ("h",)) if state else ():
        given.append(name)
        ports += f", {dtype}[{d}, {BATCH}, {SIZE}] {name}"
    if dtype == "float16":
        weights = {k: v.astype(np.float16) for k, v in weights.items()}
    words = ", ".join([f"hidden_size = {SIZE}", f'direction = "{ways}"', *(f"{k} = {v}" for k, v in attrs.items())])
    last = f", {dtype}[{d}, {BATCH}, {SIZE}] yh" + (f", {dtype}[{d}, {BATCH}, {SIZE}] yc" if kind == "LSTM" else "")
    outs = "y, yh, yc" if kind == "LSTM" else "y, yh"
    return model_of(
        f"g ({ports}) => ({dtype}[{steps}, {d}, {BATCH}, {SIZE}] y{last}) {{ {outs} = {kind} <{words}> ({', '.join(given)}) }}",
        weights,
    )


def inputs(m: onnx.ModelProto, steps: int = STEPS) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for port in m.graph.input:
        shape = [d.dim_value or steps for d in port.type.tensor_type.shape.dim]
        made[port.name] = f(*shape).astype(onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type))
    return made


def operators(made: Any) -> set[str]:
    return set(made.manifest.summary["ge_operators"])


def check(m: onnx.ModelProto, made: Any, most: float = 3e-3, steps: int = STEPS) -> None:
    x = inputs(m, steps)
    assert worst(simulated(made, x), onnxruntime.InferenceSession(m.SerializeToString()).run(None, x)) < most


WHOLE = [
    ("LSTM", {}), ("LSTM", {"ways": "reverse"}), ("LSTM", {"ways": "bidirectional"}), ("LSTM", {"bias": False, "state": False}),
    ("GRU", {"linear_before_reset": "1"}), ("GRU", {"linear_before_reset": "1", "ways": "reverse"}),
    ("GRU", {"linear_before_reset": "1", "ways": "bidirectional", "bias": False, "state": False}),
]  # fmt: skip


@pytest.mark.parametrize("target", ["ascend310", "ascend310b", "ascend310p", "ascend910"])
@pytest.mark.parametrize(("kind", "attrs"), WHOLE)
def test_all_steps_are_one_kernel(kind: str, attrs: dict[str, Any], target: str):
    m = recurrent(kind, **attrs)
    made = built(m, target, cpu_fallback="off")
    kernel = {"LSTM": "DynamicRNN", "GRU": "DynamicGRUV2"}[kind]
    assert made.manifest.summary["ge_operators"][kernel] == (2 if attrs.get("ways") == "bidirectional" else 1)
    assert not {"While", "MatMulV2", "Sigmoid"} & operators(made)
    check(m, made)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_half_precision_is_one_kernel_where_it_is_the_models(kind: str):
    more = {"linear_before_reset": "1"} if kind == "GRU" else {}
    m = recurrent(kind, dtype="float16", **more)
    check(m, made := built(m, "ascend910b", cpu_fallback="off"), 1e-2)
    assert KERNELS & operators(made)


WRITTEN_OUT = [
    ("GRU", {}), ("LSTM", {"clip": "0.5"}), ("LSTM", {"activations": '["Sigmoid", "Relu", "Tanh"]'}), ("LSTM", {"input_forget": "1"}),
    ("LSTM", {"steps": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attrs"), WRITTEN_OUT)
def test_what_no_kernel_has_is_written_out(kind: str, attrs: dict[str, Any]):
    """The reset gate before the product, clips, other activations, coupled gates; and one step, which a kernel makes no faster."""
    m = recurrent(kind, **attrs)
    made = built(m, "ascend310p", cpu_fallback="off")
    assert not KERNELS & operators(made)
    check(m, made, steps=attrs.get("steps", STEPS))


@pytest.mark.parametrize("target", SOCS)
def test_float_that_stays_float_is_written_out(target: str):
    """Both kernels multiply in half precision."""
    m = recurrent("LSTM")
    if target in ("ascend910b", "ascend910_93"):
        check(m, made := built(m, target, cpu_fallback="off"), 1e-5)
        assert not KERNELS & operators(made)
        made = built(m, target, cpu_fallback="off", precision_mode_v2="mixed_float16")
        assert KERNELS & operators(made)
    check(m, built(m, target, cpu_fallback="off", precision_mode_v2="fp16"))


@pytest.mark.parametrize("target", ["ascend310p", "ascend910"])
def test_any_number_of_steps(target: str):
    m = recurrent("LSTM", steps="n", ways="bidirectional")
    made = built(m, target, cpu_fallback="off", dynamic_ranges="n=2..64")
    assert "DynamicRNN" in operators(made)
    for steps in (2, 9):
        check(m, made, steps=steps)
    check(m, built(m, "ascend310", cpu_fallback="off", dynamic_dims="4;9"), steps=9)

"""Peer runtimes with one interface for text generation, for benchmarks.

`start` takes a prompt, `step` the last token; both return the next token. Only the runtime in use is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from occ.generation.folder import Folder
from occ.generation.names import IDS, LOGITS, MASK, POSITIONS, is_cache, presents_of
from occ.generation.sampling import Sampler, Sampling

# The settings of `occ bench --generate --sampled`, in every runtime. A pure graph runtime has no sampler, and uses
# ours.
SAMPLED = Sampling(do_sample=True, temperature=0.8, top_p=0.95)


class CannotGenerate(Exception):
    """A runtime is not installed, or does not support the model; the text says which."""


class PeerRuntime(Protocol):
    """One text of one runtime."""

    def start(self, ids: Sequence[int], *, sampled: bool = False) -> int:
        """Begin a text with a prompt; returns the first new token."""
        ...

    def step(self) -> int:
        """Append the last token; returns the next one."""
        ...


class OccRuntime:
    """occ, with the artifact of a decoder."""

    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        from occ.generation.decoder import Decoder
        from occ.loading import load

        self._decoder = Decoder(load(model, threads), capacity)
        self._last, self._sampler = 0, Sampler(Sampling())

    def start(self, ids: Sequence[int], *, sampled: bool = False) -> int:
        """Implements `PeerRuntime.start`."""
        self._decoder.trim(0)
        self._sampler = _sampler(ids, sampled)
        self._last = self._sampler.choose(self._decoder.append(list(ids)))
        return self._last

    def step(self) -> int:
        """Implements `PeerRuntime.step`."""
        self._last = self._sampler.choose(self._decoder.append_scored([self._last])[-1])
        return self._last

    def distances(self, ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Distance of another runtime's tokens from the most probable ones, relative to the logits' range."""
        self._decoder.trim(0)
        found: list[float] = []
        new = list(ids)
        for token in tokens:
            logits = self._decoder.append(new)
            found.append(float((logits.max() - logits[token]) / max(logits.max() - logits.min(), 1e-30)))
            new = [token]
        return found


class GenaiRuntime:
    """onnxruntime-genai, with its own search and one buffer for past and present."""

    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        if not (model.parent / "genai_config.json").exists():
            raise CannotGenerate("the folder has no genai_config.json")
        genai = _imported("onnxruntime_genai", "onnxruntime-genai")
        config = genai.Config(str(model.parent))
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        made = genai.Model(config)
        # No token ends a text before it is as long as the others'.
        length = {"max_length": capacity, "min_length": capacity}
        greedy, sampling = genai.GeneratorParams(made), genai.GeneratorParams(made)
        greedy.set_search_options(do_sample=False, **length)
        # Without `top_k`, genai samples from the 50 most probable tokens.
        settings = {name: getattr(SAMPLED, name) for name in ("temperature", "top_k", "top_p")}
        sampling.set_search_options(do_sample=True, random_seed=0, **settings, **length)
        self._new = lambda sampled: genai.Generator(made, sampling if sampled else greedy)
        self._sampled, self._generator = False, self._new(False)

    def start(self, ids: Sequence[int], *, sampled: bool = False) -> int:
        """Implements `PeerRuntime.start`."""
        try:
            if sampled != self._sampled:
                self._generator = self._new(sampled)
            else:
                self._generator.rewind_to(0)
        except RuntimeError:  # states, and caches of a window, do not contain the beginning
            self._generator = self._new(sampled)
        self._sampled = sampled
        self._generator.append_tokens(np.array(ids, np.int32))
        return self.step()

    def step(self) -> int:
        """Implements `PeerRuntime.step`."""
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])


class _GraphRuntime:
    """A graph runtime: each step gets the results of the previous one."""

    def __init__(self, model: Path, inputs: Sequence[tuple[str, type, Sequence[Any]]], outputs: Sequence[str]) -> None:
        head = Folder.of(model).head
        self._past = [(name, dtype, _empty(shape, head)) for name, dtype, shape in inputs if is_cache(name)]
        self._others = {name: dtype for name, dtype, _ in inputs if not is_cache(name)}
        if IDS not in self._others or self._others.keys() - {IDS, MASK, POSITIONS}:
            raise CannotGenerate(f"the model does not take `{IDS}`, `{MASK}` and `{POSITIONS}` alone")
        self._names = [LOGITS, *presents_of([name for name, _, _ in self._past], outputs)]
        self._held: list[Any] = []
        self._done = self._last = 0
        self._sampler = Sampler(Sampling())

    def start(self, ids: Sequence[int], *, sampled: bool = False) -> int:
        """Implements `PeerRuntime.start`."""
        self._held, self._done = [self._tensor(np.zeros(shape, dtype)) for _, dtype, shape in self._past], 0
        self._sampler = _sampler(ids, sampled)
        return self._next(ids)

    def step(self) -> int:
        """Implements `PeerRuntime.step`."""
        return self._next([self._last])

    def _next(self, ids: Sequence[int]) -> int:
        end = self._done + len(ids)
        values = {IDS: np.array([ids]), MASK: np.ones((1, end)), POSITIONS: np.arange(self._done, end)[None]}
        given = {name: self._tensor(values[name].astype(dtype)) for name, dtype in self._others.items()}
        logits, self._held = self._run(given | {p[0]: x for p, x in zip(self._past, self._held, strict=True)})
        self._done, self._last = end, self._sampler.choose(logits.reshape(-1, logits.shape[-1])[-1])
        return self._last

    def _tensor(self, array: np.ndarray) -> Any:
        raise NotImplementedError

    def _run(self, given: dict[str, Any]) -> tuple[np.ndarray, list[Any]]:
        raise NotImplementedError


def _sampler(ids: Sequence[int], sampled: bool) -> Sampler:
    return Sampler(SAMPLED if sampled else Sampling(), ids)


def _empty(shape: Sequence[Any], head: int) -> list[int]:
    """The shape of an empty cache for one text; an open extent is the head size."""
    rest = list(shape[1:])
    grows = next((k for k, d in enumerate(rest) if not isinstance(d, int)), 0)
    return [1, *(0 if k == grows else d if isinstance(d, int) else head for k, d in enumerate(rest))]


class OnnxruntimeRuntime(_GraphRuntime):
    """Plain onnxruntime: the caches stay in its own values, and are copied at each step."""

    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        self._runtime = _imported("onnxruntime", "onnxruntime")
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        self._session = self._runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        kinds = {"int64": np.int64, "int32": np.int32, "float": np.float32, "float16": np.float16}
        inputs = [(i.name, kinds[i.type[7:-1]], i.shape) for i in self._session.get_inputs()]
        super().__init__(model, inputs, [o.name for o in self._session.get_outputs()])

    def _tensor(self, array: np.ndarray) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(array)

    def _run(self, given: dict[str, Any]) -> tuple[np.ndarray, list[Any]]:
        logits, *held = self._session.run_with_ort_values(self._names, given)
        return logits.numpy(), held


class OpenvinoRuntime(_GraphRuntime):
    """OpenVINO, in f32; the caches are copied at each step."""

    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        openvino = _imported("openvino", "openvino")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(str(model), "CPU", settings)
        self._request, self._as_tensor = compiled.create_infer_request(), openvino.Tensor
        inputs = [
            (p.any_name, p.element_type.to_dtype().type, [d.get_length() if d.is_static else None for d in p.partial_shape])
            for p in compiled.inputs
        ]  # fmt: skip
        super().__init__(model, inputs, [p.any_name for p in compiled.outputs])

    def _tensor(self, array: np.ndarray) -> Any:
        return self._as_tensor(array)

    def _run(self, given: dict[str, Any]) -> tuple[np.ndarray, list[Any]]:
        found = self._request.infer(given, share_outputs=True)
        return found[self._names[0]], [self._tensor(np.array(found[name])) for name in self._names[1:]]


class LlamaCppRuntime:
    """llama.cpp by llama-cpp-python, with its own sampler: of a GGUF file, or the one beside a model."""

    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        found = [model] if model.suffix == ".gguf" else sorted(model.parent.glob("*.gguf"))
        if len(found) != 1:
            raise CannotGenerate(
                f"there are {len(found)} .gguf files next to the model" if found else "it takes a .gguf file"
            )
        library = _imported("llama_cpp", "llama-cpp-python")
        self._model = library.Llama(
            str(found[0]),
            n_ctx=capacity,
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=512,
            n_gpu_layers=0,
            verbose=False,
        )
        self._how, self._last = {"temp": 0.0}, 0

    def start(self, ids: Sequence[int], *, sampled: bool = False) -> int:
        """Implements `PeerRuntime.start`."""
        self._model.reset()
        chance = {"temp": SAMPLED.temperature, "top_p": SAMPLED.top_p, "top_k": SAMPLED.top_k, "min_p": 0.0}
        self._how = {"repeat_penalty": 1.0, **(chance if sampled else {"temp": 0.0})}
        return self._next(ids)

    def step(self) -> int:
        """Implements `PeerRuntime.step`."""
        return self._next([self._last])

    def _next(self, ids: Sequence[int]) -> int:
        self._model.eval(list(ids))
        self._last = int(self._model.sample(**self._how))
        return self._last


def _imported(module: str, package: str) -> Any:
    try:
        return __import__(module)
    except ImportError:
        raise CannotGenerate(f"not installed: `pip install {package}`") from None


PEER_RUNTIMES: dict[str, Callable[[Path, int, int], PeerRuntime]] = {
    "occ": OccRuntime,
    "onnxruntime-genai": GenaiRuntime,
    "onnxruntime": OnnxruntimeRuntime,
    "openvino": OpenvinoRuntime,
    "llama.cpp": LlamaCppRuntime,
}

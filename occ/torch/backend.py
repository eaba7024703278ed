"""The backend of `torch.compile`: Dynamo graphs to native code, or eager mode."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.compiler.targets.default import DEFAULT
from occ.torch.explain import GRAPHS, Graph
from occ.torch.freeze import Frozen, constant_numbers, freeze, with_constants
from occ.torch.library import torch_module
from occ.torch.reason import Fallback, reason_of

if TYPE_CHECKING:
    from onnx import ModelProto

# What Dynamo makes of transformer layers in evaluation mode, unless the fast path is off; ONNX has no such operators.
_FAST_PATHS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
_MOST = 8  # sessions of a graph, equal to Dynamo's default limit of recompilations
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_warned: set[str] = set()


def backend(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend function that `torch.compile(module, backend="occ", options={...})` calls for each graph.

    Args:
        gm: the graph, a `torch.fx.GraphModule`.
        example_inputs: parameters, sizes and tensors.
        options: `target`, `threads`, `strict` (raise instead of falling back to eager mode), and options of the target.
        mode: one of PyTorch's modes; all mean the same here.

    Returns:
        A function of the same inputs, which returns a tuple. Parameters and buffers are constants in it; when they
        change it is compiled again.

    Raises:
        CompileError: there is no such target, or option of it. ValueError: there is no such mode.
        Fallback: with `strict`, occ does not run the graph.
    """
    given = dict(options or {})
    strict = bool(given.pop("strict", False))
    _check(given, mode)
    try:
        numbers = constant_numbers(gm)
        if numbers:
            return _ByNumbers(gm, example_inputs, given, numbers, strict=strict)
        return _Compiled(gm, example_inputs, given, strict=strict)
    except Exception as e:
        return _left(gm, e, strict=strict)


setattr(backend, "reset", GRAPHS.clear)  # noqa: B010 - torch._dynamo.reset() calls it


def _check(options: Mapping[str, Any], mode: str | None) -> None:
    """Reject invalid calls: a mistake of the user, not a limit of a graph."""
    from occ.api import settings_of
    from occ.compiler.targets.registry import get_target

    if mode not in (None, *_MODES):
        raise ValueError(f"there is no mode {mode!r}; known are {', '.join(_MODES)}")
    own = {k: v for k, v in options.items() if k not in ("target", "threads")}
    settings = settings_of(options.get("target", DEFAULT), None, None, own)
    get_target(settings.target).options.read(settings.target, settings.options)


def _left(gm: Any, e: Exception, *, strict: bool) -> Callable[..., Any]:
    """A graph that PyTorch runs, because of an error.

    Raises:
        Fallback: with `strict`.
    """
    reason = reason_of(e)
    GRAPHS.append(Graph(_size(gm), 0.0, reason))
    if strict:
        raise e if isinstance(e, Fallback) else Fallback(reason) from e
    _warn(reason)
    return gm.forward


def _warn(reason: str) -> None:
    """Report once why a graph runs in eager mode."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"occ leaves a graph to PyTorch: {reason}", RuntimeWarning, stacklevel=4)


def _size(gm: Any) -> int:
    return sum(n.op.startswith("call") for n in gm.graph.nodes)


class _ByNumbers:
    """A graph with numbers that must be constants: it is compiled for each of their values."""

    def __init__(
        self, gm: Any, example_inputs: Sequence[Any], options: dict[str, Any], places: tuple[int, ...], *, strict: bool
    ) -> None:
        self.gm, self.options, self.places, self.strict = gm, options, places, strict
        self.compiled: dict[tuple[float, ...], Callable[..., Any]] = {}
        self(*example_inputs, run=False)

    def __call__(self, *inputs: Any, run: bool = True) -> Any:
        numbers = tuple(_number(inputs[k]) for k in self.places)
        found = self.compiled.get(numbers)
        if found is None:
            found = self.compiled[numbers] = self._compile(numbers, inputs, first=not run)
        return found(*inputs) if run else None

    def _compile(self, numbers: tuple[float, ...], inputs: Sequence[Any], *, first: bool) -> Callable[..., Any]:
        """Compile the graph for these numbers; eager mode if that fails, as in `backend`."""
        try:
            if len(self.compiled) >= _MOST:
                raise Fallback(f"a graph is compiled for at most {_MOST} values of its numeric arguments")
            fixed = with_constants(self.gm, dict(zip(self.places, numbers, strict=True)))
            return _Compiled(fixed, inputs, self.options, strict=self.strict)
        except Exception as e:
            if first:
                raise
            return _left(self.gm, e, strict=self.strict)


def _number(given: Any) -> float:
    """A number that Dynamo may pass as a tensor."""
    return given.item() if hasattr(given, "item") else int(given)


class _Compiled:
    """A graph as sessions. Thread-safe, like sessions.

    Attributes:
        fixed: symbolic extents that torch's exporter has fixed anyway, such as the length for an LSTM, by tensor and
            axis; there is a session for each of their values.
        sessions: by these values; None if there is no such session, and eager mode runs.
    """

    def __init__(self, gm: Any, example_inputs: Sequence[Any], options: dict[str, Any], *, strict: bool) -> None:
        torch = torch_module()

        tensors = [e for e in example_inputs if isinstance(e, torch.Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise Fallback("gradients are enabled: call it under torch.no_grad() or torch.inference_mode()")
        if foreign := next((t.device for t in tensors if t.device.type != "cpu"), None):
            raise Fallback(f"a tensor is on {foreign}")
        if any(getattr(n.target, "__name__", "") in _FAST_PATHS for n in gm.graph.nodes):
            raise Fallback(
                "an operator of torch's fast path: call torch.backends.mha.set_fastpath_enabled(False) before"
            )
        self.gm, self.options, self.strict = gm, options, strict
        self._begin(example_inputs)

    def _begin(self, inputs: Sequence[Any]) -> None:
        """Use the current parameters and buffers as constants."""
        start = time.perf_counter()
        self.frozen: Frozen = freeze(self.gm, inputs)
        self.counted = tuple(k for k in self.frozen.static if not inputs[k].is_inference())
        self.state = self._state(inputs)
        self.fixed: tuple[tuple[int, int], ...] = ()
        self.sessions: dict[tuple[int, ...], Any] = {}
        if self.frozen.computes:
            self._compile([inputs[k] for k in self.frozen.tensors])
        GRAPHS.append(Graph(_size(self.gm), time.perf_counter() - start))

    def _compile(self, tensors: Sequence[Any]) -> None:
        torch = torch_module()
        tracing = torch_module("torch._guards").tracing
        no_modes = torch_module("torch.utils._python_dispatch")._disable_current_modes

        from occ.api import compile as compile_
        from occ.compiler.frontend.torch_program import quiet, to_onnx, without_fast_path

        options = dict(self.options)
        target, threads = options.pop("target", DEFAULT), options.pop("threads", None)
        # Dynamo's own modes are active while it compiles.
        with tracing(None), no_modes(), torch.no_grad(), without_fast_path(), quiet():
            model = to_onnx(_exported(self.frozen, tensors), ())
        session = compile_(model.SerializeToString(deterministic=True), target, options=options, threads=threads)
        self.types = [torch.bfloat16 if p.dtype == "bf16" else None for p in session.outputs]
        self.fixed = _fixed(model, self.frozen.dynamic)
        self.sessions[self._extents(tensors)] = session

    def _extents(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        return tuple(int(tensors[k].shape[axis]) for k, axis in self.fixed)

    def __call__(self, *inputs: Any) -> Any:
        try:
            made = self._results(inputs)
        except Exception as e:
            if self.strict:
                raise e if isinstance(e, Fallback) else Fallback(reason_of(e)) from e
            _warn(reason_of(e))
            made = None
        return self.gm.forward(*inputs) if made is None else made

    def _results(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The graph's results; None if eager mode must run it."""
        if self._state(inputs) != self.state:
            self._begin(inputs)
        frozen, made = self.frozen, list[Any]()
        if frozen.computes:
            tensors = [inputs[k] for k in frozen.tensors]
            session = self._session(tensors)
            if session is None:
                return None
            made = self._run(session, tensors)
        return tuple(
            made[what] if kind == "result" else inputs[what] if kind == "input" else what
            for kind, what in frozen.results
        )

    def _state(self, inputs: Sequence[Any]) -> tuple[list[int], list[int]] | None:
        """Addresses of parameters, and their in-place version counters; None if one has stopped counting."""
        try:  # checking each parameter in every call is most of occ's overhead, so this is minimal
            return [inputs[k].data_ptr() for k in self.frozen.static], [inputs[k]._version for k in self.counted]
        except RuntimeError:
            return None

    def _session(self, tensors: Sequence[Any]) -> Any:
        """The session for the extents of tensors, compiled if necessary."""
        key = self._extents(tensors)
        if key not in self.sessions:
            self.sessions[key] = None  # unless it succeeds
            if len(self.sessions) > _MOST:
                raise Fallback(f"a graph is compiled for at most {_MOST} of the sizes that torch's exporter fixes")
            self._compile(tensors)
        return self.sessions[key]

    def _run(self, session: Any, tensors: Sequence[Any]) -> list[Any]:
        torch = torch_module()

        outputs = session(*map(_array, tensors))
        return [
            torch.from_numpy(np.asarray(a)) if t is None else torch.from_numpy(np.asarray(a).view(np.int16)).view(t)
            for a, t in zip(outputs, self.types, strict=True)
        ]


def _fixed(model: ModelProto, dynamic: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Symbolic extents of a graph, by tensor and axis, that are numbers in its exported model."""
    shapes = [value.type.tensor_type.shape.dim for value in model.graph.input]
    return tuple((k, a) for k, axes in enumerate(dynamic) for a in axes if shapes[k][a].HasField("dim_value"))


def _array(tensor: Any) -> np.ndarray:
    """The memory of a tensor as an array; numpy itself has no bfloat16."""
    torch = torch_module()

    plain = tensor.detach().contiguous()
    if plain.dtype == torch.bfloat16:
        import ml_dtypes

        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def _casts(gm: Any) -> bool:
    """Whether a graph runs under autocast, its own or an enclosing one."""
    inside = any("autocast" in getattr(n.target, "__name__", "") for n in gm.graph.nodes)
    return inside or torch_module().is_autocast_enabled("cpu")


def _exported(frozen: Frozen, tensors: Sequence[Any]) -> Any:
    """The program of a frozen graph.

    Raises:
        Fallback: it changes its inputs, parameters or buffers.
    """
    torch = torch_module()

    shapes: Any = tuple(dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in frozen.dynamic)
    examples = tuple(torch.empty_like(t, requires_grad=False).copy_(t.detach()) for t in tensors)
    if _casts(frozen.module):  # its casts are not operators yet, and the exporter cannot convert them
        traced = torch_module("torch.export._trace")._export
        program = traced(frozen.module, examples, dynamic_shapes=shapes, strict=False, pre_dispatch=False)
    else:
        program = torch.export.export(frozen.module, examples, dynamic_shapes=shapes, strict=False)
    signature = program.run_decompositions({}).graph_signature
    for what in ("buffers_to_mutate", "user_inputs_to_mutate", "parameters_to_mutate"):
        if changed := getattr(signature, what, None):
            raise Fallback(f"the graph changes `{next(iter(changed.values()))}`")
    return program

"""Whether results are right. Integers must be equal; floats may differ by what rounding can do to this graph on these inputs:
the graph is computed in float64, and again with operands of every node disturbed by some units in the last place of the type
that the model has there. What moves under that may differ in proportion, and what does not may not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

from occ.compiler.compare import gaps
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.deferred import DeferredCompiler
from occ.compiler.driver.settings import Settings
from occ.compiler.interp.graph import Env, Interpreter
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.methods.winograd.use_winograd import LEAST_CHANNELS, TAPS
from occ.compiler.plan.plan import defer_text
from tools.fuzz.generate import Case
from tools.fuzz.inputs import is_float
from tools.fuzz.oracle import run_onnxruntime, run_other

SAMPLES = 20  # of what differs at last: a choice between two that are equal falls either way in each of them
ULPS = 4  # by which operands are disturbed: elementary functions are off by as much
MARGIN = 8  # there are few samples, and all may be close to the truth
UNITS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}
_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_REAL = (*_NARROW, TensorProto.DOUBLE)
DECIDED = frozenset(("Resize", "Upsample", "Range", "Dropout"))  # real constants that they read decide shapes
# Results are elements of operands, or rounded to integers: they have no error of their own.
EXACT = frozenset((
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Pad", "Expand", "Tile",
    "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "DepthToSpace", "SpaceToDepth", "Trilu", "Where",
    "Relu", "Abs", "Neg", "Max", "Min", "Clip", "Floor", "Ceil", "Round", "Sign", "Cast", "MaxPool", "ReduceMax", "ReduceMin",
    "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "ArgMax", "ArgMin", "TopK", "NonZero", "Compress", "Unique",
    "ReverseSequence", "CenterCropPad", "Dropout", "Shape", "Size", "Hardmax", "Not", "IsNaN", "IsInf", "EyeLike",
))  # fmt: skip
# Operators that ONNX defines as a difference of about ones (`exp(x) - 1` is off by as much as 1 can be), and recurrences, whose
# sigmoids runtimes approximate to that.
AROUND_ONE = frozenset(("Elu", "Selu", "Celu", "Gelu", "Sigmoid", "LogSoftmax", "RNN", "GRU", "LSTM", "HannWindow", "HammingWindow",
    "BlackmanWindow", "com.microsoft.QuickGelu", "ai.onnx.ml.SVMRegressor"))  # fmt: skip
# Operators that subtract a mean, by which sums of large terms can be small.
CENTRED = frozenset(("InstanceNormalization", "GroupNormalization"))
# Operators that add all terms of an axis.
SUMS = frozenset(("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    "GlobalAveragePool", "GlobalLpPool"))  # fmt: skip
# Operators that compute in f32 whatever the type of the operand: `stash_type` says so, or onnx.reference, which is the oracle
# of what onnxruntime has in f32 alone, rounds their constants to it.
STASHED = frozenset(("LayerNormalization", "RMSNormalization", "GroupNormalization", "Gelu", "LRN", "Erf", "HardSwish",
    "Resize", "Upsample"))  # fmt: skip


@dataclass
class Analysis:
    """What the outputs of a case are in float64, and by how much they may differ as far as samples show it.

    Attributes:
        exact, allowed: by output. What is allowed only grows with samples, so what one sample allows needs no other.
    """

    exact: dict[str, np.ndarray]
    _units: Mapping[str, float]
    _sample: Callable[[int], list[np.ndarray]]
    _samples: list[list[np.ndarray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.allowed = dict[str, np.ndarray]()
        self.more()

    def more(self) -> bool:
        """Take one sample more; False if there are enough."""
        if len(self._samples) == SAMPLES:
            return False
        try:
            self._samples.append(self._sample(len(self._samples)))
        except Exception:  # sizes that values decide do not fit each other any more
            self._samples.append(list(self.exact.values()))
        for k, (n, x) in enumerate(self.exact.items()):
            self.allowed[n] = _spread(x, [s[k] for s in self._samples], self._units.get(n, 0.0))
        return True


def near(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal, or off by a few units in the last place: then nothing has to be analysed."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not is_float(got.dtype):
        return bool(np.array_equal(got, want))
    unit = 2 * float(np.spacing(np.ones(1, got.dtype))[0]) if got.dtype.kind == "f" else 2.0**-6
    size = np.nan_to_num(np.abs(want.astype(np.float64)), nan=0.0, posinf=0.0)  # nothing finite is near what is not
    return bool(np.all(gaps(got, want) <= unit * size))


def difference(got: np.ndarray, want: np.ndarray, allowed: np.ndarray) -> str:
    """How results differ by more than they may; empty if they do not."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    wrong = np.argwhere(~(gaps(got, want) <= allowed))
    if not len(wrong):
        return ""
    at = tuple(int(k) for k in wrong[0])
    return f"{len(wrong)} of {got.size} elements, {list(at)} is {got[at]!s}, expected {want[at]!s} within {allowed[at]:.2g}"


def analyse(case: Case, feeds: Mapping[str, np.ndarray] | None = None) -> Analysis:
    """The error analysis of a case on inputs."""
    model, given = _lifted(case.model, case.feeds if feeds is None else feeds)
    typed = _inferred(model)
    units = {r.name: UNITS[r.type.dtype.name] for op in typed.walk() for r in op.results
             if isinstance(r.type, TensorType) and r.type.dtype.name in UNITS}  # fmt: skip
    names = [o.name for o in case.model.graph.output]
    try:
        wide = _Disturbed(_inferred(_doubled(model)), units)
        widened = {n: x.astype(np.float64) if is_float(x.dtype) else x for n, x in given.items()}
        exact = wide.sample(widened, None)
    except Exception:  # an operator that takes no float64: disturbed in its own type
        wide, widened = _Disturbed(typed, units), given
        exact = wide.sample(widened, None)
    return Analysis(
        dict(zip(names, exact, strict=True)), units,
        lambda k: wide.sample(widened, np.random.default_rng([case.seed, k])),
    )  # fmt: skip


def verdict(outputs: Mapping[str, np.ndarray], analysis: Analysis, want: Mapping[str, np.ndarray]) -> str:
    """How outputs are wrong; empty if they are right."""
    while text := _wrong(outputs, analysis, want):
        if not analysis.more():
            return text
    return ""


def _wrong(outputs: Mapping[str, np.ndarray], analysis: Analysis, want: Mapping[str, np.ndarray]) -> str:
    for name, got in outputs.items():
        if near(got, want[name]):
            continue
        allowed = analysis.allowed[name]
        if allowed.shape != want[name].shape:
            if not np.all(np.isinf(allowed)):
                return f"`{name}` has the shape {list(allowed.shape)} in float64, expected {list(want[name].shape)}"
            continue
        text = difference(got, want[name], allowed)
        if text:
            return f"`{name}`: {text}"
    return ""


def other_oracle(
    case: Case, outputs: Mapping[str, np.ndarray], analysis: Analysis, want: Mapping[str, np.ndarray]
) -> str:
    """The oracle that agrees with all outputs that are not those known, or nothing."""
    differ = {n: x for n, x in outputs.items() if verdict({n: x}, analysis, want)}
    for oracle in (run_other, run_onnxruntime):
        try:
            others = oracle(case.model, case.feeds)
        except Exception:
            continue
        if not verdict(differ, analysis, others):
            return oracle.__name__.removeprefix("run_")
    return ""


def _spread(exact: np.ndarray, samples: Sequence[np.ndarray], unit: float) -> np.ndarray:
    """By how much each element may differ; any amount where the shape itself is not certain."""
    base = np.asarray(exact)
    if any(np.shape(s) != base.shape for s in samples):
        return np.full(base.shape, np.inf)
    moved = np.max([gaps(np.asarray(s), base) for s in samples], axis=0, initial=0.0)
    size = np.nan_to_num(
        np.abs(base.astype(np.float64)), nan=0.0, posinf=0.0
    )  # what is always NaN or infinite may not differ
    return MARGIN * moved + MARGIN * unit * size


class _Disturbed(Interpreter):
    """An interpreter whose nodes read operands that are off by some units in the last place."""

    def __init__(self, m: Module, units: Mapping[str, float]) -> None:
        super().__init__(m, lambda op, operands: deferred(*defer_text(op, operands)))
        deferred = DeferredCompiler(interpreted, m.registry)
        self.units, self.unit = units, max(units.values(), default=UNITS["f32"])
        self.rng: np.random.Generator | None = None

    def sample(self, feeds: Mapping[str, np.ndarray], rng: np.random.Generator | None) -> list[np.ndarray]:
        """The results on inputs; without `rng` nothing is disturbed."""
        self.rng = rng
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(x) for x in self.run([feeds[a.name] for a in self.m.main.args], {})]

    def op(self, op: Op, env: Env, dims: Mapping[str, int]) -> list[Any]:
        if self.rng is None or op.name in EXACT:
            return super().op(op, env, dims)
        units = [self.units[r.name] for r in op.results if r.name in self.units]
        units += [UNITS["f32"]] if "stash_type" in op.attrs or op.name in STASHED else []
        before, self.unit = self.unit, max(units, default=self.unit)
        moved = dict(env) | {v: self._disturb(env.get(v, getattr(v, "data", None))) for v in op.inputs}
        moved |= _stepped_bias(op, moved)
        found = super().op(op, moved, dims)
        least = np.array(1.0 if op.name in AROUND_ONE else 0.0)
        if op.name in CENTRED:
            least = _centred(op, *(moved[v] for v in op.inputs[:2]))
        if op.name == "OneHot":  # onnx.reference adds `on - off` to `off`
            least = np.max(np.abs(moved[op.inputs[2]]), initial=0.0)
        if op.name in SUMS:
            least = self._summed(op, moved, dims, found[0])
        if op.name == "CumSum":  # each sum is off by what those before are: runtimes add one term after the other
            least = np.max(np.abs(found[0]), initial=0.0) * max(1.0, max(found[0].shape, default=0) ** 0.5 / ULPS)
        if op.name == "GridSample":  # the weights of elements far apart come from rounded positions
            least = np.max(np.abs(moved[op.inputs[0]]), initial=0.0)
        if _mixes(op):
            whole = self._of_sizes(op, moved, dims)
            least = np.max(whole, initial=0.0)
            if op.name == "Resize":  # a position is off by units of itself
                least = least * max(1.0, max((*np.shape(moved[op.inputs[0]]), *whole.shape), default=0) / 8)
        found = [self._disturb(x, least) for x in found]
        self.unit = before
        return found

    def _of_sizes(self, op: Op, env: Env, dims: Mapping[str, int]) -> Any:
        """The result on the absolute values of the real numbers that an op reads; whole ones may be axes from the end."""
        real = {v: np.abs(x) for v, x in env.items() if isinstance(x, np.ndarray) and is_float(x.dtype)}
        return super().op(op, dict(env) | real, dims)[0]

    def _summed(self, op: Op, env: Env, dims: Mapping[str, int], found: Any) -> Any:
        """What a sum of `n` terms, one after the other, is off by: `n` units of the sum of their sizes.

        Higham, Accuracy and Stability of Numerical Algorithms, section 4.2; two units more for what makes a term. A logarithm of
        a sum is off by what the sum is off in proportion.
        """
        terms = np.size(env[op.inputs[0]]) / max(np.size(found), 1)
        sizes: Any = 1.0 if op.name == "ReduceLogSumExp" else self._of_sizes(op, env, dims)
        if op.name == "ReduceLogSum":
            sizes = np.exp(sizes - found)
        return sizes * (terms + 2) / (ULPS * MARGIN)  # by which what a sample moves is multiplied

    def _disturb(self, x: Any, least: Any = 0.0) -> Any:
        """Move elements in proportion to their size, which is taken for at `least` so much."""
        if not isinstance(x, np.ndarray) or not is_float(x.dtype):
            return x
        assert self.rng is not None
        wide = x.astype(np.float64)
        size = np.maximum(np.abs(wide), least)
        return np.asarray(wide + self.rng.uniform(-ULPS, ULPS, x.shape) * self.unit * size).astype(x.dtype)


def _stepped_bias(op: Op, env: Env) -> dict[Value, Any]:
    """The bias of a product of codes in whole steps of its accumulator, as docs/numerics.md says."""
    if op.name not in ("Conv", "Gemm") or len(op.inputs) < 3:
        return {}
    makers = [v.defining_op for v in op.inputs[:2]]
    scales = [env.get(m.inputs[1]) for m in makers if m is not None and m.name == "DequantizeLinear"]
    if len(scales) < 2:
        return {}
    step = np.multiply(*scales)
    return {op.inputs[2]: np.rint(env[op.inputs[2]] / step) * step}


def _centred(op: Op, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The largest terms of what is computed as a product minus the product of the mean, as runtimes do.

    The variance is computed so too, as the mean of squares less the square of the mean: it is off by units of the squares, and the
    result by half of that in proportion.
    """
    rows = x.reshape(x.shape[0], op.attrs.get("num_groups", x.shape[1]), -1)
    if not rows.size:
        return np.zeros(())
    spread = rows.var(axis=-1) + op.attrs.get("epsilon", 1e-5)
    largest = np.max(np.abs(rows), axis=-1)
    away = np.max(np.abs(rows - rows.mean(axis=-1, keepdims=True)), axis=-1)
    terms = largest / np.sqrt(spread) + away / np.sqrt(spread) * largest**2 / (2 * spread)
    return np.max(terms) * np.max(np.abs(scale), initial=0.0)


def _mixes(op: Op) -> bool:
    """Whether elements may be computed from sums and differences of others, so that the largest terms decide the error.

    Weights of Resize and DFT come from rounded positions, and Winograd's and Strassen's methods take convolutions and
    products of such sizes.
    """
    if op.name in ("Resize", "DFT", "STFT"):
        return True
    weight = op.operands[1] if op.name in ("Conv", "MatMul", "Gemm") else None
    if weight is None or not isinstance(weight.type, TensorType) or weight.type.shape is None:
        return False
    sizes = [n for n in weight.type.shape if isinstance(n, int)]
    if op.name == "Conv":
        least = min(sizes[0] // op.attrs.get("group", 1), sizes[1])  # each group is a convolution
        return least >= LEAST_CHANNELS and {1} < {1, *sizes[2:]} <= {1, *TAPS}
    return min(sizes, default=0) >= 384


def interpreted(m: Module) -> Any:
    """What computes an op that waited for its operands."""
    Compilation(m, Settings("interp", cache=False)).advance("inferred")
    return lambda operands: Interpreter(m).run(operands, {})


def _inferred(model: ModelProto) -> Module:
    return Compilation(model, Settings("interp", cache=False)).advance("inferred")


def _lifted(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The same model with its real constants as inputs: one that is folded, or inlined as a number, is not disturbed."""
    made, given = ModelProto(), dict(feeds)
    made.CopyFrom(model)
    g = made.graph
    fixed = {i for n in g.node if n.op_type in DECIDED for i in n.input}
    given_nodes = [n for n in g.node if n.op_type == "Constant" and n.attribute[0].name == "value"]
    found = [t for t in g.initializer if t.name not in fixed and t.data_type in _REAL]
    found += [
        _named(n.attribute[0].t, n.output[0])
        for n in given_nodes
        if n.output[0] not in fixed and n.attribute[0].t.data_type in _REAL
    ]
    names = {t.name for t in found}
    kept = [t for t in g.initializer if t.name not in names]
    nodes = [n for n in g.node if not names & set(n.output)]
    infos = [*g.input, *(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in found)]
    made.graph.CopyFrom(helper.make_graph(nodes, g.name, infos, g.output, kept))
    return made, given | {t.name: numpy_helper.to_array(t) for t in found}


def _named(t: TensorProto, name: str) -> TensorProto:
    made = TensorProto()
    made.CopyFrom(t)
    made.name = name
    return made


def _doubled(model: ModelProto) -> ModelProto:
    """The same model in float64."""
    made = ModelProto()
    made.CopyFrom(model)
    _double_graph(made.graph)
    return made


def _double_graph(g: GraphProto) -> None:
    for info in (*g.input, *g.output, *g.value_info):
        if info.type.tensor_type.elem_type in _NARROW:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for t in g.initializer:
        _double_tensor(t)
    for a in (a for n in g.node for a in n.attribute):
        if a.type == AttributeProto.TENSOR:
            _double_tensor(a.t)
        elif a.type == AttributeProto.GRAPH:
            _double_graph(a.g)
        elif a.name in ("to", "dtype") and a.i in _NARROW:
            a.i = TensorProto.DOUBLE


def _double_tensor(t: TensorProto) -> None:
    if t.data_type in _NARROW:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))

"""Input types: symbolic dims by the model's names, and extents that the user fixes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

from occ.compiler.diagnostics import Sink, error, shorten
from occ.compiler.ir import dtype as dt
from occ.compiler.ir.containers import any_piece
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.module import Module
from occ.compiler.ir.symbol_names import symbol_name
from occ.compiler.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from occ.runtime.dataclass import dataclass

# What exporters write for a dim without a name; two such dims may differ.
_UNNAMED = frozenset(["", "?", "*", "-1", "none", "null", "nan", "unk", "unknown", "undefined", "dynamic", "any"])
_BOUNDS = re.compile(r"(\d{1,18})\.\.(\d{1,18})?(?::(\d{1,18}))?")


@dataclass(frozen=True)
class Bounds:
    """Bounds of a symbolic dim: `lo` to `hi` (None: unbounded), a multiple of `step`."""

    lo: int = 0
    hi: int | None = None
    step: int = 1

    @classmethod
    def read(cls, text: str) -> Bounds:
        """Parse `32..1280:32`; without a `:`, any number in between; without an upper number, unbounded.

        Raises:
            ValueError: it does not parse, or there is no such number.
        """
        found = _BOUNDS.fullmatch(text)
        if found is None:
            raise ValueError("write bounds as LEAST..MOST or LEAST..MOST:STEP, such as 32..1280:32")
        lo, hi, step = (None if n is None else int(n) for n in found.groups())
        made = cls(lo or 0, hi, 1 if step is None else step)
        if made.step < 1 or (hi is not None and hi // made.step * made.step < made.lo):
            raise ValueError(f"no size is within {text}")
        return made

    def __str__(self) -> str:
        return f"{self.lo}..{'' if self.hi is None else self.hi}{f':{self.step}' if self.step > 1 else ''}"


@dataclass(frozen=True)
class Overrides:
    """Shapes and dims that the user fixes at build time.

    Attributes:
        shapes: input name -> extents; an int, a name that makes the extent symbolic, or -1 for the model's own. Those of
            a sequence are of its tensors, of which only numbers must be the same in all.
        dims: name of a symbolic dim -> its value.
        bounds: name of a symbolic dim -> its bounds; it stays symbolic.
        outputs: values of the main graph that become outputs after the declared ones; a node means its results,
            `NODE:0` the first of them.
        running: whether a command that runs the model asks. A text has fixed extents; for it, `dims` then only concern
            inputs.
    """

    shapes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    running: bool = False


def label_of(name: str, axis: int, d: TensorShapeProto.Dimension) -> str:
    """The label of an input's dim.

    An unnamed one is called after the input and the axis number.
    """
    return d.dim_param if _is_named(d) else symbol_name(f"{name}_{axis}")


def _is_named(d: TensorShapeProto.Dimension) -> bool:
    return d.dim_param.strip().casefold() not in _UNNAMED


class Signature:
    """Types of inputs, with one symbol per dim name."""

    def __init__(self, m: Module, overrides: Overrides, inputs: Sequence[ValueInfoProto], sink: Sink) -> None:
        self.m, self.overrides = m, overrides
        self.fixed: dict[str, Dim] = dict(overrides.dims)
        self.bounds = dict(overrides.bounds)
        self._check(inputs, sink)
        for info in inputs:
            self._fix(info)

    def _check(self, inputs: Sequence[ValueInfoProto], sink: Sink) -> None:
        names = [i.name for i in inputs]
        labels = {
            label_of(i.name, k, d)
            for i in inputs
            for k, d in enumerate(i.type.tensor_type.shape.dim)
            if not d.HasField("dim_value")
        }
        for name in self.overrides.shapes:
            if name not in names:
                sink.error(
                    "OCC0205",
                    f"--shape names the input `{name}`, which the model does not have",
                    help=f"inputs: {_listed(names)}",
                )
        asked = {d for shape in self.overrides.shapes.values() for d in shape if isinstance(d, str)}
        for label in (*self.overrides.dims, *self.overrides.bounds):
            shown = [known for known in labels if symbol_name(known) == label]  # as in text and `occ inspect`
            if label in labels | asked:
                continue
            if len(shown) == 1:
                if label in self.fixed:
                    self.fixed[shown[0]] = self.fixed[label]
                if label in self.bounds:
                    self.bounds[shown[0]] = self.bounds[label]
            else:
                sink.error(
                    "OCC0205",
                    f"--dim names `{label}`, which is not a dim of the model",
                    help=f"dims: {_listed(sorted(labels))}",
                )

    def _fix(self, info: ValueInfoProto) -> None:
        """A --shape that fixes a named dim fixes it everywhere."""
        asked = self.overrides.shapes.get(info.name)
        declared = info.type.tensor_type.shape.dim
        if asked is None or len(asked) != len(declared):
            return
        for k, (given, d) in enumerate(zip(asked, declared, strict=True)):
            if d.HasField("dim_value") or not isinstance(given, int) or given < 0:
                continue
            label = label_of(info.name, k, d)
            if label in self.bounds:
                raise error(
                    "OCC0205",
                    f"--shape of `{shorten(info.name)}` fixes the dim `{label}`, for which --dim sets bounds",
                    help="leave one of them out",
                )
            if _is_named(d):
                self.fixed[label] = given

    def type_of(self, name: str, proto: TypeProto) -> Type:
        """The type of an input.

        Raises:
            CompileError: an unknown element type or kind, or an override that does not match.
        """
        match proto.WhichOneof("value"):
            case "tensor_type":
                return self._tensor(name, proto.tensor_type)
            case "sequence_type":
                return SequenceType(self._within(name, proto.sequence_type.elem_type))
            case "optional_type":
                return OptionalType(self._within(name, proto.optional_type.elem_type))
            case "map_type":
                key, value = dt.BY_ONNX.get(proto.map_type.key_type), self._within(name, proto.map_type.value_type)
                if key is None or not isinstance(value, TensorType):
                    raise error("OCC0108", f"input `{shorten(name)}` is a map of an unknown kind")
                return MapType(key, TensorType(value.dtype, ()))
            case kind:
                raise error("OCC0301", f"input `{shorten(name)}` is of the unsupported kind {kind or 'none'}")

    def _within(self, name: str, proto: TypeProto) -> Type:
        """The type of an element; elements may differ in extents that are not constant."""
        if proto.WhichOneof("value") != "tensor_type":
            return self.type_of(name, proto)
        dtype = dt.BY_ONNX.get(proto.tensor_type.elem_type)
        if dtype is None:
            raise error(
                "OCC0108", f"input `{shorten(name)}` has the unknown element type {proto.tensor_type.elem_type}"
            )
        asked = self.overrides.shapes.get(name)
        if proto.tensor_type.HasField("shape"):
            dims = enumerate(proto.tensor_type.shape.dim)
            shape = [d.dim_value if d.HasField("dim_value") else any_piece(k) for k, d in dims]
        elif asked is not None:
            shape = [any_piece(k) for k in range(len(asked))]
        else:
            return TensorType(dtype, None)
        if asked is not None:
            shape = self._override(name, shape, [-1 if isinstance(d, str) else d for d in asked])
        return TensorType(dtype, tuple(shape))

    def _tensor(self, name: str, proto: TypeProto.Tensor) -> TensorType:
        dtype = dt.BY_ONNX.get(proto.elem_type)
        if dtype is None:
            raise error("OCC0108", f"input `{shorten(name)}` has the unknown element type {proto.elem_type}")
        asked = self.overrides.shapes.get(name)
        if not proto.HasField("shape"):
            return TensorType(dtype, None if asked is None else tuple(self._asked(name, d) for d in asked))
        shape = [self._declared(name, k, d) for k, d in enumerate(proto.shape.dim)]
        return TensorType(dtype, tuple(shape if asked is None else self._override(name, shape, asked)))

    def _declared(self, name: str, k: int, d: TensorShapeProto.Dimension) -> Dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            return d.dim_value
        label = label_of(name, k, d)
        if not _is_named(d) and label not in self.fixed:
            return self._fresh(label, label)
        return self._named(label)

    def _named(self, label: str) -> Dim:
        if label in self.fixed:
            return self.fixed[label]
        known = next((info.dim for info in self.m.symbols.values() if info.label == label), None)
        return self._fresh(symbol_name(label), label) if known is None else known

    def _fresh(self, hint: str, label: str) -> Dim:
        given = self.bounds.get(label, Bounds())
        return self.m.fresh_symbol(hint, given.lo, given.hi, given.step, label=label)

    def _asked(self, name: str, extent: int | str) -> Dim:
        if isinstance(extent, str):
            return self._named(extent)
        if extent < 0:
            raise error(
                "OCC0205",
                f"--shape of `{shorten(name)}` has the extent {extent}",
                help="a name keeps an extent symbolic",
            )
        return extent

    def _override(self, name: str, shape: list[Dim], asked: Sequence[int | str]) -> list[Dim]:
        if len(asked) != len(shape):
            raise error(
                "OCC0205",
                f"--shape of `{shorten(name)}` has {len(asked)} extents, the input has rank {len(shape)}",
                help=f"separate extents by commas: {','.join(str(d) for d in shape)}",
            )
        result = [d if given == -1 else self._asked(name, given) for given, d in zip(asked, shape, strict=True)]
        for given, declared in zip(result, shape, strict=True):
            if isinstance(declared, int) and given != declared:
                raise error(
                    "OCC0205",
                    f"--shape of `{shorten(name)}` is {given} where the model has the constant {declared}",
                    help=f"its nodes were written for {declared}: use that, or export the model again with this "
                    "size, or with this axis dynamic (`dynamic_shapes` of torch.onnx.export)",
                )
        return result


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{shorten(n, 60)}`" for n in names) or "none"

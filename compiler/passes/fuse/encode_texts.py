"""Looks texts up in the vocabulary of a model once, so that operators on them become operators on numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from occ.compiler.ir.dtype import F32, I64, STR
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.base import Context, Pass, finish
from occ.runtime.dataclass import dataclass
from occ.runtime.hostops.ml_labels import default_label

_ENCODER = "ai.onnx.ml.LabelEncoder"


@dataclass(frozen=True)
class EncodeTexts(Pass):
    """Replaces comparisons of texts with constants by comparisons of their indices in a vocabulary.

    The vocabulary is the set of constant texts of such operators; any other text has the index after the last. So texts
    are looked up once, by the host, and operators that move and compare them are compiled.

    `%g = Gather(%x, @i) %y = OneHotEncoder(%g) {cats_strings=["a", "b"], zeros=1}`
    --> `%c = LabelEncoder(%x) {keys_strings=["a", "b"], values_int64s=[0, 1], default_int64=2} %g = Gather(%c, @i)
    %y = Cast(Equal(Unsqueeze(%g, @last), @places))`
    """

    name: ClassVar[str] = "encode-texts"

    def run(self, m: Module, ctx: Context) -> bool:
        rw = Rewriter(m)
        readers = {op: texts for op in m.walk() if (texts := _texts_of(op)) is not None}
        if not any(_gains(op, readers) for op in readers):
            return False
        words = sorted({w for texts in readers.values() for w in texts})
        vocabulary = _Vocabulary({w: k for k, w in enumerate(words)}, rw)
        for op in readers:
            rw.hits[self.name] += 1
            rw.replace(op, [_READERS[op.name](op, vocabulary)])
        m.drop_unused_weights()
        return finish(rw, ctx, len(readers))


class _Vocabulary:
    """Constant texts, and the values that are encoded so far.

    Args:
        places: of the texts.
        rw: makes the ops that encode.
    """

    def __init__(self, places: dict[str, int], rw: Rewriter) -> None:
        self.places, self.rw = places, rw
        self._encoded: dict[Value, Value] = {}

    def encoded(self, x: Value, reader: Op) -> Value:
        """The place of each text of a value, after the last for one that has none: i64 of its shape."""
        if isinstance(x, Weight):
            return self.rw.builder(reader).constant(self.of(x.data.reshape(-1).tolist()).reshape(x.data.shape))
        if x not in self._encoded:
            self._encoded[x] = self._encode(x)
        return self._encoded[x]

    def _encode(self, x: Value) -> Value:
        op = x.defining_op
        if op is None or not _moves_texts(op):
            return self._looked_up(x)
        moved = [v if v is None or not _is_text(v) else self.encoded(v, op) for v in op.operands]
        made = self.rw.builder(op).op(op.name, *moved, n_results=len(op.results), **op.attrs)
        values = [made] if len(op.results) == 1 else made
        self._encoded |= zip(op.results, values, strict=True)
        return self._encoded[x]

    def _looked_up(self, x: Value) -> Value:
        """What the host makes of a value, where it is defined."""
        assert x.owner is not None, "it is not a constant"
        before = x.owner.next if isinstance(x.owner, Op) else x.owner.first
        assert before is not None, "a region ends with what it yields"
        keys, values = tuple(self.places), tuple(self.places.values())
        default = len(self.places)
        return self.rw.builder(before).op(_ENCODER, x, keys_strings=keys, values_int64s=values, default_int64=default)

    def of(self, texts: Sequence[Any]) -> np.ndarray:
        """Places of constant texts; after the last for a text that has none."""
        return np.array([self.places.get(_text(t), len(self.places)) for t in texts], np.int64)

    def table(self, texts: Sequence[str], values: Sequence[Any], default: Any, dtype: Any) -> np.ndarray:
        """The value of each text by its place, of equal ones that of the last; the default for all others."""
        made = np.full(len(self.places) + 1, default, dtype)
        made[self.of(texts)] = values
        return made


def _text(x: Any) -> str:
    return x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x)


def _is_text(v: Value | None) -> bool:
    return v is not None and isinstance(v.type, TensorType) and v.type.dtype == STR and v.type.shape is not None


def _moves_texts(op: Op) -> bool:
    """Whether the texts that an op gives are those that it takes, moved."""
    if not (op.spec.moves or op.name in _MOVES) or op.regions:
        return False
    return all(map(_is_text, op.results)) and all(
        not isinstance(v, Weight) or v.data.dtype.kind not in "OSUT" for v in op.inputs
    )


_MOVES = (
    "Concat",
    "Split",
    "GatherElements",
    "GatherND",
    "Tile",
)  # as `OpSpec.moves`, but of several operands or results


def _gains(op: Op, readers: dict[Op, Sequence[str]]) -> bool:
    """Whether a reader is better off with places: not where it looks texts up alone, as they come."""
    texts = [v for v in op.inputs if _is_text(v) and not isinstance(v, Weight)]
    moved = any(v.defining_op is not None and _moves_texts(v.defining_op) for v in texts)
    return moved or op.name != _ENCODER or any(sum(u in readers for u, _ in v.uses) > 1 for v in texts)


# What texts an op compares its operand with; None where it does not do that, or does more.


def _texts_of(op: Op) -> Sequence[str] | None:
    if op.name not in _READERS or not all(_is_text(v) for v in op.inputs) or len(op.results) != 1:
        return None
    a = op.a
    match op.name:
        case "Equal":
            constant = [v for v in op.inputs if isinstance(v, Weight)]
            return [_text(t) for t in constant[0].data.reshape(-1)] if len(constant) == 1 else None
        case "ai.onnx.ml.OneHotEncoder":
            return [_text(t) for t in a.cats_strings or ()] if a.zeros and a.cats_strings else None
        case "ai.onnx.ml.CategoryMapper":
            return (
                [_text(t) for t in a.cats_strings or ()]
                if len(a.cats_strings or ()) == len(a.cats_int64s or ())
                else None
            )
        case _:
            keys, values = _entries(op)
            return keys if keys is not None and len(keys) == len(values) else None


def _entries(op: Op) -> tuple[Sequence[str] | None, Sequence[Any]]:
    """Keys and numbers of a LabelEncoder of texts; None where it has no such."""
    a = op.a
    if getattr(a, "classes_strings", None):
        return [_text(t) for t in a.classes_strings], range(len(a.classes_strings))  # of equal ones the last counts
    if a.keys_strings is None:
        return None, ()
    numbers = a.values_int64s if a.values_int64s is not None else a.values_floats
    return (None, ()) if numbers is None else ([_text(t) for t in a.keys_strings[::-1]], numbers[::-1])


def _one_hot(op: Op, v: _Vocabulary) -> Value:
    """A category that comes twice is the last of the two, as the host has it."""
    (x,), b = op.inputs, v.rw.builder(op)
    texts = [_text(t) for t in op.a.cats_strings]
    places, last = v.of(texts), {t: k for k, t in enumerate(texts)}
    places[[last[t] != k for k, t in enumerate(texts)]] = -1
    codes = b.Unsqueeze(v.encoded(x, op), b.constant([-1], I64))
    return b.Cast(b.Equal(codes, b.constant(places)), to=F32)


def _label(op: Op, v: _Vocabulary) -> Value:
    (x,), a, b = op.inputs, op.a, v.rw.builder(op)
    keys, values = _entries(op)
    assert keys is not None, "it is a reader"
    floats = not getattr(a, "classes_strings", None) and a.values_int64s is None
    dtype = np.dtype(np.float32 if floats else np.int64)
    return b.Gather(b.constant(v.table(keys, values, default_label(a, dtype), dtype)), v.encoded(x, op), axis=0)


def _category(op: Op, v: _Vocabulary) -> Value:
    (x,), a, b = op.inputs, op.a, v.rw.builder(op)
    table = v.table([_text(t) for t in a.cats_strings or ()], a.cats_int64s or (), a.default_int64, np.int64)
    return b.Gather(b.constant(table), v.encoded(x, op), axis=0)


def _equal(op: Op, v: _Vocabulary) -> Value:
    return v.rw.builder(op).Equal(*[v.encoded(x, op) for x in op.inputs])


_READERS: dict[str, Callable[[Op, _Vocabulary], Value]] = {
    "Equal": _equal,
    "ai.onnx.ml.OneHotEncoder": _one_hot,
    "ai.onnx.ml.CategoryMapper": _category,
    _ENCODER: _label,
}

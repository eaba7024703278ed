"""String operators."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.dtype import BOOL, F32, I64, STR
from occ.compiler.ir.operator.spec import FormalSignature, OpSpec, op
from occ.compiler.ir.shape import broadcast_shapes, data_dim
from occ.compiler.ir.types import TensorType


@op("StringConcat", host="StringConcat")
class StringConcat:
    """Joins strings, element by element."""

    def infer(x, y, *, a):
        if x.type.shape is None or y.type.shape is None:
            return TensorType(STR, None)
        return TensorType(STR, broadcast_shapes(x.shape, y.shape, op="StringConcat"))


@op("StringSplit", host="StringSplit")
class StringSplit:
    """Splits strings; the pieces, padded with empty strings along a new axis, and the number of pieces per string."""

    def infer(x, *, a):
        if x.type.shape is None:
            return x.type, TensorType(I64, None)
        return TensorType(STR, (*x.shape, data_dim(0))), TensorType(I64, x.shape)


@op("RegexFullMatch", host="RegexFullMatch")
class RegexFullMatch:
    """Whether a whole string matches a regular expression (RE2 syntax, as far as Python's `re` supports it)."""

    def infer(x, *, a):
        return TensorType(BOOL, x.type.shape)


@op("StringNormalizer", host="StringNormalizer")
class StringNormalizer:
    """Changes case, and removes stop words."""

    def infer(x, *, a):
        if x.type.shape is None:
            return x.type
        if x.type.rank not in (1, 2):
            raise Invalid(f"`StringNormalizer` takes a vector of texts, `[C]` or `[1, C]`, not rank {x.type.rank}")
        if not a.stopwords:
            return x.type
        return TensorType(STR, (*x.shape[:-1], data_dim(0)))


@op("TfIdfVectorizer", host="TfIdfVectorizer")
class TfIdfVectorizer:
    """Counts the n-grams of a pool in each row."""

    def infer(x, *, a):
        if x.type.shape is None:
            return TensorType(F32, None)
        if x.rank not in (1, 2):
            raise Invalid(f"`TfIdfVectorizer` takes a vector or a matrix, not {x.type}")
        if problem := _vocabulary_problem(a):
            raise Invalid(f"`TfIdfVectorizer`: {problem}", code="OCC0107")
        return TensorType(F32, (*x.shape[:-1], max(a.ngram_indexes, default=-1) + 1))


def _vocabulary_problem(a: SimpleNamespace) -> str:
    """Why the attributes of a TfIdfVectorizer list no n-grams; empty if they do."""
    pool, starts, indices = a.pool_strings or a.pool_int64s or (), a.ngram_counts, a.ngram_indexes
    bounds = [*starts, len(pool)]
    if not starts or starts[0] != 0 or any(end < start for start, end in pairwise(bounds)):
        return f"`ngram_counts` {list(starts)} do not divide a pool of {len(pool)} elements"
    if uneven := [n for n, (start, end) in enumerate(pairwise(bounds), 1) if (end - start) % n]:
        return f"the part of the pool with n-grams of {uneven[0]} elements has an incomplete one"
    grams = sum((end - start) // n for n, (start, end) in enumerate(pairwise(bounds), 1))
    if len(indices) != grams or min(indices, default=0) < 0:
        return f"`ngram_indexes` has {len(indices)} indices from 0 on for {grams} n-grams"
    if a.weights and len(a.weights) != grams:
        return f"`weights` has {len(a.weights)} elements for {grams} n-grams"
    if not 1 <= a.min_gram_length <= a.max_gram_length or a.max_skip_count < 0:
        lengths = f"{a.min_gram_length} to {a.max_gram_length}"
        return f"n-grams of {lengths} elements with {a.max_skip_count} skipped are impossible"
    return ""


@op(
    "com.microsoft.Tokenizer",
    host="Tokenizer",
    signature=FormalSignature.of("X", mark=0, mincharnum=1, pad_value="#", separators=None, tokenexp=None),
)
class Tokenizer:
    """Splits strings into tokens: characters, the text between separators, or matches of an expression.

    Each string's tokens are padded along a new axis (RE2 syntax, as far as Python's `re` supports it).
    """

    def infer(x, *, a):
        if (a.separators is None) == (a.tokenexp is None):
            raise Invalid("`Tokenizer` needs one of `separators` and `tokenexp`", code="OCC0107")
        if a.mincharnum < 1 or (a.mincharnum > 1 and "".join(a.separators or ()) == "" and a.tokenexp in (None, ".")):
            raise Invalid(f"no token of `Tokenizer` has `mincharnum={a.mincharnum}` characters", code="OCC0107")
        if x.type.shape is None:
            return x.type
        if x.rank not in (1, 2):
            raise Invalid(f"`Tokenizer` takes a vector or a matrix, not {x.type}")
        return TensorType(STR, (*x.shape, data_dim(0)))


ALL: tuple[OpSpec, ...] = (StringConcat, StringSplit, RegexFullMatch, StringNormalizer, TfIdfVectorizer, Tokenizer)

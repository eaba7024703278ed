"""The page of the documentation that shows the figures of `bench/operators.py` as a heat map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, log
from typing import Any

from operator_reasons import OF_JIT, REASONS

COLUMNS = (
    ("small", "small", "fixed", "1"), ("medium", "medium", "fixed", "1"), ("symbolic", "medium", "symbolic", "1"),
    ("large", "large", "fixed", "1"), ("medium, 2 threads", "medium", "fixed", "2"), ("large, 2 threads", "large", "fixed", "2"),
)  # fmt: skip
COLOURS = ((0.5, "🟥"), (0.8, "🟧"), (0.95, "🟨"), (1.5, "🟩"), (float("inf"), "🟦"))
_HEAD = """# Speed of single operators

How many times as fast occ is as onnxruntime, operator by operator: `python bench/operators.py --json FILE --page {page}`
measures and writes this page. A model has one node, so a small size is mostly the call, and nothing is fused.
Small, medium and large sizes are in `bench/operator_rows.py`, kernels are those of `-O2`, the default. One thread: processor time; two: time by the clock.

🟥 below 0.5, 🟧 below 0.8, 🟨 below 0.95, 🟩 below 1.5, 🟦 from 1.5 on. Measured on {machine}.
"""


def page(found: Mapping[str, Any], name: str = "docs/reference/operator-speed.md") -> str:
    """The page, from figures by `target|operator|type|size|form`."""
    made = [_HEAD.format(page=name, machine=_machine())]
    for target in sorted({key.split("|")[0] for key in found}):
        own = {key.split("|", 1)[1]: result for key, result in found.items() if key.split("|")[0] == target}
        made += [
            f"## Target {target}\n",
            *_means(own),
            "",
            *_table(own),
            "",
            *_reasons(own, OF_JIT if target == "cpu-jit" else REASONS),
            *_failures(own),
        ]
    return "\n".join(made)


def _machine() -> str:
    """The processor's kind, as LLVM names it."""
    import llvmlite.binding as llvm

    return f"a processor of the kind `{llvm.get_host_cpu_name()}`"


def _means(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| | rows | geometric mean | below 0.8 |\n|---|---|---|---|"
    for title, size, form, threads in COLUMNS:
        keys = [k for k, r in found.items() if k.split("|")[2:] == [size, form] and threads in r]
        ratios = [found[k][threads]["ratio"] for k in keys]
        if ratios:
            slow = sum(r < 0.8 for r in ratios)
            yield f"| {title} | {len(ratios)} | {exp(sum(map(log, ratios)) / len(ratios)):.2f} | {slow} |"


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    columns = [c for c in COLUMNS if any(k.split("|")[2:] == [c[1], c[2]] and c[3] in r for k, r in found.items())]
    yield f"| operator | type | {' | '.join(title for title, *_ in columns)} |\n|---|---|{'---|' * len(columns)}"
    for operator, kind in dict.fromkeys(tuple(key.split("|")[:2]) for key in found):
        cells = [_cell(found.get(f"{operator}|{kind}|{size}|{form}"), threads) for _, size, form, threads in columns]
        if any(cells):
            yield f"| {operator} | {kind} | {' | '.join(cells)} |"


def _cell(result: Mapping[str, Any] | None, threads: str) -> str:
    if result is None or threads not in result:
        return ""
    ratio: float = result[threads]["ratio"]
    return f"{next(c for limit, c in COLOURS if ratio < limit)} {ratio:.2f}"


def _reasons(found: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterator[str]:
    """Why operators are slow that are below 0.8 at medium or large size with one thread."""
    slow = [
        key.split("|")[0]
        for key, result in found.items()
        if key.split("|")[2] != "small" and "1" in result and result["1"]["ratio"] < 0.8
    ]
    if slow:
        yield "Below 0.8 at medium or large size:\n"
        yield from (f"- {name}: {reasons.get(name, 'Not looked into.')}" for name in dict.fromkeys(slow))
        yield ""


def _failures(found: Mapping[str, Any]) -> Iterator[str]:
    failed = [(key, r.get("error") or r["skipped"]) for key, r in found.items() if "error" in r or "skipped" in r]
    if failed:
        yield "Not measured:\n"
        yield from (f"- {' '.join(key.split('|'))}: {reason.replace('|', '/')}" for key, reason in failed)

"""`occ inspect`: what a model or an artifact is."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from occ.cli import options
from occ.cli.console import fitted


@click.command("inspect")
@options.model
@options.as_json
def command(model: str, as_json: bool) -> None:
    """Describe MODEL: signature, dims, operators and weights of a model; target, plan and kernels of an artifact."""
    facts = _artifact(model) if options.is_artifact(model) else _model(model)
    if as_json:
        click.echo(json.dumps(facts))
        return
    for key, value in facts.items():
        if isinstance(value, list):
            click.echo(f"{key}:")
            for item in value:
                click.echo(fitted("  ", str(item)))
        elif isinstance(value, dict):
            click.echo(fitted(f"{key}: ", ", ".join(f"{k} {v}" for k, v in value.items())))
        else:
            click.echo(fitted(f"{key}: ", str(value)))


def _artifact(path: str) -> dict[str, Any]:
    from occ.runtime.artifact import Artifact
    from occ.runtime.dims import text
    from occ.runtime.manifest import TensorInfo
    from occ.runtime.members import MANIFEST

    a = Artifact.load(path)
    a.verify()
    m = a.manifest
    labels = {d.name: d.label for d in m.dims}

    def show(t: TensorInfo) -> str:
        return f"{t.name}: {t.dtype}[{','.join(text(e, labels) for e in t.shape)}]"

    return {
        "artifact": m.name, "target": m.target, "machine": m.machine, "producer": m.producer, "format": m.format,
        "inputs": [show(t) for t in m.inputs], "outputs": [show(t) for t in m.outputs],
        "dims": [f"{d.label}: {_range(d.lo, d.hi)}" for d in m.dims],
        "constraints": [f"{text(c.lhs, labels)} = {text(c.rhs, labels)}, by node {c.node}" for c in m.constraints],
        "steps": dict(Counter(s.kind for s in m.plan.steps)),
        "kernels": len({s.name for s in m.plan.steps if s.kind == "kernel"}),
        "weights": f"{len(m.weights)}, {sum(w.nbytes for w in m.weights)} bytes",
        "arena": "sized per run" if m.plan.arena < 0 else f"{m.plan.arena} bytes",
        "members": sorted({*a.files, *m.digests, MANIFEST}),
    }  # fmt: skip


def _model(path: str) -> dict[str, Any]:
    from occ.compiler.driver.source import load_module

    m = load_module(options.source_of(path))
    weights = sum(w.data.nbytes for w in m.weights.values())
    return {
        "model": m.name, "stage": m.stage,
        "inputs": [f"{a.name}: {a.type}" for a in m.main.args], "outputs": m.main.result_names,
        "dims": [f"{i.symbol.name}: {i.label}" for i in m.symbols.values()],
        "operators": dict(Counter(op.name for op in m.walk() if op.name != "yield").most_common()),
        "weights": f"{len(m.weights)}, {weights} bytes",
    }  # fmt: skip


def _range(lo: int, hi: int | None) -> str:
    """The values that a dim may take."""
    return str(lo) if lo == hi else f"{lo} to {'any' if hi is None else hi}"

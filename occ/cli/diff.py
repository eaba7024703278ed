"""`occ diff`: compare results with those of another runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from occ.benchmark import difference
from occ.cli import options
from occ.cli.console import progress
from occ.cli.inputs import given_inputs


@click.command("diff")
@options.model
@options.target
@click.option(
    "--against",
    type=click.Choice(["onnxruntime", "reference", "interp"]),
    default="onnxruntime",
    show_default=True,
    help="What to compare with.",
)
@click.option("--inputs", "npz", metavar="FILE.npz", help="Inputs; seeded random ones by default.")
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="Largest difference, as a share of the largest value of an output.",
)
@options.compile_options
@options.as_json
def command(
    model: str,
    target: str,
    against: str,
    npz: str | None,
    tolerance: float,
    as_json: bool,
    flags: options.Flags,
) -> None:
    """Run MODEL and compare every output with that of another runtime; exit code 5 if one differs."""
    from occ.compiler.diagnostics import error, shorten
    from occ.compiler.driver.sessions import compile_model

    with progress() as tell:
        settings = flags.with_symbols().settings(target, progress=tell)
        session = compile_model(options.source_of(model), settings)
    inputs = given_inputs(session, (), npz, flags.sizes, 0)
    ours = session.run(inputs)
    theirs = oracle(model, against, list(ours), inputs, settings.rules)
    rows = [_row(name, ours[name], theirs[name], tolerance) for name in ours]
    for row in rows:
        click.echo(json.dumps(row) if as_json else _line(row))
    if wrong := [shorten(row["output"], 60) for row in rows if not row["ok"]]:
        raise error("OCC0506", f"{len(wrong)} of {len(rows)} outputs differ from {against}: {', '.join(wrong[:8])}")


def oracle(
    model: str, against: str, names: list[str], inputs: dict[str, np.ndarray], rules: Sequence[Any] = ()
) -> dict[str, np.ndarray]:
    """The outputs of another runtime; of `rules`, the interpreter takes the operators alone."""
    if against == "interp":
        from occ.api import compile as compile_
        from occ.compiler.driver.plugins import extensions

        return compile_(model, "interp", rules=[extensions(rules).registry]).run(inputs)
    if against == "reference":
        from onnx.reference import ReferenceEvaluator

        found: list[Any] = list(ReferenceEvaluator(model).run(names, inputs))  # pyright: ignore[reportArgumentType]
    else:
        try:
            import onnxruntime
        except ImportError:
            hint = "`pip install onnxruntime`, or use --against reference"
            raise click.UsageError(f"onnxruntime is not installed; {hint}") from None
        session: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        found = session.run(names, inputs)
    return dict(zip(names, found, strict=True))


def _row(name: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> dict[str, Any]:
    row: dict[str, Any] = {"output": name, "shape": list(ours.shape), "ok": False}
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return row | {"reason": f"{theirs.dtype}{list(theirs.shape)} expected"}
    if ours.dtype.kind not in "fiub":
        return row | {"ok": bool(np.all(ours == theirs)), "difference": 0.0, "worst": []}
    share = difference(ours, theirs)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    places: list[Any] = []
    if a.ndim and share > tolerance:
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        places = [np.unravel_index(k, a.shape) for k in np.argsort(gap, axis=None)[::-1][:5]]
    listed = [{"at": [int(i) for i in p], "ours": float(a[p]), "theirs": float(b[p])} for p in places]
    return row | {"ok": bool(share <= tolerance), "difference": share, "worst": listed}


def _line(row: dict[str, Any]) -> str:
    if "reason" in row:
        return f"DIFFERS  {row['output']}: {row['shape']}, {row['reason']}"
    head = "same   " if row["ok"] else "DIFFERS"
    lines = [
        f"{head}  {row['output']}: {row['shape']}, largest difference {row['difference']:.2e} of the largest value"
    ]
    lines += [f"         at {w['at']}: {w['ours']!r}, expected {w['theirs']!r}" for w in row["worst"]]
    return "\n".join(lines)

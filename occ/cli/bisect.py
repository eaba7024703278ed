"""`occ bisect`: finds the pass and the op that make results wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from occ.cli import options
from occ.cli.console import json_line, say
from occ.cli.numbers import Share
from occ.inputs import named_arrays
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.debugging.bisect import Guilty
    from occ.compiler.driver.settings import Settings


@dataclass(frozen=True)
class _Judging:
    """The options of what results are right."""

    against: str
    npz: str | None
    tolerance: float


@click.command("bisect")
@options.model
@options.target
@options.against("The reference; `interp` runs the model after inference only, as for .occ texts.")
@click.option("--inputs", "npz", metavar="FILE.npz", help="Inputs; small seeded random ones by default.")
@click.option("--tolerance", type=Share(), default=1e-3, show_default=True, help="As a share of the largest value.")
@options.compile_options
@options.as_json
@click.pass_context
@options.as_record(_Judging, "how")
def command(ctx: click.Context, model: str, target: str, as_json: bool, flags: options.Flags, how: _Judging) -> None:
    """Find the pass after which MODEL gives wrong results, and the first op whose value it changed.

    Every candidate is interpreted, so a fault of a code generator is not found. A pass that crashes is found too. Exit
    code 5 if something was found.
    """
    from occ.compiler.debugging.bisect import Bisection, crash_of

    settings = flags.settings(target, running=True)
    source = options.source_of(model)
    crash = crash_of(source, settings)
    if crash is not None:
        raise crash
    inputs, names, outputs = _inputs(source, settings, how.npz)
    expected = _expected(model, how.against, source, settings, inputs, names, outputs)
    bisection = Bisection(source, settings, inputs, expected, how.tolerance)
    found = bisection.search(lambda text: None if as_json else say(text))
    if found is None:
        click.echo(json_line({"found": False}) if as_json else "results are correct after every pass")
        return
    click.echo(json_line(_facts(found)) if as_json else _text(found))
    ctx.exit(5)


def _inputs(source: Any, settings: Settings, npz: str | None) -> tuple[list[Any], list[str], list[str]]:
    """The inputs in the order of the model, their names, and the names of the outputs."""
    from occ.compiler.debugging.validate import inputs_of
    from occ.compiler.driver.compilation import Compilation

    m = Compilation(source, settings).advance("inferred")
    names = [a.name for a in m.main.args]
    if npz is not None:
        arrays = named_arrays(npz)
        if missing := [n for n in names if n not in arrays]:
            raise click.UsageError(f"{npz} has no input {', '.join(missing)}")
        return [arrays[n] for n in names], names, m.main.result_names
    found = inputs_of(m, settings.overrides.dims)
    if found is None:
        raise click.UsageError(
            "no small inputs were found on which the model runs: pass some with --inputs, or set sizes with --dim"
        )
    return found, names, m.main.result_names


def _expected(
    model: str, against: str, source: Any, settings: Settings, inputs: list[Any], names: list[str], outputs: list[str]
) -> list[Any]:
    from occ.compiler.debugging.validate import results
    from occ.compiler.driver.compilation import Compilation

    if model.endswith(".onnx") and against != "interp":
        from occ.analysis.oracles import CannotCompare, oracle

        try:
            found = oracle(model, against, outputs, dict(zip(names, inputs, strict=True)), settings)
        except CannotCompare as e:
            raise click.UsageError(str(e)) from None
        return [found[n] for n in outputs]
    from dataclasses import replace

    made = Compilation(source, replace(settings, limit=1))  # only inference
    return results(made.advance(made.last_stage), inputs)


def _facts(g: Guilty) -> dict[str, object]:
    return {
        "found": True, "pass": g.ran.text, "number": g.ran.number, "stage": g.ran.stage, "text": g.text,
        "op": g.op.name if g.op else None, "nodes": list(g.op.loc.nodes) if g.op else [], "rules": dict(g.ran.hits),
        "reproducer": g.reproducer, "runs": g.runs,
    }  # fmt: skip


def _text(g: Guilty) -> str:
    from occ.compiler.ir.printer import op_text

    lines = [f"guilty: the pass `{g.ran.text}`, number {g.ran.number}, on the way to `{g.ran.stage}`"]
    if g.op is not None:
        lines += [f"   op: {op_text(g.op)}", f"nodes: {g.op.loc}"]
    lines.append(f"value: {g.text}")
    if g.ran.hits:
        lines.append("rules: " + ", ".join(f"{n} {k}" for n, k in g.ran.hits.items()))
    lines += [f"rerun: {g.reproducer}", f" runs: {g.runs}"] if g.reproducer else []
    return "\n".join(lines)

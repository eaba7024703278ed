"""`occ check-rules`: proves rewrites on random operands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import json_line
from occ.cli.numbers import Whole

if TYPE_CHECKING:
    from occ.compiler.debugging.check_rules import Report


@click.command("check-rules")
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--builtin", is_flag=True, help="Check the compiler's own rewrites too.")
@click.option(
    "--instances", type=Whole(1), default=40, show_default=True, help="Number of random operands to check each rule on."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random operands.")
@click.option(
    "--out", type=options.OutPath(), default=Path(), help="Folder for counterexamples; the current one by default."
)
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, files: tuple[str, ...], builtin: bool, instances: int, seed: int, out: Path, as_json: bool
) -> None:
    """Check the rules of each FILE: the pattern and its replacement are interpreted on random shapes, types and values.

    Infinities and NaN are among the values, unless a rule says `finite=True`. Where the sides differ, a counterexample
    is written, an .occ file that computes both; give that file to this command to see it again. Exit code 5 if a rule
    is wrong, 1 if one could not be checked.
    """
    from occ.compiler.debugging.check_rules import check_rule
    from occ.compiler.driver.plugins import extensions
    from occ.compiler.passes.canonical.canonical_rules import ALL

    texts = [f for f in files if f.endswith(".occ")]
    failed = max((5 * _again(f, as_json=as_json) for f in texts), default=0)
    loaded = extensions([f for f in files if f not in texts] or ([] if texts or builtin else options.project_rules()))
    checked = 0
    for rule in [*loaded.rules, *(ALL if builtin else ())]:
        report = check_rule(rule, instances, seed, loaded.registry)
        where = _write(report, out)
        checked += 1
        click.echo(json_line(_facts(report, where)) if as_json else _line(report, where))
        failed = max(failed, 5 if report.difference else 0 if report.ok else 1)
    if not checked and not texts:
        raise click.UsageError("no rules to check: name a rule file, or list some in [tool.occ] rules")
    ctx.exit(failed)


def _again(file: str, *, as_json: bool) -> bool:
    """Run a counterexample; whether its sides differ."""
    from occ.compiler.debugging.check_rules import rerun
    from occ.compiler.driver.source import load_module

    text = rerun(load_module(file))
    if as_json:
        click.echo(json_line({"counterexample": file, "differs": bool(text), "text": text}))
    else:
        click.echo(f"{'DIFFERS ' if text else 'same    '} {file}" + (f": {text}" if text else ""))
    return bool(text)


def _write(report: Report, out: Path) -> Path | None:
    from occ.compiler.ir.printer import module_text

    if report.difference is None:
        return None
    file = out / f"{report.rule.name}.counterexample.occ"
    out.mkdir(parents=True, exist_ok=True)
    head = f"# rule {report.rule.name}: {report.difference.text}\n# occ check-rules {file.name}\n"
    file.write_text(head + module_text(report.difference.module, inline=True))
    return file


def _facts(report: Report, where: Path | None) -> dict[str, object]:
    verdict = "wrong" if report.difference else "ok" if report.ok else "unchecked"
    facts: dict[str, object] = {"rule": report.rule.name, "kind": report.rule.kind, "verdict": verdict}
    facts["instances"] = dict(report.instances)
    if report.difference:
        return facts | {"code": "OCC0613", "text": report.difference.text, "counterexample": str(where)}
    return facts if report.ok else facts | {"reason": report.reason}


def _line(report: Report, where: Path | None) -> str:
    rule = f"{report.rule.name} ({report.rule.kind})"
    if report.difference:
        help_ = f"occ check-rules {where}"
        lines = [f"WRONG     {rule}: {report.difference.text}"]
        if not report.difference.module.main.results[0].tensor.dtype.is_float and report.rule.kind == "rewrite":
            lines.append("          if it is only for floats, restrict it:")
            lines.append(f"          @{report.rule.name}.when")
            lines.append("          def _(m): return m.NAME.tensor.dtype.is_float    # NAME: a parameter")
        return "\n".join([*lines, f"          counterexample: {help_}  # error OCC0613"])
    if not report.ok:
        return f"UNCHECKED {rule}: {report.reason}\n          provide operands with @{report.rule.name}.sample"
    listed = ", ".join(f"{t} {n}" for t, n in sorted(report.instances.items()))
    return f"ok        {rule}: {sum(report.instances.values())} instances ({listed})"

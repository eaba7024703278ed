"""`occ ops`: the supported operators, and those that installed packages add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.console import fitted, json_line
from occ.cli.source_places import operator_places

if TYPE_CHECKING:
    from occ.compiler.ir.operator.spec import Operand, OpSpec


@click.command("ops")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-t", "--target", default=None, help="Only operators that this target supports.")
@click.option("--where", is_flag=True, help="Print where it is defined, and what makes its code for each target.")
@click.option("--types", "types", is_flag=True, help="Print the operands too, and the types that each accepts.")
@options.as_json
def command(names: tuple[str, ...], target: str | None, where: bool, types: bool, as_json: bool) -> None:
    """List the operators: name, newest schema version, kind of definition, known limits.

    With NAMEs, those alone whose names contain one of them, whatever the case.
    """
    from occ.compiler.driver.plugins import extensions
    from occ.compiler.targets.registry import all_targets, get_target

    targets = [get_target(target)] if target is not None else all_targets()
    operators = get_target(target).operators if target is not None else None
    by_name = operators() if operators is not None else {}
    listed = _named(names, [s for s in extensions().registry.values() if not s.is_internal and s.is_known])
    kinds = {"body": "te", "composite": "composite", "host": "host", "region": "region", "kernel": "kernel"}
    for spec in sorted(listed, key=lambda s: (s.domain, s.operator)):
        if operators is not None and spec.name not in by_name and not spec.composite:
            continue  # composite ones are expanded
        places = operator_places(spec, targets) if where else {}
        row = {
            "name": spec.name,
            "since": spec.since,
            "kind": by_name.get(spec.name, kinds[spec.meaning]),
            "limits": spec.limits,
            "operands": {o.name: _types(o) for o in spec.operands},
            **({"places": places} if where else {}),
        }
        if as_json:
            click.echo(json_line(row))
        else:
            click.echo(fitted(f"{row['name']:32} {row['since']:4}  {row['kind']:10} ", spec.limits))
            for o in spec.operands if types else ():
                click.echo(fitted(f"    {o.name}: ", ", ".join(_types(o)) or "any"))
            for text in dict.fromkeys(places.values()):
                click.echo(f"    {', '.join(n for n, other in places.items() if other == text)}: {text}")


def _types(operand: Operand) -> list[str]:
    """The types that an operand may have: tensor element types in ONNX's spelling; empty if any."""
    return sorted(t[7:-1] if t.startswith("tensor(") else t for t in operand.types)


def _named(names: Sequence[str], specs: Sequence[OpSpec]) -> list[OpSpec]:
    """The operators whose names contain one of `names`; all if there are none."""
    found = [s for s in specs if not names or any(n.casefold() in s.name.casefold() for n in names)]
    if not found:
        from occ.compiler.diagnostics import closest

        hint = closest(names[0], [s.name for s in specs]) or "`occ ops` lists all"
        raise click.UsageError(f"no operator is called {names[0]!r}; {hint}")
    return found

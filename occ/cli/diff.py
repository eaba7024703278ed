"""The command `occ diff`: the largest differences between the outputs of two runtimes or targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from occ.cli import options
from occ.cli.artifact_options import check_as_built
from occ.cli.console import json_line, progress, report_sizes, say
from occ.cli.numbers import Share
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.analysis.diff import Differences
    from occ.analysis.rows import Row


@dataclass(frozen=True)
class _Comparing:
    """The options about what is compared, with what, and how closely."""

    against: str
    onnx: str | None
    npz: str | None
    every_node: bool
    node: str | None
    simulate: bool
    tolerance: float | None
    absolute: float

    @property
    def chosen(self) -> str | None:
        """The regular expression of the nodes to compare; None for only outputs."""
        return self.node if self.node is not None else ("" if self.every_node else None)


class _Two(click.Command):
    """A command with one model argument, which explains where a second one belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [a for a in args[:2] if not a.startswith("-")]
        if len(given) == 2:
            second = "--against" if options.is_artifact(given[1]) else "--onnx"
            ctx.fail(f"one MODEL is compared: pass the second as {second} {given[1]}")
        return super().parse_args(ctx, args)


@click.command("diff", cls=_Two)
@options.model
@options.target
@options.against(
    "What to compare with: a runtime, or an artifact built with other options or by an earlier release.", artifacts=True
)
@click.option("--onnx", help="The model that an artifact was built from.")
@click.option("--inputs", "npz", metavar="FILE.npz", help="Inputs; seeded random ones by default.")
@click.option(
    "--every-node", is_flag=True, help="Compare the results of each node too; the first that differs is listed first."
)
@click.option(
    "--node",
    metavar="RE",
    help="Compare the results of the nodes whose names or results match this regular expression, too.",
)
@click.option("--simulate", is_flag=True, help="Run the device parts of an Ascend target on the simulator.")
@click.option(
    "--dump",
    type=click.Path(exists=True, file_okay=False),
    help="A folder with a device's operator dump, to compare with the simulator; MODEL is the artifact, "
    "--inputs the inputs of the device.",
)
@click.option(
    "--tolerance",
    type=Share(),
    help="Largest difference, as a share of the largest value of an output.  [default: 1e-4; 1e-2 of models in f16, "
    "5e-2 in bf16]",
)
@click.option(
    "--absolute",
    type=Share(),
    default=1e-7,
    show_default=True,
    help="An absolute difference that is always accepted, as in ONNX's own tests; 0 if tiny values matter.",
)
@options.compile_options
@options.as_json
@options.as_record(_Comparing, "how")
def command(model: str, target: str, dump: str | None, as_json: bool, flags: options.Flags, how: _Comparing) -> None:
    """Run MODEL and compare every output with that of another runtime; exit code 5 if one differs.

    MODEL may be .occ text of any stage, or an artifact with the model that it was built from as --onnx, or with another
    artifact as --against.
    """
    if dump is not None:
        _of_dump(model, dump, how.npz, how.tolerance, as_json=as_json)
        return
    found = _compared(model, target, flags, how)
    if how.npz is None and found.session is not None:
        report_sizes(found.session, flags.sizes)
    _show(found, as_json=as_json)
    _fail(found, how.against)


def _compared(model: str, target: str, flags: options.Flags, how: _Comparing) -> Differences:
    """Both sides run.

    Raises:
        click.UsageError: there is nothing to compare with.
    """
    from occ.analysis.diff import Allowed, Given, compared
    from occ.analysis.oracles import CannotCompare
    from occ.inputs import named_arrays

    if options.is_artifact(model):
        from occ.runtime.artifact import Artifact

        check_as_built(model, Artifact.load(model).manifest.target)
    allowed = Allowed(how.tolerance, how.absolute)
    with progress() as tell:
        settings = flags.settings(target, running=True, progress=tell)
        given = Given(how.onnx, named_arrays(how.npz) if how.npz else None, flags.sizes)
        source = options.source_of(model)
        try:
            return compared(source, settings, how.against, given, allowed, how.chosen, simulate=how.simulate)
        except CannotCompare as e:
            raise click.UsageError(str(e).replace("as `onnx`", "with --onnx FILE")) from None


def _of_dump(model: str, folder: str, npz: str | None, tolerance: float | None, *, as_json: bool) -> None:
    """Compare a device's dump with the simulator; half precision has its own default tolerance."""
    from pathlib import Path

    from occ.analysis.device_dump import compared_with_dump
    from occ.analysis.diff import HALVES
    from occ.analysis.oracles import CannotCompare
    from occ.compiler.diagnostics import error, shorten
    from occ.inputs import named_arrays
    from occ.runtime.artifact import Artifact

    if npz is None or not options.is_artifact(model):
        raise click.UsageError("--dump takes an artifact as MODEL, and --inputs FILE.npz, the inputs of the device")
    limit = HALVES["f16"] if tolerance is None else tolerance
    try:
        found = compared_with_dump(Artifact.load(model), Path(folder), named_arrays(npz), limit)
    except CannotCompare as e:
        raise click.UsageError(str(e)) from None
    wrong = [r for r in found.rows if not r.ok]
    for row in found.rows if as_json else wrong:
        click.echo(json_line(row.as_data()) if as_json else _line(row))
    say(
        f"{len(found.rows) - len(wrong)} of {len(found.rows)} results of operators are within {limit:g} of the "
        "simulator's"
    )
    if found.unknown:
        say(
            f"{len(found.unknown)} operators of the dump are not in the graph, as passes of the toolkit create them: "
            f"{shorten(', '.join(found.unknown), 200)}"
        )
    if found.unread or found.refused:
        say(f"{found.unread} outputs are in a format that is not read, {len(found.refused)} files are not dumps")
    if wrong:
        raise error(
            "OCC0506",
            f"{len(wrong)} of {len(found.rows)} results differ from the simulator: `{shorten(wrong[0].node, 60)}` "
            "first",
        )


def _show(found: Differences, *, as_json: bool) -> None:
    """All rows as data; for people the outputs, and only those nodes that differ."""
    if as_json:
        for row in found.rows:
            click.echo(json_line(row.as_data()))
        return
    outputs, nodes = found.rows[: found.outputs], found.rows[found.outputs :]
    wrong = [r for r in nodes if not r.ok]
    for row in [*wrong, *outputs]:
        click.echo(_line(row))
    if nodes:
        say(f"{len(nodes) - len(wrong)} of {len(nodes)} values of nodes are equal")
        if not wrong and not all(r.ok for r in outputs):
            say("no node differs if each is computed alone: `occ bisect` finds the pass that makes them differ")
    if found.verdict:
        say(found.verdict)


def _fail(found: Differences, against: str) -> None:
    """Raise OCC0506 if anything differs, with the first node or the outputs."""
    from occ.compiler.diagnostics import error, shorten

    wrong = [r for r in found.rows if not r.ok]
    if found.first is None:
        return
    first = f"node `{shorten(found.first.node, 60)}` first" if found.first.node else ""
    listed = first or ", ".join(shorten(r.output, 60) for r in wrong[:8])
    raise error("OCC0506", f"{len(wrong)} of {len(found.rows)} outputs differ from {against}: {listed}")


def _line(row: Row) -> str:
    name = f"{row.output} (node {row.node})" if row.node else row.output
    if row.reason:
        return f"DIFFERS  {name}: {list(row.shape)}, {row.reason}"
    head = f"{'same   ' if row.ok else 'DIFFERS'}  {name}: {list(row.shape)}"
    small = ", too small to count (--absolute)" if row.small else ""
    lines = [f"{head}, largest difference {row.difference or 0.0:.2e} of the largest value{small}"]
    if row.optimiser is not None:
        lines.append(
            f"         with onnxruntime's optimiser off; with it onnxruntime differs by {row.optimiser:.2e} from what "
            "the model says"
        )
    lines += [f"         at {w['at']}: {w['ours']!r}, expected {w['theirs']!r}" for w in row.worst]
    return "\n".join(lines)

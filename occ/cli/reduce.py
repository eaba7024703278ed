"""`occ reduce`: shrinks a failing model."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.cli import options
from occ.cli.console import say

if TYPE_CHECKING:
    from occ.compiler.ir.module import Module


@click.command("reduce")
@options.model
@options.target
@click.option(
    "--test",
    metavar="COMMAND",
    help="A command that fails (exit code not 0) on the failing model; {} stands for the file. By default, "
    "the failure is an internal error, or a pass that --validate blames.",
)
@click.option("-o", "--out", type=options.OutPath(), default=Path("reduced.occ"), show_default=True)
@options.compile_options
def command(model: str, target: str, test: str | None, out: Path, flags: options.Flags) -> None:
    """Shrink MODEL while it keeps failing; write what is left, and how to run it."""
    from occ.compiler.debugging.shrink import reduce
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.outputs import check_not_read
    from occ.compiler.passes.manager import self_contained_text

    check_not_read(out, [model])
    settings = flags.settings(target, running=True)
    whole = Compilation(options.source_of(model), settings)
    m = whole.module
    if m.stage == "imported":
        m = Compilation(options.source_of(model), settings).advance("inferred")
    fails = _by_command(test) if test else _by_code(m, settings)
    try:
        small = reduce(m, fails, say)
    except ValueError as e:
        raise click.UsageError(f"{e}: the command returns 0 for it") from None
    text = self_contained_text(small)
    if text is None:
        raise click.UsageError(
            "the reduced model has weights too large for one text; shrink them with --shape or --dim"
        )
    rerun = (
        test.replace("{}", out.name) if test else f"occ dump {out.name} --stage lowered -t {target} --verify --validate"
    )
    if not test:
        rerun += "".join(f" --rules {f}" for f in whole.extensions.files)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f"# {rerun}\n{text}")
    say(f"wrote {out}: {sum(1 for _ in small.walk()) - 1} ops")


def _by_command(test: str) -> Callable[[Module], bool]:
    """Fails like the whole model: with the same exit code, error code or kind of exception."""
    from occ.compiler.ir.printer import module_text

    wanted: list[tuple[str, ...]] = []

    def fails(m: Module) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "candidate.occ"
            file.write_text(module_text(m, inline=True))
            command = [part.replace("{}", str(file)) for part in shlex.split(test)]
            try:
                ran = subprocess.run(command, capture_output=True, check=False)
            except OSError as e:
                raise click.UsageError(f"--test cannot be run: {e.strerror}: {command[0]!r}") from None
        if ran.returncode == 0:
            return False
        found = _failure(ran.returncode, ran.stderr.decode("utf-8", "replace"))
        if not wanted:
            wanted.append(found)
            say(f"reducing: {' '.join(found)}")
        return found == wanted[0]

    return fails


def _failure(code: int, text: str) -> tuple[str, ...]:
    """The kind of a failure: the exit code, and the diagnostic code or exception type."""
    kinds = re.findall(r"^error\[(\w+)\]|^([\w.]*(?:Error|Exception|Interrupt))\b", text, re.MULTILINE)
    return (f"exit code {code}", *(a or b for a, b in kinds[-1:]))


def _by_code(m: Module, settings: Any) -> Callable[[Module], bool]:
    """Fails like the whole model: with the same code, in the same pass."""
    from dataclasses import replace

    from occ.compiler.debugging.shrink import copy_of
    from occ.compiler.debugging.validate import Validate
    from occ.compiler.diagnostics import CompileError
    from occ.compiler.driver.compilation import Compilation

    def failure(candidate: Module) -> tuple[str, str] | None:
        try:
            made = Compilation(candidate, replace(settings, verify=True, listeners=[Validate(settings.overrides.dims)]))
            made.advance(made.last_stage)
        except CompileError as e:
            first = e.diagnostics[0]
            return (first.code, first.message) if first.code in ("OCC0901", "OCC0902", "OCC0614") else None
        except Exception as e:
            return ("exception", type(e).__name__)
        return None

    wanted = failure(copy_of(m))
    if wanted is None:
        raise click.UsageError("the model compiles, and no pass changes its results; define the failure with --test")
    say(f"reducing: {wanted[0]} {wanted[1]}")
    return lambda candidate: failure(candidate) == wanted

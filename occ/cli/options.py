"""Options that several commands share."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from occ.analysis.inspect import is_artifact as is_artifact
from occ.cli.numbers import Whole
from occ.cli.option_values import bounds_of, dims_of, pairs, shapes_of, sizes_in_turn
from occ.compiler.targets.default import DEFAULT
from occ.generation.names import DRAFT_TOKENS
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from occ.compiler.driver.settings import Settings
    from occ.compiler.driver.source import Source
    from occ.compiler.tuning.workers import Workers

Decorator = Callable[[Any], Any]

model = click.argument("model", metavar="MODEL")
target = click.option(
    "-t", "--target", default=DEFAULT, show_default=True, help="What to compile for; `occ targets` lists them."
)
threads = click.option(
    "--threads", type=Whole(1), default=None, help="Threads of a run; OCC_NUM_THREADS or all processors by default."
)

draft = click.option(
    "--draft",
    metavar="ngram|DIR",
    help="Speculative decoding: draft tokens from repeated text or with a smaller model, and verify them in one run.",
)
draft_tokens = click.option(
    "--draft-tokens", type=Whole(1), default=DRAFT_TOKENS, show_default=True, help="Drafted tokens per run."
)


class OutPath(click.Path):
    """An output path; not a stream, which `-` means in other programs."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("-", ""):
            self.fail(
                f"{value!r} is not the name of a file" + ("; a file of this name is `./-`" if value else ""), param, ctx
            )
        return super().convert(value, param, ctx)


def workers(help_: str) -> Decorator:
    """`--workers`: the address of a scheduler for other machines."""
    return click.option("--workers", metavar="ADDRESS", help=help_ + " docs/workers.md shows how they are started.")


def workers_at(address: str | None) -> Workers | None:
    """The workers of the scheduler at an address.

    Raises:
        CompileError: OCC0408 there are none; OCC0401, OCC0402, a part of the toolchain is missing here.
    """
    if address is None:
        return None
    from occ.compiler.tuning.workers import Workers

    return Workers.connect(address)


class _Oracle(click.Choice[str]):
    """An oracle by name, or the path of an artifact."""

    name = "oracle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if is_artifact(value):
            return value
        if "." in value or "/" in value:
            self.fail(
                f"`{value}` is not an artifact" + ("" if Path(value).exists() else ": no such file exists"), param, ctx
            )
        return super().convert(value, param, ctx)


def against(help_: str, *, artifacts: bool = False) -> Decorator:
    """`--against`: the oracle that a command compares with."""
    oracles = ["onnxruntime", "reference", "interp"]
    return click.option(
        "--against",
        type=_Oracle(oracles) if artifacts else click.Choice(oracles),
        default="onnxruntime",
        show_default=True,
        help=help_,
    )


as_json = click.option("--json", "as_json", is_flag=True, help="Print data and errors as JSON, an object a line.")
target_options = click.option(
    "-C",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an option of the target; `occ targets TARGET` lists them.",
)
_LEVEL = (
    "-O1 for the least time to a first result, by cpu-jit, -O2 (default) for kernels that models share, -O3 for "
    "kernels of the model's sizes: -C optimize=..."
)
level = click.option("-O", "--optimize", "level", type=click.Choice(["1", "2", "3"]), help=_LEVEL)
_COMPILE = (
    click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME=1,3,224,224",
        help="Fix the extents of an input; a name makes one symbolic, -1 keeps it. If repeated for an input, `occ "
        "build`, `run` and `bench` add a plan for each of the shapes to the general one.",
    ),
    click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=4",
        help="Fix a symbolic dim; NAME=32..1280:32 sets bounds instead: multiples of 32 from 32 to 1280.",
    ),
    target_options,
    level,
    click.option(
        "--target-cpu",
        "processor",
        metavar="NAME",
        help="The processor that `-t cpu` and `-t cpu-jit` compile for, such as x86-64-v3 or cortex-a76: short for "
        "-C halide.target=...",
    ),
    click.option(
        "--also",
        "also",
        multiple=True,
        metavar="NAME",
        help="Put code for another processor into the artifact too, such as x86-64-v3; repeat for more. Opening "
        "the artifact selects the best that the machine can run: short for -C also=...",
    ),
    click.option(
        "--rules", "rules", multiple=True, metavar="FILE", help="Load fusion and rewrite rules, passes and operators."
    ),
    click.option("--no-cache", is_flag=True, help="Do not use the build cache."),
    click.option("--jobs", type=Whole(1), default=2, show_default=True, help="Parallel processes of the toolchain."),
    click.option("--verify", is_flag=True, help="Check the module after every pass."),
)


outputs = click.option(
    "--outputs",
    "outputs",
    multiple=True,
    metavar="NAME",
    help="Make a value of the graph an additional output, to compare it; a node stands for its results, NODE:0 for the "
    "first. Repeat for more.",
)


def project_rules() -> list[str]:
    """The rule files that `[tool.occ] rules` of the nearest pyproject.toml names, relative to it."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("occ", {})
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
                raise click.UsageError(f"{file}: {e}") from None
            return [str(folder / name) for name in table.get("rules", ())]
    return []


def source_of(name: str) -> Source:
    """The model source of a MODEL argument: a path, or `-` for standard input."""
    if name != "-":
        return Path(name)
    data = sys.stdin.buffer.read()
    if not data:
        raise click.UsageError("the model should come from standard input, which is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return text if text.lstrip().startswith(("module", "#")) else data


@dataclass(frozen=True)
class Flags:
    """The options about how a model is compiled, as given."""

    shapes: Sequence[str]
    dims: Sequence[str]
    given: Sequence[str]
    level: str | None
    processor: str | None
    also: Sequence[str]
    rules: Sequence[str]
    no_cache: bool
    jobs: int
    verify: bool

    @property
    def sizes(self) -> dict[str, int]:
        """Values of symbolic dims, the last one if several are given."""
        return dims_of(self.dims)

    @property
    def target_options(self) -> dict[str, str]:
        """Target options from `-C`, `--target-cpu` and `--also`."""
        also = {"also": ",".join(self.also)} if self.also else {}
        level = {"optimize": self.level} if self.level else {}
        return {**_processor_options(self.processor), **also, **level, **pairs(self.given, "-C", keys=True)}

    def settings(
        self, target: str, outputs: Sequence[str] = (), *, several: bool = False, running: bool = False, **more: Any
    ) -> Settings:
        """The resulting settings, with further `outputs` and `more` fields; `running` as in `Overrides`.

        Raises:
            click.UsageError: several sizes are given, and the command does not support `several`.
        """
        from occ.compiler.driver.settings import Settings
        from occ.compiler.frontend.signature import Overrides

        whole, *special = [
            Overrides(shapes_of(shapes), dims_of(dims), outputs, bounds_of(dims), running)
            for shapes, dims in sizes_in_turn(self.shapes, self.dims)
        ]
        if special and not several:
            raise click.UsageError("only `occ build`, `run` and `bench` take several sizes of an input or dim")
        rules = [*project_rules(), *self.rules]
        return Settings(
            target,
            whole,
            self.target_options,
            not self.no_cache,
            self.jobs,
            verify=self.verify,
            rules=rules,
            special=special,
            **more,
        )


def _processor_options(name: str | None) -> dict[str, str]:
    if name is None:
        return {}
    from occ.compiler.objects.processors import PROCESSORS

    if name not in PROCESSORS:
        if name in ("native", "host"):
            raise click.UsageError(f"leave --target-cpu out for this machine: {name!r} is not a processor")
        raise click.UsageError(
            f"unknown processor {name!r} for --target-cpu; known are {', '.join(sorted(PROCESSORS))}"
        )
    return {"halide.target": PROCESSORS[name]}


def gathered(command: Any, options: Sequence[Decorator], kind: type, name: str) -> Any:
    """A command with some options, which it receives as one object.

    Args:
        command: the function, or the result of other options.
        options: from `click.option`, in the order of `--help`.
        kind: a dataclass with a field for each option.
        name: of the parameter that takes it.
    """

    @wraps(command)
    def made(*args: Any, **how: Any) -> Any:
        values = {f.name: how.pop(f.name) for f in fields(kind)}
        return command(*args, **how, **{name: kind(**values)})

    for option in reversed(options):
        made = option(made)
    return made


def as_record(kind: type, name: str) -> Decorator:
    """A decorator: the command receives the options that are fields of a dataclass as one object."""
    return lambda command: gathered(command, (), kind, name)


def compile_options(command: Any) -> Any:
    """The options about how a model is compiled; the command receives them as `flags`."""
    return gathered(command, _COMPILE, Flags, "flags")

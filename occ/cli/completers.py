"""Completion of arguments and option values in shells."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete, split_arg_string

from occ.compiler.targets.default import DEFAULT

if TYPE_CHECKING:
    from onnx import GraphProto

Items = Iterable[CompletionItem[Any] | str]
Completer = Callable[[click.Context, str], Items]

_LARGEST = 64 << 20  # maximum bytes of a model that is read during completion


def files(_: click.Context, incomplete: str) -> Items:
    """Files, completed by the shell."""
    return [CompletionItem(incomplete, type="file")]


def nothing(_ctx: click.Context, _incomplete: str) -> Items:
    """A free text."""
    return []


def targets(_ctx: click.Context, _incomplete: str) -> Items:
    """Targets, with descriptions."""
    from occ.compiler.targets.registry import all_targets

    return [CompletionItem(t.name, help=t.doc.partition(".")[0]) for t in all_targets()]


def target_settings(ctx: click.Context, incomplete: str) -> Items:
    """`-C KEY=VALUE`: the options of the current target, then the values of one."""
    from occ.compiler.targets.registry import get_target

    table = get_target(ctx.params.get("target") or DEFAULT).options.table
    key, sign, _ = incomplete.partition("=")
    if sign and key in table:
        return [f"{key}={choice}" for choice in table[key].choices]
    return [CompletionItem(f"{name}=", help=o.doc.partition(".")[0]) for name, o in table.items()]


def stages(_ctx: click.Context, _incomplete: str) -> Items:
    """Stages of a compilation, and the texts of code generators."""
    from occ.compiler.ir.stages import STAGES

    return [*(CompletionItem(s.name, help=s.doc) for s in STAGES), "halide", "llvm", "ge", "atc"]


def processors(_ctx: click.Context, _incomplete: str) -> Items:
    from occ.compiler.objects.processors import PROCESSORS

    return list(PROCESSORS)


def passes(_ctx: click.Context, _incomplete: str) -> Items:
    from occ.compiler.passes.registry import PASSES

    return list(PASSES)


def passes_or_all(ctx: click.Context, incomplete: str) -> Items:
    return ["all", *passes(ctx, incomplete)]


def codes(_ctx: click.Context, _incomplete: str) -> Items:
    from occ.compiler.codes import CODES

    return [CompletionItem(name, help=code.title) for name, code in CODES.items()]


def operators(_ctx: click.Context, _incomplete: str) -> Items:
    from occ.compiler.driver.plugins import extensions

    return [s.name for s in extensions().registry.values() if not s.is_internal]


def operators_of_model(ctx: click.Context, _incomplete: str) -> Items:
    graph = _graph(ctx)
    return sorted({n.op_type for n in graph.node}) if graph else []


def runtimes(_ctx: click.Context, _incomplete: str) -> Items:
    from occ.benchmark import PEERS
    from occ.generation.benchmark import PEERS as OF_TEXTS

    return list(dict.fromkeys([*PEERS, *OF_TEXTS]))


def drafts(ctx: click.Context, incomplete: str) -> Items:
    """Draft methods: n-grams, or the folder of a model."""
    return [*(["ngram"] if "ngram".startswith(incomplete) else []), *files(ctx, incomplete)]


def listed(one: Completer) -> Completer:
    """Several of a kind, with commas between them: the last is completed."""

    def made(ctx: click.Context, incomplete: str) -> Items:
        head = incomplete[: incomplete.rfind(",") + 1]
        return [head + (i if isinstance(i, str) else i.value) for i in one(ctx, incomplete)]

    return made


def _graph(ctx: click.Context) -> GraphProto | None:
    """The graph of the current model, if it is one.

    Click leaves arguments unparsed if an option lacks its value.
    """
    path = Path(ctx.params.get("model") or next(iter(ctx.args), ""))
    if path.suffix != ".onnx" or not path.is_file() or path.stat().st_size > _LARGEST:
        return None
    import onnx

    return onnx.load(path, load_external_data=False).graph


def input_names(ctx: click.Context, _incomplete: str) -> Items:
    graph = _graph(ctx)
    weights = {w.name for w in graph.initializer} if graph else set[str]()
    return [f"{v.name}=" for v in graph.input if v.name not in weights] if graph else []


def inputs_from_files(ctx: click.Context, incomplete: str) -> Items:
    return files(ctx, incomplete) if "=" in incomplete else input_names(ctx, incomplete) or files(ctx, incomplete)


def dims(ctx: click.Context, _incomplete: str) -> Items:
    graph = _graph(ctx)
    found = [d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim] if graph else []
    return [f"{name}=" for name in dict.fromkeys(found) if name]


def values(ctx: click.Context, _incomplete: str) -> Items:
    """Names of nodes, and of their results."""
    graph = _graph(ctx)
    nodes = graph.node if graph else ()
    return list(dict.fromkeys(name for n in nodes for name in (n.name, *n.output) if name))


# By the last name of an option; for arguments, by `COMMAND NAME`, or the name alone.
COMPLETERS: dict[str, Completer] = {
    "model": files, "models": files, "files": files, "generate model": files, "name": targets, "names": operators,
    "code": codes, "--target": targets, "-C": target_settings, "--target-cpu": processors, "--also": processors,
    "--stage": stages, "--passes": listed(passes), "--print-before": passes_or_all, "--print-after": passes_or_all,
    "--stop-after": passes, "--rules": files, "--inputs": files, "--input": inputs_from_files, "--calibrate": files,
    "--onnx": files, "--shape": input_names, "--dim": dims, "--outputs": values, "--keep": values,
    "--operators": listed(operators_of_model), "--from": values, "--to": values, "--node": values,
    "--against": listed(runtimes), "--draft": drafts,
    "--workers": nothing, "--prompt": nothing, "--tokens": nothing, "--stop": nothing, "--host": nothing,
    "--why": nothing, "--test": nothing, "--generate": nothing, "--api-key": nothing, "--cors": nothing,
    "--text": nothing, "--query": nothing, "--language": nothing,
}  # fmt: skip


def completer(param: click.Parameter) -> Completer | None:
    """The completion function of a parameter; None if its type completes itself."""
    if not isinstance(param.type, click.types.StringParamType):
        return None
    return COMPLETERS.get(param.opts[-1])


def with_completion(command: click.Command) -> click.Command:
    """A command whose parameters complete their values."""
    for param in command.params:
        if (offered := completer(param)) is not None:
            param.shell_complete = _matching(offered)  # pyright: ignore[reportAttributeAccessIssue] - a method of one object
    return command


def _matching(offered: Completer) -> Callable[[click.Context, str], list[CompletionItem[Any]]]:
    def made(ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        try:
            items = [i if isinstance(i, CompletionItem) else CompletionItem(i) for i in offered(ctx, incomplete)]
        except Exception:  # an unreadable model or unknown target: reported when the command runs
            return []
        return [i for i in items if i.type != "plain" or str(i.value).startswith(incomplete)]

    return made


class Bash(BashComplete):
    """bash splits NAME=VALUE at the `=`: click gets the whole line, and the shell what follows its split.

    If nothing is offered, bash falls back to file names.
    """

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value

    response=$(env COMP_WORDS="${COMP_LINE:0:COMP_POINT}" OCC_BREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            plain) COMPREPLY+=("$value"); [[ $value == *= ]] && compopt -o nospace ;;
            *) COMPREPLY=(); compopt -o default ;;
        esac
    done
    return 0
}
complete -o nosort -o bashdefault -o default -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem[Any]) -> str:
        typed = self.get_completion_args()[1]
        apart = "=" in os.environ.get("OCC_BREAKS", "=") and str(item.value).startswith(typed)
        head = typed[: typed.rfind("=") + 1] if apart else ""
        return f"{item.type},{str(item.value).removeprefix(head)}"


class Zsh(ZshComplete):
    """A file may follow the `=` of NAME=FILE."""

    source_template = ZshComplete.source_template.replace(
        "_path_files -f", "compset -P '*='\n            _path_files -f"
    )


class Fish(FishComplete):
    """Values may have commas. A file may follow the `=` of NAME=FILE, and fish wants the name before it again."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","').replace(
        "__fish_complete_path $metadata[2];",
        "set -l name (string match -r '^.*=' -- $metadata[2]); "
        "__fish_complete_path (string replace -r '^.*=' '' -- $metadata[2]) | string replace -r '^' -- \"$name\";",
    )


SHELLS = {"bash": Bash, "zsh": Zsh, "fish": Fish}

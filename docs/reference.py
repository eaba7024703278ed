"""`make docs`: writes docs/reference from the registries: operators, passes and diagnostic codes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from occ.compiler.codes import CODES
from occ.compiler.frontend.refused import REFUSED
from occ.compiler.frontend.upgrade import SAME
from occ.compiler.ir.operator.registry import builtin
from occ.compiler.ir.stages import STAGES
from occ.compiler.passes.lower.rule_list import FINISHERS, NORMALISERS, RULES, VARIANTS
from occ.compiler.passes.pipeline import pipeline_for
from occ.compiler.passes.registry import PASSES
from occ.compiler.targets.registry import OWN, get_target

FOLDER = Path(__file__).parent / "reference"


def operators() -> Iterator[str]:
    """Operators by domain: what defines each, and its limits."""
    kinds = {"body": "te", "composite": "composite", "host": "host", "region": "region"}
    public = [s for s in builtin().values() if not s.is_internal]
    yield "# Operators\n"
    yield "`occ ops` prints this list. *te*: a tensor expression, compiled; *composite*: other operators; *host*: a numpy"
    yield "routine; *region*: control flow. *Since* is the newest version of the schema; older forms are upgraded.\n"
    for domain in sorted({s.domain for s in public}):
        yield f"## {domain or 'ai.onnx'}\n"
        yield "| operator | since | kind | limits |\n|---|---|---|---|"
        for s in sorted((s for s in public if s.domain == domain), key=lambda s: s.operator):
            yield f"| {s.operator} | {s.since} | {kinds[s.meaning]} | {s.limits} |"
        yield ""
    yield "## Other names\n"
    yield "| operator | read as |\n|---|---|"
    yield from (f"| {name} | {same} |" for name, (same, _) in sorted(SAME.items()))
    yield "\n## Refused\n"
    yield "| operator | why |\n|---|---|"
    yield from (f"| {name} | {why} |" for name, (why, _) in sorted(REFUSED.items()))


def passes() -> Iterator[str]:
    """Passes in the words of their docstrings, and the pipelines."""
    yield "# Passes\n"
    yield "`occ opt FILE.occ -p 'fold,fuse{max-ops=4}'` runs passes by name; options are in braces.\n"
    for name, kind in sorted(PASSES.items()):
        yield f"## {name}\n"
        yield inspect.cleandoc(kind.__doc__ or "") + "\n"
        for f in fields(kind):
            yield f"- `{f.name.replace('_', '-')}`, {f.default!r} by default"
        if fields(kind):
            yield ""
    yield "# Schedule rules\n"
    yield "`occ rules --schedule` prints this list, and `--why KERNEL` what each rule answers: [guide-schedule.md](../guide-schedule.md).\n"
    for kind, rules in ("Normalisers", NORMALISERS), ("Rules", RULES), ("Variants", VARIANTS), ("Finishers", FINISHERS):
        yield f"## {kind}\n"
        yield from (f"- `{r.name}`: {r.doc}" for r in rules)
        yield ""
    yield "# Stages\n"
    for stage in STAGES:
        yield f"- **{stage.name}**: {stage.doc}"
    yield "\n# Pipelines\n"
    yield "As `occ opt - -t TARGET --list` prints them; with `-C strassen=auto`, say, it prints what runs with that option.\n"
    for target in map(get_target, OWN):
        yield f"## {target.name}\n"
        for stage, listed in pipeline_for(target, target.options).items():
            yield f"- {stage}: `{','.join(map(str, listed)) or '-'}`"
        yield ""


def codes() -> Iterator[str]:
    """Diagnostic codes, as `occ explain` prints them."""
    yield "# Diagnostic codes\n"
    yield "`occ explain CODE` prints these. Exit codes of the command line: [cli.md](../cli.md).\n"
    for code, found in CODES.items():
        yield f"## {code}: {found.title}\n"
        yield f"{found.explanation}\n"


PAGES: dict[str, Callable[[], Iterator[str]]] = {"operators.md": operators, "passes.md": passes, "codes.md": codes}


def page(name: str) -> str:
    """The text of a page."""
    return "\n".join(PAGES[name]()).rstrip() + "\n"


def main() -> int:
    """Write all pages; with `--check`, say which are out of date instead, and return 1 if any is."""
    stale = [n for n in PAGES if not (FOLDER / n).is_file() or (FOLDER / n).read_text() != page(n)]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/reference/{name} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(page(name))
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

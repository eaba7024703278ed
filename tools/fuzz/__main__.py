"""`python -m tools.fuzz graphs|nnsmith|files|misfits|large-sizes|again|once|reduce`; docs/fuzzing.md says how."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

FOLDER = Path("build/fuzz")
_WAYS = ("run", "build", "constants", "attributes")  # of `misfits.py`, whose import takes a second
BLOCK = 112  # seeds a process: what it keeps in memory goes with it


@click.group()
def main() -> None:
    """Fuzzers of occ."""
    os.environ.setdefault("OCC_CACHE_DIR", str(FOLDER.absolute() / "cache"))


@main.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--seed", type=int, help="The first; by default the campaign goes on where it stopped.")
@click.option("--count", type=int, default=10**9, help="Graphs at most.")
@click.option("--profile", "profiles", multiple=True, help="Kinds of graphs; all by default.")
@click.option("--passes", default=1, show_default=True, help="Targets of whose passes a graph sees the result.")
@click.option("--jit", default=8, show_default=True, help="Native code of `cpu-jit` for one graph in so many.")
@click.option("--cpu", default=64, show_default=True, help="Native code of `cpu` for one graph in so many.")
@click.option("-C", "given", multiple=True, metavar="KEY=VALUE", help="Options of `cpu`, as of `occ build`.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER / "graphs", show_default=True)
def graphs(
    minutes: float, seed: int | None, count: int, profiles: tuple[str, ...], passes: int, jit: int, cpu: int,
    given: tuple[str, ...], out: Path,
) -> None:  # fmt: skip
    """Random graphs on every target, against onnxruntime and onnx.reference."""
    from tools.fuzz.campaign import Summary, campaign
    from tools.fuzz.graphs import Graphs, report, steered
    from tools.fuzz.profiles import PROFILES

    file = out / "summary.json"
    first = Summary.read(file).next if seed is None else seed
    options = dict(o.split("=", 1) for o in given)
    work = Graphs(out / "failing", profiles or tuple(PROFILES), jit, cpu, passes, options=options)

    def tell(summary: Summary, block: int) -> None:
        work.steer = steered(summary, block)
        click.echo(
            f"{summary.next} seeds, {sum(f['count'] for f in summary.faults.values())} failures of {len(summary.faults)} kinds",
            err=True,
        )

    made = campaign(work, file, _blocks(first, count), time.time() + 60 * minutes, tell)
    click.echo(report(made))


@main.command()
@click.option("--models", default=100, show_default=True, help="Models to make, one a seed.")
@click.option("--seed", type=int, help="The first; by default the campaign goes on where it stopped.")
@click.option("--nodes", default=10, show_default=True, help="Operators of a model at most, as nnsmith counts them.")
@click.option("--cpu", default=16, show_default=True, help="Native code of `cpu` for one model in so many.")
@click.option("--minutes", type=float, default=60.0, show_default=True, help="At most.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER / "nnsmith", show_default=True)
def nnsmith(models: int, seed: int | None, nodes: int, cpu: int, minutes: float, out: Path) -> None:
    """Models of the public fuzzer nnsmith, against onnxruntime."""
    from tools.fuzz.campaign import Summary, campaign, counts
    from tools.fuzz.nnsmith import Generator, Models

    file = out / "summary.json"
    first = Summary.read(file).next if seed is None else seed
    try:
        generator = Generator(nodes, out)
    except ImportError as e:
        raise click.ClickException(f"nnsmith is an extra of its own: pip install -e '.[nnsmith]' ({e})") from None
    work = Models(out / "failing", ("nnsmith",), cpu=cpu, generator=generator)
    click.echo(counts(campaign(work, file, _blocks(first, models, 16), time.time() + 60 * minutes, lambda *_: None)))


@main.command()
@click.option("--minutes", type=float, default=10.0, show_default=True, help="For all kinds.")
@click.option("--seed", type=int, help="The first; by default each kind goes on where it stopped.")
@click.option("--count", type=int, default=10**6, help="Seeds of each kind at most.")
@click.option("--cases", default=500, show_default=True, help="Changed files of one seed.")
@click.option("--kind", "kinds", multiple=True, help="Of files; all by default.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER / "files", show_default=True)
def files(minutes: float, seed: int | None, count: int, cases: int, kinds: tuple[str, ...], out: Path) -> None:
    """Damaged models, texts, artifacts and inputs."""
    from tools.fuzz.campaign import Summary, campaign, counts
    from tools.fuzz.files import Files
    from tools.fuzz.kinds import KINDS

    until, last = time.time() + 60 * minutes, {}
    seeds = {kind: Summary.read(out / f"{kind}.json").next if seed is None else seed for kind in kinds or KINDS}
    works = {kind: Files(kind, cases, out / "failing") for kind in seeds}
    for kind, block in _turns(seeds, count):
        if time.time() >= until:
            break
        work = works[kind]
        last[kind] = campaign(work, out / f"{kind}.json", [block], until, lambda *_: None, 90, work.where)
    for made in last.values():
        click.echo(counts(made))


@main.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--seed", type=int, help="The first; by default the campaign goes on where it stopped.")
@click.option("--count", type=int, default=10**9, help="Seeds at most; a model has one for each way.")
@click.option("--way", "ways", multiple=True, type=click.Choice(_WAYS), help="Kinds of changes; all by default.")
@click.option("--most", default=10**6, help="Misfits of a seed at most.")
@click.option("--cpu", default=16, show_default=True, help="Native code of `cpu` for one model in so many; 0 for none.")
@click.option("--builds", is_flag=True, help="Native code of `cpu` at the build too, of each misfit.")
@click.option("-C", "given", multiple=True, metavar="KEY=VALUE", help="Options of `cpu`, as of `occ build`.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER / "misfits", show_default=True)
def misfits(
    minutes: float, seed: int | None, count: int, ways: tuple[str, ...], most: int, cpu: int, builds: bool,
    given: tuple[str, ...], out: Path,
) -> None:  # fmt: skip
    """Operators with one operand that has another extent."""
    from tools.fuzz.campaign import Summary, campaign, counts
    from tools.fuzz.misfits import Misfits
    from tools.fuzz.valid_models import valid_models

    file = out / "summary.json"
    first = Summary.read(file).next if seed is None else seed
    valid_models()  # processes inherit them
    options = dict(o.split("=", 1) for o in given)
    work = Misfits(out / "failing", cpu=cpu, most=most, options=options, builds=builds, ways=ways or _WAYS)
    blocks = _blocks(first, count, 24 if builds else 120)  # whose models are compiled at once
    click.echo(counts(campaign(work, file, blocks, time.time() + 60 * minutes, lambda *_: None)))


@main.command("large-sizes")
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--seed", type=int, help="The first; by default the campaign goes on where it stopped.")
@click.option("--count", type=int, default=10**9, help="Graphs at most.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER / "large-sizes", show_default=True)
def large_sizes(minutes: float, seed: int | None, count: int, out: Path) -> None:
    """Graphs with up to billions of elements, which are planned and not run."""
    from tools.fuzz.campaign import Summary, campaign, counts
    from tools.fuzz.large_sizes import LargeSizes

    file = out / "summary.json"
    first = Summary.read(file).next if seed is None else seed
    work = LargeSizes(out / "failing")
    click.echo(counts(campaign(work, file, _blocks(first, count, 40), time.time() + 60 * minutes, lambda *_: None)))


def _turns(seeds: dict[str, int], count: int) -> Iterator[tuple[str, range]]:
    """Kinds and blocks of seeds, starting from the given ones. All get the same time; their cases cost 0.3 to 10 ms."""
    left = {kind: iter(_blocks(first, count, 4)) for kind, first in seeds.items()}
    spent = dict.fromkeys(seeds, 0.0)
    while left:
        kind = min(left, key=spent.__getitem__)
        start = time.time()
        block = next(left[kind], None)
        if block is None:
            del left[kind]
        else:
            yield kind, block
            spent[kind] += time.time() - start


@main.command()
@click.argument("stems", nargs=-1, type=click.Path(path_type=Path))
@click.option("--cpu", is_flag=True, help="Native code of `cpu` as well.")
def again(stems: tuple[Path, ...], cpu: bool) -> None:
    """Run cases that were written again: NAME.onnx and NAME.npz of each STEM."""
    from tools.fuzz.graphs import EVERY, read
    from tools.fuzz.run import Runner, outcomes

    for stem in stems:
        for o in outcomes(Runner(read(stem.with_suffix(""))), [*EVERY, "cpu-jit", *(["cpu"] if cpu else [])]):
            click.echo(f"{stem.stem} {o.way}: {o.kind} {o.text}")


@main.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), help="A folder to write them into.")
def once(names: tuple[str, ...], out: Path | None) -> None:
    """Make cases of the fuzzer of files again, such as models-12-337, and use them."""
    from tools.fuzz.files import once

    for name in names:
        made, wrong, outcome = once(name)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(made.data)
        click.echo(f"{name}: {outcome}\n{wrong[1] if wrong else ''}")


@main.command()
@click.argument("stem", type=click.Path(path_type=Path))
@click.option("--way", default="", help="That fails, such as `cpu passes`; the first that does by default.")
@click.option("--out", type=click.Path(path_type=Path), default=FOLDER / "reduced", show_default=True)
def reduce(stem: Path, way: str, out: Path) -> None:
    """Make a failing case small, and write it with a test."""
    from tools.fuzz.graphs import WRONG, read
    from tools.fuzz.reduce import shrink
    from tools.fuzz.run import Runner, outcomes

    case = read(stem.with_suffix(""))
    ways = [way] if way else ["interp", "cpu passes", "cpu-jit passes", "cpu-jit", "cpu"]
    options = dict(Runner(case).options)
    for w in ways:
        if any(o.kind in WRONG for o in outcomes(Runner(case), [w])):
            made = shrink(case, w, options, out, lambda text: click.echo(text, err=True))
            click.echo(made.with_suffix(".txt").read_text())
            return
    raise click.UsageError("nothing fails")


def _blocks(first: int, count: int, block: int = BLOCK) -> Iterator[range]:
    for start in range(first, first + count, block):
        yield range(start, min(start + block, first + count))


if __name__ == "__main__":
    main()

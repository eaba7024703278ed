"""Summary of an artifact written by `occ build`: facts for --json, lines for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from occ.cli.build_outputs import EMITS
from occ.cli.console import count, fitted, say, show_error

if TYPE_CHECKING:
    from occ.compiler.driver.compilation import Compilation
    from occ.runtime.artifact import Artifact


def facts_of(compilation: Compilation, artifact: Artifact, written: Path) -> dict[str, Any]:
    """The facts of `occ build --json`, from which the lines are made."""
    from occ.analysis.inspect import special_facts
    from occ.compiler.native_entry.read_routines import host_steps

    m = artifact.manifest
    kernels = {s.name for p in m.plans for s in p.steps if s.kind == "kernel"}
    special = {"special": special_facts(m)} if m.special else {}
    size = (
        written.stat().st_size
        if written.is_file()
        else sum(p.stat().st_size for p in written.rglob("*") if p.is_file())
    )
    compiled = len(kernels) if compilation.took is None else len(compilation.took)
    return {
        "out": str(written), "target": m.target, "machine": m.machine, "steps": len(m.plan.steps),
        "kernels": len(kernels), "compiled": compiled, "reused": max(len(kernels) - compiled, 0),
        "weights": sum(w.nbytes for w in m.weights), "arena": m.plan.arena, "bytes": size,
        "phases": {k: round(v, 3) for k, v in compilation.seconds.items()},
        "unchanged": False, **({"entry_lacks": host_steps(m)} if m.engine == "native" else {}), **special, **m.summary,
        **({"compiled_parts": sum(bool(p.om) for p in m.parts)} if m.engine == "ascend" else {}),
    }  # fmt: skip


def print_summary(f: dict[str, Any]) -> None:
    """Print the facts for people."""
    arena = "sized per run" if f["arena"] == -1 else in_bytes(f["arena"])
    longest = ", ".join(f"{k} {v:.2f}" for k, v in f["phases"].items() if v > 0.05 * f["seconds"])
    phases = longest if f["phases"] else "nothing changed since it was built"
    say(f"wrote    {f['out']} ({in_bytes(f['bytes'])}) for {f['target']}")
    if "device_parts" in f:
        _parts(f)
    else:
        kernels = f"{count(f['kernels'], 'kernel')} ({f['compiled']} compiled, {f['reused']} from the cache)"
        say(f"plan     {count(f['steps'], 'step')}, {kernels}")
    if lacks := f.get("entry_lacks"):
        more = f", and {len(lacks) - 1} more, which `occ inspect` lists" if len(lacks) > 1 else ""
        say(fitted("entry    ", f"native, but needs Python: {lacks[0]}{more}"))
    for line in f.get("special", ()):
        say(fitted("special  ", line))
    say(f"weights  {in_bytes(f['weights'])}")
    say(f"arena    {arena}")
    say(fitted("time     ", f"{f['seconds']:.2f} s" + (f" ({phases})" if phases else "")))
    if "link" in f:
        say(f"link     {f['link']}")
    if str(f["out"]).endswith(EMITS["artifact"][0]):
        uncompiled = "device_parts" in f and not f["compiled_parts"]
        say(f"next     occ run {f['out']}{' --simulate' if uncompiled else ''}")
        if uncompiled and f["device_parts"]:
            say("         with the CANN toolkit: build with `--emit om`, and run that on a device")


def _parts(f: dict[str, Any]) -> None:
    """The summary of parts: where they run, and in what precision."""
    parts, nodes = count(f["device_parts"], "part"), count(f["device_ops"], "node")
    say(f"device   {parts} with {nodes}, {in_bytes(f['device_weights'])} of weights")
    names = ", ".join(f["cpu_operators"])
    on_cpu = f"{count(f['cpu_parts'], 'part')} with {count(f['cpu_ops'], 'node')}"
    say(fitted("cpu      ", on_cpu + (f": {names}" if names else "")))
    if f.get("units"):
        say(
            fitted(
                "units    ",
                ", ".join(f"{unit} {n}" for unit, n in f["units"].items()) + f"; kernels of {f['kernel_tables']}",
            )
        )
    for line in f.get("ai_cpu", ()):
        say(fitted("AI CPU   ", line))
    say(f"precise  {f['precision']}")
    for remark in f["remarks"]:
        say(fitted("         ", remark))
    for line in f.get("calibrated", ()):
        say(fitted("sampled  ", line))
    for e in f["estimates"]:
        say(f"estimate {e['part']}: {e['text']}")
    if not f["device_parts"]:
        show_error(f"warning[OCC0301]: nothing of the model runs on `{f['target']}`; `occ check` says why")


def in_bytes(n: int) -> str:
    """A size with a binary unit: `1.5 MiB`."""
    units = ("B", "KiB", "MiB", "GiB")
    scale = next(k for k in range(len(units)) if n < 1024 ** (k + 1) or k == len(units) - 1)
    return f"{n / 1024**scale:.1f} {units[scale]}" if scale else f"{n} B"

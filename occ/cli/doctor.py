"""`occ doctor`: checks the machine's toolchain."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import chain

import click

from occ.cli.console import json_line, say
from occ.cli.options import as_json


@click.command("doctor")
@click.option("--measure", is_flag=True, help="Measure caches, bandwidth and multiply-adds of this machine, too.")
@as_json
def command(as_json: bool, measure: bool) -> None:
    """Report on Python, libraries, compiler and machine, and try a small model on every target that needs them."""
    found: dict[str, str] = {}
    for name, value in chain(_facts(), _measured() if measure else ()):
        found[name] = value
        if not as_json:
            click.echo(f"{name:16} {value}")
    if as_json:
        click.echo(json_line(found))


def _facts() -> Iterator[tuple[str, str]]:
    """The checks, in order. Those that take seconds are announced."""
    from occ.compiler.cache.cache import cache_dir, can_write
    from occ.compiler.codegen_halide.toolchain import find_cxx, find_halide
    from occ.runtime.threads import default_threads
    from occ.runtime.version import occ_version

    yield "occ", occ_version()
    yield "python", f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}"
    for name in ("onnx", "numpy", "llvmlite", "halide", "lark", "click", "rich"):
        yield name, _version(name)
    none = "none: `-t cpu` builds from kernels of a store alone; `-O1` needs none. `apt install g++`, or set OCC_CXX"
    yield "c++ compiler", find_cxx() or none
    yield "halide headers", str(find_halide() or "none: `pip install halide`")
    yield "threads", str(default_threads())
    home = cache_dir()
    yield "cache", f"{home}" if can_write(home) else f"{home}, which cannot be written: nothing new is kept"
    for target in ("interp", "cpu-jit", "cpu"):
        say(f"compiling a small model for {target}")
        yield f"trial {target}", _trial(target)


def _measured() -> Iterator[tuple[str, str]]:
    """What kernels measure on one core, which is announced, and where it differs from what tiles are made for."""
    from occ.compiler.targets.machine import machine_of
    from occ.compiler.targets.measure_machine import measure

    here = machine_of("host")
    say("measuring this machine: seconds where it is idle, minutes where it is not")
    try:
        found = measure(here.vector_bits)
    except ImportError:
        yield "measured", "nothing: `pip install llvmlite`"
        return
    yield "caches", ", ".join(_kib(size) for size in found.caches) or "not stated by the system"
    yield "latency", ", ".join(f"{ns:.1f} ns to {_kib(size)}" for size, ns in found.plateaus())
    yield "bandwidth", f"{found.gbytes:.0f} GB/s, reading in order from memory"
    yield "multiply-adds", f"{found.gflops:.0f} GFLOP/s in f32, in vectors of {here.vector_bits} bits"
    yield "machine record", "; ".join(found.against(here)) or "agrees"


def _kib(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"missing: `pip install {name}`"


def _trial(target: str) -> str:
    """Compile and run one small convolution, whose kernels are in a store made by `occ warm`."""
    import numpy as np

    from occ.compiler.diagnostics import CompileError
    from occ.compiler.tuning.common_nets import trial_net

    try:
        from occ.api import compile as compile_  # reads the schemas of onnx, which may be of no use

        (y,) = compile_(trial_net(), target)(np.ones((1, 4, 8, 8), np.float32))
    except CompileError as e:
        return e.diagnostics[0].message
    return "ok" if np.all(y == 36) else f"wrong result: {y.reshape(-1)[:4]}"

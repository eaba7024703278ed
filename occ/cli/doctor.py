"""`occ doctor`: what is here, what is missing, and what that costs."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import click


@click.command("doctor")
def command() -> None:
    """Report on Python, libraries, compiler and machine, and try a small model on every target that needs them."""
    from occ.compiler.cache.cache import cache_dir, can_write
    from occ.compiler.codegen_halide.toolchain import find_cxx, find_halide
    from occ.runtime.threads import default_threads
    from occ.runtime.version import occ_version

    _line("occ", occ_version())
    _line("python", f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}")
    for name in ("onnx", "numpy", "llvmlite", "halide", "lark", "click", "rich"):
        _line(name, _version(name))
    _line(
        "c++ compiler",
        find_cxx() or "none: `-t cpu` will not build; `-t cpu-jit` will. `apt install g++`, or set OCC_CXX",
    )
    _line("halide headers", str(find_halide() or "none: `pip install halide`"))
    _line("threads", str(default_threads()))
    home = cache_dir()
    _line("cache", f"{home}" if can_write(home) else f"{home}, which cannot be written: nothing new is kept")
    for target in ("interp", "cpu-jit", "cpu"):
        _line(f"trial {target}", _trial(target))


def _line(name: str, value: str) -> None:
    click.echo(f"{name:16} {value}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"missing: `pip install {name}`"


def _trial(target: str) -> str:
    """Compile and run one small convolution."""
    import numpy as np
    from onnx import TensorProto, helper

    from occ.api import compile as compile_
    from occ.compiler.diagnostics import CompileError

    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 4, 8, 8]), ("y", None))]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [16, 4, 3, 3], np.ones(576, np.float32))
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "trial", info[:1], info[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    try:
        (y,) = compile_(model, target)(np.ones((1, 4, 8, 8), np.float32))
    except CompileError as e:
        return e.diagnostics[0].message
    return "ok" if np.all(y == 36) else f"wrong result: {y.reshape(-1)[:4]}"

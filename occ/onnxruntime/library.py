"""The plugin library, built by the C++ compiler of this machine, once, into the build cache."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.toolchain import compiler, run_all
from occ.compiler.standalone.libocc import SHARED, SYSTEM, libocc, sources

NAME = "libocc-onnxruntime.so"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-missing-field-initializers")
EXPORTS = "{ global: CreateEpFactories; ReleaseEpFactory; occ_ep_*; local: *; };"
_ALONE = ("-static-libstdc++", "-static-libgcc", "-Wl,--version-script,exports.txt")


def onnxruntime_module() -> Any:
    """Onnxruntime itself, which occ does not need.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as e:
        if e.name != "onnxruntime":
            raise
        why = "`occ.onnxruntime` needs onnxruntime: `pip install onnxruntime`"
        raise ModuleNotFoundError(why, name=e.name) from None
    return onnxruntime


def get_library_path(cache: Cache | None = None) -> Path:
    """The path of the execution provider's library, as other packages of onnxruntime's plugins have it.

    Raises:
        CompileError: OCC0401 there is no C++ compiler; OCC0403 it fails.
    """
    cache = cache or Cache()
    folder = files("occ.runtime").joinpath("ort")
    texts = {p.name: p.read_text("utf-8") for p in sorted(folder.iterdir(), key=lambda p: p.name) if p.is_file()}
    texts |= {"occ.h": sources()["occ.h"], "exports.txt": EXPORTS}
    cxx, base = compiler(), libocc(cache)
    key = digest(["ort", base.name, cxx.version, *FLAGS, *_ALONE, *texts, *texts.values()])
    made = cache.path("tool", key, ".ort")
    if not (made / NAME).is_file():
        with cache.workspace() as place:
            work = Path(place)
            for name, text in texts.items():
                (work / name).write_text(text)
            units = [n for n in texts if n.endswith(".cpp")]
            (work / "installed").mkdir()
            link = [
                *SHARED,
                *_ALONE,
                f"-Wl,-soname,{NAME}",
                str(base / "lib/libocc.a"),
                *SYSTEM,
                "-o",
                f"installed/{NAME}",
            ]
            run_all([[*cxx.command, *FLAGS, "-I.", *units, *link]], work)
            made.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(work / "installed", made)
            except OSError:
                if not made.is_dir():  # else another process has just made it
                    raise
    return made / NAME

"""Builds the plugin libraries of onnxruntime."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from occ.compiler.cache.cache import Cache, digest
from occ.compiler.codegen_halide.toolchain import compiler, run_all
from occ.compiler.prebuilt import made_of, prebuilt
from occ.compiler.standalone.libocc import SHARED, SYSTEM, libocc, sources
from occ.runtime.dataclass import dataclass

NAME, ASCEND = "libocc-onnxruntime.so", "libocc-onnxruntime-ascend.so"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-missing-field-initializers")
EXPORTS = "{ global: CreateEpFactories; ReleaseEpFactory; occ_ep_*; local: *; };"
_ALONE = ("-static-libstdc++", "-static-libgcc", "-Wl,--version-script,exports.txt")


def onnxruntime_module() -> Any:
    """Onnxruntime itself, an optional dependency.

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


@dataclass(frozen=True)
class _Kind:
    """A library: its file, the prefix of its own sources, and whether it runs artifacts, by libocc."""

    name: str
    sources: tuple[str, ...]
    runs_artifacts: bool


_SHARED = ("graph",)
_KINDS = {
    "cpu": _Kind(NAME, (*_SHARED, "plugin", "compute", "fallback"), True),
    "ascend": _Kind(ASCEND, (*_SHARED, "ascend"), False),
}


def library_sources(kind: str) -> dict[str, str]:
    """The sources of a library, by file name."""
    folder, it = files("occ.runtime").joinpath("ort"), _KINDS[kind]
    texts = {
        p.name: p.read_text("utf-8")
        for p in sorted(folder.iterdir(), key=lambda p: p.name)
        if p.is_file() and (p.name.endswith(".h") or p.name.startswith(it.sources))
    }
    return texts | {"occ.h": sources()["occ.h"], "exports.txt": EXPORTS}


def library_key(kind: str) -> str:
    """A digest of a library's sources, for `prebuilt`."""
    inside = sources().values() if _KINDS[kind].runs_artifacts else ()
    return made_of(library_sources(kind), *FLAGS, *_ALONE, *inside)


def get_library_path(cache: Cache | None = None, kind: str = "cpu") -> Path:
    """The path of an execution provider's library, as in other onnxruntime plugin packages.

    Args:
        cache: the build cache, in which the library is.
        kind: `cpu`, or `ascend` for the one that runs compiled models on Ascend devices.

    Raises:
        CompileError: OCC0401 there is no C++ compiler; OCC0403 it fails.
    """
    cache, it, texts = cache or Cache(), _KINDS[kind], library_sources(kind)
    if (found := prebuilt(it.name, library_key(kind))) is not None:
        return found
    cxx, base = compiler(), libocc(cache) if it.runs_artifacts else None
    key = digest(["ort", base.name if base else "", cxx.version, *FLAGS, *_ALONE, *texts, *texts.values()])
    made = cache.path("tool", key, ".ort")
    if not (made / it.name).is_file():
        with cache.workspace() as place:
            work = Path(place)
            for name, text in texts.items():
                (work / name).write_text(text)
            units = [n for n in texts if n.endswith(".cpp")]
            (work / "installed").mkdir()
            archives = [str(base / "lib/libocc.a")] if base else []
            link = [*SHARED, *_ALONE, f"-Wl,-soname,{it.name}", *archives, *SYSTEM, "-o", f"installed/{it.name}"]
            run_all([[*cxx.command, *FLAGS, "-I.", *units, *link]], work)
            made.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(work / "installed", made)
            except OSError:
                if not made.is_dir():  # another process may just have made it
                    raise
    return made / it.name

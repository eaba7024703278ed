"""A model as a library or an object file for C programs: kernels, entry, runtime and weights, under the names of the model."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.toolchain import Compiler, compiler, cross_compiler, run_all
from occ.compiler.diagnostics import error
from occ.compiler.native_entry.plan import Unsuitable, routines
from occ.compiler.native_entry.results import open_outputs
from occ.compiler.objects.archive import archive
from occ.compiler.objects.processors import Arch, arch_of
from occ.compiler.standalone.libocc import FLAGS, HALIDE, SHARED, SYSTEM, libocc, sources
from occ.compiler.standalone.ports import Ports, glue, header, identifier
from occ.runtime.artifact import Artifact

SUFFIXES = {"static": ".a", "shared": ".so", "object": ".o"}
_LINKED_BYTES = 1 << 30  # of weights that are linked in: code reaches its constants within 2 GiB
_RUNTIME = "runtime.o"  # what kernels bring along of libocc, which is linked once for all models of a program


@dataclass(frozen=True)
class Program:
    """What was written.

    Attributes:
        files: the files.
        link: the command that links a program with them.
    """

    files: list[Path]
    link: str


def write_program(
    artifact: Artifact, objects: Mapping[str, bytes], place: Path, stem: str, kind: str, *, embed: bool, cache: Cache
) -> Program:
    """Write a model for C programs: the library or object file, NAME.h, occ.h, and NAME.weights unless they are linked in.

    Args:
        artifact: the model.
        objects: its kernels and its entry before linking.
        place: a folder, or the path of the library in it.
        stem: name of the model if the place is a folder.
        kind: of `SUFFIXES`.
        embed: link the weights in.
        cache: the build cache.

    Raises:
        CompileError: OCC0306 nodes need Python; OCC0401, OCC0403 a tool is missing or fails; OCC0603 there are too many
            weights to link in.
    """
    _check(artifact, embed)
    whole = place.suffix == SUFFIXES[kind]
    folder, stem = (place.parent, place.stem) if whole else (place, stem)
    name = identifier(stem)
    main = folder / (place.name if whole else name + SUFFIXES[kind])
    weights = "" if embed or not artifact.manifest.weights else f"{name}.weights"
    arch = arch_of(artifact.manifest.machine)
    cxx = (cross_compiler(arch) if arch is not None else None) or compiler()
    runtime = libocc(cache, cxx)
    link = shlex.join(
        [
            "cc" if arch == arch_of() or arch is None else f"{arch.gnu}-gcc",
            f"-I{folder}",
            "main.c",
            str(main),
            *_beside(kind, folder),
        ]
    )
    ports = Ports.of(artifact.manifest, name)
    texts = {f"{name}.h": header(ports, link=link, weights=weights, producer=artifact.manifest.producer)}
    texts["occ.h"] = (runtime / "include/occ.h").read_text()
    with cache.workspace() as made:
        work = Path(made)
        digest, size = write_weights(artifact, work / "weights")
        texts[f"{name}.cpp"] = glue(ports, digest=digest, size=size, embedded="weights" if embed and size else "")
        for other, text in texts.items():
            (work / other).write_text(text)
        one = _one_object(name, {n: d for n, d in objects.items() if n != _RUNTIME}, work, cxx, arch)
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "shared":
            _link_shared(one, runtime, main, cxx)
        else:
            data = one.read_bytes()
            main.write_bytes(data if kind == "object" else archive({f"{name}.o": data, **_objects(runtime)}))
        if kind == "object":
            shutil.copyfile(runtime / "lib/libocc.a", folder / "libocc.a")
        if weights:
            shutil.move(work / "weights", folder / weights)
    for other in (f"{name}.h", "occ.h"):
        (folder / other).write_text(texts[other])
    return Program([main, folder / f"{name}.h"], link)


def check_one_machine(artifact: Artifact) -> None:
    """Refuse what is for several machines, where code for one is linked.

    Raises:
        CompileError: OCC0603.
    """
    if artifact.variants:
        message = "what a program links with is for one machine"
        raise error("OCC0603", message, help="leave `--also` out, and build once for each machine")


def _check(artifact: Artifact, embed: bool) -> None:
    check_one_machine(artifact)
    try:
        routines(artifact.manifest)
    except Unsuitable as why:
        help_ = "build an artifact and run it with `occ run` or `occ.load`"
        raise error("OCC0306", f"this model cannot be linked into a program: {why}", help=help_) from None
    if loose := open_outputs(artifact.manifest):
        help_ = "fix sizes that decide it with --dim or --shape, or run the artifact with libocc (docs/c.md)"
        raise error("OCC0306", f"this model cannot be linked into a program: {loose[0]}", help=help_)
    if embed and (total := sum(w.nbytes for w in artifact.manifest.weights)) > _LINKED_BYTES:
        message = f"{total} bytes of weights are too many to link into a program"
        raise error("OCC0603", message, help="leave them in a file with `--weights file`")


def _beside(kind: str, folder: Path) -> list[str]:
    """What follows the library on the command line."""
    if kind == "shared":
        return ["-Wl,-rpath," + str(folder.resolve())]
    return [*([str(folder / "libocc.a")] if kind == "object" else []), *SYSTEM]


def write_weights(artifact: Artifact, path: Path) -> tuple[str, int]:
    """Write the weights file; returns its SHA-256 and its size."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as f:
        for piece in artifact.weight_pieces():
            digest.update(piece)
            f.write(piece)
            size += len(piece)
    return digest.hexdigest(), size


def _one_object(name: str, objects: Mapping[str, bytes], work: Path, cxx: Compiler, arch: Arch | None) -> Path:
    """All of a model as one object, of which others see its functions only: kernels of two models may have equal names."""
    for part, text in sources().items():
        if part.endswith(".h"):
            (work / part).write_text(text)
    parts = work / "parts"
    parts.mkdir()
    for n, data in objects.items():
        (parts / n).write_bytes(data)
    run_all([[cxx.path, *FLAGS, "-I.", "-c", f"{name}.cpp", "-o", f"parts/{name}.glue.o"]], work)
    listing = work / "objects.txt"
    listing.write_text("\n".join(f'"{p}"' for p in sorted(parts.iterdir())))
    run_all([[cxx.path, "-r", "-nostdlib", f"@{listing}", "-o", "whole.o"]], work)
    wild = [f"--keep-global-symbol={name}_{n}" for n in ("open", "run", "*_count")]
    renamed = [f"--redefine-sym={n}=occ_{n}" for n in HALIDE]
    tools = ["objcopy"] if arch == arch_of() or arch is None else [f"{arch.gnu}-objcopy"]
    tool = next(filter(None, map(shutil.which, (*tools, "llvm-objcopy"))), None)
    if tool is None:
        message = f"`{tools[0]}` was not found, which hides the kernels of a model"
        raise error("OCC0401", message, help="`apt install binutils`, or that of the other machine")
    run_all([[tool, "--wildcard", *wild, *renamed, "whole.o", f"{name}.o"]], work)
    return work / f"{name}.o"


def _objects(runtime: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((runtime / "lib/objects").iterdir())}


def _link_shared(one: Path, runtime: Path, main: Path, cxx: Compiler) -> None:
    parts = [str(one), *map(str, sorted((runtime / "lib/objects").iterdir()))]
    command = [cxx.path, *SHARED, "-Wl,-z,defs", f"-Wl,-soname,{main.name}", *parts, *SYSTEM, "-o", "made.so"]
    run_all([command], one.parent)
    shutil.move(one.parent / "made.so", main)

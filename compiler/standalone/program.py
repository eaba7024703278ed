"""A model as a library or object file for C programs, with kernels, runtime and weights."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.toolchain import Compiler, run_all
from occ.compiler.diagnostics import error
from occ.compiler.native_entry.read_routines import without_host
from occ.compiler.objects.archive import archive
from occ.compiler.objects.processors import Arch, arch_of
from occ.compiler.objects.wasm import with_symbols
from occ.compiler.standalone.libocc import FLAGS, HALIDE, SHARED, compiler_for, libocc, sources
from occ.compiler.standalone.ports import Ports, glue, header, identifier
from occ.compiler.standalone.systems import WASI, System, constant, module_flags, system_of
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass

_LINKED_BYTES = 1 << 30  # maximum bytes of weights that are linked in: code reaches its constants within 2 GiB
HEADERS = ("occ", "linked")  # names that no model can have: headers included by its sources
_RUNTIME = "runtime.o"  # parts of libocc in kernels, which is linked once for all models of a program


@dataclass(frozen=True)
class Program:
    """The files of a model for C programs.

    Attributes:
        files: the files.
        link: the command that links a program with them; empty if a host calls them.
    """

    files: list[Path]
    link: str


def write_program(
    artifact: Artifact, objects: Mapping[str, bytes], place: Path, stem: str, kind: str, *, embed: bool, cache: Cache
) -> Program:
    """Write a model for C programs: the library or object file, NAME.h, occ.h, and NAME.weights unless linked in.

    A WebAssembly module gets occ.js too, which runs it.

    Args:
        artifact: the model.
        objects: its kernels and its entry before linking.
        place: a folder, or the path of the library in it.
        stem: name of the model if the place is a folder.
        kind: static, shared or object.
        embed: whether to link the weights in.
        cache: the build cache.

    Raises:
        CompileError: OCC0306 nodes need Python; OCC0401, OCC0403 a tool is missing or fails; OCC0603 there are too many
            weights to link in.
    """
    _check(artifact, embed)
    arch = arch_of(artifact.manifest.machine)
    system, cxx, runtime = system_of(arch), compiler_for(arch), libocc(cache, arch)
    whole = place.suffix == system.suffixes[kind]
    folder, stem = (place.parent, place.stem) if whole else (place, stem)
    name = identifier(stem, HEADERS)
    main = folder / (place.name if whole else name + system.suffixes[kind])
    weights = "" if embed or not artifact.manifest.weights else f"{name}.weights"
    link = "" if system is WASI and kind == "shared" else _link_line(arch, cxx, system, kind, main)
    ports = Ports.of(artifact.manifest, name)
    texts = {f"{name}.h": header(ports, link=link, weights=weights, producer=artifact.manifest.producer)}
    texts["occ.h"] = (runtime / "include/occ.h").read_text()
    with cache.workspace() as made:
        work = Path(made)
        digest, size = write_weights(artifact, work / "weights")
        linked_in = constant(system, "occ_weights", "weights", size) if embed and size else ""
        texts[f"{name}.cpp"] = glue(ports, digest=digest, size=size, embedded=linked_in)
        for other, text in texts.items():
            (work / other).write_text(text)
        one = _one_object(name, {n: d for n, d in objects.items() if n != _RUNTIME}, work, cxx, arch)
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "shared":
            flags = module_flags(name, ports.counts, texts["occ.h"]) if system is WASI else _shared_flags(main)
            _link(one, runtime, main, [*cxx.command, *flags], system)
        else:
            _write_unlinked(one, runtime, main, name, kind)
        if kind == "shared" and system is WASI:
            texts["occ.js"] = files("occ.compiler.standalone").joinpath("occ.js").read_text("utf-8")
        if weights:
            shutil.move(work / "weights", folder / weights)
    for other in (n for n in texts if not n.endswith(".cpp")):
        (folder / other).write_text(texts[other])
    return Program([main, folder / f"{name}.h"], link)


def _shared_flags(library: Path) -> list[str]:
    """Flags of the linker for a shared library that has all of its symbols."""
    return [*SHARED, "-Wl,-z,defs", f"-Wl,-soname,{library.name}"]


def _write_unlinked(one: Path, runtime: Path, place: Path, name: str, kind: str) -> None:
    """Write a static library, or an object file with libocc.a next to it."""
    data = one.read_bytes()
    place.write_bytes(data if kind == "object" else archive({f"{name}.o": data, **_objects(runtime)}))
    if kind == "object":
        shutil.copyfile(runtime / "lib/libocc.a", place.parent / "libocc.a")


def check_one_machine(artifact: Artifact) -> None:
    """Reject artifacts for several machines, where code for one is linked.

    Raises:
        CompileError: OCC0603.
    """
    if artifact.variants:
        message = "a program is linked for one machine"
        raise error("OCC0603", message, help="leave `--also` out, and build once for each machine")


def _check(artifact: Artifact, embed: bool) -> None:
    check_one_machine(artifact)
    if why := without_host(artifact.manifest):
        help_ = "build an artifact and run it with `occ run` or `occ.load`"
        raise error("OCC0306", f"this model cannot be linked into a program: {why}", help=help_)
    if embed and (total := sum(w.nbytes for w in artifact.manifest.weights)) > _LINKED_BYTES:
        message = f"{total} bytes of weights are too many to link into a program"
        raise error("OCC0603", message, help="leave them in a file with `--weights file`")


def _link_line(arch: Arch | None, cxx: Compiler, system: System, kind: str, main: Path) -> str:
    """The command that links a program in C."""
    c = "cc" if arch is None or arch == arch_of() else system.c.format(arch=arch.gnu)
    if arch is not None and "ziglang" in cxx.command:
        c = f"python -m ziglang cc -target {arch.zig}"
    beside = ["-Wl,-rpath," + str(main.parent.resolve())] if kind == "shared" else [*system.libraries]
    more = [str(main.parent / "libocc.a")] if kind == "object" else []
    return shlex.join([*c.split(), f"-I{main.parent}", "main.c", str(main), *more, *beside])


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
    """A model as one object with local kernels, since two models may have kernels with the same name."""
    texts = sources()
    (work / "linked.h").write_text(texts["linked.h"])  # other headers of libocc may have the name of the model's
    parts = work / "parts"
    parts.mkdir()
    for n, data in objects.items():
        (parts / n).write_bytes(data)
    flags = [*FLAGS, *system_of(arch).flags]
    run_all([[*cxx.command, *flags, "-I.", "-c", f"{name}.cpp", "-o", f"parts/{name}.glue.o"]], work)
    listing = work / "objects.txt"
    listing.write_text("\n".join(f'"{p}"' for p in sorted(parts.iterdir())))
    run_all([[*cxx.command, "-r", "-nostdlib", f"@{listing}", "-o", "whole.o"]], work)
    _hide(name, work, arch)
    return work / f"{name}.o"


def _hide(name: str, work: Path, arch: Arch | None) -> None:
    """Make NAME.o from whole.o."""
    seen = [f"{name}_{n}" for n in ("open", "open_memory", "run", "*_count")]
    new_names = {n: f"occ_{n}" for n in HALIDE}
    if system_of(arch) is WASI:
        data = (work / "whole.o").read_bytes()
        made = with_symbols(data, lambda n: any(fnmatchcase(n, pattern) for pattern in seen), new_names)
        (work / f"{name}.o").write_bytes(made)
        return
    wild = [f"--keep-global-symbol={n}" for n in seen]
    renamed = [f"--redefine-sym={old}={new}" for old, new in new_names.items()]
    tools = ["objcopy"] if arch == arch_of() or arch is None else [f"{arch.gnu}-objcopy"]
    tool = next(filter(None, map(shutil.which, (*tools, "llvm-objcopy"))), None)
    if tool is None:
        message = f"`{tools[0]}` was not found; it makes the kernels of a model local"
        raise error("OCC0401", message, help="`apt install binutils`, or the package for the other machine")
    run_all([[tool, "--wildcard", *wild, *renamed, "whole.o", f"{name}.o"]], work)


def _objects(runtime: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((runtime / "lib/objects").iterdir())}


def _link(one: Path, runtime: Path, main: Path, command: Sequence[str], system: System) -> None:
    parts = [str(one), *map(str, sorted((runtime / "lib/objects").iterdir()))]
    run_all([[*command, *parts, *system.libraries, "-o", "made"]], one.parent)
    shutil.move(one.parent / "made", main)

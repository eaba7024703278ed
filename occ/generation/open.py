"""Opens the model of a folder, building an ONNX file first.

Builds are stored in the build cache.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from occ.compiler.targets.default import DEFAULT
from occ.generation import prepare
from occ.generation.folder import Folder
from occ.loading import load
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.session import Session

if TYPE_CHECKING:
    from occ.compiler.cache.artifact_cache import ArtifactCache, Request
    from occ.compiler.driver.source import Source
    from occ.compiler.ir.module import Module


def open_model(
    folder: Folder,
    threads: int | None = None,
    target: str = DEFAULT,
    *,
    batched: bool = False,
    scored: int = 1,
    options: Mapping[str, str] | None = None,
) -> Session:
    """A decoding step, ready to run: for one sequence, or for several of one length.

    It returns the logits of the last token, or of the last `scored` tokens.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 it is not a decoder; OCC0502 the artifact cannot be used.
    """
    return _opened(find_or_build(folder, target, batched=batched, scored=scored, options=options), threads)


def open_plain(model: Path, threads: int | None = None, target: str = DEFAULT) -> Session:
    """An unmodified model, ready to run.

    Raises:
        CompileError: it cannot be compiled.
        RunError: OCC0502 the artifact cannot be used.
    """
    return _opened(_find_or_build(model, {"target": target}, lambda: _built(model, target)), threads)


def open_prepared(
    path: Path, make: Callable[[Path], Module], threads: int | None = None, target: str = DEFAULT
) -> Session:
    """A part of a model, ready to run, whose caches grow in place.

    Args:
        path: of the file.
        make: creates the module of the part from a module.
        threads, target: as of `open_model`.

    Raises:
        CompileError: it cannot be compiled.
        RunError: OCC0501 the file is something else; OCC0502 the artifact cannot be used.
    """
    from occ.compiler.cache.cache import digest

    how = {
        "part": make.__name__,
        "source": digest([inspect.getsource(inspect.getmodule(make) or make).encode()]),
        "target": target,
    }
    return _opened(_find_or_build(path, how, lambda: _built(make(path), target, {"caches": "growing"})), threads)


def _opened(found: Path | Artifact, threads: int | None) -> Session:
    if isinstance(found, Path):
        return load(found, threads)
    from occ.compiler.driver.sessions import open_session

    return open_session(found, threads)


def find_or_build(
    folder: Folder,
    target: str = DEFAULT,
    *,
    batched: bool = False,
    scored: int = 1,
    options: Mapping[str, str] | None = None,
) -> Path | Artifact:
    """The path of a decoder's artifact, or the artifact if the build cache has no room for it.

    What is an artifact already stays as it was built, whatever the options.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 it is not a decoder.
    """
    from occ.compiler.cache.cache import Cache, digest
    from occ.compiler.cache.file_stamps import Stamps

    generation = digest([Path(prepare.__file__).read_bytes()])
    if folder.adapter is not None and (folder.model.is_dir() or _is_zip(folder.model)):
        raise RunError(
            "OCC0501", f"no adapter is added to the artifact `{folder.model}`", "pass the model it was built from"
        )
    added = (
        []
        if folder.adapter is None
        else [Stamps(Cache()).digest_of(p) for p in sorted(folder.adapter.glob("adapter_*"))]
    )
    how = {"generation": generation, "target": target, "head": folder.head, "batched": batched, "adapter": added}
    how |= {"scored": scored, "options": dict(options or {})}
    return _find_or_build(
        folder.model, how, lambda: build(folder, target, batched=batched, scored=scored, options=options)
    )


def _find_or_build(
    model: Path, how: Mapping[str, Any], make: Callable[[], tuple[Artifact, Iterable[Path]]]
) -> Path | Artifact:
    if model.is_dir() or _is_zip(model):
        if how.get("options"):
            what = f"`{model}` is an artifact, which is compiled already"
            raise RunError("OCC0501", what, "leave the options out, or pass the ONNX model")
        return model
    from occ.compiler.cache.artifact_cache import ArtifactCache, Request
    from occ.compiler.cache.cache import Cache
    from occ.compiler.cache.file_stamps import Stamps

    cache = Cache()
    request, kept = Request(model, how, Stamps(cache)), ArtifactCache(cache)
    if (found := kept.find(request)) is not None:
        return found.path
    artifact, files = make()
    found = kept.find(request) if _keep(kept, request, artifact, files) else None
    return artifact if found is None else found.path


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _keep(kept: ArtifactCache, request: Request, artifact: Artifact, files: Iterable[Path]) -> bool:
    """Store an artifact, whose weights are then mapped from the cache's file; False if there is no room."""
    try:
        with tempfile.TemporaryDirectory(dir=kept.cache.root) as place:
            why = kept.keep(request, artifact.save(Path(place) / "model.occ"), files, {})
    except OSError as e:
        why = str(e)
    if why and kept.limit:
        warnings.warn(f"`{request.model}` is built again at the next start: {why}", RuntimeWarning, stacklevel=4)
    return not why


def build(
    folder: Folder,
    target: str = DEFAULT,
    *,
    batched: bool = False,
    scored: int = 1,
    options: Mapping[str, str] | None = None,
) -> tuple[Artifact, Iterable[Path]]:
    """The artifact of a decoder with growing caches, and the other files from which it was made.

    Raises:
        CompileError: the model cannot be compiled.
        RunError: OCC0501 it is not a decoder.
    """
    module = prepare.prepared(folder.model, folder.head, batched=batched, adapter=folder.adapter, scored=scored)
    return _built(module, target, {**(options or {}), "caches": "growing"})


def _built(source: Source, target: str, options: Mapping[str, str] | None = None) -> tuple[Artifact, Iterable[Path]]:
    from occ.compiler.driver.compilation import Compilation
    from occ.compiler.driver.settings import Settings

    compilation = Compilation(source, Settings(target, options=dict(options or {})))
    return compilation.artifact(), compilation.module.files

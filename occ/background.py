"""Builds in lowest-priority processes, which leave the processors to the runs of a model."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

from onnx import ModelProto

from occ.compiler.diagnostics import error
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source, is_text
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass
from occ.runtime.session import Session

PRIORITY = 19  # the lowest priority: the increment of `nice`
_BEGIN = "import os, sys; os.nice(int(sys.argv.pop(1))); from {module} import main; sys.exit(main({arguments}))"


def start(
    arguments: Sequence[str], *, folder: str | None = None, module: str = "", detached: bool = False
) -> subprocess.Popen[bytes]:
    """Start a silent occ command at the lowest priority.

    Args:
        arguments: for the command line of occ, or for the `main` of another module.
        folder: the working directory, where rules of a project are found.
        module: that other module.
        detached: whether it continues when this process ends.
    """
    call = ("*sys.argv[1:]", module) if module else ("", "occ.cli")
    begin = _BEGIN.format(arguments=call[0], module=call[1])
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-c", begin, str(PRIORITY), *arguments], cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet,
        start_new_session=detached,
    )  # fmt: skip


def check_buildable(model: Source, settings: Settings) -> None:
    """Reject what another process could not build.

    Raises:
        CompileError: OCC0603 the model is a text, or has rules that are not files.
    """
    if is_text(model):
        message = 'specialise="background" needs an ONNX model, not a text'
        raise error("OCC0603", message, help="compile the .onnx file")
    if any(not isinstance(r, (str, os.PathLike)) for r in settings.rules):
        message = 'specialise="background" takes rules as paths of rule files, which another process can load'
        raise error("OCC0603", message, help="write the rules to a file")


@dataclass(frozen=True)
class BackgroundBuild:
    """Builds a model with `occ build` in another process, which stores the artifact in the build cache.

    Attributes:
        source: bytes of the model, or its path.
        stamp: size and time of the file: a changed model is not built.
        settings: of the build.
        threads: of the sessions.
        symbolic: inputs with symbolic extents.
    """

    source: bytes | Path
    stamp: tuple[int, int]
    settings: Settings
    threads: int
    symbolic: tuple[str, ...]

    @classmethod
    def of(cls, model: Source, settings: Settings, session: Session) -> BackgroundBuild:
        """The builds of a model, given to `occ.compile`, that already has a session."""
        if isinstance(model, ModelProto):
            model = model.SerializeToString()
        source = model
        if not isinstance(source, bytes):
            assert isinstance(source, (str, os.PathLike)), "texts have been refused"
            source = Path(os.fspath(source)).absolute()
        symbolic = tuple(i.name for i in session.inputs if any(isinstance(d, str) for d in i.shape))
        return cls(source, _stamp(source), settings, session.threads, symbolic)

    def __call__(self, shapes: Mapping[str, tuple[int, ...]], stopped: Event) -> Session | None:
        """A session on the model for certain input shapes, or the general one for None.

        None if the build fails, the model has changed, or `stopped` is set meanwhile.
        """
        if _stamp(self.source) != self.stamp:
            return None
        with tempfile.TemporaryDirectory(prefix="occ-build-") as folder:
            path, out = self.source, Path(folder) / "made.occ"
            if isinstance(path, bytes):
                data, path = path, Path(folder) / "model.onnx"
                path.write_bytes(data)
            command = ["build", str(path), "-o", str(out), *self._options(shapes)]
            if not _ended_well(command, folder, stopped) or _stamp(self.source) != self.stamp:
                return None
            return open_session(Artifact.load(out), self.threads, rules=self.settings.rules)

    def _options(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """The options of the command, without dims that the input shapes determine."""
        if not shapes:
            return options_of(self.settings)
        given = self.settings.overrides
        kept = {n: e for n, e in given.shapes.items() if n not in self.symbolic}
        fixed = replace(given, shapes={**kept, **{n: shapes[n] for n in self.symbolic}}, dims={}, bounds={})
        return options_of(replace(self.settings, overrides=fixed))


def options_of(s: Settings) -> list[str]:
    """The `occ build` options for settings whose rules are files."""
    sizes = s.overrides
    given = [("-t", s.target), ("--jobs", "1"), *(("-C", f"{k}={v}") for k, v in s.options.items())]
    given += [("--shape", f"{n}={','.join(map(str, e))}") for n, e in sizes.shapes.items()]
    given += [("--dim", f"{n}={v}") for n, v in (*sizes.dims.items(), *sizes.bounds.items())]
    given += [("--outputs", n) for n in sizes.outputs]
    given += [("--rules", str(Path(r).absolute())) for r in s.rules]
    return [*(part for pair in given for part in pair), *([] if s.cache else ["--no-cache"])]


def _stamp(source: bytes | Path) -> tuple[int, int]:
    if isinstance(source, bytes):
        return len(source), 0
    found = source.stat()
    return found.st_size, found.st_mtime_ns


def _ended_well(arguments: Sequence[str], folder: str, stopped: Event) -> bool:
    """Run a process in a folder without a project's rules; returns whether it succeeded.

    It ends when the session goes away.
    """
    with start(arguments, folder=folder) as process:
        while process.poll() is None:
            if stopped.wait(0.2):
                process.kill()
    return process.returncode == 0 and not stopped.is_set()

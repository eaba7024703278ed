"""`occ.load`: opens artifacts, and imports the compiler only if one needs it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.open import open_artifact
from occ.runtime.session import Session

if TYPE_CHECKING:
    from types import ModuleType

    from occ.runtime.native.engine import RunDeferred


def load(
    path: str | os.PathLike[str], threads: int | None = None, *, simulate: bool = False,
    options: Mapping[str, Any] | None = None, verify: bool = False,
) -> Session:  # fmt: skip
    """Load an artifact to run it.

    Native code and device parts need nothing but numpy. Artifacts for `interp`, operators compiled at run time, and the
    simulator need the same packages as occ itself.

    Args:
        path: of the artifact.
        threads: of one run; OCC_NUM_THREADS or all processors if None.
        simulate: whether to run device parts on the simulator instead of a device.
        options: of a device session: `device_id`, `npu_mem_limit`, `arena_extend_strategy`, `profile`. The artifact's
            own options are the defaults.
        verify: whether to compare the weights with their digest too, which reads them all; see docs/security.md.

    Raises:
        RunError: OCC0502 the artifact cannot be used.
    """
    artifact = Artifact.load(path)
    if verify:
        artifact.verify()
    return opened(artifact, threads, simulate=simulate, options=options)


def opened(
    artifact: Artifact, threads: int | None = None, *, simulate: bool = False, options: Mapping[str, Any] | None = None
) -> Session:
    """A session on an artifact; for the arguments and errors see `load`."""
    if simulate or artifact.manifest.engine == "interp":
        return _compiler("this artifact").open_session(artifact, threads, simulate=simulate, options=options)
    return open_artifact(artifact, threads, run_deferred=_run_deferred(), options=options)


def on_half(session: Session) -> Session | None:
    """A second session of native code on half of the threads, with the same weights.

    None if there is nothing to halve.
    """
    if session.artifact.manifest.engine != "native" or session.threads < 2:
        return None
    return open_artifact(session.artifact, session.threads // 2, run_deferred=_run_deferred())


def _run_deferred() -> RunDeferred:
    """The compiler of deferred ops, loaded on first use."""

    @cache
    def compiler() -> RunDeferred:
        return _compiler("an operator of this artifact").deferred_compiler()

    return lambda text, operands: compiler()(text, operands)


def _compiler(what: str) -> ModuleType:
    """The sessions of the compiler.

    Raises:
        RunError: OCC0502 a library that the compiler needs is not installed.
    """
    try:
        from occ.compiler.driver import sessions
    except ModuleNotFoundError as e:
        raise RunError(
            "OCC0502", f"{what} needs the compiler, and `{e.name}` is not installed", "pip install occ-compiler"
        ) from e
    return sessions

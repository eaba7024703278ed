"""Background builds of `occ run`, which fill the build cache with kernels for later runs."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from occ import background
from occ.compiler.cache.cache import Cache, digest
from occ.compiler.driver.settings import Settings


def start(model: Path, settings: Settings) -> None:
    """Start to build a model in the background; this process may end meanwhile."""
    arguments = [str(model.absolute()), *background.options_of(settings)]
    background.start(arguments, module=__name__, detached=True)


def main(model: str, *options: str) -> None:
    """Build a model unless another process is about to.

    Raises:
        CompileError: as `occ build`.
    """
    from occ.cli import cli

    cache = Cache()
    with cache.turn(digest(["fill", model, *options]), wait=False) as is_ours:
        if not is_ours:
            return
        # A folder without a project's rules: those of the settings are among the options.
        with cache.workspace() as folder, chdir(folder):
            cli.main(["build", model, "-o", "made.occ", *options], standalone_mode=False)

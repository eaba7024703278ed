"""Counts the files that a subprocess has written so far, for progress bars."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

Tell = Callable[[str], None]
_EVERY = 0.25  # seconds


@contextmanager
def counted(folder: Path, total: int, what: str, tell: Tell) -> Generator[None]:
    """Report from time to time how many files a folder has."""
    done = Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            tell(f"{what} {min(sum(1 for _ in folder.glob('*.o')) + 1, total)} of {total}")

    tell(f"{what} 1 of {total}")
    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()

"""How many threads a run uses: one knob, honest about containers."""

from __future__ import annotations

import os
from pathlib import Path

from occ.runtime.errors import RunError


def thread_count(asked: int | None) -> int:
    """The number of threads asked for, or the default.

    Raises:
        RunError: OCC0501 the number is not positive.
    """
    if asked is not None and asked < 1:
        raise RunError("OCC0501", f"threads is {asked}", "give at least 1")
    return asked or default_threads()


def default_threads() -> int:
    """OCC_NUM_THREADS if set; else the processors that this process may use, the cgroup's quota considered.

    Raises:
        RunError: OCC0501 the variable is not a positive number.
    """
    given = os.environ.get("OCC_NUM_THREADS", "")
    if given:
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            raise RunError("OCC0501", f"OCC_NUM_THREADS is {given!r}", "set it to a number of at least 1")
        return int(given)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(usable, quota) if quota else usable)


def _cgroup_quota() -> int | None:
    """Whole processors that the cgroup (v2, then v1) allows, rounded up; None for no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        pass
    try:
        root = Path("/sys/fs/cgroup/cpu")
        quota, period = (int((root / f"cpu.cfs_{k}_us").read_text()) for k in ("quota", "period"))
        return None if quota <= 0 else -(-quota // period)
    except (OSError, ValueError):
        return None

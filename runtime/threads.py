"""The number of threads of a run; it respects container limits."""

from __future__ import annotations

import os
from contextlib import suppress
from operator import index
from pathlib import Path, PurePosixPath

from occ.runtime.errors import RunError

MOST = 256  # the caller of a run and at most 255 workers of `c/workers.h`


def thread_count(asked: int | None) -> int:
    """The threads of a run: the requested number, or the default; at most `MOST`.

    Raises:
        RunError: OCC0501 the number is not positive.
    """
    if asked is None:
        return min(default_threads(), MOST)
    try:
        count = index(asked)
    except TypeError:
        count = 0
    if count < 1:
        raise RunError("OCC0501", f"threads is {asked!r}", "use a whole number of at least 1")
    return min(count, MOST)


def default_threads() -> int:
    """OCC_NUM_THREADS if set; otherwise the processors available to this process, limited by the cgroup's quota.

    Raises:
        RunError: OCC0501 the variable is not a positive number.
    """
    given = os.environ.get("OCC_NUM_THREADS", "")
    if given:
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            raise RunError("OCC0501", f"OCC_NUM_THREADS is {given!r}", "set it to a number of at least 1")
        return int(given)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, min(usable, quota) if quota else usable)


def cgroup_quota(root: Path = Path("/")) -> int | None:
    """Whole processors that this process's cgroup and its parents allow, rounded up; None for no limit.

    Control groups of version 2 (`cpu.max`) and of version 1 (`cpu.cfs_quota_us`): Linux, admin-guide/cgroup-v2 and
    scheduler/sched-bwc. A container sees its own group at the root, a service further down.

    Args:
        root: of the file system.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"]
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        found += [n for mount in mounts for g in (group, *group.parents) if (n := _quota(root / mount / g)) is not None]
    return min(found, default=None)


def _quota(group: Path) -> int | None:
    """Whole processors that one group allows, rounded up; None if it has no limit."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (int((group / f"cpu.cfs_{k}_us").read_text()) for k in ("quota", "period"))
        return None if quota <= 0 else -(-quota // period)
    return None

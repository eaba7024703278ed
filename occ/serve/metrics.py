"""Server metrics for Prometheus.

MLServer loads the module of a runtime anew with each model; a metric may be made once in a process, so it lives here. It is
made late, because MLServer sets up how processes share metrics when it starts. Its own metrics of runtimes do not show in
a server without workers.
"""

from functools import cache
from typing import Any

from prometheus_client import Histogram  # pyright: ignore[reportMissingImports] - of an extra


@cache
def batch_rows() -> Any:
    """Rows of each run, by the name of the model."""
    return Histogram("occ_batch_rows", "Rows of a run", ["model"], buckets=[1 << k for k in range(11)])

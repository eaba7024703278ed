"""Server metrics for Prometheus.

MLServer reloads the module of a runtime with each model; a metric may be created once per process, so it is here. It is
created late, because MLServer sets up how processes share metrics when it starts. Its own runtime metrics do not appear
in a server without workers.
"""

from functools import cache
from typing import Any

from prometheus_client import Histogram  # pyright: ignore[reportMissingImports] - of an extra


@cache
def batch_rows() -> Any:
    """Rows of each run, by the name of the model."""
    return Histogram("occ_batch_rows", "Rows of a run", ["model"], buckets=[1 << k for k in range(11)])

"""Remote workers (dask.distributed) that compile kernels and measure schedules.

Dask sends calls to workers, knows which are available, and repeats the work of lost ones elsewhere. The calls are
functions of this package, so a worker has the same occ installed, and a C++ compiler. They are pickles: a scheduler is
trusted like a shell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from occ.compiler.cache.cache import Cache
from occ.compiler.cache.sources import source_digest
from occ.compiler.codegen_halide.build import setup_for
from occ.compiler.codegen_halide.compile_kernels import compile_batch
from occ.compiler.codegen_halide.kernels import Kernel, Setup
from occ.compiler.codegen_halide.toolchain import toolchain
from occ.compiler.diagnostics import CompileError, error
from occ.compiler.tuning.measure import machine_identity
from occ.runtime.dataclass import dataclass

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

_ANSWER = 20  # seconds within which a scheduler must answer
_LOOK = 2.0  # seconds between checks for remaining workers


@dataclass(frozen=True)
class Facts:
    """Facts about a worker.

    Attributes:
        address: its address for the scheduler.
        sources: digest of its compiler.
        machine: what decides which schedules are fast on it.
        setup: its compilation setup, for the requested target.
        threads: its number of concurrent tasks.
    """

    address: str
    sources: str
    machine: str
    setup: str
    threads: int


class Workers:
    """The workers with this version of the compiler.

    Attributes:
        facts: of each.
    """

    def __init__(self, client: Client, facts: Sequence[Facts]) -> None:
        self._client = client
        self.facts = tuple(facts)

    @classmethod
    def connect(cls, address: str, target: str = "host", sanitize: str = "off") -> Workers:
        """The workers currently connected to a scheduler.

        Args:
            address: of the scheduler, such as `tcp://10.0.0.5:8786`.
            target: Halide target that kernels are compiled for; `host` is this machine.
            sanitize: their sanitizer.

        Raises:
            CompileError: OCC0408 dask.distributed is not installed, nothing answers, or no worker has this compiler;
                OCC0401, OCC0402, a part of the toolchain is missing here.
        """
        try:
            from distributed import Client
        except ImportError:
            raise error(
                "OCC0408",
                "workers need `distributed`",
                help="pip install 'occ-compiler[workers]', here and for the workers",
            ) from None
        logging.getLogger("distributed").setLevel(
            logging.CRITICAL
        )  # lost workers are reported once, by those who wait for them
        setup, _ = setup_for(target, Cache(), sanitize)
        try:
            client = Client(address, timeout=_ANSWER, set_as_default=False)
            answers: Any = client.run(describe, setup.target, sanitize, on_error="return")
        except (OSError, ValueError, TimeoutError) as e:
            said = (str(e) or type(e).__name__).splitlines()[0]
            message = f"no scheduler of dask.distributed answers at `{address}`: {said}"
            raise error(
                "OCC0408", message, help="start one by `dask scheduler`, and workers by `dask worker ADDRESS`"
            ) from None
        known = [replace(a, address=at) for at, a in answers.items() if isinstance(a, Facts)]
        same = [a for a in known if a.sources == _sources()]
        if not same:
            client.close()
            notes = [
                f"{at}: {a if isinstance(a, Exception) else 'another version of occ'}" for at, a in answers.items()
            ]
            message = f"none of the {len(answers)} workers at `{address}` has this version of occ"
            raise error("OCC0408", message, notes=notes[:8], help="install the same version of occ where workers run")
        return cls(client, [replace(a, setup=a.setup if a.setup == setup.identity else "") for a in same])

    @property
    def compilers(self) -> list[Facts]:
        """Workers whose kernels are, byte for byte, what would be compiled here."""
        return [a for a in self.facts if a.setup]

    def of_machines(self) -> dict[str, list[Facts]]:
        """Workers grouped by what decides which schedules are fast on them."""
        kinds: dict[str, list[Facts]] = {}
        for a in self.facts:
            kinds.setdefault(a.machine, []).append(a)
        return kinds

    def compile_batch(self, kernels: Sequence[Kernel], setup: Setup, cache: Cache) -> dict[str, CompileError]:
        """Compile kernels on one of the workers, or here if they are gone; as `compile_kernels.compile_batch`."""
        found = self.call(self.compilers, compile_there, list(kernels), setup.target, setup.tools.sanitize)
        if found is None:
            return compile_batch(kernels, setup, cache)
        objects, failed = found
        for k in kernels:
            if k.name in objects:
                cache.put("kernel", k.key, objects[k.name], ".o")
        return failed

    def call(self, among: Sequence[Facts], function: Callable[..., T], *args: object) -> T | None:
        """Calls a function of this package on one of several workers, and returns its result.

        None if all of them are gone, or several were lost running it.

        Raises:
            Exception: raised by the function there.
        """
        from distributed import CancelledError, KilledWorker

        addresses = [a.address for a in among]
        if not addresses or not self._is_left(addresses):
            return None
        future = self._client.submit(function, *args, workers=addresses, pure=False)
        while True:
            try:
                return future.result(timeout=_LOOK)
            except TimeoutError:
                if not self._is_left(addresses):
                    future.cancel()
                    return None
            except (CancelledError, KilledWorker, OSError):
                return None

    def _is_left(self, addresses: Sequence[str]) -> bool:
        if self._client.status != "running":
            return False
        there: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return not there.keys().isdisjoint(addresses)

    def close(self) -> None:
        """Disconnect from the scheduler; the workers continue."""
        self._client.close()


def _sources() -> str:
    return source_digest("occ.compiler")


def describe(target: str, sanitize: str, dask_worker: Any) -> Facts:
    """Describes this machine; dask passes the worker."""
    identity = Setup.of(replace(toolchain(), sanitize=sanitize), target).identity
    return Facts("", _sources(), machine_identity(), identity, dask_worker.state.nthreads)


def compile_there(
    kernels: Sequence[Kernel], target: str, sanitize: str
) -> tuple[dict[str, bytes], dict[str, CompileError]]:
    """The objects of kernels, and the errors of those that fail, by name; called on a worker."""
    setup, cache = Setup.of(replace(toolchain(), sanitize=sanitize), target), Cache()
    missing = [k for k in kernels if not cache.has("kernel", k.key, ".o")]
    failed = compile_batch(missing, setup, cache) if missing else {}
    return {k.name: cache.path("kernel", k.key, ".o").read_bytes() for k in kernels if k.name not in failed}, failed

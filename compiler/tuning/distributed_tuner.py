"""The distributed tuner: workers search for schedules, and results are stored by kind of machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.te.function import TeFunc
from occ.compiler.tuning.measure import machine_identity
from occ.compiler.tuning.tune import Tuner, TuningResult, worth_looking_at
from occ.compiler.tuning.workers import Facts, Workers
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class TunerRequest:
    """The settings with which a worker creates its own tuner."""

    target: str
    options: Mapping[str, str]
    threads: int

    def tuner(self, seconds: float) -> Tuner:
        made = Tuner.of(Settings(self.target, options=dict(self.options)), seconds)
        made.threads = self.threads
        return made


@dataclass
class Farm(Tuner):
    """A tuner that lets workers measure.

    Workers on the same kind of machine decide what is built here. On other kinds the same kernels are tuned too, and
    stored in the cache for builds there.

    Attributes:
        workers: the workers that measure.
        request: the settings of their tuners.
        elsewhere: searches for other kinds of machines.
    """

    workers: Workers = field(kw_only=True)
    request: TunerRequest = field(kw_only=True)
    elsewhere: int = 0

    @classmethod
    def on(cls, workers: Workers, settings: Settings, seconds: float) -> Farm:
        """The tuner for compilations with these settings.

        Raises:
            CompileError: OCC0603 the target has no schedules to choose.
        """
        own = Tuner.of(settings, seconds)
        request = TunerRequest(settings.target, settings.options, own.threads)
        return cls(**vars(own), workers=workers, request=request)

    def _tune(
        self, functions: Sequence[TeFunc], uses: Mapping[str, int], nodes: Mapping[str, tuple[str, ...]], end: float
    ) -> None:
        kinds, here = self.workers.of_machines(), machine_identity()
        with ThreadPoolExecutor(len(kinds)) as pool:
            jobs = {k: pool.submit(self._search_all, among, functions, uses, end) for k, among in kinds.items()}
        for kind, job in jobs.items():
            for found in job.result():
                found.keep(self.cache)
            self.elsewhere += len(job.result()) * (kind != here)
        self.left = sum(not self._recall(f, uses[f.name], nodes[f.name], remembered=False) for f in functions)

    def _search_all(
        self, among: Sequence[Facts], functions: Sequence[TeFunc], uses: Mapping[str, int], end: float
    ) -> list[TuningResult]:
        """Search on workers of one kind, slowest kernels first."""
        try:
            took = self.workers.call(
                among, rank_there, self.request, functions, {f.name: uses[f.name] for f in functions}
            )
        except CompileError:  # their machine does not run the target
            took = None
        longest, by_name = worth_looking_at(took or {}), {f.name: f for f in functions}

        def one(k: int) -> TuningResult | None:
            left = end - time.perf_counter()
            if left <= 0:
                return None
            self.progress(f"tuning kernel {k + 1} of {len(took or ())}: {longest[k]}")
            return self.workers.call(among, search_there, self.request, by_name[longest[k]], left)

        with ThreadPoolExecutor(sum(a.threads for a in among)) as pool:
            return [found for found in pool.map(one, range(len(longest))) if found is not None]

    def table(self) -> str:
        """A table of the gains."""
        kinds = len(self.workers.of_machines())
        lines = [super().table(), f"measured by {len(self.workers.facts)} workers of {kinds} kinds of machines"]
        if machine_identity() not in self.workers.of_machines():
            lines.append(
                "no worker has the same kind of machine as this one: their results are kept for builds on those "
                "machines"
            )
        elif self.elsewhere:
            lines.append(f"{self.elsewhere} results are kept for builds on other kinds")
        return "\n".join(lines)


def rank_there(request: TunerRequest, functions: Sequence[TeFunc], uses: Mapping[str, int]) -> dict[str, float]:
    """Seconds that a run spends in each kernel, on the called worker."""
    return request.tuner(0).ranked(functions, uses)


def search_there(request: TunerRequest, f: TeFunc, seconds: float) -> TuningResult:
    """The choices for a kernel on the called worker."""
    end = time.perf_counter() + seconds
    return request.tuner(seconds).search(f, end)

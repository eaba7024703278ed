"""Dynamic batching: requests that arrive during a run are the next batch.

A lone run has all threads. If requests share no runs and several clients send them, two runs go in parallel on half of
the threads each: one computes while the event loop decodes for the other, and threads wait less for one that the event
loop displaces. Requests that may share runs go one run after another, because two at once would leave less to share.

A request that makes a run fail fails alone: the others of its batch run again without it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from occ.inputs import free_dims, random_inputs
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.session import Session

Arrays = dict[str, np.ndarray]
_CLOSE = 1e-3  # relative to the largest value: batches of different sizes use different kernels


@dataclass
class _Asked:
    """A request: its inputs, and a future for the outputs."""

    inputs: Arrays
    answer: asyncio.Future[Arrays]

    @property
    def rows(self) -> int:
        return next(iter(self.inputs.values())).shape[0]

    @property
    def kind(self) -> tuple[object, ...]:
        """What requests of one batch have in common: their extents except the first.

        The first extent is the same for all inputs.
        """
        alone = len({x.shape[0] for x in self.inputs.values()}) > 1 and id(self)
        return (alone, *((n, x.shape[1:]) for n, x in sorted(self.inputs.items())))


class Batcher:
    """Runs requests of many clients on one session, from one event loop.

    Args:
        session: runs single requests and batches.
        half: the same model on half of the threads, for two runs at once if `most` is 1; without it there is one at a
            time.

    Attributes:
        most: maximum rows of a batch; 1 runs each request by itself.
        watch: called with the rows of each run, from its thread.
    """

    def __init__(
        self, session: Session, most: int, watch: Callable[[int], object] = bool, half: Session | None = None
    ) -> None:
        self._session, self.most, self.watch = session, most, watch
        self._half = half if most == 1 else None
        self._waiting: deque[_Asked] = deque()
        self._lanes: list[asyncio.Task[None]] = []
        self._running = 0

    async def __call__(self, inputs: Arrays) -> Arrays:
        """The outputs of a request.

        Raises:
            RunError: the model rejects it.
        """
        asked = _Asked(inputs, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._lanes = [lane for lane in self._lanes if not lane.done()]
        if len(self._lanes) < (1 if self._half is None else 2):
            self._lanes.append(asyncio.create_task(self._run_all()))
        return await asked.answer

    async def _run_all(self) -> None:
        while self._waiting:
            await self._run(self._next())

    def _next(self) -> list[_Asked]:
        """The oldest request, and those that fit into a batch with it."""
        first = self._waiting.popleft()
        batch, rows, left = [first], first.rows if self.most > 1 else self.most, deque[_Asked]()
        for asked in self._waiting:
            if rows < self.most and rows + asked.rows <= self.most and asked.kind == first.kind:
                batch.append(asked)
                rows += asked.rows
            else:
                left.append(asked)
        self._waiting = left
        return [a for a in batch if not a.answer.done()]  # some clients have disconnected

    async def _run(self, batch: Sequence[_Asked]) -> None:
        if not batch:
            return
        alone = not self._running and not self._waiting
        session = self._session if alone or self._half is None else self._half
        self._running += 1
        try:
            results = await asyncio.to_thread(self._compute, session, [a.inputs for a in batch])
        except Exception as e:
            if len(batch) == 1:
                _fail(batch[0], e)
            else:
                for asked in batch:
                    await self._run([asked])
            return
        finally:
            self._running -= 1
        for asked, result in zip(batch, results, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(result)

    def _compute(self, session: Session, requests: Sequence[Arrays]) -> list[Arrays]:
        if len(requests) == 1:
            self.watch(_rows(requests[0]))
            return [session.run(requests[0])]
        ends = np.cumsum([_rows(r) for r in requests])
        self.watch(int(ends[-1]))
        outputs = session.run({n: np.concatenate([r[n] for r in requests]) for n in requests[0]})
        pieces = {n: np.split(y, ends[:-1]) for n, y in outputs.items()}
        return [{n: p[k] for n, p in pieces.items()} for k in range(len(requests))]


def _rows(inputs: Arrays) -> int:
    shapes = [x.shape for x in inputs.values()]
    return shapes[0][0] if shapes and shapes[0] else 1


def _fail(asked: _Asked, e: Exception) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(e)


def can_batch(session: Session) -> bool:
    """Whether requests may share a run: inputs and outputs begin with one symbolic dim.

    Also, a run of random rows must return the same for each as a run of it alone. A model that mixes rows, or whose
    first dim is time, fails this.
    """
    ports = [*session.inputs, *session.outputs]
    firsts = {p.shape[0] if p.shape and p.kind == "tensor" else 0 for p in ports}
    if len(firsts) != 1 or not session.inputs or not session.outputs:
        return False
    (batch,) = firsts
    if not isinstance(batch, str) or batch not in free_dims(session, {}):
        return False
    if any(batch in str(d) for p in ports for d in p.shape[1:]):
        return False
    try:
        rows = random_inputs(session, {batch: 3}, np.random.default_rng(0))
        together = session.run(rows)
        for k in range(3):
            alone = session.run({n: x[k : k + 1] for n, x in rows.items()})
            if not all(_close(alone[n], together[n][k : k + 1]) for n in together):
                return False
    except RunError:
        return False
    return True


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "iub":
        return bool(np.mean(a == b) > 1 - _CLOSE) if a.size else True  # an argmax of near ties
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.max(np.abs(y), initial=0.0, where=np.isfinite(y)))
    return bool(np.allclose(x, y, rtol=0, atol=_CLOSE * scale, equal_nan=True))

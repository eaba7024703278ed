"""Continuous batching: requests join and leave the batch of one model between steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from occ.compiler.diagnostics import CompileError
from occ.generation.batch import Batch
from occ.generation.decoder import PREFILL_CHUNK, Decoder
from occ.generation.language_model import LanguageModel, Prompt
from occ.generation.names import KEY_BLOCK
from occ.generation.requests import GenerationBatch, GenerationRequest
from occ.runtime.errors import RunError

Listener = Callable[[Sequence[GenerationRequest]], None]


class QueueIsFull(Exception):
    """Raised when the waiting queue is full."""


class BatchScheduler:
    """Generates the texts of all requests in one thread.

    It runs prompts a chunk at a time, and between chunks a token for every text.

    Args:
        lm: the model.
        parallel: texts generated at once; others wait, in order.
        waiting: maximum number of waiting requests; None for no limit.

    Attributes:
        steps, generated, prefilled: totals of steps, new tokens, and prompt tokens since the start.
    """

    def __init__(self, lm: LanguageModel, parallel: int = 4, waiting: int | None = None) -> None:
        self._lm, self._parallel, self._most = lm, parallel, waiting
        self._change = threading.Condition()
        self._waiting: deque[GenerationRequest] = deque()
        self._cancelled: set[GenerationRequest] = set()
        self._listeners: dict[GenerationRequest, Listener] = {}
        self._thread: threading.Thread | None = None
        self._batch: GenerationBatch | None = None  # this and the next belong to the thread
        self._prefill: list[GenerationRequest] = []
        self.steps = self.generated = self.prefilled = 0

    def counts(self) -> tuple[int, int]:
        """Number of requests being served, and waiting."""
        with self._change:
            return len(self._listeners) - len(self._waiting), len(self._waiting)

    def submit(self, requests: Sequence[GenerationRequest], listener: Listener) -> None:
        """Start to serve requests: all of them or, if there is no room for all, none.

        Args:
            requests: what to generate.
            listener: called after each step, in the scheduler's thread, with those of its requests that have new pieces
                or have ended.

        Raises:
            QueueIsFull: the waiting queue is full.
        """
        begun = [r for r in requests if not r.ended]
        with self._change:
            places = len(self._listeners) - len(self._cancelled) + len(begun)
            if self._most is not None and places > self._parallel + self._most:
                raise QueueIsFull
            self._listeners |= dict.fromkeys(begun, listener)
            self._waiting.extend(begun)
            if begun and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="occ-batch-scheduler", daemon=True)
                self._thread.start()
            self._change.notify()
        if ended := [r for r in requests if r.ended and r not in begun]:
            listener(ended)

    def cancel(self, request: GenerationRequest) -> None:
        """End a request within the next step; its listener is not called again.

        One that has ended is unaffected.
        """
        with self._change:
            if request in self._listeners:
                self._cancelled.add(request)
                self._change.notify()

    def stream(self, prompt: Prompt, max_new_tokens: int = 64, **how: Any) -> Generator[Any]:
        """Like `LanguageModel.stream`, in the scheduler's runs; closing the generator cancels its request.

        Raises:
            QueueIsFull: the waiting queue is full.
            RunError: as `LanguageModel.stream`.
        """
        return self._pieces(self._lm.request(prompt, max_new_tokens, **how))

    def _pieces(self, request: GenerationRequest) -> Generator[Any]:
        queue = SimpleQueue[list[Any] | None]()

        def listen(changed: Sequence[GenerationRequest]) -> None:
            for one in changed:
                queue.put(one.pieces())
                if one.ended:
                    queue.put(None)

        self.submit([request], listen)
        try:
            while (found := queue.get()) is not None:
                yield from found
            if request.error is not None:
                raise request.error
        finally:
            self.cancel(request)

    # the thread

    def _serve(self) -> None:
        """Serve as long as there are requests."""
        while self._admit():
            try:
                changed = list(dict.fromkeys([*self._prefill_chunk(), *self._step()]))
            except Exception as e:  # whatever the error is, nobody may wait forever
                changed = self._fail(e)
            self._tell(changed)

    def _admit(self) -> bool:
        """Drop cancelled requests and start waiting ones; False if there are none, and the thread ends."""
        with self._change:
            cancelled, self._cancelled = self._cancelled, set()
            for request in cancelled:
                del self._listeners[request]
            self._waiting = deque(r for r in self._waiting if r not in cancelled)
            running = [] if self._batch is None else self._batch.requests
            gone = [r for r in (*running, *self._prefill) if r in cancelled]
            free = self._parallel - len(running) - len(self._prefill) + len(gone)
            taken = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
            goes_on = bool(self._listeners or gone)
            if not goes_on:
                self._thread = None
        for request in gone:
            self._release(request)
        self._prefill += taken
        return goes_on

    def _release(self, request: GenerationRequest) -> None:
        """Remove a request from its batch, and keep its cache for texts with the same beginning."""
        if request in self._prefill:
            self._prefill.remove(request)
        elif self._batch is not None and request in self._batch.requests:
            self._batch.remove(request)
        if request.decoder is not None:
            self._lm.decoders.give_back(request.decoder)
            request.decoder = None

    def _prefill_chunk(self) -> list[GenerationRequest]:
        """Run the next chunk of the oldest prompt; returns the request if that was the last one."""
        if not self._prefill:
            return []
        request = self._prefill[0]
        decoder = request.decoder
        if decoder is None:
            reused = [] if request.scores_prompt else request.tokens
            decoder = request.decoder = self._lm.decoders.take(reused)
            decoder.keep_common(reused)
        rest = request.tokens[len(decoder.tokens) :]
        try:
            logits = self._read(request, decoder, rest)
            self.prefilled += len(rest) - len(request.tokens) + len(decoder.tokens)
            if logits is None:
                return []
            request.take(logits)
        except RunError as e:
            request.error, request.ended = e, True
        self.generated += len(request.new_tokens)
        if request.ended:
            self._release(request)
        else:
            self._running().add(request, decoder)
            self._prefill.pop(0)
        return [request]

    @staticmethod
    def _read(request: GenerationRequest, decoder: Decoder, rest: Sequence[int]) -> np.ndarray | None:
        """Run the next chunk of a prompt; the logits at its end."""
        if request.scores_prompt:
            end, logits = len(decoder.tokens) + KEY_BLOCK, None
            while logits is None and len(decoder.tokens) < end:
                logits = request.score(decoder)
            return logits
        whole = not decoder.reads_in_chunks or len(rest) <= 2 * PREFILL_CHUNK
        logits = decoder.append(rest if whole else rest[:PREFILL_CHUNK])
        return logits if whole else None

    def _running(self) -> GenerationBatch:
        if self._batch is None:
            self._batch = GenerationBatch(batch_or_none(self._lm) if self._parallel > 1 else None)
        return self._batch

    def _step(self) -> list[GenerationRequest]:
        """Generate a token for each text."""
        running = self._batch
        if running is None or not running.requests:
            return []
        changed = list(running.requests)
        before = sum(len(r.tokens) for r in changed)
        ended = running.step()
        self.steps, self.generated = self.steps + 1, self.generated + sum(len(r.tokens) for r in changed) - before
        for request in ended:
            self._release(request)
        return changed

    def _fail(self, error: Exception) -> list[GenerationRequest]:
        """End all current requests with an error.

        The next step starts with new memory, and may fail again.
        """
        served = [*self._prefill, *([] if self._batch is None else self._batch.requests)]
        self._batch, self._prefill = None, []
        for request in served:
            request.error, request.ended = error, True
            self._release(request)
        return served

    def _tell(self, changed: Sequence[GenerationRequest]) -> None:
        """Call each listener once for all of its requests."""
        told: dict[Listener, list[GenerationRequest]] = {}
        with self._change:
            for request in changed:
                if request not in self._cancelled and request in self._listeners:
                    told.setdefault(self._listeners[request], []).append(request)
            for request in changed:
                if request.ended:
                    self._listeners.pop(request, None)
                    self._cancelled.discard(request)
        for listener, requests in told.items():
            with suppress(Exception):  # one that fails, such as one with a closed loop, does not affect the others
                listener(requests)


def batch_or_none(lm: LanguageModel) -> Batch | None:
    """Memory for several texts; None with drafts, or for a model that cannot batch texts of different lengths."""
    if lm.drafts:
        return None
    try:
        return lm.batch()
    except (RunError, CompileError):
        return None

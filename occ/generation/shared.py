"""Texts of many threads that share the runs of one model: they join and leave while others are written."""

from __future__ import annotations

import threading
from collections.abc import Generator
from queue import SimpleQueue
from typing import Any

from occ.generation.language_model import LanguageModel, Prompt
from occ.generation.writing import Together, Writing

_Pieces = SimpleQueue[list[Any] | None]  # None after the last


class Shared:
    """Writes each text as `LanguageModel.stream` does, with all that are asked for at the same time in one run a token.

    The thread that asks for a text reads its prompt; one thread then writes all texts, as fast as it can, for as long as
    there are any.

    Args:
        lm: the model; it is built once more, for several texts.

    Raises:
        CompileError: it cannot be compiled for several texts.
        RunError: OCC0501 it cannot continue texts of unlike lengths in one run.
    """

    def __init__(self, lm: LanguageModel) -> None:
        self._lm, self._lock = lm, threading.Lock()
        self._running: Together | None = Together(lm.batch())  # None after an error, until the next step
        self._joining: dict[Writing, _Pieces] = {}
        self._leaving: list[Writing] = []
        self._queues: dict[Writing, _Pieces] = {}  # this and the next belong to the thread that writes
        self._new: list[Writing] = []
        self._thread: threading.Thread | None = None

    def stream(self, prompt: Prompt, max_new_tokens: int = 64, **how: Any) -> Generator[Any]:
        """As `LanguageModel.stream`; who closes the iterator leaves the others."""
        return self._pieces(self._lm.writing(prompt, max_new_tokens, **how))

    def _pieces(self, writing: Writing) -> Generator[Any]:
        if writing.ended:
            return
        decoder, joined = self._lm.decoders.take(writing.tokens), False
        try:
            writing.take(decoder.continue_with(writing.tokens))
            yield from writing.pieces()
            if writing.ended:
                return
            writing.decoder, joined = decoder, True
            pieces = self._join(writing)
            while (found := pieces.get()) is not None:
                yield from found
            if writing.error is not None:
                raise writing.error
        finally:
            if joined:
                self._leave(writing)
            else:
                self._lm.decoders.give_back(decoder)

    def _join(self, writing: Writing) -> _Pieces:
        with self._lock:
            pieces = self._joining[writing] = _Pieces()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="occ-texts", daemon=True)
                self._thread.start()
        return pieces

    def _leave(self, writing: Writing) -> None:
        with self._lock:
            if self._thread is not None:
                self._leaving.append(writing)

    def _write(self) -> None:
        """Write until there is no text."""
        while self._changes():
            try:
                self._step()
            except Exception as e:  # whatever it is, nobody may wait for ever
                self._fail(e)

    def _changes(self) -> bool:
        """Take note of who joins and leaves; False if there is no text, and the thread is to end."""
        with self._lock:
            self._queues |= self._joining
            new, self._joining = list(self._joining), {}
            leaving, self._leaving = self._leaving, []
            if not self._queues:
                self._thread = None
                return False
        self._new += [w for w in new if w not in leaving]
        for writing in leaving:
            if self._running is not None and writing in self._running.texts:
                self._running.remove(writing)
            if writing in self._queues:
                self._end(writing)
        return True

    def _step(self) -> None:
        """Let texts join, and give each a token."""
        running = self._running = self._running or Together(self._lm.batch())
        while self._new:
            writing = self._new.pop()
            assert writing.decoder is not None
            running.add(writing, writing.decoder)
        ended = running.step() if running.texts else []
        for writing in (*running.texts, *ended):
            if found := writing.pieces():
                self._queues[writing].put(found)
        for writing in ended:
            self._end(writing)

    def _fail(self, error: Exception) -> None:
        """End all texts with an error; the next step begins with new memory, and may fail in its turn."""
        self._running, self._new = None, []
        for writing in list(self._queues):
            writing.error = error
            self._end(writing)

    def _end(self, writing: Writing) -> None:
        self._queues.pop(writing).put(None)
        assert writing.decoder is not None
        self._lm.decoders.give_back(writing.decoder)

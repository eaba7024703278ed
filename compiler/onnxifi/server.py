"""The compile server of libonnxifi-occ: answers requests over a socket.

A request is one packet of words; files are passed with it and with the answer (SCM_RIGHTS):

    check TARGET - SIZE NUMBER       can the model in the file be built? It is SIZE bytes, weights follow
    build TARGET KEY SIZE NUMBER     its artifact, which is kept in the build cache under KEY
    devices                          the devices that are not the CPU
    open TARGET KEY SIZE NUMBER      build for a device, and load; then `run`, `extents` and `close` of what was opened

An answer is a status (statuses.py), a blank, and a text.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from occ.compiler.cache.artifact_cache import ArtifactCache
from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.module import Module
from occ.compiler.native_entry.output_shapes import open_outputs
from occ.compiler.native_entry.read_routines import without_host
from occ.compiler.onnxifi.devices import Devices
from occ.compiler.onnxifi.models import check_outputs, read_model
from occ.compiler.onnxifi.statuses import Refused, Status, status_of, status_of_run
from occ.compiler.plan.plan import cpu_manifest
from occ.compiler.targets.registry import on_device
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError

_IDLE = 60.0  # idle seconds after which the process ends; the library starts another one
_PACKET = 8000  # bytes of a packet, either way
_NEEDS_COMPILER = ("OCC0401", "OCC0402")

Answer = tuple[str, int | None]  # text, and the descriptor of a file


class Server:
    """Answers requests until the other end is closed, or nothing is requested for long."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.cache = Cache()
        self.devices = Devices(self.cache)

    def serve(self) -> None:
        self.connection.send(b"0 ready")
        while self.devices.busy or select.select([self.connection], [], [], _IDLE)[0]:
            packet, files, _, _ = socket.recv_fds(self.connection, _PACKET, 1)
            if not packet:
                return
            try:
                text, made = self._answer(packet.decode().split(" "), files)
                self._reply(Status.SUCCESS, text, made)
            except Refused as e:
                self._reply(e.status, str(e))
            finally:
                for f in files:
                    os.close(f)

    def _reply(self, status: Status, text: str, file: int | None = None) -> None:
        packet = f"{int(status)} {text}".encode()[:_PACKET]
        socket.send_fds(self.connection, [packet], [] if file is None else [file])
        if file is not None:
            os.close(file)

    def _answer(self, words: list[str], files: list[int]) -> Answer:
        """Handle a request; every possible failure is a status."""
        try:
            return self._met(words, files)
        except CompileError as e:
            raise Refused(status_of(e), str(e)) from None
        except RunError as e:
            raise Refused(status_of_run(e), str(e)) from None
        except MemoryError:
            raise Refused(Status.NO_SYSTEM_MEMORY, "the compiler has no memory for the model") from None
        except OSError as e:
            raise Refused(Status.NO_SYSTEM_RESOURCES, f"the compiler cannot use a file: {e}") from None
        except Refused:
            raise
        except Exception as e:
            traceback.print_exc()
            raise Refused(Status.INTERNAL_ERROR, f"{type(e).__name__}: {e}") from e

    def _met(self, words: list[str], files: list[int]) -> Answer:
        match words:
            case ["check", target, _, size, number]:
                self._check(files[0], target, int(size), int(number))
                return "", None
            case ["build", target, key, size, _]:
                return "", self._build(files[0], target, key, int(size))
            case ["devices"]:
                return self.devices.listing(), None
            case ["open", target, _, size, number]:
                model = _model(files[0], int(size))
                return self.devices.open(model, target, int(number)), None
            case ["run", session, *extents]:
                return self.devices.run(session, extents, files[0]), None
            case ["extents", session, *extents]:
                return self.devices.extents(session, extents), None
            case ["close", session]:
                self.devices.close(session)
                return "", None
            case _:
                raise Refused(Status.INTERNAL_ERROR, f"unknown request {words[0]!r}: library and compiler do not match")

    def _check(self, file: int, target: str, size: int, number: int) -> None:
        model = _model(file, size)
        c = Compilation(model, Settings(target, options=self.devices.options(target, number)))
        c.check()
        if not on_device(target):
            check_outputs(model, _runnable(c.module))

    def _build(self, file: int, target: str, key: str, size: int) -> int:
        """The descriptor of an artifact."""
        model = _model(file, size)
        try:
            artifact = self._compiled(model, target)
        except CompileError as e:
            if e.diagnostics[0].code not in _NEEDS_COMPILER:
                raise
            artifact = self._compiled(model, "cpu-jit")  # which needs no C++ compiler
        return self._kept(artifact, key)

    def _compiled(self, model: Any, target: str) -> Artifact:
        c = Compilation(model, Settings(target))
        c.advance(c.last_stage)
        check_outputs(model, _runnable(c.module))
        return c.artifact()

    def _kept(self, artifact: Artifact, key: str) -> int:
        with self.cache.workspace() as folder:
            path = Path(folder) / "model.occ"
            artifact.save(path)
            file = os.open(path, os.O_RDONLY)
            with suppress(OSError):
                ArtifactCache(self.cache).adopt(key, path)
            return file


def _model(file: int, size: int) -> Any:
    with open(file, "rb", closefd=False) as f:
        f.seek(0)
        return read_model(f.read(size), f.read())


def _runnable(m: Module) -> list[Any]:
    """The outputs of a module that runs without Python.

    Raises:
        Refused: some of its nodes need Python.
    """
    made = cpu_manifest(m, "")
    if why := without_host(made):
        raise Refused(Status.UNSUPPORTED_OPERATOR, why)
    if loose := open_outputs(made):  # descriptors state their shapes before the run
        raise Refused(Status.UNSUPPORTED_OPERATOR, loose[0])
    return made.outputs


def main() -> None:
    """Serve the socket that is standard input, in a detached process."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that loaded the library
    connection = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        Server(connection).serve()
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)

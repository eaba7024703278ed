"""Checks the ports of a server."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

from occ.runtime.errors import RunError


def check_ports(host: str, first: int, count: int) -> None:
    """Check that consecutive ports are free, before a model is compiled for them.

    Raises:
        RunError: one is taken, or the machine has no such address.
    """
    with ExitStack() as opened:
        for port in range(first, first + count):
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                place = opened.enter_context(socket.socket(family, kind, protocol))
                # Closed sockets do not count; listening ones do, even if they would share the port, as gRPC does.
                place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                place.bind(address)
                place.listen(1)
            except OSError as e:
                others = f"; the server takes {first} to {first + count - 1}" if count > 1 else ""
                taken = e.errno == errno.EADDRINUSE
                why = f"port {port} of {host} is taken" if taken else f"cannot listen at {host}:{port}: {e.strerror}"
                raise RunError("OCC0501", f"{why}{others}", "choose another one with --port or --host") from None

"""Ports for servers of tests."""

from __future__ import annotations

import os
import socket


def free_port() -> int:
    """The first of three ports that are free."""
    for port in range(21000 + os.getpid() % 5000, 60000, 3):
        try:
            for k in range(3):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + k))
            return port
        except OSError:
            continue
    raise OSError("no port is free")

"""Runs sanitized artifacts in a process that has the sanitizer: `sanitized_child.py MODE FILE...`.

`run ARTIFACT CASE.npz...` compares runs with what the cases expect; `sessions ARTIFACT CASE.npz` does so in four sessions at
once; `overrun`, `race` and `overflow` each plant the fault that one of the sanitizers has to report.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import occ
from occ.runtime.native.library import Dimension, HalideBuffer, Library, fill_buffer
from occ.runtime.session import Session

_libc = ctypes.CDLL(None)


def exact(like: np.ndarray) -> np.ndarray:
    """A copy in aligned memory of just its size: the sanitizer knows both ends of it."""
    at = ctypes.c_void_p()
    assert _libc.posix_memalign(ctypes.byref(at), ctypes.c_size_t(64), ctypes.c_size_t(max(like.nbytes, 1))) == 0
    raw: Any = (ctypes.c_char * like.nbytes).from_address(at.value or 0)
    made = np.frombuffer(raw, like.dtype).reshape(like.shape)
    made[...] = like
    return made


def check(session: Session, case: str) -> None:
    with np.load(case) as arrays:
        inputs = {n[3:]: exact(a) for n, a in arrays.items() if n.startswith("in.")}
        expected = {n[4:]: a for n, a in arrays.items() if n.startswith("out.")}
    for places in ({n: exact(a) for n, a in expected.items()}, None):
        found = session.run(inputs, places)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-3)


def sessions(artifact: str, case: str) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            session = occ.load(artifact, threads=3)
            for _ in range(20):
                check(session, case)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


def _loaded(artifact: str) -> tuple[Library, str]:
    engine = occ.load(artifact).engine
    (kernel,) = (s.name for s in engine.manifest.plan.steps)
    return engine._native.library, kernel


def _call(library: Library, kernel: str, x: np.ndarray, y: np.ndarray, n: int) -> None:
    """Call a kernel of one f32 input and output, as if both had `n` elements."""
    buffers = [(HalideBuffer(host=a.ctypes.data), (Dimension * 1)()) for a in (x, y)]
    for b, dims in buffers:
        fill_buffer(b, dims, "f32", 4, (n,))
    args = (ctypes.c_void_p * 2)(*(ctypes.addressof(b) for b, _ in buffers))
    run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(library.address(kernel))
    run(ctypes.addressof(args))


def overrun(artifact: str) -> None:
    library, kernel = _loaded(artifact)
    _call(library, kernel, exact(np.ones(64, np.float32)), exact(np.ones(63, np.float32)), 64)


def race(artifact: str) -> None:
    library, kernel = _loaded(artifact)
    x, y = exact(np.ones(64, np.float32)), exact(np.ones(64, np.float32))
    both = threading.Barrier(2)

    def work() -> None:
        both.wait()
        for _ in range(20000):
            _call(library, kernel, x, y, 64)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def overflow(artifact: str) -> None:
    library, _ = _loaded(artifact)
    task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: 0)
    library.dll.halide_do_par_for(None, task, ctypes.c_int(2**31 - 2), ctypes.c_int(4), None)


def main(mode: str, artifact: str, *cases: str) -> None:
    if mode == "run":
        session = occ.load(artifact, threads=2)
        for case in cases:
            check(session, case)
    elif mode == "sessions":
        sessions(artifact, *cases)
    else:
        {"overrun": overrun, "race": race, "overflow": overflow}[mode](artifact)
    Path(f"{artifact}.done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])

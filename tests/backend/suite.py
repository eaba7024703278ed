"""The backend tests of the `onnx` package, one callable each, for any target; and their models, for a batch build.

`python tests/backend/suite.py [--part K/N] [--matching TEXT]` builds the kernels of their models into the cache, after
which the suite on target `cpu` needs no C++ compiler.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pickle
import platform
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test import loader
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt, Runner

BUILD = Path(__file__).parents[2] / "build"
# Where the suite puts the inputs that it makes for the larger models.
os.environ.setdefault("ONNX_MODELS", str(BUILD / "onnx-models"))
make_cases = loader.load_node_model_tests


class Unsupported(Exception):
    """occ refuses the model. The suite's own exception for that would be swallowed by its runner."""


@cache
def node_cases(folder: Path = BUILD / "onnx-cases") -> list[TestCase]:
    """The node cases of `onnx`, from a file of an earlier process with the same packages, or else made and kept there.

    To make them takes seconds of CPU time, most of it for pools in Python, and each process of a parallel run collects
    all tests. Of several that find no file the first makes it, and the others wait.
    """
    packages = [onnx.__version__, np.__version__, ml_dtypes.__version__, platform.python_version()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{'-'.join(packages)}.pickle"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            part = file.with_suffix(".part")  # a process that is killed leaves no half of a file under the other name
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                part.write_bytes(pickle.dumps(make_cases(), pickle.HIGHEST_PROTOCOL))
            part.replace(file)
    return pickle.loads(file.read_bytes())


class _Rep:
    def __init__(self, rep: Any) -> None:
        self.rep = rep

    def run(self, inputs: Any, **_: Any) -> Any:
        # Cases that are made in memory hold numpy scalars where files hold tensors of rank 0.
        return self.rep.run([np.asarray(x) if isinstance(x, np.generic) else x for x in inputs])


def _on(prepare: Callable[[onnx.ModelProto], Any]) -> dict[str, Callable[[], None]]:
    class Wrapped:
        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

        @classmethod
        def is_compatible(cls, model: Any, *_: Any, **__: Any) -> bool:
            return True

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Any:
            return prepare(model)

    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        mock.patch.object(loader, "load_node_model_tests", node_cases),
    ):
        warnings.simplefilter("ignore")
        runner = Runner(Wrapped, __name__)
    found = {n: item.func for tests in runner._test_items.values() for n, item in tests.items() if n.endswith("_cpu")}
    return {n.removeprefix("test_").removesuffix("_cpu"): (lambda f=f: _quietly(f)) for n, f in sorted(found.items())}


def _quietly(test: Callable[[Any], None]) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        test(None)


def tests(target: str, **options: str) -> dict[str, Callable[[], None]]:
    """Every test by name, without the `test_` before it and the `_cpu` after it; a test raises unless it passes.

    Args:
        target: what to compile for.
        options: of the target, with `_` for the dots of their keys.
    """
    return on_device(target, "CPU", **options)


def on_device(target: str, device: str, **options: str) -> dict[str, Callable[[], None]]:
    """The same on a device of the backend."""
    given = {key.replace("_", "."): value for key, value in options.items()}

    def prepare(model: onnx.ModelProto) -> _Rep:
        from occ.backend import Backend

        try:
            return _Rep(Backend.prepare(model, device, target=target, options=given))
        except BackendIsNotSupposedToImplementIt as e:
            raise Unsupported(str(e)) from e

    return _on(prepare)


class _Seen(Exception):
    pass


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model of every test, by the name of the test."""
    seen: list[onnx.ModelProto] = []

    def prepare(model: onnx.ModelProto) -> Any:
        seen.append(model)
        raise _Seen

    for name, test in _on(prepare).items():
        try:
            test()
        except _Seen:
            yield name, seen.pop()


def part(names: list[str], k: int, n: int) -> list[str]:
    """The k-th of n parts of some names, spread over all families."""
    return sorted(names)[k::n]


def main() -> None:
    from occ.compiler.tuning.warm import warm

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1", help="K/N: the K-th of N parts, counted from 0")
    parser.add_argument("--matching", default="", help="only tests with this in their name")
    given = parser.parse_args()
    k, n = map(int, given.part.split("/"))
    wanted = set(part(list(tests("cpu")), k, n))
    chosen = ((name, m) for name, m in models() if name in wanted and given.matching in name)
    made = warm(chosen, progress=lambda text: print(text, flush=True))
    for label, problem in {**made.refused, **made.failed}.items():
        print(label, " ".join(str(problem).split())[:300])
    print(made.text())


if __name__ == "__main__":
    main()

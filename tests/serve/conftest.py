"""Fixtures of tests of the server for language models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import occ

if TYPE_CHECKING:
    from openai_server import Served


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> occ.LanguageModel:
    from openai_server import write_folder

    path = tmp_path_factory.mktemp("served")
    write_folder(path)
    return occ.LanguageModel(path, threads=1, capacity=220, target="cpu-jit", several=True)


@pytest.fixture(scope="module")
def served(lm: occ.LanguageModel) -> Iterator[Served]:
    from openai_server import KEY, Served

    from occ.serve.openai.app import ServerSettings, create_app

    settings = ServerSettings(
        "tiny", parallel=3, waiting=100, api_key=KEY, origins=["http://page.example"], max_request=8 << 20
    )
    made = Served(create_app(settings, lambda: lm))
    made.wait()
    yield made
    made.close()


@pytest.fixture
def client(served: Served) -> Any:
    return served.client

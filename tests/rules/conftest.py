"""What the tests of kernels share: the library of a user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from user_kernels import C_SOURCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library of a user, `libuser.so`."""
    made = tmp_path_factory.mktemp("user")
    (made / "user.c").write_text(C_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "user.c", "-o", "libuser.so", "-lm"], cwd=made, check=True)
    return made

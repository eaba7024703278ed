"""Targets of occ are found as those of packages are, and nothing but their own folders knows one from another."""

import re
from pathlib import Path

import pytest

from occ.compiler.ir.stages import ORDER
from occ.compiler.targets.registry import OWN, all_targets, get_target

ROOT = Path(__file__).parents[2]
ASKS = re.compile(r"\bfamily [=!]=|target\.name [=!]=|\btarget [=!]= \"|target\.startswith")


def test_nobody_asks_which_target_it_is() -> None:
    files = [p for top in ("compiler", "occ") for p in (ROOT / top).rglob("*.py")]
    own = {"codegen_halide", "codegen_llvm", "codegen_cann", "codegen_interp", "interp"}
    asking = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if not own & set(path.relative_to(ROOT).parts)
        for line in path.read_text().splitlines()
        if ASKS.search(line)
    ]
    assert asking == []


@pytest.mark.parametrize("name", OWN)
def test_a_target_of_occ_is_what_a_package_would_have(name) -> None:
    target = get_target(name)
    assert target.name == name
    assert target in all_targets()
    stages = list(target.pipeline(target.options))
    assert stages == sorted(stages, key=lambda s: ORDER[s])
    assert not set(target.texts) & set(ORDER)

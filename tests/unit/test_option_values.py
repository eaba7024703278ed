"""Values of compile options, as Python, texts and files spell them."""

from __future__ import annotations

from typing import Any

import pytest

import occ
from occ.compiler.targets.registry import get_target


@pytest.mark.parametrize("value", ["1", 1])
def test_choices_that_are_digits_are_numbers_too(value: Any) -> None:
    read: Any = get_target("cpu").options.read("cpu", {"optimize": value})
    assert read.level == "1"


@pytest.mark.parametrize("value", [7, 1.5, True, None, [1], "O2"])
def test_other_values_are_refused_with_the_choices(value: Any) -> None:
    with pytest.raises(occ.CompileError, match=r"`optimize` cannot be[\s\S]*1, 2, 3"):
        get_target("cpu").options.read("cpu", {"optimize": value})

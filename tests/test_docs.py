"""Every example in the documentation runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import ztensor

MODULES = [
    module.name
    for module in pkgutil.iter_modules(ztensor.__path__, "ztensor.")
    if module.name != "ztensor._native"
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["ztensor", *MODULES])
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=OPTIONS).failed == 0


def test_the_guide() -> None:
    guide = DOCS / "python.md"
    assert doctest.testfile(str(guide), module_relative=False, optionflags=OPTIONS).failed == 0

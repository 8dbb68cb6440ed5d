"""Every example in the documentation runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import z4ai
import ztensor

MODULES = [
    module.name
    for package in (ztensor, z4ai)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if module.name != "ztensor._native"
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DOCS = Path(__file__).parent.parent / "docs"


# Examples of distributed checkpoints run in one process, and torch says so each time.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


@pytest.mark.parametrize("name", ["ztensor", "z4ai", *MODULES])
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize("name", ["python.md", "z4ai.md"])
def test_the_guides(name: str) -> None:
    guide = DOCS / name
    assert doctest.testfile(str(guide), module_relative=False, optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize("name", ["remote.md", "distributed.md"])
def test_the_guides_to_stores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto", reason="needs moto, the S3-compatible test server")
    from remote_servers import s3_server

    with s3_server() as s3:
        for variable, value in s3.variables.items():
            monkeypatch.setenv(variable, value)
        guide = str(DOCS / name)
        assert doctest.testfile(guide, module_relative=False, optionflags=OPTIONS).failed == 0


def test_the_readme() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)

"""Every example in the documentation runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import z4ai
import ztensor
import ztensor.distributed
import ztensor.torch

sys.path.append(str(Path(__file__).parent / "engines"))
import results

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


# Imported by their engine, which is no part of this environment: tests/test_engines.py has it.
IN_ENGINES = {"ztensor.vllm._loader", "ztensor.vllm.transfer"}


@pytest.mark.parametrize("name", ["ztensor", "z4ai", *MODULES])
def test_docstrings(name: str) -> None:
    if name in IN_ENGINES:
        with pytest.raises(ValueError, match="which ztensor needs"):
            importlib.import_module(name)
        return
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=OPTIONS).failed == 0


def test_the_table_of_engines_is_what_their_tests_found() -> None:
    made = results.page_with(results.table())
    if os.environ.get("UPDATE_DOCS"):
        results.PAGE.write_text(made)
    assert results.PAGE.read_text() == made, "UPDATE_DOCS=1 pytest tests/test_docs.py writes it"


GUIDES = [
    "index.md",
    "python.md",
    "sync.md",
    "z4ai.md",
    "tutorials/from-safetensors.md",
    "tutorials/shrink-a-model.md",
    "tutorials/deltas.md",
    "identity.md",
    "repository.md",
]
# These need an S3-compatible server.
STORE_GUIDES = ["remote.md", "distributed.md", "tutorials/object-stores.md"]


@pytest.mark.parametrize("name", GUIDES)
def test_the_guides(name: str) -> None:
    guide = DOCS / name
    assert doctest.testfile(str(guide), module_relative=False, optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize("name", STORE_GUIDES)
def test_the_guides_to_stores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto", reason="needs moto, the S3-compatible test server")
    from remote_servers import s3_server

    with s3_server() as s3:
        for variable, value in s3.variables.items():
            monkeypatch.setenv(variable, value)
        guide = str(DOCS / name)
        assert doctest.testfile(guide, module_relative=False, optionflags=OPTIONS).failed == 0


def test_every_page_with_examples_is_run() -> None:
    found = {
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if ">>> " in page.read_text()
    }
    assert found == {*GUIDES, *STORE_GUIDES}
    # Blocks that are not run are `py`.
    for page in DOCS.rglob("*.md"):
        for block in re.findall(
            r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            assert ">>> " in block, f"{page.name}: an example that is not run:\n{block}"


def _parameters(signature: inspect.Signature) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Names and defaults: of positional parameters, in order, and of keyword-only ones."""
    found = [each for each in signature.parameters.values() if each.name != "self"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return (
        [(each.name, each.default) for each in found if each.kind != keyword],
        {each.name: each.default for each in found if each.kind == keyword},
    )


@pytest.mark.parametrize("page", ["python.md", "z4ai.md", "distributed.md"])
def test_signatures_are_those_of_the_code(page: str) -> None:
    modules = [z4ai] if page == "z4ai.md" else [ztensor.torch, ztensor, ztensor.distributed]
    blocks = re.findall(
        r"^```py\n([\w.]+)(\([^…]*?\))\n```", (DOCS / page).read_text(), re.MULTILINE
    )
    assert blocks
    for name, parameters in blocks:
        bare = name.rpartition(".")[2]
        module = next(module for module in modules if hasattr(module, bare))
        stated = eval(f"(lambda {parameters[1:-1]}: None)")
        expected = _parameters(inspect.signature(getattr(module, bare)))
        assert _parameters(inspect.signature(stated)) == expected, name


def test_the_distributed_tutorial(tmp_path: Path) -> None:
    page = (DOCS / "tutorials/distributed.md").read_text()
    [program] = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(program)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run([*launch, "train.py"], cwd=tmp_path, check=True, timeout=300)
    ztensor.distributed.consolidate(
        tmp_path / "step-1", tmp_path / "model.safetensors", prefix="model."
    )
    assert sorted(ztensor.open(tmp_path / "model.safetensors")) == [
        "0.bias",
        "0.weight",
        "1.bias",
        "1.weight",
    ]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (DOCS.parent / "mkdocs.yml").read_text()))
    made = {page for page in listed if page.startswith("api/")}  # by docs/reference.py
    assert made and listed - made == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)

"""Where the Python packages create files."""

from __future__ import annotations

import ast
from pathlib import Path

import z4ai
import ztensor


def creates_a_file(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    if called == "store.write_bytes":  # which is the native library
        return False
    if called == "tempfile.SpooledTemporaryFile":  # has no name, so no link can stand there
        return False
    if called == "tempfile.TemporaryDirectory":  # a new folder, private to its owner
        return False
    if called in {"open", "io.open"} or called.endswith("path.open"):
        mode = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        return any(isinstance(text, str) and set(text) & set("wxa+") for text in mode[-1:])
    names = (".write_text", ".write_bytes", ".touch", "os.open", "os.replace", "os.rename")
    return called.startswith(("shutil.", "tempfile.")) or called.endswith(names)


def test_files_are_created_by_the_native_library_only() -> None:
    """One place knows about links and names that are taken; Python code does not go round it."""
    packages = [Path(z4ai.__file__).parent, Path(ztensor.__file__).parent]
    created = [
        f"{path.name}: {ast.unparse(node)}"
        for package in packages
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and creates_a_file(node)
    ]
    assert not created

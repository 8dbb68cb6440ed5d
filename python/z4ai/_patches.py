"""Names in other modules that lead here for a while, also in modules that are imported later."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias


def needed(name: str) -> Any:
    """A module that the core of this package does without."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(
            f"this needs {error.name or name}: pip install torch safetensors"
        ) from error


Makers: TypeAlias = dict[tuple[str, str], Callable[[Any], Any]]
"""What replaces a name of a module, made of what it meant before."""


class Patches:
    """Names in other modules that lead here while the patch is on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._originals: dict[tuple[str, str], Any] = {}
        # What replaces what: a module may have taken a name from one that was patched before it.
        self._replaced: list[tuple[Any, Any]] = []
        self._awaited: list[WhenImported] = []

    def original(self, module: str, name: str) -> Any:
        """What a name meant before, if it is patched."""
        return self._originals.get((module, name))

    def is_on(self) -> bool:
        return bool(self._originals)

    def on(self, makers: Makers, where_present: Makers) -> None:
        """Patches names, and those that their modules may lack, or that are not imported yet."""
        with self._lock:
            if self._originals:
                return
            found = {key: getattr(needed(key[0]), key[1]) for key in makers}
            for key, current in found.items():
                self._replace(key, current, makers[key])
        for key, maker in where_present.items():
            then = functools.partial(self._on_if_there, key, maker)
            if key[0] in sys.modules:
                then(sys.modules[key[0]])
            else:
                self._awaited.append(WhenImported(key[0], then))

    def _on_if_there(self, key: tuple[str, str], maker: Callable[[Any], Any], module: Any) -> None:
        with self._lock:
            current = getattr(module, key[1], None)
            if current is not None and self._originals and key not in self._originals:
                self._replace(key, current, maker)

    def _replace(self, key: tuple[str, str], current: Any, maker: Callable[[Any], Any]) -> None:
        """Patches a name, and the same object in modules that have taken it already."""
        module, name = key
        for replacement, original in self._replaced:
            if current is replacement or current is original:
                break
        else:
            original, replacement = current, maker(current)
            self._replaced.append((replacement, original))
        self._originals[key] = original
        setattr(sys.modules[module], name, replacement)
        for user, alias in _users(original):
            setattr(user, alias, replacement)

    def off(self) -> None:
        with self._lock:
            for awaited in self._awaited:
                awaited.end()
            self._awaited = []
            for (module, name), original in self._originals.items():
                setattr(sys.modules[module], name, original)
            for replacement, original in self._replaced:
                for user, alias in _users(replacement):
                    setattr(user, alias, original)
            self._originals, self._replaced = {}, []


class WhenImported:
    """Calls a function with a module as soon as that is imported."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name, self._then, self._looking = name, then, threading.local()
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stops waiting for it."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find, with a loader that calls the function at its end."""
        if name != self._name or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.now = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_call(module: Any) -> None:
                run(module)
                self.end()
                self._then(module)

            spec.loader.exec_module = run_and_call  # type: ignore[method-assign]
        return spec


_USERS = (
    "accelerate",
    "comfy",
    "diffusers",
    "peft",
    "safetensors",
    "sentence_transformers",
    "sglang",
    "timm",
    "transformers",
    "vllm",
)


def _users(value: Any) -> list[tuple[Any, str]]:
    """Modules of the libraries we serve that have already taken an object from safetensors, and
    under which name."""
    return [
        (module, name)
        for key, module in list(sys.modules.items())
        if key.split(".")[0] in _USERS
        for name, found in list(getattr(module, "__dict__", {}).items())
        if found is value
    ]

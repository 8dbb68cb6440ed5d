"""The options that the modules of all frameworks share: their types and their defaults.

A function takes them as ``**options`` and is decorated with :func:`with_options`, which fills in
the defaults, and shows every option in its signature.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, cast

from ztensor._types import (
    Backend,
    Checksum,
    DType,
    Format,
    PicklePolicy,
    Progress,
    StorageOptions,
)

# No postponed annotations here: functions of other modules get these types as their own.


class LoadOptions(TypedDict, total=False):
    """How the tensors of a file are loaded."""

    dequantize: bool
    dtype: DType | None
    verify: bool
    progress: Progress
    max_bytes: int | None
    max_total_bytes: int | None
    pickle: PicklePolicy


class FileOptions(LoadOptions, total=False):
    """The same for a file that is opened by its path or its URL."""

    backend: Backend
    storage_options: StorageOptions


class SaveOptions(TypedDict, total=False):
    """How tensors are saved to a file."""

    checksum: Checksum
    progress: Progress
    storage_options: StorageOptions
    format: Format | None


class _Options(FileOptions, SaveOptions, total=False):
    pass


DEFAULTS: _Options = {
    "backend": "mmap",
    "checksum": "none",
    "dequantize": False,
    "dtype": None,
    "format": None,
    "max_bytes": None,
    "max_total_bytes": None,
    "pickle": "warn",
    "progress": None,
    "storage_options": None,
    "verify": True,
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_options(options: type) -> Callable[[_Function], _Function]:
    """Gives a function that takes ``**options`` the defaults and the signature of all of them."""
    types = dict(options.__annotations__)
    defaults = {name: value for name, value in DEFAULTS.items() if name in types}

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for name in given.keys() - own:
                if name not in defaults:
                    known = ", ".join(defaults)
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}; "
                        f"its options are {known}"
                    )
            return function(*args, **{**defaults, **given})

        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[:-1]
        own = {parameter.name for parameter in parameters}
        keyword = inspect.Parameter.KEYWORD_ONLY
        for name, default in defaults.items():
            kind = types[name]
            parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        hints = dict(function.__annotations__)
        returned = hints.pop("return")
        hints.pop("options")
        call.__annotations__ = {**hints, **types, "return": returned}
        return cast(_Function, call)

    return decorate

"""The exceptions: one family, whose members also are what Python code expects.

Where safetensors is installed, all of them are its ``SafetensorError`` too, so that ``except``
clauses written for it keep working. Beyond that each class is at most one built-in exception;
the table is in ``docs/python.md``.

>>> import ztensor
>>> try:
...     ztensor.open("no such file.zt")
... except FileNotFoundError as error:
...     isinstance(error, ztensor.ZTensorError)
True
"""

from __future__ import annotations

import errno as _errno
import os
import sys
import warnings
from types import FrameType
from typing import TYPE_CHECKING

_PACKAGE = os.path.dirname(__file__)

if TYPE_CHECKING:
    _Base = Exception
else:
    try:
        from safetensors import SafetensorError as _Base
    except ImportError:
        _Base = Exception


class ZTensorError(_Base):
    """Anything that went wrong in this package.

    ``file``, ``tensor`` and ``rule`` say where, if known; ``rule`` names the
    rule of the format that a damaged file breaks.
    """

    file: str | None = None
    tensor: str | None = None
    rule: str | None = None

    def __str__(self) -> str:
        # KeyError would show its message in quotes, OSError as a tuple.
        return str(self.args[0]) if self.args else ""


SafetensorError: type[Exception] = ZTensorError if _Base is Exception else _Base
"""The exception of that name: that of safetensors where it is installed."""


class NotFoundError(ZTensorError, KeyError):
    """No tensor, component or member has that name."""


class InvalidArgumentError(ZTensorError, ValueError):
    """The call itself is wrong: a shape, a dtype, a level out of range."""


class CorruptError(ZTensorError, ValueError):
    """The file breaks a rule of its format: get another copy of it."""


class UnsupportedError(ZTensorError, ValueError):
    """The file may be fine, but uses something that this version does not know."""


class MismatchError(ZTensorError, ValueError):
    """Stored bytes and their checksum differ: the file was damaged or changed."""


class LimitError(ZTensorError, ValueError):
    """A declared size exceeds the limit that the caller set, or the memory there is."""


class UnknownFormatError(ZTensorError, RuntimeError):
    """The file is of no format that this version reads, or it is no tensor file."""


class IndexOutOfRangeError(ZTensorError, IndexError):
    """An index lies outside its dimension, or there are more indices than dimensions."""


class MissingArgumentError(ZTensorError, TypeError):
    """An argument is missing, or given twice."""


class FinishedError(ZTensorError, RuntimeError):
    """The writer is finished, or a write failed: nothing more can be written."""


class SharedTensorError(ZTensorError, RuntimeError):
    """Tensors share memory, which the format cannot say."""


class ModelMismatchError(ZTensorError, RuntimeError):
    """A model and a file do not have the same tensors."""


class FileError(ZTensorError, OSError):
    """The operating system refused or failed: look at the path, the disk, the permissions."""


class UnsafePickleWarning(UserWarning):
    """A pickle names functions that run code, start programs or open files in tools that
    unpickle it. Here nothing of it is called; ``pickle="strict"`` refuses such a file."""


def warn_unsafe(file: str, names: list[str]) -> None:
    """Warns of the functions that a file's pickles name, at the caller outside this package."""
    shown = ", ".join(ascii(name)[1:-1] for name in names)
    message = (
        f"{file}: tools that unpickle this file would reach {shown}. Nothing was run here; "
        'pickle="strict" refuses such files, and `ztensor scan` says more.'
    )
    # The line to name is the caller's. A caller that asks for errors gets one.
    depth = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, UnsafePickleWarning, stacklevel=depth)


class NoSuchFileError(FileError, FileNotFoundError):
    """There is no such file."""


class NotPermittedError(FileError, PermissionError):
    """The file may not be read or written."""


class TimedOutError(FileError, TimeoutError):
    """A server did not answer in time."""


class UnreachableError(FileError, ConnectionError):
    """There is no connection to a server: it refused one, or its name or network was not found."""


_CLASSES: dict[str, type[ZTensorError]] = {
    "io": FileError,
    "corrupt": CorruptError,
    "unsupported": UnsupportedError,
    "not_found": NotFoundError,
    "invalid_argument": InvalidArgumentError,
    "mismatch": MismatchError,
    "limit": LimitError,
    "unknown_format": UnknownFormatError,
    "finished": FinishedError,
}
_BY_ERRNO: dict[int | None, type[FileError]] = {
    _errno.ENOENT: NoSuchFileError,
    _errno.EACCES: NotPermittedError,
    _errno.EPERM: NotPermittedError,
    _errno.ETIMEDOUT: TimedOutError,
    _errno.ECONNREFUSED: UnreachableError,
    _errno.EHOSTUNREACH: UnreachableError,
    _errno.ENETUNREACH: UnreachableError,
    _errno.ENOTCONN: UnreachableError,
}

CLASSES: tuple[type[ZTensorError], ...] = (
    ZTensorError,
    NotFoundError,
    InvalidArgumentError,
    MissingArgumentError,
    IndexOutOfRangeError,
    CorruptError,
    MismatchError,
    UnsupportedError,
    UnknownFormatError,
    LimitError,
    FinishedError,
    SharedTensorError,
    ModelMismatchError,
    FileError,
    NoSuchFileError,
    NotPermittedError,
    TimedOutError,
    UnreachableError,
)

for _class in CLASSES:
    _class.__module__ = "ztensor"  # where it is imported from, and what tracebacks show


_CANNOT_OPEN = "{}: cannot open: No such file or directory"


def make(
    kind: str,
    message: str,
    errno: int | None = None,
    file: str | None = None,
    tensor: str | None = None,
    rule: str | None = None,
) -> ZTensorError:
    """The exception for an error of the native library."""
    if errno == _errno.ENOENT and message == _CANNOT_OPEN.format(file):
        message = f"No such file or directory: {file}"
    error = _BY_ERRNO.get(errno, _CLASSES[kind])(message)
    error.file, error.tensor, error.rule = file, tensor, rule
    if isinstance(error, OSError):
        error.errno, error.filename = errno, file
    return error

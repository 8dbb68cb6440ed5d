"""The exceptions: one family, whose members also are what Python code expects.

>>> import ztensor
>>> try:
...     ztensor.open("no such file.zt")
... except FileNotFoundError as error:
...     isinstance(error, ztensor.ZTensorError)
True
"""

from __future__ import annotations

import errno as _errno


class ZTensorError(Exception):
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


class ModelMismatchError(ZTensorError, RuntimeError):
    """A model and a file do not have the same tensors."""


class FileError(ZTensorError, OSError):
    """The operating system refused or failed: look at the path, the disk, the permissions."""


class _NoSuchFileError(FileError, FileNotFoundError):
    """There is no such file."""


class _NotPermittedError(FileError, PermissionError):
    """The file may not be read or written."""


class _TimedOutError(FileError, TimeoutError):
    """A server did not answer in time."""


_CLASSES: dict[str, type[ZTensorError]] = {
    "io": FileError,
    "corrupt": CorruptError,
    "unsupported": UnsupportedError,
    "not_found": NotFoundError,
    "invalid_argument": InvalidArgumentError,
    "mismatch": MismatchError,
    "limit": LimitError,
}
_BY_ERRNO: dict[int | None, type[FileError]] = {
    _errno.ENOENT: _NoSuchFileError,
    _errno.EACCES: _NotPermittedError,
    _errno.EPERM: _NotPermittedError,
    _errno.ETIMEDOUT: _TimedOutError,
}


def make(
    kind: str,
    message: str,
    errno: int | None = None,
    file: str | None = None,
    tensor: str | None = None,
    rule: str | None = None,
) -> ZTensorError:
    """The exception for an error of the native library."""
    error = _BY_ERRNO.get(errno, _CLASSES[kind])(message)
    error.file, error.tensor, error.rule = file, tensor, rule
    if isinstance(error, OSError):
        error.errno, error.filename = errno, file
    return error

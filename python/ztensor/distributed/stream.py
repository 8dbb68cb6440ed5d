"""``stream.z4ai``: an extension of torch's own distributed checkpoints.

For those who keep torch's ``FileSystemWriter``: what it writes is compressed by the weight codec,
and the checkpoint names the extension. :class:`~ztensor.distributed.ZTensorWriter` compresses
better and reads parts: a stream holds what ``torch.save`` makes of a tensor, and is decoded as a
whole.

>>> import torch
>>> import torch.distributed.checkpoint as dcp
>>> from ztensor.distributed.stream import Z4AI, registry
>>> state = {"w": torch.ones(1000, 100)}
>>> writer = dcp.FileSystemWriter("step-1", _extensions=[Z4AI(dtype="fp32")])
>>> _ = dcp.save(state, storage_writer=writer, no_dist=True)
>>> state["w"].zero_().sum().item()
0.0
>>> reader = dcp.FileSystemReader("step-1", _extension_registry=registry())
>>> dcp.load(state, storage_reader=reader, no_dist=True)
>>> state["w"].sum().item()
100000.0
"""

from __future__ import annotations

import importlib
import io
from typing import IO, Any, cast

import torch

from z4ai import _codec
from ztensor._dtypes import named
from ztensor._errors import CorruptError, UnsupportedError
from ztensor._types import DType, Effort

__all__ = ["Z4AI", "registry"]

_MODULE = "torch.distributed.checkpoint._extension"
_BLOCK = 4 << 20
"""Bytes of a block before compression: enough chunks for several threads, little memory."""
_LONGEST = _BLOCK + (64 << 10)
"""Bytes of a compressed block: a frame is longer than its content by some bytes per 128 KiB."""


def _extensions() -> Any:
    try:
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        raise UnsupportedError(
            f"torch {torch.__version__} has no extensions of distributed checkpoints ({_MODULE})"
        ) from None


_Base = _extensions().StreamTransformExtension


class Z4AI(_Base):  # type: ignore[misc, valid-type]
    """Compresses the streams of a checkpoint.

    ``dtype`` is the element type of most tensors, which a stream does not tell: without it the
    codec looks for structure by itself. For ``effort`` and ``threads`` see :func:`z4ai.compress`.
    """

    def __init__(
        self, *, dtype: DType | None = None, effort: Effort | None = "fast", threads: int = 0
    ) -> None:
        super().__init__()
        if dtype is not None:
            named(dtype)
        self._options = {
            "dtype": dtype,
            "effort": _codec.effort_named(effort),
            "threads": _codec.threads_checked(threads),
        }

    @staticmethod
    def registry_name() -> str:
        """What checkpoints call this."""
        return "stream.z4ai"

    @staticmethod
    def from_descriptor(version: str) -> Z4AI:
        """The extension that reads a checkpoint."""
        if version.partition(".")[0] != "1":
            raise UnsupportedError(f"stream.z4ai of version {version!r} is not known: 1 is")
        return Z4AI()

    def get_descriptor(self) -> str:
        """Name and version, as a checkpoint stores them."""
        return f"{self.registry_name()}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """A stream that compresses what is written to it."""
        return cast("IO[bytes]", _Compressing(output, self._options))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """A stream of what was compressed."""
        return cast("IO[bytes]", io.BufferedReader(_Decompressing(input), _BLOCK))


def registry() -> Any:
    """Torch's ``ExtensionRegistry`` with this extension, for ``FileSystemReader``."""
    made = _extensions().ExtensionRegistry()
    made.register(Z4AI)
    return made


class _Compressing(io.RawIOBase):
    def __init__(self, output: IO[bytes], options: dict[str, Any]) -> None:
        self._output, self._options = output, options
        self._pending = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _BLOCK):
            self._pending += view[start : start + _BLOCK]
            while len(self._pending) >= _BLOCK:
                self._put(self._pending[:_BLOCK])
                del self._pending[:_BLOCK]
        return len(view)

    def _put(self, block: bytearray) -> None:
        frame = _codec.compress(block, **self._options) if block else b""
        self._output.write(len(frame).to_bytes(4, "little") + frame)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._pending:
                self._put(self._pending)
            self._put(bytearray())
            self._output.close()
        finally:
            super().close()


class _Decompressing(io.RawIOBase):
    def __init__(self, input: IO[bytes]) -> None:
        self._input = input
        self._block = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block and not self._ended:
            self._block = memoryview(self._next())
        wanted = memoryview(buffer).cast("B")
        count = min(len(wanted), len(self._block))
        wanted[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _next(self) -> bytes:
        """The next block; nothing at the end."""
        length = int.from_bytes(self._exactly(4), "little")
        if not length:
            self._ended = True
            return b""
        if length > _LONGEST:
            raise CorruptError(f"stream.z4ai: a block of {length} bytes; at most {_LONGEST}")
        block = _codec.decompress(self._exactly(length), max_bytes=_BLOCK)
        if not block:
            raise CorruptError("stream.z4ai: an empty block before the end")
        return block

    def _exactly(self, length: int) -> bytes:
        parts, missing = [], length
        while missing:
            part = self._input.read(missing)
            if not part:
                raise CorruptError("stream.z4ai: the stream ends within a block")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

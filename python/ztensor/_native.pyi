"""Private: use the ztensor package."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeAlias, final

import numpy as np

VERSION: str
DTYPES: list[tuple[str, str, str, str | None, int, str | None, str | None, str | None]]

_Progress: TypeAlias = Callable[[int], object] | None
_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Memory: TypeAlias = _Array | tuple[int, int, object]
_Component: TypeAlias = tuple[str, str, str | None, _Memory]
_Item: TypeAlias = tuple[str, str, Sequence[int], Sequence[_Component], dict[str, Any] | None]

def dequantize(item: _Item) -> _Array: ...

@final
class Mapping: ...

@final
class Reader:
    @staticmethod
    def open(
        path: str | PathLike[str],
        *,
        map: bool = True,
        verify: bool = True,
        threads: int = 0,
        max_component: int | None = None,
    ) -> Reader: ...
    @staticmethod
    def from_bytes(
        data: bytes | bytearray,
        *,
        verify: bool = True,
        threads: int = 0,
        max_component: int | None = None,
    ) -> Reader: ...
    @property
    def format(self) -> str: ...
    @property
    def attributes(self) -> dict[str, Any]: ...
    def keys(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...
    def metadata(self, name: str) -> dict[str, Any]: ...
    def fetch(
        self,
        names: Sequence[str] | None,
        framework: str | None,
        copy: bool,
        other: Callable[..., object],
        progress: _Progress = None,
    ) -> dict[str, Any]: ...
    def byte_len(self, names: Sequence[str] | None) -> int: ...
    def read_rows(self, name: str, start: int, stop: int) -> _Array: ...
    def read_into(
        self, requests: Sequence[tuple[str, int, int]], progress: _Progress = None
    ) -> None: ...
    def verify(self, name: str) -> bool: ...
    def verify_all(self, progress: _Progress = None) -> tuple[int, int]: ...

@final
class Writer:
    @staticmethod
    def create(path: str | PathLike[str], *, durable: bool = False) -> Writer: ...
    @staticmethod
    def memory() -> Writer: ...
    def set_attributes(self, attributes: dict[str, Any]) -> None: ...
    def __contains__(self, name: str, /) -> bool: ...
    def write(
        self,
        items: Sequence[_Item],
        compression: int | None,
        checksum: str,
        progress: _Progress = None,
    ) -> None: ...
    def tie(self, name: str, existing: str) -> None: ...
    def finish(self) -> int: ...
    def finish_bytes(self) -> bytes: ...
    def abort(self) -> None: ...

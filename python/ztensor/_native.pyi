"""Private: use the ztensor package."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeAlias, final

import numpy as np

VERSION: str
DEBUG_ASSERTIONS: bool
EFFORTS: list[str]
EXPORTS: list[str]
DTYPES: list[tuple[str, str, str, str | None, int, str | None, str | None, str | None, str]]

_Progress: TypeAlias = Callable[[int], object] | None
_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Memory: TypeAlias = object
"""A contiguous NumPy array or torch tensor on the CPU."""
_Component: TypeAlias = tuple[str, str, str | None, _Memory]
_Item: TypeAlias = (
    tuple[str, _Array]
    | tuple[str, str, Sequence[int], _Memory]
    | tuple[str, str, Sequence[int], Sequence[_Component], dict[str, Any] | None]
)

_Deferred: TypeAlias = tuple[str, str, Sequence[int], int, Callable[[], _Memory]]
_Export: TypeAlias = Sequence[_Item | _Deferred]
_ExportSettings: TypeAlias = tuple[int | None, str, int | None]

_Bytes: TypeAlias = bytes | bytearray | memoryview | _Array
_Settings: TypeAlias = tuple[
    str, str, int | None, int, bool, Sequence[int], tuple[str, Sequence[int]] | None
]

Z4AI_DEFAULT_LEVEL: int
Z4AI_EFFORTS: list[str]

@final
class StreamEncoder:
    def __new__(cls, settings: _Settings) -> StreamEncoder: ...
    def write(self, data: _Bytes) -> bytes: ...
    def finish(self) -> tuple[bytes, bytes, bytes]: ...

def chain_way(all: Sequence[tuple[str | None, str, int]], want: str) -> list[int] | None: ...
def chain_removable(
    all: Sequence[tuple[str | None, str, int]], targets: Sequence[str]
) -> list[int]: ...
def anchor_due(
    every: int | None, ratio: float | None, deltas: int, bytes: int, full: int
) -> bool: ...
def z4ai_compress(data: _Bytes, settings: _Settings, blocks: str | None = None) -> bytes: ...
def z4ai_check_size(len: int, stored: int, max_bytes: int | None) -> None: ...
def z4ai_decompress(frame: _Bytes, threads: int, max_bytes: int | None = None) -> bytes: ...
def z4ai_decompress_into(frame: _Bytes, out: _Bytes, threads: int) -> int: ...
def z4ai_delta_compress(current: _Bytes, reference: _Bytes, settings: _Settings) -> bytes: ...
def z4ai_delta_decompress(frame: _Bytes, reference: _Bytes, threads: int) -> bytes: ...
def z4ai_delta_decompress_into(
    frame: _Bytes, reference: _Bytes, out: _Bytes, threads: int
) -> int: ...
def z4ai_inspect(
    frame: _Bytes,
) -> tuple[str, int, str, tuple[str, list[int]] | None, int, int, int]: ...
def z4ai_kind_of(data: _Bytes) -> str | None: ...

_Pack: TypeAlias = tuple[str, int | None, int]
_Packed: TypeAlias = tuple[int, int, int, int, bool]
_Described: TypeAlias = tuple[
    int, int, int, str | None, list[tuple[str, int, int, str, int | None]]
]

def zstn_inspect(path: str | PathLike[str]) -> _Described: ...
def zstn_inspect_bytes(data: bytes | bytearray) -> _Described: ...
def zstn_pack(
    input: str | PathLike[str],
    output: str | PathLike[str],
    settings: _Pack,
    progress: _Progress = None,
    *,
    derived: bool = False,
    overwrite: bool = True,
) -> _Packed: ...
def zstn_pack_bytes(data: bytes | bytearray, settings: _Pack) -> bytes: ...
def zstn_pack_parts(
    header: bytes,
    parts: Sequence[_Bytes],
    output: str | PathLike[str],
    settings: _Pack,
    progress: _Progress = None,
) -> _Packed: ...
def zstn_unpack(
    input: str | PathLike[str],
    output: str | PathLike[str],
    threads: int,
    progress: _Progress = None,
    *,
    max_total_bytes: int | None = None,
) -> int: ...
def zstn_unpack_bytes(
    data: bytes | bytearray, threads: int, *, max_total_bytes: int | None = None
) -> bytes: ...

_Made: TypeAlias = tuple[int, int, int, int, int, int, int]
_Delta: TypeAlias = tuple[
    int,
    str | None,
    str | None,
    int,
    int,
    list[tuple[str, str, str | None, int, int]],
]

def z4dm_apply(
    base: str | PathLike[str],
    deltas: Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    threads: int,
    progress: _Progress = None,
    *,
    max_total_bytes: int | None = None,
) -> int: ...
def z4dm_apply_bytes(
    base: bytes | bytearray,
    delta: bytes | bytearray,
    threads: int,
    *,
    max_total_bytes: int | None = None,
) -> bytes: ...
def z4dm_apply_in_place(
    path: str | PathLike[str],
    delta: str | PathLike[str],
    threads: int,
    progress: _Progress = None,
    *,
    max_total_bytes: int | None = None,
) -> tuple[int, int, int]: ...
def z4dm_info(path: str | PathLike[str]) -> _Delta: ...
def z4dm_info_bytes(delta: bytes | bytearray) -> _Delta: ...
def z4dm_make(
    base: str | PathLike[str],
    target: str | PathLike[str],
    output: str | PathLike[str],
    settings: _Pack,
    progress: _Progress = None,
) -> _Made: ...
def z4dm_make_bytes(
    base: bytes | bytearray, target: bytes | bytearray, settings: _Pack
) -> bytes: ...
def z4ai_main(args: Sequence[str]) -> int: ...
def export_bytes(
    format: str,
    items: _Export,
    attributes: dict[str, Any] | None,
    settings: _ExportSettings,
    progress: _Progress = None,
) -> bytes: ...
def export_file(
    path: str | PathLike[str],
    format: str,
    items: _Export,
    attributes: dict[str, Any] | None,
    settings: _ExportSettings,
    remote: dict[str, str] | None = None,
    progress: _Progress = None,
) -> None: ...
def convert(args: Sequence[str], threads: int = 0, progress: _Progress = None) -> list[str]: ...
def cli_main(args: Sequence[str]) -> int: ...
def tensor_content_id(item: _Item) -> str: ...
def model_content_id(ids: Sequence[tuple[str, str]]) -> str: ...
def capabilities(
    format: str,
) -> tuple[bool, bool, bool, bool, bool, bool, str, list[str], list[str], list[str]]: ...
def dequantize(item: _Item) -> _Array: ...
def remove_tensors(
    input: str | PathLike[str], output: str | PathLike[str], names: Sequence[str]
) -> int: ...
def decode_ahead(readers: Sequence[Reader]) -> None: ...
def prove_partition(
    shape: Sequence[int], chunks: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> None: ...
def assemble(
    tensors: Sequence[
        tuple[
            str,
            int,
            int,
            Sequence[int],
            Sequence[tuple[Reader, str, Sequence[int], Sequence[int]]],
        ]
    ],
    threads: int = 0,
    progress: _Progress = None,
) -> None: ...
def zt_plan(
    tensors: Sequence[tuple[str, str, Sequence[int]]], attributes: dict[str, Any]
) -> tuple[bytes, list[int], int, bytes]: ...
def replace_tensor(path: str | PathLike[str], name: str, data: _Array) -> None: ...
def store_delete(path: str | PathLike[str], remote: dict[str, str] | None = None) -> None: ...
def store_join(folder: str | PathLike[str], name: str) -> str: ...
def store_len(path: str | PathLike[str], remote: dict[str, str] | None = None) -> int | None: ...
def store_list(
    path: str | PathLike[str], remote: dict[str, str] | None = None
) -> list[tuple[str, int]]: ...
def store_read(
    path: str | PathLike[str],
    limit: int,
    range: tuple[int, int] | None = None,
    remote: dict[str, str] | None = None,
) -> bytes: ...
def store_write(
    path: str | PathLike[str],
    data: bytes | bytearray,
    remote: dict[str, str] | None = None,
    *,
    derived: bool = False,
    overwrite: bool = True,
) -> None: ...

_Stream: TypeAlias = tuple[str | PathLike[str], str, dict[str, str] | None]
_Tensors: TypeAlias = Sequence[tuple[str, str, Sequence[int], object]]
_Publish: TypeAlias = tuple[
    str,
    str,
    str | None,
    int | None,
    float | None,
    str | PathLike[str] | None,
    int,
    bool,
    bool,
    str | PathLike[str] | None,
]
_Published: TypeAlias = tuple[str, str | None, int, int, int, str, str]
_Changed: TypeAlias = tuple[str, str, int, int, str, list[int]]

def sync_fold(
    stream: _Stream,
    first: str,
    last: str,
    base: str | PathLike[str] | None,
    settings: _Publish,
) -> tuple[int, int]: ...
def sync_log(
    stream: _Stream,
) -> list[tuple[str, str | None, str, int, tuple[int, int] | None, float | None, int]]: ...
def sync_prune(stream: _Stream, keep: int, in_use: Sequence[str], dry_run: bool) -> list[str]: ...
def sync_pull(
    stream: _Stream,
    local: str | PathLike[str],
    *,
    version: str | None,
    base: str | PathLike[str] | None,
    restart: bool,
    allow_structure: bool,
    threads: int,
    durable: bool,
    patience: float,
    progress: _Progress = None,
) -> tuple[str | None, str, list[str], list[_Changed], int]: ...
def sync_status(stream: _Stream, local: str | PathLike[str] | None) -> dict[str, Any]: ...
def sync_verify(
    local: str | PathLike[str], threads: int
) -> tuple[str | None, int, list[str], list[str]]: ...
def sync_versions(stream: _Stream) -> list[str]: ...

@final
class SyncMemory:
    def __new__(cls, version: str) -> SyncMemory: ...
    @property
    def version(self) -> str: ...
    def pull(
        self,
        stream: _Stream,
        tensors: _Tensors,
        version: str | None,
        atomic: bool,
        threads: int,
    ) -> tuple[str, list[str], int]: ...
    def sparse(
        self, stream: _Stream, tensors: _Tensors, version: str | None
    ) -> tuple[list[tuple[str, str, list[int], bytes, bytes]], SyncMemory]: ...

@final
class SyncPublisher:
    @staticmethod
    def from_path(
        stream: _Stream, base: str | PathLike[str], settings: _Publish
    ) -> SyncPublisher: ...
    @staticmethod
    def from_tensors(stream: _Stream, base: _Tensors, settings: _Publish) -> SyncPublisher: ...
    @property
    def version(self) -> str: ...
    @property
    def stream_id(self) -> str: ...
    def start_from(self, version: str) -> None: ...
    def begin(self) -> None: ...
    def add(self, tensors: _Tensors, rank: int) -> None: ...
    def finish(self, name: str | None, full: bool) -> _Published: ...
    def publish_path(
        self, path: str | PathLike[str], name: str | None, full: bool
    ) -> _Published: ...

_Commit: TypeAlias = tuple[
    str,
    str,
    str | None,
    str | None,
    Sequence[str],
    Sequence[str],
    str | None,
    dict[str, str],
    Sequence[str],
    str,
    int,
]

@final
class Repository:
    @staticmethod
    def init(path: str | PathLike[str], remote: dict[str, str] | None) -> Repository: ...
    @staticmethod
    def open(path: str | PathLike[str], remote: dict[str, str] | None) -> Repository: ...
    def commit_path(
        self, path: str | PathLike[str], arguments: _Commit, progress: _Progress
    ) -> dict[str, Any]: ...
    def commit_tensors(
        self,
        name: str,
        tensors: _Tensors,
        attributes: dict[str, str],
        arguments: _Commit,
        progress: _Progress,
    ) -> dict[str, Any]: ...
    def resolve(self, name: str) -> str: ...
    def version(self, name: str) -> RepositoryVersion: ...
    def log(self, name: str, limit: int | None) -> list[dict[str, Any]]: ...
    def refs(self, tags: bool) -> dict[str, str]: ...
    def create_ref(self, tag: bool, name: str, at: str, force: bool) -> str: ...
    def delete_ref(self, tag: bool, name: str) -> None: ...
    def usage(self, name: str | None) -> dict[str, Any]: ...
    def gc(
        self,
        keep_last: int | None,
        keep_every: int | None,
        keep_within: float | None,
        grace: float | None,
        dry_run: bool,
        threads: int,
    ) -> dict[str, Any]: ...
    def fsck(
        self, full: bool, repair: bool, threads: int, progress: _Progress
    ) -> dict[str, Any]: ...
    def transfer(
        self, target: Repository, refs: Sequence[str], force: bool, progress: _Progress
    ) -> tuple[list[str], int, int, int]: ...

@final
class RepositoryVersion:
    @property
    def id(self) -> str: ...
    def commit(self) -> dict[str, Any]: ...
    def files(self) -> list[tuple[str, int, bool]]: ...
    def tensors(self) -> list[tuple[str, str, str, str, list[int], int, str, int, int]]: ...
    def reader(
        self, path: str, threads: int, max_component: int | None, max_total: int | None
    ) -> Reader: ...
    def read_file(self, path: str, start: int, end: int | None) -> bytes: ...
    def checkout(
        self,
        folder: str | PathLike[str],
        overwrite: bool,
        durable: bool,
        threads: int,
        progress: _Progress,
    ) -> tuple[int, int, int]: ...

@final
class Mapping: ...

@final
class NewFile:
    @staticmethod
    def create(
        path: str | PathLike[str],
        *,
        derived: bool = False,
        overwrite: bool = True,
        remote: dict[str, str] | None = None,
    ) -> NewFile: ...
    def temporary(self) -> tuple[int, str]: ...
    def write(self, data: _Array) -> None: ...
    def finish(self, durable: bool) -> None: ...
    def abort(self) -> None: ...

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
        max_total: int | None = None,
        remote: dict[str, str] | None = None,
        pickle: str = "warn",
    ) -> Reader: ...
    @staticmethod
    def from_bytes(
        data: bytes | bytearray,
        *,
        verify: bool = True,
        threads: int = 0,
        max_component: int | None = None,
        max_total: int | None = None,
        pickle: str = "warn",
    ) -> Reader: ...
    @property
    def unsafe_globals(self) -> list[str]: ...
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
        verify: bool = True,
    ) -> dict[str, Any]: ...
    def byte_len(self, names: Sequence[str] | None) -> int: ...
    def schemes(
        self,
    ) -> list[tuple[str, str, list[int], int, int, list[tuple[str, str]], int]]: ...
    def dequantize(self, name: str) -> _Array: ...
    def read_bytes(self, name: str, rows: tuple[int, int] | None = None) -> bytes: ...
    def read_rows(self, name: str, start: int, stop: int, pooled: bool = False) -> _Array: ...
    def read_into(
        self, requests: Sequence[tuple[str, object]], progress: _Progress = None
    ) -> None: ...
    def read_parts(
        self,
        requests: Sequence[tuple[str, int, Sequence[int], Sequence[int], Sequence[int], object]],
        progress: _Progress = None,
    ) -> None: ...
    def locate(self, name: str) -> list[tuple[str, str, int, int, str, int]]: ...
    def prefetch(self, names: Sequence[str] | None = None) -> int: ...
    def evict(self, names: Sequence[str] | None = None) -> int: ...
    def content_ids(
        self, stored: bool = False, progress: _Progress = None
    ) -> tuple[str, dict[str, str]]: ...
    def tensor_content_id(self, name: str) -> str: ...
    def verify(self, name: str) -> bool: ...
    def verify_all(self, progress: _Progress = None) -> tuple[int, int]: ...

@final
class Writer:
    @staticmethod
    def create(
        path: str | PathLike[str],
        *,
        durable: bool = False,
        derived: bool = False,
        remote: dict[str, str] | None = None,
        version: int = 1,
    ) -> Writer: ...
    @staticmethod
    def append(path: str | PathLike[str]) -> Writer: ...
    @staticmethod
    def memory() -> Writer: ...
    def set_attributes(self, attributes: dict[str, Any]) -> None: ...
    def __contains__(self, name: str, /) -> bool: ...
    def write(
        self,
        items: Sequence[_Item],
        compression: int | str | None,
        checksum: str,
        tie: bool = False,
        progress: _Progress = None,
    ) -> None: ...
    def stream_start(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        compression: int | str | None,
        checksum: str,
    ) -> None: ...
    def stream_write(self, data: _Bytes) -> int: ...
    def stream_finish(self) -> None: ...
    def tie(self, name: str, existing: str) -> None: ...
    def reorder(self, names: Sequence[str]) -> None: ...
    def finish(self) -> int: ...
    def finish_bytes(self) -> bytes: ...
    def abort(self) -> None: ...

"""Tensors of a checkpoint, copied to their places in new files by many at once."""

from __future__ import annotations

import errno
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from ztensor import _dtypes
from ztensor._errors import CorruptError
from ztensor._progress import reporting
from ztensor._types import Progress
from ztensor.distributed._checkpoint import Chunk
from ztensor.distributed._layout import Layout, Target
from ztensor.distributed._store import named, replacing, write_at
from ztensor.distributed._team import Team
from ztensor.distributed._tensors import Box, CheckpointTensors

_PIECE = 32 << 20
"""Copies are cut into pieces of this many bytes, which threads and ranks share."""
_BLOCK = 8 << 20
"""What cannot be copied as it lies is put together in blocks of about this many bytes."""

_Files = Sequence[tuple[Path, Layout, list[Target]]]


def place(
    team: Team,
    source: CheckpointTensors,
    files: _Files,
    threads: int,
    durable: bool,
    progress: Progress,
) -> None:
    """Copies every tensor to its place, in files that appear when all of it is there."""
    stack = ExitStack()

    def made() -> dict[Path, str] | None:
        return _made(stack, files, durable) if team.rank == 0 else None

    def copied(temporary: dict[Path, str]) -> None:
        jobs = [
            job
            for path, layout, targets in files
            # Files that are written from front to back are written faster.
            for target in sorted(targets, key=lambda one: layout.offsets[one.name])
            for job in _jobs(source, temporary[path], target, layout.offsets[target.name])
        ]
        mine = team.share(jobs, lambda job: job.nbytes)
        with reporting(progress, sum(job.nbytes for job in mine), "consolidating") as tell:
            _in_threads(partial(_run, source), mine, threads, tell)

    try:
        temporary = team.everyone(made)[0]
        team.each(lambda: copied(temporary or {}))
    except BaseException:
        stack.__exit__(*sys.exc_info())
        raise
    team.first(stack.close)


def _made(stack: ExitStack, files: _Files, durable: bool) -> dict[Path, str]:
    """Files with all but the tensors in them; closing the stack puts them under their names."""
    made = {}
    for path, layout, _ in files:
        new = stack.enter_context(replacing(path, durable))
        length = layout.end + len(layout.tail)
        os.ftruncate(new.descriptor, length)
        try:
            os.posix_fallocate(new.descriptor, 0, length)  # a full disk is noticed now
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        write_at(new.descriptor, layout.head, 0)
        write_at(new.descriptor, layout.tail, layout.end)
        made[path] = new.path
    return made


class _Verify(NamedTuple):
    """A chunk whose checksum is compared."""

    chunk: Chunk
    nbytes: int = 0


class _Copy(NamedTuple):
    """Bytes that lie in a file as they lie in a rank file."""

    file: str
    source: str
    """The rank file."""
    start: int
    """In the rank file."""
    offset: int
    """In the new file."""
    nbytes: int


class _Block(NamedTuple):
    """Rows of a tensor, or a scalar, that are put together in memory."""

    file: str
    target: Target
    first: int
    rows: int
    offset: int
    nbytes: int


_Job = _Verify | _Copy | _Block


def _jobs(source: CheckpointTensors, file: str, target: Target, offset: int) -> Iterator[_Job]:
    """What has to be done for a tensor."""
    shape, nbytes = target.entry.shape, target.nbytes
    if not nbytes:
        return
    row = nbytes // shape[0] if shape else nbytes
    as_it_lies, by_rows = True, True
    stored = []
    for chunk in target.entry.chunks:
        if not math.prod(chunk.sizes):
            continue
        data, path = _data(source, target, chunk), source.files.path(chunk.file)
        raw, local = data["encoding"] == "raw", path is not None
        as_it_lies = as_it_lies and raw and local and chunk.sizes[1:] == shape[1:]
        # What is read whole is checked on the way; from a store, everything is.
        by_rows = by_rows and data["encoding"] in ("raw", "z4ai") and local
        stored.append((chunk, data, path or ""))
    for chunk, data, path in stored:
        if by_rows and data["encoding"] == "raw" and data["digest"]:
            yield _Verify(chunk)
        if as_it_lies:
            to = offset + (chunk.offsets[0] * row if shape else 0)
            for skip in range(0, data["length"], _PIECE):
                some = min(_PIECE, data["length"] - skip)
                yield _Copy(file, path, data["offset"] + skip, to + skip, some)
    if as_it_lies:
        return
    count = shape[0] if shape else 1
    rows = max(_BLOCK // row, 1) if by_rows else count
    for first in range(0, count, rows):
        some = min(rows, count - first)
        yield _Block(file, target, first, some, offset + first * row, some * row)


_used = threading.local()


def _memory(count: int) -> torch.Tensor:
    """Some bytes that this thread has used before: memory that is new costs more than the work."""
    memory: torch.Tensor | None = getattr(_used, "memory", None)
    if memory is None or len(memory) < count:
        memory = _used.memory = torch.empty(max(count, _BLOCK), dtype=torch.uint8)
    return memory[:count]


def _data(source: CheckpointTensors, target: Target, chunk: Chunk) -> dict[str, Any]:
    """What a rank file says about a chunk, which must be what the checkpoint says."""
    found = source.files.reader(chunk.file).metadata(chunk.object)
    data = found.components.get("data", {})
    element = target.entry.element
    expected = math.prod(chunk.sizes) * _dtypes.torch_dtype(element).itemsize
    if _dtypes.described(found.dtype, found.type) != element or data.get("length") != expected:
        raise CorruptError(f"{chunk.object!r} is not the part of {target.source!r} it should be")
    return data


def _run(source: CheckpointTensors, job: _Job) -> None:
    if isinstance(job, _Verify):
        source.files.reader(job.chunk.file).verify(job.chunk.object)
        return
    with _open(job.file, os.O_WRONLY) as out:
        if isinstance(job, _Copy):
            with _open(job.source, os.O_RDONLY) as file:
                _copy(file, out, job.start, job.offset, job.nbytes)
            return
        entry = job.target.entry
        shape = (job.rows, *entry.shape[1:]) if entry.shape else ()
        rows = _memory(job.nbytes).view(_dtypes.torch_dtype(entry.element)).reshape(shape)
        start = (job.first, *(0 for _ in entry.shape[1:])) if entry.shape else ()
        source.read([Box(job.target.source, start, rows)])
        write_at(out, rows.reshape(-1).view(torch.uint8).numpy().data, job.offset)


@contextmanager
def _open(path: str, flags: int) -> Iterator[int]:
    with named(Path(path)):
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _copy(file: int, out: int, start: int, offset: int, count: int) -> None:
    """Copies bytes between files, inside the system where it can."""
    while count:
        try:
            copied = os.copy_file_range(file, out, count, start, offset)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            data = os.pread(file, min(count, 1 << 20), start)
            write_at(out, data, offset)
            copied = len(data)
        if not copied:
            raise CorruptError("a rank file ends before its tensors do: it was truncated")
        start, offset, count = start + copied, offset + copied, count - copied


class _Queue:
    """Jobs for several threads. The system lets one at a time write to a file, so one thread
    copies to each while the others check and decode, as long as there is anything of that kind."""

    def __init__(self, jobs: Sequence[_Job]) -> None:
        self._lock = threading.Lock()
        self._copies: dict[str, deque[_Copy]] = {}
        self._others: deque[_Job] = deque()
        self._busy: set[str] = set()
        for job in jobs:
            if isinstance(job, _Copy):
                self._copies.setdefault(job.file, deque()).append(job)
            else:
                self._others.append(job)

    def take(self, done: _Job | None) -> _Job | None:
        """The next job for a thread that has done one."""
        with self._lock:
            if isinstance(done, _Copy):
                self._busy.discard(done.file)
            for file, copies in self._copies.items():
                if copies and file not in self._busy:
                    self._busy.add(file)
                    return copies.popleft()
            if self._others:
                return self._others.popleft()
            return next((copies.popleft() for copies in self._copies.values() if copies), None)

    def clear(self) -> None:
        """Leaves nothing to do, as something has failed."""
        with self._lock:
            self._copies.clear()
            self._others.clear()


def _in_threads(
    work: Callable[[_Job], None],
    jobs: Sequence[_Job],
    threads: int,
    tell: Callable[[int], object] | None,
) -> None:
    queue = _Queue(jobs)
    told: SimpleQueue[int | None] = SimpleQueue()

    def thread() -> None:
        try:
            job = queue.take(None)
            while job is not None:
                work(job)
                told.put(job.nbytes)
                job = queue.take(job)
        except BaseException:
            queue.clear()
            raise
        finally:
            told.put(None)

    count = min(threads or len(os.sched_getaffinity(0)), max(len(jobs), 1))
    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(thread) for _ in range(count)]
        try:
            while count:
                done = told.get()
                if done is None:
                    count -= 1
                elif tell is not None:
                    tell(done)
        finally:
            queue.clear()
    for one in running:
        one.result()

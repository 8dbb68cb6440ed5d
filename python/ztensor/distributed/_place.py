"""Tensors of a checkpoint, copied to their places in new files by many at once."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ztensor import _dtypes, _native
from ztensor._errors import CorruptError
from ztensor._progress import reporting
from ztensor._types import Progress
from ztensor.distributed._layout import Layout, Target
from ztensor.distributed._store import replacing, write_at
from ztensor.distributed._team import Team
from ztensor.distributed._tensors import CheckpointTensors

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
        jobs = [(path, layout, target) for path, layout, targets in files for target in targets]
        mine = team.share(jobs, lambda job: job[2].nbytes)
        total = sum(target.nbytes for _, _, target in mine)
        with reporting(progress, total, "consolidating") as tell:
            tensors = [
                _tensor(source, temporary[path], layout.offsets[target.name], target)
                for path, layout, target in mine
            ]
            _native.assemble(tensors, threads, tell)

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


_Chunk = tuple[_native.Reader, str, tuple[int, ...], tuple[int, ...]]


def _tensor(
    source: CheckpointTensors, file: str, offset: int, target: Target
) -> tuple[str, int, int, tuple[int, ...], list[_Chunk]]:
    """Where the bytes of a tensor belong, and what they are put together from."""
    entry = target.entry
    chunks: list[_Chunk] = []
    for chunk in entry.chunks:
        reader = source.files.reader(chunk.file)
        found = reader.metadata(chunk.object)
        if _dtypes.described(found.dtype, found.type) != entry.element:
            message = f"{chunk.object!r} is not the part of {target.source!r} it should be"
            raise CorruptError(message)
        chunks.append((reader._native, chunk.object, chunk.offsets, chunk.sizes))
    item = _dtypes.torch_dtype(entry.element).itemsize
    return file, offset, item, entry.shape, chunks

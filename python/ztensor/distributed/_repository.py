"""Distributed checkpoints in a :class:`ztensor.Repository`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from ztensor._types import Path
from ztensor.distributed._reader import ZTensorReader
from ztensor.distributed._writer import ZTensorWriter
from ztensor.repository import Committed, Repository


class RepositoryWriter(ZTensorWriter):
    """Saves distributed checkpoints as versions of a repository.

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from ztensor.distributed import RepositoryReader, RepositoryWriter
    >>> state = {"weight": torch.arange(600.0).reshape(20, 30), "step": 7}
    >>> writer = RepositoryWriter("run", "staging", "step 7")
    >>> _ = dcp.save(state, storage_writer=writer, no_dist=True)
    >>> loaded = {"weight": torch.zeros(20, 30), "step": 0}
    >>> reader = RepositoryReader("run", "main", "restored")
    >>> dcp.load(loaded, storage_reader=reader, no_dist=True)
    >>> loaded["weight"].equal(state["weight"]), loaded["step"]
    (True, 7)

    All ranks write their files at the same time into the folder ``staging``, which they share; when
    all are done, the coordinator commits it and removes it. Tensors that are as in the version
    before are not stored again, changed ones as differences. ``committed`` is what the coordinator
    did. A repository that does not exist is made by it.
    """

    def __init__(
        self,
        repository: Repository | Path,
        staging: str | os.PathLike[str],
        message: str = "",
        *,
        branch: str = "main",
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
    ) -> None:
        # Plain files: what is compressed already has no differences.
        super().__init__(staging, durable=False, allow_pickle=allow_pickle)
        self._repository = repository
        self._staging = os.fspath(staging)
        self._commit = {"branch": branch, "tag": tag, "metadata": metadata}
        self._message = message
        self.committed: Committed | None = None

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits the save: called on the coordinator when all ranks have written."""
        super().finish(metadata, results)
        repository = self._repository
        if not isinstance(repository, Repository):
            repository = Repository(repository, create=True)
        self.committed = repository.commit(self._staging, self._message, **self._commit)  # type: ignore[arg-type]
        # The folder may have been there before, with files of its own.
        for name in os.listdir(self._staging):
            if name == "checkpoint.json" or name.endswith(".zt"):
                os.unlink(os.path.join(self._staging, name))
        if not os.listdir(self._staging):
            os.rmdir(self._staging)


class RepositoryReader(ZTensorReader):
    """Loads a distributed checkpoint from a version of a repository, with any number of ranks.

    The version is restored into ``folder`` by the first rank of each machine that comes, and read
    there by all; remove the folder afterwards, or give it again for the same version. See
    :class:`RepositoryWriter` for an example.
    """

    def __init__(
        self,
        repository: Repository | Path,
        ref: str,
        folder: str | os.PathLike[str],
        *,
        allow_pickle: bool = False,
    ) -> None:
        if not isinstance(repository, Repository):
            repository = Repository(repository)
        folder = os.fspath(folder)
        version = repository.version(ref)
        where = os.path.join(folder, version.id)
        if not os.path.isdir(where):
            os.makedirs(folder, exist_ok=True)
            try:
                version.checkout(where)
            except OSError:
                # It appears when it is complete: another rank may have been faster.
                if not os.path.isdir(where):
                    raise
        super().__init__(where, allow_pickle=allow_pickle)

"""Checkpoints of many machines, for ``torch.distributed.checkpoint``.

:class:`ZTensorWriter` and :class:`ZTensorReader` go where torch takes a storage writer or reader:
``dcp.save``, ``dcp.load``, ``dcp.async_save``. :func:`consolidate` makes files of a checkpoint that
everybody reads, :func:`distribute` a checkpoint of such files. :func:`load_tensor_parallel` and
:func:`read_shard` read a rank's part of any of them. :class:`RepositoryWriter` and
:class:`RepositoryReader` keep checkpoints as versions of a repository.
"""

from __future__ import annotations

from ztensor.distributed._consolidate import consolidate
from ztensor.distributed._distribute import distribute
from ztensor.distributed._incremental import prune, rebase
from ztensor.distributed._parallel import load_tensor_parallel, read_shard, shard_range
from ztensor.distributed._reader import ZTensorReader
from ztensor.distributed._repository import RepositoryReader, RepositoryWriter
from ztensor.distributed._writer import ZTensorWriter

__all__ = [
    "RepositoryReader",
    "RepositoryWriter",
    "ZTensorReader",
    "ZTensorWriter",
    "consolidate",
    "distribute",
    "load_tensor_parallel",
    "prune",
    "read_shard",
    "rebase",
    "shard_range",
]

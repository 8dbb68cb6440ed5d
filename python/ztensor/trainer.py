"""A callback for Hugging Face's ``Trainer`` that commits its checkpoints to a repository.

>>> from ztensor.trainer import RepositoryCallback
>>> callback = RepositoryCallback("runs", branch="run-7")  # trainer.add_callback(callback)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ztensor._types import Path, StorageOptions
from ztensor.repository import Committed, Effort, Repository

if TYPE_CHECKING:

    class TrainerCallback:
        """What transformers calls."""

else:
    try:
        from transformers import TrainerCallback
    except ImportError:  # the class is of use without it, for trainers with the same hooks
        TrainerCallback = object

__all__ = ["RepositoryCallback"]


class RepositoryCallback(TrainerCallback):
    """Commits each checkpoint that a ``Trainer`` saves, from the process that saved it.

    The folder of a checkpoint is committed as it is, with optimizer and scheduler states unless
    ``weights_only``; step, epoch and the latest metrics become the commit's metadata. A repository
    that does not exist is made. ``commits`` lists what was committed.
    """

    def __init__(
        self,
        repository: Repository | Path,
        *,
        branch: str = "main",
        bases: Iterable[str] = (),
        weights_only: bool = False,
        effort: Effort = "default",
        threads: int = 0,
        storage_options: StorageOptions = None,
    ) -> None:
        if not isinstance(repository, Repository):
            repository = Repository(repository, create=True, storage_options=storage_options)
        self.repository = repository
        self.commits: list[Committed] = []
        self._branch = branch
        self._bases = list(bases)
        self._weights_only = weights_only
        self._effort: Effort = effort
        self._threads = threads

    def on_save(self, args: Any, state: Any, control: Any, **options: Any) -> None:
        """Called after a checkpoint was saved."""
        if not getattr(state, "is_world_process_zero", True):
            return
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if not os.path.isdir(folder):
            return
        metadata: dict[str, Any] = {"step": state.global_step, "epoch": state.epoch}
        for entry in reversed(getattr(state, "log_history", None) or []):
            metadata.update({key: value for key, value in entry.items() if key not in metadata})
            break
        done = self.repository.commit(
            folder,
            f"step {state.global_step}",
            branch=self._branch,
            bases=self._bases,
            metadata=metadata,
            exclude=_STATES if self._weights_only else (),
            effort=self._effort,
            threads=self._threads,
        )
        self.commits.append(done)


_STATES = ("optimizer.*", "scheduler.*", "scaler.*", "rng_state*", "global_step*/*")
"""Files of a checkpoint that only resuming needs."""

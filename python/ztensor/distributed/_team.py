"""Ranks that work together, or one process alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from ztensor._errors import ZTensorError

T = TypeVar("T")


class Team:
    """The ranks of a process group, or this process alone."""

    def __init__(self, process_group: Any = None, no_dist: bool = False) -> None:
        self._alone = no_dist or not (dist.is_available() and dist.is_initialized())
        self._group = process_group
        self.rank = 0 if self._alone else dist.get_rank(process_group)
        self.size = 1 if self._alone else dist.get_world_size(process_group)

    def each(self, work: Callable[[], T]) -> T:
        """What this rank finds, when all have found theirs. If one fails, all do."""
        return self._joined(work, keep=False)[0]

    def everyone(self, work: Callable[[], T]) -> list[T]:
        """What all ranks find, on all of them. If one fails, all do."""
        return self._joined(work, keep=True)

    def first(self, work: Callable[[], None]) -> None:
        """Has rank 0 do something that all wait for."""
        self.each(lambda: work() if self.rank == 0 else None)

    def _joined(self, work: Callable[[], T], keep: bool) -> list[T]:
        if self._alone:
            return [work()]
        failure: Exception | None = None
        mine: T | None = None
        try:
            mine = work()
        except Exception as error:
            failure = error
        told = mine if keep and failure is None else failure and f"rank {self.rank}: {failure}"
        answers: list[Any] = [None] * self.size
        dist.all_gather_object(answers, (failure is None, told), group=self._group)
        if failure is not None:
            raise failure
        failures = [answer for fine, answer in answers if not fine]
        if failures:
            raise ZTensorError("; ".join(failures))
        return [answer for _, answer in answers] if keep else [mine]  # type: ignore[list-item]

    def share(self, jobs: Sequence[T], weight: Callable[[T], int]) -> list[T]:
        """This rank's part of jobs: neighbours, of about as much weight as the others'."""
        total = sum(map(weight, jobs))
        mine, before = [], 0
        for job in jobs:
            middle = before + weight(job) / 2
            if min(math.floor(middle * self.size / max(total, 1)), self.size - 1) == self.rank:
                mine.append(job)
            before += weight(job)
        return mine

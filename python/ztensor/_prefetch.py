"""Tensors that are read in the background before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from ztensor._closing import Closing
from ztensor._errors import InvalidArgumentError, NotFoundError


class PrefetchLoader(Closing):
    """The tensors of a file while they are being loaded, as ``safe_open.prefetch`` returns it.

    Each is handed out once: by :meth:`take`, which waits for it, or by iterating, in the order of
    arrival. :meth:`close` ends the work and lets go of what was not taken.
    """

    def __init__(self, names: list[str], read: Callable[[str], Any], threads: int) -> None:
        self._names = names
        self._read: Callable[[str], Any] | None = read
        self._waiting = list(reversed(names))
        self._ready: dict[str, Any] = {}
        self._failed: dict[str, BaseException] = {}
        self._left = set(names)
        self._changed = threading.Condition()
        # Daemons: a program that ends does not wait for what it did not take.
        for _ in range(max(1, min(threads, len(names)))):
            threading.Thread(target=self._work, args=(read,), daemon=True).start()

    def _work(self, read: Callable[[str], Any]) -> None:
        while True:
            with self._changed:
                if self._read is None or not self._waiting:
                    return
                name = self._waiting.pop()
            try:
                tensor, failure = read(name), None
            except BaseException as error:
                tensor, failure = None, error
            with self._changed:
                if self._read is not None and failure is None:
                    self._ready[name] = tensor
                elif self._read is not None and failure is not None:
                    self._failed[name] = failure
                self._changed.notify_all()
            del tensor

    def names(self) -> list[str]:
        """The names that are loaded, in the order of their data in the file."""
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def take(self, name: str) -> Any:
        """A tensor, once: waits until it is loaded."""
        with self._changed:
            while True:
                self._check_open()
                if name not in self._left:
                    if name in self._names:
                        raise InvalidArgumentError(f"tensor {name!r} was already delivered")
                    raise NotFoundError(f"tensor {name!r} is not in the prefetch plan")
                if name in self._ready or name in self._failed:
                    return self._hand_out(name)
                self._changed.wait()

    def _hand_out(self, name: str) -> Any:
        self._left.discard(name)
        self._changed.notify_all()  # another thread may wait for the same
        if name in self._failed:
            raise self._failed.pop(name)
        return self._ready.pop(name)

    def _check_open(self) -> None:
        if self._read is None:
            raise InvalidArgumentError("the prefetch loader is closed")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while True:
            with self._changed:
                self._check_open()
                while self._left and not (self._ready or self._failed):
                    self._changed.wait()
                    self._check_open()
                if not self._left:
                    return
                name = next(iter(self._ready or self._failed))
                tensor = self._hand_out(name)
            yield name, tensor
            del tensor

    def close(self) -> None:
        """Ends the work; tensors that were handed out stay valid."""
        with self._changed:
            self._read = None
            self._waiting.clear()
            self._ready.clear()
            self._failed.clear()
            self._changed.notify_all()

    def __repr__(self) -> str:
        state = "closed" if self._read is None else f"{len(self._left)} left"
        return f"<ztensor.PrefetchLoader of {len(self)} tensors: {state}>"

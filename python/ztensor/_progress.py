"""Progress of long calls: a bar, or a function of the caller's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ztensor._errors import InvalidArgumentError

if TYPE_CHECKING:
    from ztensor._types import Progress


@contextmanager
def reporting(
    progress: Progress, total: int, label: str
) -> Iterator[Callable[[int], object] | None]:
    """A function to tell how many more bytes are done, or ``None`` if nobody listens."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            yield _Plain(total, label).update
            print(file=sys.stderr)
            return
        with tqdm(total=total, desc=label, unit="B", unit_scale=True) as bar:
            yield bar.update
    elif callable(progress):
        done = 0

        def tell(more: int) -> None:
            nonlocal done
            done += more
            progress(done, total)

        yield tell
    else:
        raise InvalidArgumentError(
            "progress is True, False or a function of (bytes done, bytes in all)"
        )


class _Plain:
    """Percentages on standard error, where there is no tqdm."""

    def __init__(self, total: int, label: str) -> None:
        self.done, self.total, self.label = 0, max(total, 1), label

    def update(self, more: int) -> None:
        self.done += more
        percent = 100 * self.done // self.total
        print(f"\r{self.label}: {percent:3} %", end="", file=sys.stderr, flush=True)

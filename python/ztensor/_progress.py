"""Progress of long calls: a bar, or a function of the caller's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ztensor._errors import InvalidArgumentError
from ztensor._types import Progress


@contextmanager
def reporting(
    progress: Progress, total: int, label: str
) -> Iterator[Callable[[int], object] | None]:
    """A function to tell how many more bytes are done, or ``None`` without a listener.

    What needed no work, such as a view or a tied tensor, is reported at the end.
    """
    if progress is None or progress is False:
        yield None
        return
    if progress is True:
        show, close = _bar(total, label)
    elif callable(progress):
        show, close = progress, lambda: None
    else:
        raise InvalidArgumentError(
            "progress is True, False or a function of (bytes done, bytes in total)"
        )
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        show(min(done, total), total)

    try:
        yield tell
        if done < total:
            tell(total - done)
    finally:
        close()


def _bar(total: int, label: str) -> tuple[Callable[[int, int], object], Callable[[], object]]:
    """Ways to show progress and to end it: tqdm's, or percentages where there is no tqdm."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return lambda done, of: _print(f"\r{label}: {100 * done // max(of, 1):3} %"), (
            lambda: _print("\n")
        )
    bar = tqdm(total=total, desc=label, unit="B", unit_scale=True)
    return lambda done, of: bar.update(done - bar.n), bar.close


def _print(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)

"""The ``z4ai`` command line: ``z4ai`` or ``python -m z4ai``."""

from __future__ import annotations

import signal
import sys

from ztensor._native import z4ai_main


def main() -> int:
    """Run the command line with the process's arguments; returns the exit code."""
    # Ctrl-C is for the program, not for an exception that waits until it is done.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return z4ai_main(["z4ai", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

"""Prints every error message that a run of the tests met, each once, for reading.

The tests append messages to the file that ``ZTENSOR_MESSAGES`` names; ``make messages`` runs them
and then this. Paths and numbers that differ from run to run are replaced, so that two lists can be
compared.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPLACED = [
    (re.compile(r"(/[\w.+-]+)+/(?=[\w.+<(-])"), ""),  # folders
    (re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{16,}\b"), "HEX"),
    (re.compile(r"\b\d[\d,]+\b"), "N"),
]


def plain(message: str) -> str:
    for pattern, replacement in REPLACED:
        message = pattern.sub(replacement, message)
    return message.strip()


def main() -> None:
    lines = Path(sys.argv[1]).read_text(errors="replace").splitlines()
    messages = sorted({plain(line) for line in lines} - {""}, key=str.lower)
    print("\n".join(messages))
    print(f"\n{len(messages)} messages", file=sys.stderr)


if __name__ == "__main__":
    main()

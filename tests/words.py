"""Rejects phrases that an expert cannot search for: say it in the field's terms.

Run by ``make lint`` over sources and documentation.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

VAGUE = re.compile(
    r"\b(so many|whoever|nobody|past (the )?caches?|on its way|what is known|is no more so"
    r"|stands? (beside|again|elsewhere)|as many as (they|it) likes?|from strangers)\b",
    re.IGNORECASE,
)


def main() -> int:
    root = Path(__file__).parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "*.rs", "*.py", "*.md"], cwd=root, capture_output=True, text=True
    )
    if listed.returncode:
        print("words: not a git checkout, nothing to check")
        return 0
    found = 0
    for name in listed.stdout.split():
        path = root / name
        if path == Path(__file__).resolve() or not path.exists():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for match in VAGUE.finditer(line):
                print(f"{name}:{number}: {match[0]!r}: use the field's term")
                found += 1
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())

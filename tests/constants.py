"""Every numeric constant of the codec and of the I/O paths says where it comes from.

Run by ``make lint``. The tags are explained in CONTRIBUTING.md; constants that follow each other
without a comment between share the one above. ``--count`` counts each tag.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Element and coder ids are bytes, and not looked at.
CONSTANT = re.compile(
    r"\s*(?:pub(?:\([a-z]+\))? )?const ([A-Z][A-Z_0-9]*): "
    r"(?:usize|u16|u32|u64|i32|i64|Range<u64>) = "
)
TAG = re.compile(r"\((case|flat|format|structural|limit|unmeasured)\b")
CODEC = ("coder", "delta", "estimate", "frame", "layout", "search", "memory.rs")
LIBRARY = ("base", "decode", "read", "remote", "source", "write")
FOLDERS = [f"crates/z4ai/src/{name}" for name in CODEC]
FOLDERS += [f"crates/ztensor/src/{name}" for name in LIBRARY]


def constants(path: Path) -> list[tuple[int, str, str | None]]:
    """Line, name and tag of each constant before the tests."""
    found: list[tuple[int, str, str | None]] = []
    comment = previous = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if text == "#[cfg(test)]":
            break
        if text.startswith("///"):
            comment = f"{comment} {text}" if previous.startswith("///") else text
        elif match := CONSTANT.match(line):
            tag = TAG.search(comment)
            found.append((number, match[1], tag[1] if tag else None))
        elif text and not text.startswith(("#[", "const _")):
            comment = ""
        previous = text
    return found


def main() -> int:
    counts: Counter[str] = Counter()
    untagged = 0
    for folder in FOLDERS:
        path = ROOT / folder
        for file in [path] if path.is_file() else sorted(path.rglob("*.rs")):
            for number, name, tag in constants(file):
                counts[tag or "none"] += 1
                if tag is None:
                    place = f"{file.relative_to(ROOT)}:{number}"
                    print(f"{place}: {name} does not say where it comes from")
                    untagged += 1
    if "--count" in sys.argv:
        print(", ".join(f"{tag} {count}" for tag, count in counts.most_common()))
    return min(untagged, 1)


if __name__ == "__main__":
    sys.exit(main())

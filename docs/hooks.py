"""Site hooks: Rust examples without rustdoc's hidden lines, links to files outside `docs/`."""

from __future__ import annotations

import re
from typing import Any

_RUST = re.compile(r"^```rust.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_HIDDEN = re.compile(r"^# .*\n|^#\n", re.MULTILINE)
_OUTSIDE = re.compile(r"\]\((?:\.\./)+(CHANGELOG\.md|CONTRIBUTING\.md|README\.md|crates/[^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Hides what rustdoc hides, and turns links out of the site into plain text."""
    markdown = _RUST.sub(lambda block: "```rust\n" + _HIDDEN.sub("", block[1]) + "```", markdown)
    return _OUTSIDE.sub("]", markdown)

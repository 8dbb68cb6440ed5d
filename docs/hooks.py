"""Site hooks: links to files outside `docs/`, and to the pages of rustdoc."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:CHANGELOG\.md|CONTRIBUTING\.md|README\.md|crates/[^)]*)(?:#[^)]*)?\)"
)


_RUSTDOC = "`cargo doc --open -p ztensor` builds the reference."
_RUSTDOC_LINKS = (
    'The reference: <a href="rustdoc/ztensor/index.html">ztensor</a>, '
    '<a href="rustdoc/z4ai/index.html">z4ai</a>.'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turns links out of the site into plain text, and names the pages of rustdoc.

    `make docs` puts those into the site after it is built.
    """
    return _OUTSIDE.sub(r"\1", markdown).replace(_RUSTDOC, _RUSTDOC_LINKS)

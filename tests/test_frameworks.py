"""JAX, TensorFlow, MLX and Paddle: the real packages, each in an environment of its own.

Not part of the default run (``make test-frameworks``): the environments take some gigabytes. They
are made once, in the cache folder, and a framework that cannot be installed is skipped by name.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CACHE
from test_upstream_safetensors import BYTES, check, run_upstream

import ztensor

pytestmark = pytest.mark.frameworks

PACKAGES = {
    "jax": ["jax==0.10.2", "flax==0.12.8"],
    "mlx": ["mlx[cpu]==0.32.4"],
    "paddle": ["paddlepaddle==3.3.1", "setuptools"],
    "tensorflow": ["tensorflow-cpu==2.21.0", "h5py"],
}
UPSTREAM = {
    "jax": "test_flax_comparison.py",
    "mlx": "test_mlx_comparison.py",
    "paddle": "test_paddle_comparison.py",
    "tensorflow": "test_tf_comparison.py",
}
DIFFERENT: dict[str, dict[str, str]] = {
    "jax": {},
    "mlx": {},
    "tensorflow": {},
    "paddle": {
        "test_paddle_comparison.SaveLoadCase.test_in_memory": BYTES,
        # Not skipped where there is none, and no framework has it here.
        "test_paddle_comparison.WithOpenCase.test_paddle_slice_gpu": "needs CUDA",
        "test_paddle_comparison.WithOpenCase.test_paddle_tensor_gpu": "needs CUDA",
    },
}


@functools.cache
def environment(framework: str) -> Path | str:
    """The interpreter of an environment with a framework, or why there is none."""
    folder = CACHE / "frameworks" / framework
    python = folder / "bin" / "python"
    wanted = " ".join(["numpy", "ml_dtypes", "pytest", *PACKAGES[framework]])
    done = folder / ".complete"
    if done.exists() and done.read_text() == wanted:
        return python
    uv = Path(sys.executable).parent / "uv"
    for command in (
        [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [str(uv), "pip", "install", "--quiet", "--python", str(python), *wanted.split()],
    ):
        try:
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"cannot install {framework}: {error}"
        if outcome.returncode:
            return f"cannot install {framework}: {outcome.stderr.strip()[-200:]}"
    done.write_text(wanted)
    return python


def interpreter(framework: str) -> Path:
    found = environment(framework)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def only_ours(folder: Path) -> Path:
    """A folder to import our packages from, and nothing else of this environment."""
    path = folder / "ours"
    path.mkdir()
    packages = Path(ztensor.__file__).parent.parent
    for name in ("ztensor", "z4ai"):
        (path / name).symlink_to(packages / name)
    return path


@pytest.mark.parametrize("framework", PACKAGES)
def test_a_framework_loads_and_saves(framework: str, tmp_path: Path) -> None:
    python = interpreter(framework)
    script = Path(__file__).with_name("framework_script.py")
    outcome = subprocess.run(
        [str(python), str(script), framework],
        env={**os.environ, "PYTHONPATH": str(only_ours(tmp_path))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0 and "fine" in outcome.stdout, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("framework", PACKAGES)
def test_the_tests_of_safetensors(framework: str, tmp_path: Path) -> None:
    python = interpreter(framework)
    path = [only_ours(tmp_path)]
    found = run_upstream(tmp_path, [UPSTREAM[framework]], str(python), path)
    assert found
    check(found, DIFFERENT[framework])

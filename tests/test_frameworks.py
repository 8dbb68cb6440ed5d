"""JAX, TensorFlow, MLX and Paddle: the real packages, each in an environment of its own.

Not part of the default run (``make test-frameworks``): the environments take some gigabytes. They
are made once, in the cache folder, and a framework that cannot be installed is skipped by name.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import environments
import pytest
from environments import only_ours
from test_upstream_safetensors import BYTES, check, run_upstream

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


def interpreter(framework: str) -> Path:
    return environments.interpreter(
        f"frameworks/{framework}", "numpy", "ml_dtypes", "pytest", *PACKAGES[framework]
    )


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

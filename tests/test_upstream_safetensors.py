"""The Python tests of safetensors, with our modules in the place of its own.

The source distribution of the pinned release is fetched from the package index once, a package
called ``safetensors`` that leads to ``ztensor`` is put before the real one, and the tests run as
they are. Those that fail are listed here, each with its reason; one that passes must not be.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from conftest import CACHE

RELEASE = "0.9.0rc1"

BYTES = "save() returns the bytes of a .zt file; format='safetensors' gives those of safetensors"
LIFTED = "a refusal that is lifted"
WORDS = "the same exception with a message of our own"

DIFFERENT = {
    "test_simple.TestCase.test_serialization": BYTES,
    "test_simple.TestCase.test_serialization_forces_alignment": BYTES,
    "test_simple.TestCase.test_serialization_metadata": BYTES,
    "test_simple.TestCase.test_serialization_no_big_endian": BYTES,
    "test_simple.TestCase.test_serialization_order_invariant": BYTES,
    "test_simple.ReadmeTestCase.test_numpy_slice": f"{LIFTED}: lists, and stops beyond the end",
    "test_pt_comparison.TorchTestCase.test_serialization": BYTES,
    "test_pt_comparison.TorchTestCase.test_complex": BYTES,
    "test_pt_comparison.TorchTestCase.test_in_memory": BYTES,
    "test_pt_comparison.TorchTestCase.test_bogus": WORDS,
    "test_pt_comparison.TorchTestCase.test_sparse": WORDS,
    "test_pt_comparison.TorchTestCase.test_meta_tensor": "a ValueError that names the tensor",
    "test_pt_comparison.SliceTestCase.test_cannot_serialize_a_non_contiguous_tensor": LIFTED,
    "test_pread_backend.PreadBackendTests.test_prefetch_works_from_any_backend": LIFTED,
    "test_pread_backend.PreadBackendTests.test_prefetch_requires_pt": LIFTED,
    "test_pread_backend.PreadBackendTests.test_prefetch_requires_cuda": LIFTED,
    "test_pread_backend.PreadBackendTests.test_prefetch_device_overrides_the_handle": LIFTED,
}

MODULES = {
    "__init__": """
from ztensor import *
from ztensor import _safe_open_handle
""",
    "torch": "from ztensor.torch import *\n",
    "numpy": "from ztensor.numpy import *\n",
    "flax": "from ztensor.flax import *\n",
    "tensorflow": "from ztensor.tensorflow import *\n",
    "mlx": "from ztensor.mlx import *\n",
    "paddle": "from ztensor.paddle import *\n",
}


@functools.cache
def upstream() -> Path | str:
    """The folder with safetensors' tests, or why there is none."""
    folder = CACHE / f"safetensors-{RELEASE}-sdist"
    if not (folder / ".complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--no-binary", "safetensors", "--dest", str(folder)]
        # pip asks the build backend for the package's metadata: maturin, beside this interpreter.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        try:
            outcome = subprocess.run(
                [*command, f"safetensors=={RELEASE}"],
                capture_output=True,
                text=True,
                timeout=300,
                env={**os.environ, "PATH": path},
            )
        except subprocess.TimeoutExpired:
            return f"downloading safetensors {RELEASE} took longer than five minutes"
        archives = list(folder.glob("*.tar.gz"))
        if outcome.returncode or not archives:
            return f"cannot download safetensors {RELEASE}: {outcome.stderr.strip()[-200:]}"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder, filter="data")
        (folder / ".complete").touch()
    return folder / f"safetensors-{RELEASE}" / "bindings" / "python" / "tests"


def redirected(folder: Path) -> Path:
    """A folder with a package called safetensors that is ours."""
    package = folder / "redirected" / "safetensors"
    package.mkdir(parents=True)
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(text)
    return package.parent


def run_upstream(
    folder: Path, names: list[str], python: str = sys.executable, path: list[Path] | None = None
) -> dict[str, str]:
    """What became of every test of some files: ``passed``, ``skipped``, or what failed."""
    tests = upstream()
    if isinstance(tests, str):
        pytest.skip(tests)
    (folder / "tests" / "data").mkdir(parents=True)
    for name in names:
        (folder / "tests" / name).write_text((tests / name).read_text())
    report = folder / "report.xml"
    search = [redirected(folder), *(path or []), *os.environ.get("PYTHONPATH", "").split(":")]
    outcome = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "tests"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, search)))},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert outcome.returncode in (0, 1), outcome.stdout + outcome.stderr
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name')}".removeprefix("tests.")
        failed = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failed is not None:
            found[name] = f"{failed.get('message')}\n{failed.text}"
        else:
            found[name] = "passed" if case.find("skipped") is None else "skipped"
    return found


def check(found: dict[str, str], different: dict[str, str]) -> None:
    failures = {
        name: outcome for name, outcome in found.items() if outcome not in ("passed", "skipped")
    }
    unexpected = {name: text for name, text in failures.items() if name not in different}
    assert not unexpected, "\n\n".join(f"{name}\n{text}" for name, text in unexpected.items())
    listed = {name for name in different if name not in failures}
    assert not listed, f"these are listed as different, and are not: {sorted(listed)}"


def test_safetensors_own_tests_pass(tmp_path: Path) -> None:
    names = ["test_simple.py", "test_pt_comparison.py", "test_pt_model.py"]
    names += ["test_pread_backend.py", "test_multithreaded.py", "test_threadable.py"]
    names += ["test_handle.py"]
    found = run_upstream(tmp_path, names)
    assert sum(outcome == "passed" for outcome in found.values()) >= 55, found
    check(found, DIFFERENT)

"""The wheel, installed where there is nothing but NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from conftest import ROOT

SCRIPT = """
import sys
import numpy as np

import ztensor, ztensor.numpy
assert not {"torch", "ml_dtypes", "tqdm", "scipy"} & set(sys.modules), "imported too much"
for name in ("torch", "ml_dtypes", "tqdm", "scipy"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} should not be here")

arrays = {"x": np.arange(12.0).reshape(3, 4), "flag": np.array(True), "empty": np.zeros((0, 2))}
ztensor.numpy.save_file(arrays, "x.zt", metadata={"a": "b"}, compression=True, progress=True)
for copy in (False, True):
    for name, found in ztensor.numpy.load_file("x.zt", copy=copy).items():
        assert found.dtype == arrays[name].dtype and (found == arrays[name]).all()

reader = ztensor.open("x.zt")
destination = np.empty((3, 4))
reader.read_into("x", destination)
assert (destination == arrays["x"]).all()
assert reader.attributes == {"a": "b"}
with ztensor.safe_open("x.zt", "np") as file:
    assert file.get_slice("x")[1, 2] == 6
with ztensor.Writer.append("x.zt") as writer:
    half = ztensor.Tensor({"data": np.zeros(3, np.uint16)}, dtype="bfloat16")
    writer.write("half", half)
found = ztensor.numpy.load_file("x.zt")["half"]
assert isinstance(found, ztensor.Tensor) and found.dtype == "bfloat16"
for call, hint in ((found.numpy, "pip install ml_dtypes"), (found.torch, "torch")):
    try:
        call()
    except (ztensor.UnsupportedError, ImportError) as error:
        assert hint in str(error), error
    else:
        raise SystemExit("no error")
try:
    import ztensor.torch
except ImportError as error:
    assert "torch" in str(error)
else:
    raise SystemExit("ztensor.torch without torch")

import z4ai, z4ai.chunked, z4ai.integrations, z4ai.model_delta, z4ai.safetensors
for array in arrays.values():
    back = z4ai.decompress_array(z4ai.compress_array(array, effort="max"))
    assert back.dtype == array.dtype and back.shape == array.shape and (back == array).all()
z4ai.safetensors.pack_tensors(arrays, "x.zstn")
with z4ai.safetensors.ZstnReader.open("x.zstn") as packed:
    assert (packed.read_numpy("x", rows=(1, 3)) == arrays["x"][1:3]).all()
try:
    z4ai.enable_hf()
except RuntimeError as error:
    assert "pip install torch safetensors" in str(error), error
else:
    raise SystemExit("enabled without torch")
print("fine", ztensor.__version__, ztensor.__file__)
"""


def test_in_a_clean_environment(tmp_path: Path) -> None:
    wheels = sorted(ROOT.glob("target/test-wheel/*.whl")) or sorted(ROOT.glob("dist/*.whl"))
    if not wheels:
        pytest.skip("there is no wheel: run `make install` first")
    assert "cp311-abi3" in wheels[-1].name
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", str(wheels[-1])]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"cannot install NumPy, probably offline: {installed.stderr[-300:]}")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    outcome = subprocess.run(
        [python, "-c", SCRIPT], capture_output=True, text=True, env=environment
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert str(home) in outcome.stdout


@pytest.mark.parametrize("package", ["ztensor", "ztensor.store", "z4ai", "z4ai.delta"])
def test_without_numpy_the_import_says_what_to_do(package: str) -> None:
    code = f"import sys; sys.modules['numpy'] = None; import {package}"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.returncode == 1
    last = outcome.stderr.strip().splitlines()[-1]
    assert last == ("ModuleNotFoundError: ztensor and z4ai need NumPy: pip install 'numpy>=1.26'")


def test_extras_and_requirements() -> None:
    from importlib.metadata import metadata

    found = metadata("ztensor")
    assert set(found.get_all("Provides-Extra") or []) >= {"bfloat16", "hf", "maxratio"}
    assert found["Requires-Python"] == ">=3.11"
    required = [line for line in found.get_all("Requires-Dist") or [] if "extra" not in line]
    assert [line.split(">")[0] for line in required] == ["numpy"]


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, ztensor;"
        "heavy = {'torch', 'ml_dtypes', 'tqdm', 'scipy', 'safetensors.torch'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

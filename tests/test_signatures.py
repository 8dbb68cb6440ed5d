"""Signatures of models, and the reference implementation as the other side."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import CACHE

import ztensor
import ztensor.numpy

# The reference, in an environment of its own: it brings a whole tree of packages.
ORACLE = ["model-signing==1.1.1", "pyOpenSSL"]


@functools.cache
def oracle_program() -> Path | str:
    """The program of the reference implementation, or why it cannot be had."""
    folder = CACHE / "model-signing"
    program = folder / "bin" / "model_signing"
    done = folder / ".complete"
    if done.exists():
        return program
    try:
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(folder / "bin" / "pip"), "install", "--quiet", *ORACLE],
        ]
        for command in commands:
            outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if outcome.returncode:
                return f"model-signing cannot be installed: {outcome.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        return "installing model-signing took longer than five minutes"
    done.touch()
    return program


@pytest.fixture
def oracle() -> Path:
    program = oracle_program()
    if isinstance(program, str):
        pytest.skip(program)
    return program


@pytest.fixture
def keys() -> tuple[str, str]:
    """A key pair as OpenSSL writes it: SEC 1 and SubjectPublicKeyInfo."""
    make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl program")
    public = ["openssl", "ec", "-in", "key.pem", "-pubout", "-out", "key.pub"]
    subprocess.run(public, check=True, capture_output=True)
    return "key.pem", "key.pub"


def ours(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ztensor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def theirs(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=120)


def model(folder: str = "model") -> None:
    Path(folder, "sub").mkdir(parents=True)
    tensors = {"a": np.arange(1000, dtype=np.float32), "b": np.ones((3, 3), np.float16)}
    ztensor.numpy.save_file(tensors, f"{folder}/model.safetensors")
    Path(folder, "config.json").write_text("{}")
    Path(folder, "sub", "ünïcode and spaces.txt").write_text("notes")
    Path(folder, ".gitattributes").write_text("*.safetensors filter=lfs")


@pytest.mark.parametrize("path", ["model", "model/model.safetensors"])
def test_the_reference_verifies_ours(oracle: Path, keys: tuple[str, str], path: str) -> None:
    model()
    signed = ours("sign", path, "--key", keys[0], "-o", "model.sig")
    assert signed.returncode == 0, signed.stderr
    verify = ["verify", "key", path, "--public_key", keys[1], "--signature", "model.sig"]
    verified = theirs(oracle, *verify)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    target = Path("model/model.safetensors")
    target.write_bytes(target.read_bytes()[:-1] + b"\x01")
    assert theirs(oracle, *verify).returncode != 0


@pytest.mark.parametrize("path", ["model", "model/model.safetensors"])
@pytest.mark.parametrize("pkcs8", [False, True])
def test_ours_verifies_the_reference(
    oracle: Path, keys: tuple[str, str], path: str, pkcs8: bool
) -> None:
    model()
    key = keys[0]
    if pkcs8:
        key = "pkcs8.pem"
        command = ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", keys[0], "-out", key]
        subprocess.run(command, check=True, capture_output=True)
    sign = ["sign", "key", path, "--private_key", key, "--signature", "model.sig"]
    signed = theirs(oracle, *sign)
    assert signed.returncode == 0, signed.stdout + signed.stderr
    verify = ["verify", path, "--signature", "model.sig", "--key", keys[1]]
    verified = ours(*verify)
    assert verified.returncode == 0, verified.stderr
    assert "as signed" in verified.stdout
    # Our key in its other form signs the same.
    assert ours("sign", path, "--key", key, "-o", "ours.sig").returncode == 0
    assert ours("verify", path, "--signature", "ours.sig", "--key", keys[1]).returncode == 0
    target = Path("model/model.safetensors")
    target.write_bytes(target.read_bytes()[:-1] + b"\x01")
    assert ours(*verify).returncode == 1


def test_a_converted_model_still_verifies(keys: tuple[str, str]) -> None:
    model()
    assert ours("sign", "model", "--key", keys[0], "-o", "model.sig").returncode == 0
    ztensor.convert("model/model.safetensors", "model.zt", compression=True)
    verify = ["verify", "model.zt", "--signature", "model.sig", "--key", keys[1]]
    verified = ours(*verify)
    assert verified.returncode == 0, verified.stderr
    assert ztensor.content_id("model.zt") in verified.stdout
    assert ours(*verify, "--exact").returncode == 1
    ztensor.numpy.save_file({"a": np.zeros(3)}, "other.zt")
    other = ours("verify", "other.zt", "--signature", "model.sig", "--key", keys[1])
    assert other.returncode == 1


def test_another_key_does_not_verify(keys: tuple[str, str]) -> None:
    model()
    assert ours("sign", "model", "--key", keys[0], "-o", "model.sig").returncode == 0
    make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "other.pem"]
    subprocess.run(make, check=True, capture_output=True)
    public = ["openssl", "ec", "-in", "other.pem", "-pubout", "-out", "other.pub"]
    subprocess.run(public, check=True, capture_output=True)
    verified = ours("verify", "model", "--signature", "model.sig", "--key", "other.pub")
    assert verified.returncode == 1 and "another key" in verified.stderr

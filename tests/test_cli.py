"""The console script and ``python -m ztensor``: the program itself is tested in Rust."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ztensor.numpy import load_file, save_file

SCRIPT = Path(sys.executable).with_name("ztensor")


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ztensor", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.zt"
    save_file({"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}, path)
    return path


def test_module_and_script_are_the_same_program(model: Path) -> None:
    assert SCRIPT.exists(), "the wheel installs a console script"
    script = subprocess.run([SCRIPT, "info", model], capture_output=True, text=True, check=True)
    module = run("info", model)
    assert module.returncode == 0
    assert module.stdout == script.stdout
    assert "weight" in module.stdout
    version = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("ztensor ")


def test_results_are_files_and_json(model: Path, tmp_path: Path) -> None:
    assert json.loads(run("info", model, "--json").stdout)["totals"]["elements"] == 6
    output = tmp_path / "model.safetensors"
    assert run("convert", model, "-o", output).returncode == 0
    np.testing.assert_array_equal(load_file(output)["weight"], load_file(model)["weight"])
    assert run("diff", model, output).returncode == 0


def test_exit_codes_reach_the_shell(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zt"
    save_file({"weight": np.zeros((2, 3), np.float32)}, other)
    bad = tmp_path / "bad.zt"
    bad.write_bytes(b"not a tensor file")
    assert run("diff", model, other).returncode == 1
    assert run("nonsense").returncode == 2
    failed = run("info", bad)
    assert (failed.returncode, failed.stdout) == (3, "")
    assert failed.stderr.startswith("error: ")
    assert len(failed.stderr.splitlines()) == 1
    assert run("info", tmp_path / "absent.zt").returncode == 4


def test_ctrl_c_leaves_no_output(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 20, 1 << 18)
    big = tmp_path / "big.zt"
    save_file({f"t{n}": numbers + n for n in range(48)}, big)
    command = [sys.executable, "-m", "ztensor", "compress", big, "-o", tmp_path / "out.zt"]
    process = subprocess.Popen([*command, "-l", "22", "--threads", "1"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline, "no output was begun"
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130, error
    assert b"Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["big.zt"]

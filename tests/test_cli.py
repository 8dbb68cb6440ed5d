"""The console script and ``python -m ztensor``: the program itself is tested in Rust."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA, ROOT

from ztensor import _native
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


@pytest.mark.skipif(
    not _native.DEBUG_ASSERTIONS, reason="a release wheel does not know ZTENSOR_TEST_HOLD"
)
def test_ctrl_c_leaves_no_output(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 20, 1 << 18)
    big = tmp_path / "big.zt"
    save_file({f"t{n}": numbers + n for n in range(48)}, big)
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    command = [sys.executable, "-m", "ztensor", "compress", big, "-o", tmp_path / "out.zt"]
    process = subprocess.Popen(
        [*command, "-l", "3", "--threads", "1"],
        stderr=subprocess.PIPE,
        env=os.environ | {"ZTENSOR_TEST_HOLD": str(hold)},
    )
    # The command waits at its first step until this pipe was opened and closed.
    with hold.open("wb"):
        process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130, error
    assert b"Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.zt", "hold"]


SCHEMAS = ROOT / "docs" / "schema"


def check_schema(name: str, document: object) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize(
    "path",
    [
        "zt/dtypes.zt",
        "zt/sparse.zt",
        "zt/legacy_v01.zt",
        "safetensors/dtypes.safetensors",
        "pickle/checkpoint.pt",
        "gguf/types.gguf",
        "npz/shapes.npz",
        "onnx/raw.onnx",
        "hdf5/types_v0.h5",
    ],
)
def test_json_follows_its_schema(path: str, model: Path) -> None:
    found = run("info", DATA / path, "--json")
    assert found.returncode == 0, found.stderr
    check_schema("info", json.loads(found.stdout))
    compared = run("diff", DATA / path, model, "--json")
    assert compared.returncode == 1, compared.stderr
    check_schema("diff", json.loads(compared.stdout))


def test_changes_follow_the_schema_too(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zt"
    for changed in [np.ones((2, 3), np.float32), np.ones(6, np.float32)]:
        save_file({"weight": changed}, other)
        document = json.loads(run("diff", model, other, "--json").stdout)
        assert len(document["changed"]) == 1
        check_schema("diff", document)


def on_terminal(*args: str | Path, **variables: str) -> tuple[int, str]:
    """The exit code and what a terminal as standard error would show."""
    controller, terminal = pty.openpty()
    # What else says whether to colour: a machine that tests has CI set, for one.
    unset = {"NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"}
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"TERM": "xterm-256color", **variables}
    command = [sys.executable, "-m", "ztensor", *args]
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.PIPE, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(controller, 1 << 16)
        except OSError:  # how Linux reports that the terminal is closed
            break
        if not piece:
            break
        shown += piece
    os.close(controller)
    process.communicate()
    return process.returncode, shown.decode()


@pytest.fixture
def slow(tmp_path: Path) -> tuple[str | Path, ...]:
    """A command that takes long enough to be watched."""
    numbers = np.random.default_rng(0).integers(0, 1 << 20, 1 << 17)
    save_file({f"t{n}": numbers + n for n in range(48)}, tmp_path / "slow.zt")
    return (
        "compress",
        tmp_path / "slow.zt",
        "-l",
        "10",
        "--threads",
        "1",
        "-o",
        tmp_path / "out.zt",
    )


def test_progress_is_shown_on_a_terminal(slow: tuple[str | Path, ...]) -> None:
    code, shown = on_terminal(*slow)
    assert code == 0, shown
    drawn = re.findall(
        r"writing \[[=> ]{30}\] +(\d+) % of ([\d.]+ \w+), ([\d.]+ \w+)/s, \w+ left", shown
    )
    assert len(drawn) > 2, shown
    assert len({done for done, _, _ in drawn}) > 1, "it moves"
    # The bar is gone at the end, and the closing line is what stays.
    last = shown.rstrip().splitlines()[-1]
    assert "out.zt: " in last and "writing" not in last.split("\x1b[2K")[-1]


def test_progress_is_for_terminals_that_want_it(slow: tuple[str | Path, ...]) -> None:
    off = run(*slow)
    assert off.returncode == 0
    assert "writing" not in off.stderr and len(off.stderr.splitlines()) == 1
    assert on_terminal(*slow, "--force", "--quiet") == (0, "")


def test_colour_is_for_terminals_that_want_it(tmp_path: Path) -> None:
    absent = tmp_path / "absent.zt"
    code, shown = on_terminal("info", absent)
    assert code == 4 and "\x1b[1;31merror\x1b[0m" in shown
    for variables in [{"NO_COLOR": "1"}, {"TERM": "dumb"}]:
        code, shown = on_terminal("info", absent, **variables)
        assert code == 4 and "\x1b" not in shown and shown.startswith("error: ")
    code, shown = on_terminal("--help-me", NO_COLOR="1")
    assert code == 2 and "\x1b" not in shown


@pytest.mark.parametrize("source", ["zt", "npz"])
def test_each_format_is_read_by_its_own_library(tmp_path: Path, source: str) -> None:
    """What ``convert`` writes, as NumPy, safetensors and gguf read it."""
    import gguf
    from safetensors.numpy import load_file as load_safetensors

    arrays = {
        "scalar": np.array(1.5, np.float32),
        "empty": np.zeros((0, 4), np.float16),
        "matrix": np.arange(60, dtype=np.float64).reshape(5, 12),
        "name with é": np.array([1, -2, 3], np.int32),
    }
    model = tmp_path / f"model.{source}"
    if source == "zt":
        save_file(arrays, model)
    else:
        np.savez(model, **arrays)
    for target, load in {
        "npz": lambda path: dict(np.load(path)),
        "safetensors": load_safetensors,
        "gguf": lambda path: {t.name: t.data for t in gguf.GGUFReader(path).tensors},
    }.items():
        # GGUF has no scalars and nothing empty.
        kept = [] if target != "gguf" else ["--exclude", "scalar", "--exclude", "empty"]
        output = tmp_path / f"out.{target}"
        done = run("convert", model, "-o", output, *kept)
        assert done.returncode == 0, done.stderr
        found = load(output)
        assert set(found) == set(arrays) - set(kept[1::2])
        for name, array in found.items():
            assert array.dtype == arrays[name].dtype, name
            np.testing.assert_array_equal(array, arrays[name])
            assert target == "gguf" or array.shape == arrays[name].shape


def test_deflated_npz_is_read_by_numpy(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "model.npz"
    assert run("convert", model, "-o", output, "-c").returncode == 0
    np.testing.assert_array_equal(np.load(output)["weight"], load_file(model)["weight"])

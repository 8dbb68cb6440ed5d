"""Weights into an engine's parameters: ours against the loop of vLLM's default loader, in turns.

    python benchmark/engines.py [--size MB] [--rounds N]   # needs torch, safetensors and ztensor

The default loader opens each file with ``safetensors.safe_open``, gets one tensor after another and
copies it to a parameter; ours is what ``load_format="ztensor"`` iterates over. Parameters exist and
are touched before. Each run is a process of its own, page cache warm; times are medians, memory is
the growth of anonymous pages at its peak. Ratios are of one round each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = ("default", "plain", "packed", "zt")


def make(folder, megabytes):
    """A model of bf16 matrices in two shards, and the same packed and as `.zt`."""
    import torch

    import z4ai
    from ztensor.torch import save_file

    torch.manual_seed(0)
    shape = (4096, 2048)
    count = max(2, (megabytes << 20) // (shape[0] * shape[1] * 2))
    for part in range(2):
        tensors = {
            f"layers.{n}.w": (torch.randn(shape) * 0.02).bfloat16()
            for n in range(part * count // 2, (part + 1) * count // 2)
        }
        name = f"model-{part + 1:05}-of-00002"
        for case in ("plain", "packed", "zt"):
            (folder / case).mkdir(exist_ok=True)
        save_file(tensors, folder / "plain" / f"{name}.safetensors")
        z4ai.save_file(tensors, folder / "packed" / f"{name}.safetensors", effort="fast")
        save_file(tensors, folder / "zt" / f"{name}.zt", compression="fast")


def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


def default(folder):
    import safetensors

    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)


def worker(case, folder):
    """Seconds and peak memory of one load."""
    import torch

    from ztensor._weights import Options, Weights

    source = Path(folder, "plain" if case == "default" else case)
    parameters = {name: torch.zeros_like(tensor) for name, tensor in default(Path(folder, "plain"))}
    before, peak = anonymous(), 0
    start = time.perf_counter()
    tensors = default(source) if case == "default" else Weights([str(source)], Options()).tensors()
    for name, tensor in tensors:
        parameters[name].copy_(tensor)
        peak = max(peak, anonymous() - before)
    print(json.dumps([time.perf_counter() - start, peak]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="megabytes of the model")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.size)
        seconds = {case: [] for case in CASES}
        peaks = {case: 0 for case in CASES}
        for _ in range(options.rounds):
            for case in CASES:
                command = [sys.executable, __file__, "worker", case, folder]
                printed = subprocess.run(command, check=True, capture_output=True, text=True)
                time_taken, peak = json.loads(printed.stdout)
                seconds[case].append(time_taken)
                peaks[case] = max(peaks[case], peak)
        print(f"{'case':8} {'seconds':>8} {'x default':>10} {'MB peak':>8}")
        for case in CASES:
            ratios = [a / b for a, b in zip(seconds[case], seconds["default"], strict=True)]
            print(
                f"{case:8} {statistics.median(seconds[case]):8.3f} "
                f"{statistics.median(ratios):10.2f} {peaks[case] / 1e6:8.0f}"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        main()

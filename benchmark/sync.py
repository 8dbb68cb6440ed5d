"""Weight streams against XOR and zstd level 1, as other systems make and apply them.

    python benchmark/sync.py [FILTER] [--rounds N] [--size MB] [--steps N] [--json FILE]
        [--processor-time]

Needs this package (`make wheel` installs an optimised one), torch, zstandard, xxhash and blake3.
The peer is what `docs/spec/sync.md` says of a publisher and a receiver, in Python: numpy for the
XOR, zstandard at level 1, XXH3-128 of the new state, a thread pool over tensors; it applies by
decoding 2 MiB at a time into a shared, writable mapping of the checkpoint and hashing what was
written. Cases are steps of a small transformer (bf16 weights of fp32 masters), and synthetic
changes of a share of all elements by one unit in the last place. Both sides take turns; nothing is
synced, except where it says so. A claim is the median of the ratios within a round. With
`--processor-time` one thread is measured by its processor time, which other work on the machine
disturbs less.

Limits are measured in the same way and the same run, as ratios to the same peer: of publishing the
time of BLAKE3 alone over the new state, which its content ids are; of applying the time of one pass
of XXH3 over the tensors, by which wrong ones are noticed before any changes; of a folder the time
to read and write every page of it once, on one thread.

The floor of a delta's size is the entropy of the positions (log2 of the number of ways to choose
the changed elements of each tensor) and of the values (order-0 entropy of the differences of the
changed elements' bit patterns, the smaller one of XOR and subtraction, per tensor).
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from blake3 import blake3
from safetensors.numpy import save_file

import ztensor
from ztensor import sync

SHARES = (0.1, 0.5, 1.0, 5.0, 20.0)
STEP = 2 << 20
State = dict[str, Any]
CLAIMS = {
    "z4ai bytes / floor, real steps": (1.15, "most"),
    "peer bytes / z4ai bytes, real steps": (1.8, "least"),
    "zstd bytes / peer bytes": (1.0, "most"),
    "publish z4ai": (2.0, "least"),
    "publish zstd": (1.0, "least"),
    "apply z4ai": (4.0, "least"),
    "apply zstd": (1.0, "least"),
    "folder z4ai": (3.0, "least"),
    "folder zstd": (1.0, "least"),
    "bytes read / bytes of the delta": (1.1, "most"),
}


def bits(tensor: Any) -> np.ndarray[Any, Any]:
    return tensor.reshape(-1).view(np.uint16)


# --- the peer


def peer_encode(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> tuple[bytes, str] | None:
    old, new = old.reshape(-1).view(np.uint8), new.reshape(-1).view(np.uint8)
    difference = old ^ new
    if not difference.any():
        return None
    payload = zstandard.ZstdCompressor(level=1).compress(difference.data)
    return payload, xxhash.xxh3_128_hexdigest(new.data)


def peer_publish(kept: State, new: State, folder: Path, threads: int) -> None:
    """Compares, compresses and hashes in a pool, keeps the new bytes, writes shard and index."""
    with ThreadPoolExecutor(threads) as pool:
        made = dict(
            zip(new, pool.map(lambda name: peer_encode(kept[name], new[name]), new), strict=True)
        )
    for name, tensor in new.items():
        np.copyto(kept[name], tensor)
    made = {name: value for name, value in made.items() if value is not None}
    folder.mkdir(parents=True)
    file = "model-00000-of-00001.safetensors"
    payloads = {name: np.frombuffer(value[0], np.uint8) for name, value in made.items()}
    save_file(payloads, folder / file, {name: value[1] for name, value in made.items()})
    index = {
        "metadata": {
            "version": "000001",
            "base_version": "000000",
            "delta_encoding": "xor",
            "compression_format": "zstd",
            "checksum_format": "xxh3-128",
        },
        "weight_map": dict.fromkeys(made, file),
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def header(path: Path) -> tuple[dict[str, Any], int]:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def peer_apply(
    payloads: dict[str, tuple[Any, str]],
    target: Callable[[str], np.ndarray[Any, Any]],
    threads: int,
) -> None:
    def one(item: tuple[str, tuple[Any, str]]) -> None:
        name, (payload, digest) = item
        bytes_of = target(name)
        hasher = xxhash.xxh3_128()
        reader = zstandard.ZstdDecompressor().stream_reader(payload)
        at = 0
        while block := reader.read(STEP):
            part = bytes_of[at : at + len(block)]
            np.bitwise_xor(part, np.frombuffer(block, np.uint8), out=part)
            hasher.update(part.data)
            at += len(block)
        assert hasher.hexdigest() == digest, name

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, payloads.items()))


def peer_payloads(folder: Path) -> dict[str, tuple[Any, str]]:
    payloads = {}
    for path in folder.glob("*.safetensors"):
        table, start = header(path)
        data = memoryview(path.read_bytes())
        digests = table.pop("__metadata__", {})
        for name, entry in table.items():
            first, last = entry["data_offsets"]
            payloads[name] = (data[start + first : start + last], digests[name])
    return payloads


def peer_pull(folder: Path, local: Path, threads: int) -> None:
    """All of the delta in memory, the checkpoint mapped shared and writable."""
    places = {}
    for path in local.glob("*.safetensors"):
        table, start = header(path)
        table.pop("__metadata__", None)
        mapped = np.memmap(path, np.uint8, "r+")
        for name, entry in table.items():
            first, last = entry["data_offsets"]
            places[name] = mapped[start + first : start + last]
    peer_apply(peer_payloads(folder), places.__getitem__, threads)


# --- cases


def floor(old: State, new: State) -> float:
    total = 0.0
    for name in old:
        before, after = bits(old[name]), bits(new[name])
        places = np.flatnonzero(before != after)
        count, changed = before.size, places.size
        if changed == 0:
            continue
        lgamma = math.lgamma
        ways = lgamma(count + 1) - lgamma(changed + 1) - lgamma(count - changed + 1)

        def entropy(values: np.ndarray[Any, Any], changed: int = changed) -> float:
            counts = np.unique(values, return_counts=True)[1] / changed
            return float(-(counts * np.log2(counts)).sum() * changed)

        old_values, new_values = before[places], after[places]
        values = min(entropy(old_values ^ new_values), entropy(new_values - old_values))
        total += (ways / math.log(2) + values) / 8
    return total


def synthetic(share: float, megabytes: int) -> tuple[State, State]:
    values = np.random.default_rng(0)
    count = 8
    old, new = {}, {}
    for index in range(count):
        size = (megabytes << 20) // 2 // count
        weights = values.standard_normal(size, np.float32) * 0.02
        before = (weights.view(np.uint32) >> 16).astype(np.uint16)
        changed = values.random(size, np.float32) < share / 100
        step = np.where(values.random(size, np.float32) < 0.5, 1, -1) * changed
        old[f"w{index}"] = before.reshape(-1, 1024)
        new[f"w{index}"] = (before + step).astype(np.uint16).reshape(-1, 1024)
    return old, new


def training(steps: int) -> Iterator[State]:
    """Steps of a transformer of 25 million parameters, after a few that warm up."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    width, layers, vocabulary = 512, 6, 4096
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    embed, head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
    model = nn.ModuleList([embed, nn.TransformerEncoder(layer, layers), head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    for step in range(steps + 3):
        text = torch.randint(0, vocabulary, (4, 32))
        mask = nn.Transformer.generate_square_subsequent_mask(31)
        logits = head(model[1](embed(text[:, :-1]), mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 2:
            yield {
                name: value.detach().bfloat16().view(torch.int16).numpy().view(np.uint16).copy()
                for name, value in model.state_dict().items()
            }


def as_bf16(state: State) -> State:
    """The same memory as torch tensors of bf16."""
    import torch

    return {
        name: torch.from_numpy(tensor.view(np.int16)).view(torch.bfloat16)
        for name, tensor in state.items()
    }


class Bench:
    def __init__(self, rounds: int, folder: Path, clock: Callable[[], float]) -> None:
        self.rounds, self.folder, self.clock = rounds, folder, clock
        self.results: dict[str, dict[str, float]] = {}

    def note(self, case: str, what: str, value: float) -> None:
        self.results.setdefault(case, {})[what] = value
        claim = next((CLAIMS[key] for key in CLAIMS if what.startswith(key)), None)
        verdict = ""
        if claim is not None:
            good = value <= claim[0] if claim[1] == "most" else value >= claim[0]
            verdict = f"   at {claim[1]} {claim[0]}: {'yes' if good else 'NO'}"
        print(f"  {what:44} {value:8.3f}{verdict}", flush=True)

    def turns(
        self, ours: Callable[[], None], theirs: Callable[[], None], prepare: Callable[[], None]
    ) -> float:
        """How many times as fast ours is."""
        ratios = []
        for _ in range(self.rounds + 1):
            times = []
            for run in (ours, theirs):
                prepare()
                start = self.clock()
                run()
                times.append(self.clock() - start)
            ratios.append(times[1] / times[0])
        return statistics.median(ratios[1:])

    def case(self, name: str, old: State, new: State, threads: tuple[int, ...]) -> None:
        total = sum(tensor.nbytes for tensor in new.values())
        changed = sum(int((bits(old[key]) != bits(new[key])).sum()) for key in old)
        print(f"{name}: {total / 1e6:.0f} MB, {100 * changed * 2 / total:.3f} % changed")
        work = self.folder / "case"
        shutil.rmtree(work, ignore_errors=True)
        kept = {key: tensor.copy() for key, tensor in old.items()}
        peer_publish(kept, new, work / "peer/weight_v000001", 2)
        peer_bytes = sum(
            len(payload) for payload, _ in peer_payloads(work / "peer/weight_v000001").values()
        )
        forms: dict[str, Any] = {"z4ai": {"compression": "z4ai"}, "zstd": {}}
        before, after = as_bf16(old), as_bf16(new)
        sizes = {}
        for form, options in forms.items():
            publisher = sync.Publisher(
                work / form, base=before, durable=False, anchor_ratio=None, **options
            )
            publisher.publish(after)
            found = peer_payloads(work / form / "weight_v000001")
            sizes[form] = sum(len(payload) for payload, _ in found.values())
        lowest = floor(old, new)
        kind = "real steps" if "step" in name else "synthetic"
        self.note(name, f"z4ai bytes / floor, {kind}", sizes["z4ai"] / lowest)
        self.note(name, f"peer bytes / z4ai bytes, {kind}", peer_bytes / sizes["z4ai"])
        self.note(name, "zstd bytes / peer bytes", sizes["zstd"] / peer_bytes)
        for count in threads:
            self.limits(name, work, old, new, count)
            for form, options in forms.items():
                self.publish(name, form, options, old, new, count)
                self.apply(name, form, work, old, new, count)

    def limits(self, name: str, work: Path, old: State, new: State, threads: int) -> None:
        """What hashes alone allow."""
        scratch = self.folder / "limits"
        kept = {key: tensor.copy() for key, tensor in old.items()}
        payloads = peer_payloads(work / "peer/weight_v000001")
        turn = 0

        def hash_all(hash_one: Callable[[Any], object]) -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(
                    pool.map(
                        lambda tensor: hash_one(tensor.reshape(-1).view(np.uint8)), new.values()
                    )
                )

        def publish() -> None:
            nonlocal turn
            turn += 1
            peer_publish(kept, (old, new)[turn % 2], scratch / str(turn), threads)

        def restore() -> None:
            for key, tensor in old.items():
                np.copyto(kept[key], tensor)

        def apply() -> None:
            peer_apply(payloads, lambda key: kept[key].reshape(-1).view(np.uint8), threads)

        content_ids = self.turns(
            lambda: hash_all(lambda tensor: blake3(tensor, max_threads=1).digest()),
            publish,
            lambda: None,
        )
        self.note(name, f"limit of publishing, {threads} thread(s)", content_ids)
        checksums = self.turns(lambda: hash_all(xxhash.xxh3_64_intdigest), apply, restore)
        self.note(name, f"limit of applying, {threads} thread(s)", checksums)
        shutil.rmtree(scratch, ignore_errors=True)

    def publish(
        self, name: str, form: str, options: Any, old: State, new: State, threads: int
    ) -> None:
        work = self.folder / "publish"
        shutil.rmtree(work, ignore_errors=True)
        states = [as_bf16(old), as_bf16(new)]
        publisher = sync.Publisher(
            work / "ours",
            base=states[0],
            durable=False,
            threads=threads,
            anchor_ratio=None,
            **options,
        )
        kept = {key: tensor.copy() for key, tensor in old.items()}
        turn = {"ours": 0, "theirs": 0}

        def ours() -> None:
            turn["ours"] += 1
            publisher.publish(states[turn["ours"] % 2])

        def theirs() -> None:
            turn["theirs"] += 1
            target = work / "theirs" / str(turn["theirs"])
            peer_publish(kept, (old, new)[turn["theirs"] % 2], target, threads)

        speed = self.turns(ours, theirs, lambda: None)
        self.note(name, f"publish {form}, {threads} thread(s)", speed)
        shutil.rmtree(work, ignore_errors=True)

    def apply(self, name: str, form: str, work: Path, old: State, new: State, threads: int) -> None:
        live: State = {key: tensor.copy() for key, tensor in old.items()}
        payloads = peer_payloads(work / "peer/weight_v000001")
        for atomic in (False, True):
            tensors = as_bf16(live)

            def prepare() -> None:
                for key, tensor in old.items():
                    np.copyto(live[key], tensor)

            def ours(atomic: bool = atomic, tensors: State = tensors) -> None:
                subscriber = sync.Subscriber(work / form, threads=threads)
                subscriber.apply_to(tensors, atomic=atomic)

            def theirs() -> None:
                peer_apply(payloads, lambda key: live[key].reshape(-1).view(np.uint8), threads)

            speed = self.turns(ours, theirs, prepare)
            how = "atomic" if atomic else "by tensor"
            self.note(name, f"apply {form}, {how}, {threads} thread(s)", speed)

    def local_folder(self, megabytes: int, threads: tuple[int, ...]) -> None:
        """A checkpoint on disk, brought forward by steps of 1 %."""
        print(f"local folder of {megabytes} MB, 1 %")
        old, new = synthetic(1.0, megabytes)
        states = [as_bf16(old), as_bf16(new)]
        work = self.folder / "folder"
        shutil.rmtree(work, ignore_errors=True)
        base = work / "base"
        base.mkdir(parents=True)
        ztensor.torch.save_file(states[0], base / "model.safetensors")
        shutil.copytree(base, work / "theirs")
        turns = 2 * (self.rounds + 1) + 4
        for form, options in {"z4ai": {"compression": "z4ai"}, "zstd": {}}.items():
            publisher = sync.Publisher(
                work / form, base=states[0], durable=False, anchor_ratio=None, **options
            )
            for turn in range(1, len(threads) * turns + 1):
                publisher.publish(states[turn % 2])
        kept = {key: tensor.copy() for key, tensor in old.items()}
        peer_publish(kept, new, work / "peer", 2)  # the same XOR leads there and back
        peer = work / "peer"
        digests = {}
        for state in (0, 1):
            source = (old, new)[state]
            digests[state] = {
                key: xxhash.xxh3_128_hexdigest(tensor.data) for key, tensor in source.items()
            }
        turn = 0
        original = peer_payloads(peer)

        def peer_turn(count: int) -> None:
            nonlocal turn
            turn += 1
            wanted = digests[turn % 2]
            places = {}
            for path in (work / "theirs").glob("*.safetensors"):
                table, start = header(path)
                table.pop("__metadata__", None)
                mapped = np.memmap(path, np.uint8, "r+")
                for key, entry in table.items():
                    first, last = entry["data_offsets"]
                    places[key] = mapped[start + first : start + last]
            payloads = {key: (value[0], wanted[key]) for key, value in peer_payloads(peer).items()}
            peer_apply(payloads, places.__getitem__, count)

        def rewrite() -> None:
            """Every page of the file is read and written once."""
            path = work / "theirs/model.safetensors"
            block = bytearray(256 << 10)
            with open(path, "r+b", buffering=0) as file:
                at = 0
                while count := file.readinto(block):
                    file.seek(at)
                    file.write(memoryview(block)[:count])
                    at += count

        for count in threads:
            limit = self.turns(rewrite, lambda count=count: peer_turn(count), lambda: None)
            self.note("local folder", f"limit of a folder, {count} thread(s)", limit)
        for form in ("z4ai", "zstd"):
            local = work / f"local {form}"
            subscriber = sync.Subscriber(work / form, local, base=base, durable=False)
            subscriber.pull(0)
            version = 0
            for count in threads:
                follower = sync.Subscriber(work / form, local, durable=False, threads=count)
                read = []

                def ours(follower: Any = follower, read: list[float] = read) -> None:
                    nonlocal version
                    version += 1
                    pulled = follower.pull(version)
                    read.append(pulled.read)

                speed = self.turns(ours, lambda count=count: peer_turn(count), lambda: None)
                self.note("local folder", f"folder {form}, {count} thread(s)", speed)
            delta = sum(
                path.stat().st_size for path in (work / form / f"weight_v{version:06}").iterdir()
            )
            self.note("local folder", f"bytes read / bytes of the delta, {form}", read[-1] / delta)
            durable = sync.Subscriber(work / form, local, durable=True)
            start = time.perf_counter()
            durable.pull(version + 1)
            self.note(
                "local folder", f"seconds of a durable pull, {form}", time.perf_counter() - start
            )
        del original
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=64, help="MB of synthetic weights")
    parser.add_argument("--folder-size", type=int, default=1000, help="MB of the local folder")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processor-time", action="store_true", help="instead of wall time")
    options = parser.parse_args()
    sys.setswitchinterval(0.001)
    with tempfile.TemporaryDirectory() as folder:
        clock = time.process_time if options.processor_time else time.perf_counter
        threads = (1,) if options.processor_time else (1, 2)
        bench = Bench(options.rounds, Path(folder), clock)
        if options.filter in "training step":
            states = training(options.steps)
            old = next(states)
            for number, new in enumerate(states, 1):
                bench.case(f"training step {number}", old, new, threads)
                old = new
        for share in SHARES:
            if options.filter in f"synthetic {share} %":
                bench.case(f"synthetic {share} %", *synthetic(share, options.size), threads)
        if options.filter in "local folder":
            bench.local_folder(options.folder_size, threads)
    if options.json:
        options.json.write_text(json.dumps(bench.results, indent=1))


if __name__ == "__main__":
    main()

"""Distributed checkpoints against torch's own storage: `python benchmark/distributed.py [FILTER]`.

Two ranks (gloo on loopback) save and load the sharded state of a small language model and its
optimizer, with this package and with torch's FileSystemWriter and FileSystemReader. Both take turns
in the same processes, on the same disk, into new folders; a round's time is from one barrier to the
next. `consolidate` is compared with `cp` of the rank files, which hold the same bytes. A claim is
the median of the ratios within a round, with its quartiles; above 1 is faster.

Options: `--size MB` (per rank, 256), `--rounds N` (9), `--folder PATH`. Run it with the environment
that has this package (`make wheel` installs an optimised one).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
CLAIMS = {
    "save, synced": 1.0,
    "save, not synced": 1.0,
    "save, fast codec": None,
    "load": 1.0,
    "load all on every rank": 1.0,
    "load by columns": 1.0,
    "load, fast codec": None,
    "consolidate to .safetensors / cp": 0.8,
    "consolidate to .zt / cp": 0.8,
    "consolidate from columns / cp": 0.8,
}
"""What each case should reach; nothing where there is no promise."""


ALONE = "-1"
"""The rank of the process that consolidates what the others have saved: no others wait for it."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=ROOT / ".work" / "distributed")
    parser.add_argument("--json", type=Path, help="write what was measured there, too")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.rank is not None:
        return Rank(options).run()
    options.folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        common = [sys.executable, __file__, *sys.argv[1:], "--store", f"{folder}/store", "--rank"]
        ranks = [subprocess.Popen([*common, str(rank)], env=environment) for rank in range(2)]
        codes = [rank.wait() for rank in ranks]
        codes.append(subprocess.run([*common, ALONE], env=environment).returncode)
    shutil.rmtree(options.folder, ignore_errors=True)
    sys.exit(max(map(abs, codes)))


class Rank:
    """One of two processes, of which the first one reports, or the one that comes after them."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard

        torch.set_num_threads(1)
        self.options, self.dist, self.torch = options, dist, torch
        self.found: dict[str, list[float]] = {}
        self.reports, self.alone = options.rank < 1, options.rank == int(ALONE)
        if self.alone:
            return
        store = dist.FileStore(options.store, 2)
        dist.init_process_group("gloo", store=store, rank=options.rank, world_size=2)
        self.mesh = init_device_mesh("cpu", (2,))
        self.rows, self.columns, self.all = Shard(0), Shard(1), Replicate()

    def state(self, placement: Any, fill: bool = True) -> dict[str, Any]:
        """Layers of a model in bf16, their moments in fp32, and what optimizers keep besides."""
        from torch.distributed.tensor import DTensor

        torch, hidden = self.torch, 1024
        layer = 4 * hidden * hidden * (2 + 4 + 4)
        layers = max(self.options.size * 2 * (1 << 20) // layer, 1)
        model: dict[str, Any] = {}
        moments: dict[str, Any] = {}
        generator = torch.Generator().manual_seed(self.options.rank)

        def make(shape: tuple[int, int], dtype: Any) -> Any:
            local = list(shape)
            local[placement.dim] //= 2
            part = torch.empty(local, dtype=dtype)
            if fill:
                part.normal_(std=0.02, generator=generator)
            else:
                part.zero_()
            return DTensor.from_local(part, self.mesh, [placement], run_check=False)

        for number in range(layers):
            for name, shape in (("attention", (hidden, hidden)), ("mlp", (3 * hidden, hidden))):
                key = f"layers.{number}.{name}.weight"
                model[key] = make(shape, torch.bfloat16)
                first, second = make(shape, torch.float32), make(shape, torch.float32)
                moments[key] = {"exp_avg": first, "exp_avg_sq": second, "step": torch.tensor(9.0)}
        groups = {key: {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8} for key in model}
        return {"model": model, "optimizer": {"state": moments, "groups": groups}, "step": 9}

    def timed(self, work: Callable[[], object], before: Callable[[], object]) -> float:
        if self.reports:
            before()
        self.barrier()
        start = time.perf_counter()
        work()
        self.barrier()
        return time.perf_counter() - start

    def barrier(self) -> None:
        if not self.alone:
            self.dist.barrier()

    def versus(
        self,
        name: str,
        mine: Callable[[], object],
        theirs: Callable[[], object],
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """How many times as fast the first is as the second."""
        if self.options.filter not in name:
            return
        ratios, seconds = [], []
        for number in range(self.options.rounds + 1):
            order = [mine, theirs] if number % 2 else [theirs, mine]
            took = {id(work): self.timed(work, before) for work in order}
            if number:  # the first round only warms up
                ratios.append(took[id(theirs)] / took[id(mine)])
                seconds.append(took[id(mine)])
        if not self.reports:
            return
        low, middle, high = statistics.quantiles(ratios, n=4)
        goal = CLAIMS[name]
        verdict = "" if goal is None else f"  goal {goal}: {'met' if middle >= goal else 'MISSED'}"
        took_text = f"{statistics.median(seconds):.3f} s"
        print(
            f"{name:36} {middle:5.2f} ({low:.2f} to {high:.2f}) {took_text:>9}{verdict}", flush=True
        )
        self.found[name] = [low, middle, high]

    def run(self) -> None:
        if self.alone:
            self.consolidate()
        else:
            self.save_and_load()
        if self.reports and self.options.json:
            known = json.loads(self.options.json.read_text()) if self.alone else {}
            self.options.json.write_text(json.dumps(known | self.found, indent=2) + "\n")
        self.barrier()

    def save_and_load(self) -> None:
        import torch.distributed.checkpoint as dcp

        from ztensor.distributed import ZTensorReader, ZTensorWriter

        folder = self.options.folder
        ours, theirs = folder / "ours", folder / "theirs"
        state = self.state(self.rows)

        def clean() -> None:
            for place in (ours, theirs):
                shutil.rmtree(place, ignore_errors=True)

        def save(path: Path, **options: Any) -> Callable[[], object]:
            return lambda: dcp.save(state, storage_writer=ZTensorWriter(path, **options))

        def save_theirs(sync: bool) -> Callable[[], object]:
            writer = dcp.FileSystemWriter
            return lambda: dcp.save(state, storage_writer=writer(theirs, sync_files=sync))

        self.versus("save, synced", save(ours), save_theirs(True), clean)
        unsynced = save_theirs(False)
        self.versus("save, not synced", save(ours, durable=False), unsynced, clean)
        coded = save(ours, durable=False, compression="fast")
        self.versus("save, fast codec", coded, unsynced, clean)

        fast = folder / "fast"
        save(ours, durable=False)()
        save(fast, durable=False, compression="fast")()
        save_theirs(False)()

        def loads(name: str, target: dict[str, Any], path: Path) -> None:
            def load() -> None:
                dcp.load(target, storage_reader=ZTensorReader(path))

            def load_theirs() -> None:
                dcp.load(target, storage_reader=dcp.FileSystemReader(theirs))

            self.versus(name, load, load_theirs)

        loads("load", self.state(self.rows, fill=False), ours)
        loads("load, fast codec", self.state(self.rows, fill=False), fast)
        loads("load by columns", self.state(self.columns, fill=False), ours)
        loads("load all on every rank", self.whole(), ours)

        state = self.state(self.columns)
        dcp.save(state, storage_writer=ZTensorWriter(folder / "columns", durable=False))

    def consolidate(self) -> None:
        folder = self.options.folder
        for kind in ("safetensors", "zt"):
            name = f"consolidate to .{kind} / cp"
            self.against_cp(name, folder / "ours", folder / f"model.{kind}")
        self.against_cp("consolidate from columns / cp", folder / "columns", folder / "model.zt")

    def whole(self) -> dict[str, Any]:
        """Every rank needs all of the model: rows of both files."""
        from torch.distributed.tensor import DTensor

        def full(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: full(inner) for key, inner in value.items()}
            if isinstance(value, DTensor):
                local = self.torch.zeros(value.shape, dtype=value.dtype)
                return DTensor.from_local(local, self.mesh, [self.all], run_check=False)
            return value

        model: dict[str, Any] = full(self.state(self.rows, fill=False)["model"])
        return {"model": model}

    def against_cp(self, name: str, source: Path, out: Path) -> None:
        """One process against one process, for the same bytes."""
        from ztensor.distributed import consolidate

        if self.options.filter not in name:
            return
        files, copies = sorted(source.glob("rank-*.zt")), out.with_name("copies")

        def theirs() -> None:
            subprocess.run(["cp", *files, copies], check=True)

        def clean() -> None:
            out.unlink(missing_ok=True)
            shutil.rmtree(copies, ignore_errors=True)
            copies.mkdir()
            os.sync()  # or the disk would be busy with what was written before

        self.versus(name, lambda: consolidate(source, out), theirs, clean)


if __name__ == "__main__":
    main()

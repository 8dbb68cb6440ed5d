"""Process groups for tests: a process that imports torch once and forks ranks from then on.

``Ranks()`` starts it; ``ranks(world, function, **arguments)`` runs one of the functions below in
``world`` processes joined by gloo and returns what each of them returned, an exception that it
raised as text, or the signal that ended it as a negative number.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

PATIENCE = 60


class Ranks:
    """The tests' end."""

    def __init__(self, variables: dict[str, str] | None = None) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        environment |= variables or {}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=pipe, stdout=pipe, env=environment, text=True
        )

    def __call__(self, world: int, function: str, **arguments: Any) -> list[Any]:
        assert self._process.stdin and self._process.stdout
        request = {"world": world, "function": function, "arguments": arguments, "at": os.getcwd()}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def fine(self, world: int, function: str, **arguments: Any) -> list[Any]:
        """The same when no rank may fail."""
        answers = self(world, function, **arguments)
        for rank, answer in enumerate(answers):
            killed = isinstance(answer, int) and answer < 0
            failed = killed or (isinstance(answer, dict) and "error" in answer)
            assert not failed, f"rank {rank}: {answer}"
        return answers

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)


def serve() -> None:
    """The other end: forks ranks for each request."""
    for line in sys.stdin:
        request = json.loads(line)
        os.chdir(request["at"])
        with tempfile.TemporaryDirectory() as folder:
            children = [fork(rank, Path(folder), request) for rank in range(request["world"])]
            answers = [answer(rank, child, Path(folder)) for rank, child in enumerate(children)]
        print(json.dumps(answers), flush=True)


def fork(rank: int, folder: Path, request: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(PATIENCE)
    try:
        with open(os.devnull, "w") as quiet:
            os.dup2(quiet.fileno(), 1)
        store = dist.FileStore(str(folder / "store"), request["world"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=request["world"])
        found = globals()[request["function"]](**request["arguments"])
    except BaseException as error:  # torch's own is no Exception
        found = {"error": str(error) or type(error).__name__, "trace": traceback.format_exc()}
    (folder / f"answer-{rank}").write_text(json.dumps(found))
    os._exit(0)


def answer(rank: int, child: int, folder: Path) -> Any:
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    try:
        return json.loads((folder / f"answer-{rank}").read_text())
    except (OSError, ValueError) as error:
        return {"error": f"no answer: {error}"}


def warm_up() -> None:
    """Has torch import what it imports late, once and not in every rank."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        made = state()
        dcp.save(made, storage_writer=ZTensorWriter(folder), no_dist=True)
        dcp.load(blank(made), storage_reader=ZTensorReader(folder), no_dist=True)
        dcp.save(made, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    dist.destroy_process_group()


# What the ranks do. Every tensor is made of its own name, so that each rank knows all of them.


def whole(name: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randint(-99, 99, shape, generator=generator).to(dtype)


def state(version: int = 0) -> dict[str, Any]:
    """A state dict of every kind of tensor that a rank can have, and values."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    made: dict[str, Any] = {}
    for name, shape, dtype, placement in [
        ("rows", [10, 6], torch.float32, Shard(0)),
        ("columns", [6, 10], torch.bfloat16, Shard(1)),
        ("middle", [3, 7, 5], torch.float64, Shard(1)),
        ("few", [2, 3], torch.int64, Shard(0)),
        ("copied", [5, 4], torch.float16, Replicate()),
    ]:
        made[name] = distribute_tensor(whole(f"{name}{version}", shape, dtype), mesh, [placement])
    made["plain"] = whole(f"plain{version}", [4, 4], torch.int32).t()
    made["scalar"] = torch.tensor(version + 0.5)
    return {
        "model": made,
        "step": version,
        "schedule": {"lr": [0.1 + version, float("inf")], "betas": (0.9, 0.999), "name": "größe"},
    }


def blank(value: Any) -> Any:
    """The same with nothing in it."""
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, DTensor):
        return found.placements == expected.placements and same(
            found.to_local(), expected.to_local()
        )
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key]) for key in expected
        )
    return type(found) is type(expected) and found == expected


def save(path: str, version: int = 0, **options: Any) -> None:
    dcp.save(state(version), storage_writer=ZTensorWriter(path, **options))


def load(path: str, version: int = 0) -> None:
    expected = state(version)
    found = blank(expected)
    dcp.load(found, storage_reader=ZTensorReader(path))
    assert same(found, expected), (found, expected)


def save_version(repository: str, staging: str, version: int = 0) -> bool:
    writer = RepositoryWriter(repository, staging, f"version {version}")
    dcp.save(state(version), storage_writer=writer)
    return writer.committed is not None


def load_version(repository: str, ref: str, folder: str, version: int = 0) -> None:
    expected = state(version)
    found = blank(expected)
    dcp.load(found, storage_reader=RepositoryReader(repository, ref, folder))
    assert same(found, expected), (found, expected)


def save_asynchronously(path: str, version: int) -> None:
    written = state(version)
    future = dcp.async_save(written, storage_writer=ZTensorWriter(path, compression="fast"))
    for tensor in written["model"].values():
        tensor.zero_()  # training goes on
    future = getattr(future, "upload_completion", future)
    future.result()


def save_like_torch(path: str, version: int = 0) -> None:
    dcp.save(state(version), storage_writer=dcp.FileSystemWriter(path))


def load_like_torch(path: str, version: int = 0) -> None:
    expected = state(version)
    found = blank(expected)
    dcp.load(found, storage_reader=dcp.FileSystemReader(path))
    assert same(found, expected)


def cached_plans(path: str) -> None:
    """Saves whose plans are not sent again, as they have not changed."""
    for version in range(3):
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state(version), storage_writer=ZTensorWriter(path), planner=planner)
        load(path, version)


def train(path: str, restore: bool) -> list[float]:
    """A sharded module and its optimizer: saved after two steps, or restored and compared."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.LayerNorm(9))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    for step in range(2):
        for number, parameter in enumerate(module.parameters()):
            if restore:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad = torch.full_like(parameter, step + number + 0.25)
        optimizer.step()
    if restore:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    weights, moments = get_state_dict(module, optimizer)
    saved = {"model": weights, "optimizer": moments}
    if restore:
        dcp.load(saved, storage_reader=ZTensorReader(path))
        set_state_dict(
            module, optimizer, model_state_dict=weights, optim_state_dict=saved["optimizer"]
        )
    else:
        dcp.save(saved, storage_writer=ZTensorWriter(path))
    sums = [parameter.full_tensor().double().sum().item() for parameter in module.parameters()]
    for values in optimizer.state.values():
        sums += [values["exp_avg_sq"].full_tensor().double().sum().item(), values["step"].item()]
    return sums


def large(path: str, restore: bool) -> int:
    """Saves or loads one large tensor; how many bytes were read."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.arange(1 << 20, dtype=torch.int32).reshape(1024, 1024)
    tensor = distribute_tensor(rows, mesh, [Shard(0)])
    if not restore:
        dcp.save({"large": tensor}, storage_writer=ZTensorWriter(path))
        return 0
    found = {"large": torch.zeros_like(tensor)}
    before = bytes_read()
    dcp.load(found, storage_reader=ZTensorReader(path))
    assert same(found["large"], tensor)
    return bytes_read() - before


def bytes_read() -> int:
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.removeprefix("rchar: "))


def killed(path: str, version: int, victim: int, moment: str) -> None:
    """A save during which a rank dies."""

    class Dying(ZTensorWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            if moment == "writing" and dist.get_rank() == victim:
                resolve, count = planner.resolve_data, 0

                def dies(item: Any) -> Any:
                    nonlocal count
                    count += 1
                    if count == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return resolve(item)

                planner.resolve_data = dies
            return super().write_data(plan, planner)

        def finish(self, metadata: Any, results: Any) -> None:
            if moment == "finishing":
                os.kill(os.getpid(), signal.SIGKILL)
            super().finish(metadata, results)

    dcp.save(state(version), storage_writer=Dying(path))


def full_disk(path: str, version: int, limit: int) -> None:
    """A save for which one rank has no room."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        save(path, version)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def together(path: str, out: str, back: str) -> list[str]:
    """All ranks make one file of a checkpoint, and a checkpoint of it again."""
    written = consolidate(path, out, max_shard_size=400, threads=2)
    distribute(written[0], back)
    load(back)
    return written


def failing_together(path: str, out: str) -> None:
    if dist.get_rank() == 1:
        time.sleep(0.2)
    consolidate(path, out)


if __name__ == "__main__":
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    from ztensor.distributed import (
        RepositoryReader,
        RepositoryWriter,
        ZTensorReader,
        ZTensorWriter,
        consolidate,
        distribute,
    )

    torch.set_num_threads(1)
    warm_up()
    serve()

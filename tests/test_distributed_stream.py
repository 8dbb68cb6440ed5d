"""``stream.z4ai`` in torch's own distributed checkpoints."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import ztensor
from ztensor.distributed import stream
from ztensor.distributed.stream import Z4AI, registry

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "big": torch.randn(3000, 1500).bfloat16(),
        "fp32": torch.randn(70, 3),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3),
        "step": 7,
        "name": "run",
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_a_checkpoint_round_trips(threads: int) -> None:
    made = state()
    writer = dcp.FileSystemWriter(
        "c", thread_count=threads, _extensions=[Z4AI(dtype="bf16", effort="default")]
    )
    dcp.save(made, storage_writer=writer, no_dist=True)
    size = sum(path.stat().st_size for path in Path("c").glob("*.distcp"))
    assert size < 0.75 * made["big"].nbytes
    blank = {
        name: torch.full_like(value, 9) if isinstance(value, torch.Tensor) else None
        for name, value in made.items()
    }
    reader = dcp.FileSystemReader("c", _extension_registry=registry())
    dcp.load(blank, storage_reader=reader, no_dist=True)
    for name, value in made.items():
        found: Any = blank[name]
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
    with pytest.raises(BaseException, match=r"stream\.z4ai"):
        dcp.load(blank, storage_reader=dcp.FileSystemReader("c"), no_dist=True)


def compressed(data: bytes, pieces: int = 1) -> bytes:
    class Kept(io.BytesIO):
        def close(self) -> None:
            pass

    kept = Kept()
    into = Z4AI().transform_to(kept)
    cuts = sorted(random.Random(pieces).randrange(len(data) + 1) for _ in range(pieces - 1))
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        into.write(data[start:stop])
    into.flush()
    into.close()
    into.close()
    return kept.getvalue()


def restored(data: bytes) -> bytes:
    return Z4AI().transform_from(io.BytesIO(data)).read()


@pytest.mark.parametrize("size", [0, 1, 1000, stream._BLOCK, 2 * stream._BLOCK + 17])
def test_streams_of_any_length(size: int) -> None:
    data = random.Random(size).randbytes(size)
    whole = compressed(data)
    assert restored(whole) == data
    assert compressed(data, 9) == whole, "however it is written"
    if size == 1000:
        reader = Z4AI().transform_from(io.BytesIO(whole))
        assert b"".join(iter(lambda: reader.read(7), b"")) == data


def test_damage_is_an_error() -> None:
    data = torch.randn(4000).numpy().tobytes()
    whole = compressed(data)
    for cut in (0, 3, 4, 10, len(whole) // 2, len(whole) - 4, len(whole) - 1):
        with pytest.raises(ztensor.ZTensorError):
            restored(whole[:cut])
    for at in random.Random(0).sample(range(len(whole) - 4), 60):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(ztensor.ZTensorError):
            restored(bytes(damaged))
    import z4ai

    bomb = z4ai.compress(bytes(stream._BLOCK + 1))
    with pytest.raises(ztensor.LimitError):
        restored(len(bomb).to_bytes(4, "little") + bomb + bytes(4))
    with pytest.raises(ztensor.CorruptError, match="at most"):
        restored(b"\xff" * 100)
    nothing = z4ai.compress(b"")
    with pytest.raises(ztensor.CorruptError, match="empty"):
        restored(len(nothing).to_bytes(4, "little") + nothing + bytes(4))


def test_names_and_versions() -> None:
    assert Z4AI().get_descriptor() == "stream.z4ai/1"
    assert isinstance(Z4AI.from_descriptor("1"), Z4AI)
    with pytest.raises(ztensor.UnsupportedError, match="'2'"):
        Z4AI.from_descriptor("2")
    with pytest.raises(ValueError, match="effort"):
        Z4AI(effort="nope")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bf17"):
        Z4AI(dtype="bf17")

"""The name of a new file decides its format, and what a format cannot hold is refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from conftest import same_bytes

import ztensor
import ztensor.numpy
import ztensor.torch
from ztensor.torch import load_file, load_model, save, save_file, save_model

TENSORS = {
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    "steps": torch.arange(3, dtype=torch.int64),
}


def test_a_safetensors_name_gets_a_safetensors_file() -> None:
    """It was once a .zt file under that name, which no other tool could open."""
    save_file(TENSORS, "model.safetensors", metadata={"format": "pt"})
    loaded = safetensors.torch.load_file("model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    with safetensors.safe_open("model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert ztensor.open("model.safetensors").format == "safetensors"


@pytest.mark.parametrize("name", ["model.npz", "MODEL.NPZ", "model.gguf", "model.zstn"])
def test_other_names_get_their_formats(name: str) -> None:
    save_file(TENSORS, name)
    assert ztensor.open(name).format == Path(name).suffix[1:].lower()
    assert all(torch.equal(load_file(name)[key], tensor) for key, tensor in TENSORS.items())


def test_formats_open_in_their_own_libraries() -> None:
    ztensor.numpy.save_file({name: t.numpy() for name, t in TENSORS.items()}, "model.npz")
    with np.load("model.npz") as archive:
        assert all(same_bytes(archive[name], t.numpy()) for name, t in TENSORS.items())
    save_file(TENSORS, "model.gguf", metadata={"general.architecture": "test", "depth": 3})
    reader = gguf.GGUFReader("model.gguf")
    assert [tensor.name for tensor in reader.tensors] == list(TENSORS)
    assert ztensor.open("model.gguf").attributes["depth"] == 3
    ztensor.numpy.save_file({"x": np.arange(3)}, "one.npy")
    assert np.load("one.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["model", "model.zt", "model.dat", "model.v2"])
def test_everything_else_is_a_zt_file(name: str) -> None:
    save_file(TENSORS, name)
    assert ztensor.open(name).format == "zt"


@pytest.mark.parametrize("name", ["a.pt", "a.PTH", "a.bin", "a.h5", "a.onnx", "a.ckpt"])
def test_formats_that_are_only_read_are_refused(name: str) -> None:
    with pytest.raises(ztensor.InvalidArgumentError, match=r"name it .safetensors or .zt"):
        save_file(TENSORS, name)
    assert not Path(name).exists()
    save_file(TENSORS, name, format="zt")
    assert ztensor.open(name).format == "zt"


def test_format_overrides_the_name() -> None:
    save_file(TENSORS, "model.bin", format="safetensors")
    assert safetensors.torch.load_file("model.bin").keys() == TENSORS.keys()
    with pytest.raises(ValueError, match="unknown format 'pt'"):
        save_file(TENSORS, "model.zt", format="pt")  # type: ignore[arg-type]


def test_bytes_are_zt_unless_asked_for() -> None:
    assert ztensor.torch.load(save(TENSORS)).keys() == TENSORS.keys()
    assert save(TENSORS)[:4] == b"ZTEN"
    assert save(TENSORS, {"a": "b"}, format="safetensors") == safetensors.torch.save(
        TENSORS, {"a": "b"}
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.safetensors", {"compression": True}, "cannot be compressed: z4ai.save_file"),
        ("a.gguf", {"compression": "fast"}, "cannot be compressed"),
        ("a.npz", {"compression": "max"}, "can be deflated"),
        ("a.npz", {"compression": 12}, "levels 1 to 9"),
        ("a.safetensors", {"checksum": "crc32c"}, "no place for checksums"),
        ("a.safetensors", {"metadata": {"x": 1, "y": [2]}}, "'x', 'y' are not"),
        ("a.npz", {"metadata": {"x": "y"}}, "holds no metadata"),
    ],
)
def test_options_that_a_format_has_no_use_for(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ztensor.InvalidArgumentError, match=message):
        save_file(TENSORS, name, **options)
    assert not Path(name).exists()


def test_deflated_archives() -> None:
    save_file({"zeros": torch.zeros(10000)}, "small.npz", compression=True)
    assert Path("small.npz").stat().st_size < 1000
    with np.load("small.npz") as archive:
        assert not archive["zeros"].any()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(3).to_sparse_coo(), r"sparse_coo.*to_dense\(\)"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ],
)
def test_tensors_that_safetensors_cannot_hold(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        save_file({"x": tensor}, "x.safetensors")
    assert not Path("x.safetensors").exists()


def test_tied_tensors_are_refused_as_safetensors_does() -> None:
    tied = torch.zeros(3)
    for given in ({"a": tied, "b": tied}, {"a": tied, "b": tied[1:]}):
        with pytest.raises(RuntimeError, match="share memory"):
            safetensors.torch.save_file(given, "x.safetensors")
        with pytest.raises(RuntimeError, match="share memory"):
            save_file(given, "y.safetensors")
        with pytest.raises(RuntimeError, match="share memory"):
            save(given, format="safetensors")
    parts = {"a": tied[:1], "b": tied[1:]}  # the same memory, and none of it twice
    assert save(parts, format="safetensors") == safetensors.torch.save(parts)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_models_keep_one_name_of_each_tensor() -> None:
    torch.manual_seed(1)
    model = Tied()
    save_model(model, "ours.safetensors")
    safetensors.torch.save_model(model, "theirs.safetensors")
    assert Path("ours.safetensors").read_bytes() == Path("theirs.safetensors").read_bytes()
    other = Tied()
    assert load_model(other, "ours.safetensors") == ([], [])
    assert torch.equal(other.head.weight, model.head.weight)


def test_two_tensors_for_one_parameter_are_unexpected() -> None:
    save_file({"embed.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)}, "two.zt")
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "head.weight"'):
        load_model(Tied(), "two.zt")
    one = torch.ones(5, 3)
    save_file({"embed.weight": one, "head.weight": one}, "one.zt")
    assert load_model(Tied(), "one.zt") == ([], [])


def test_strided_and_foreign_tensors_are_written_as_they_are() -> None:
    tensors = {
        "rows": torch.arange(12).reshape(3, 4)[:, ::2],
        "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
        "four": torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }
    save_file(tensors, "x.safetensors")
    loaded = safetensors.torch.load_file("x.safetensors")
    assert torch.equal(loaded["rows"], tensors["rows"])
    assert torch.equal(loaded["conjugate"], tensors["conjugate"].resolve_conj())
    assert loaded["four"].view(torch.uint8).tolist() == [0, 1, 2, 3]
    arrays = {"big": np.arange(3, dtype=">i4"), "columns": np.arange(6).reshape(2, 3).T}
    ztensor.numpy.save_file(arrays, "y.safetensors")
    back = safetensors.numpy.load_file("y.safetensors")
    assert all((back[name] == array).all() for name, array in arrays.items())


def test_an_exception_while_saving_leaves_the_old_file() -> None:
    save_file({"x": torch.zeros(3)}, "x.safetensors")
    before = Path("x.safetensors").read_bytes()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_file({"x": torch.zeros(1 << 20)}, "x.safetensors", progress=stop)
    assert Path("x.safetensors").read_bytes() == before
    assert len(list(Path().iterdir())) == 1


def test_progress_counts_every_byte() -> None:
    told: list[tuple[int, int]] = []
    save_file(TENSORS, "x.safetensors", progress=lambda done, total: told.append((done, total)))
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    assert told[-1] == (size, size)


@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "x.gguf", "x.zt"])
def test_saving_never_holds_the_interpreter(name: str) -> None:
    """A thread of Python's goes on while a file is written."""
    tensors = {f"t{index}": torch.ones(4 << 20) for index in range(24)}
    save_file(tensors, name)  # what is imported and allocated once
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0)

    def ticks_meanwhile() -> int:
        before = ticks
        save_file(tensors, name)
        return ticks - before

    ticking = threading.Thread(target=tick)
    ticking.start()
    # Beside other busy processes the thread may get no turn during one call; with the interpreter
    # lock held it would get none during any.
    try:
        assert any(ticks_meanwhile() > 20 for _ in range(50))
    finally:
        done.set()
        ticking.join()


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
]  # fmt: skip


def random_state(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    state = {}
    for index in range(int(rng.integers(0, 12))):
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        shape = [int(size) for size in rng.integers(0, 5, int(rng.integers(0, 4)))]
        size = int(np.prod(shape)) * dtype.itemsize
        data = rng.integers(0, 2 if dtype is torch.bool else 256, size, dtype=np.uint8)
        flat = torch.from_numpy(data).view(dtype) if size else torch.empty(0, dtype=dtype)
        letters = "".join(rng.choice(list('abz."\\é\n漢'), int(rng.integers(1, 6))))
        state[f"{letters}{index}"] = flat.reshape(shape)
    return state


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("seed", range(40))
def test_files_and_loads_agree_with_safetensors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = random_state(rng)
    metadata = {'k\n"': "v\\é"} if seed % 2 else None
    save_file(state, "ours.safetensors", metadata)
    safetensors.torch.save_file(state, "theirs.safetensors", metadata)
    assert Path("ours.safetensors").read_bytes() == Path("theirs.safetensors").read_bytes()
    assert save(state, metadata, format="safetensors") == safetensors.torch.save(state, metadata)
    theirs = safetensors.torch.load_file("theirs.safetensors")
    for copy in (False, True):
        ours = load_file("theirs.safetensors", copy=copy)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype and tensor.shape == theirs[name].shape
            assert bits(tensor) == bits(theirs[name]) == bits(state[name])

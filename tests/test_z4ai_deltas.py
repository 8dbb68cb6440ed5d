"""Deltas between two checkpoints of one layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import same_bytes
from z4ai_data import EFFORTS, bf16_bytes, weights

import z4ai


def test_deltas_as_documented() -> None:
    prev_ckpt_bytes = bf16_bytes(100_000)
    current_ckpt_bytes = bytearray(prev_ckpt_bytes)
    current_ckpt_bytes[1000] ^= 1
    current_ckpt_bytes = bytes(current_ckpt_bytes)
    blob = z4ai.compress_delta(current_ckpt_bytes, reference=prev_ckpt_bytes, dtype="bf16")
    restored = z4ai.decompress_delta(blob, reference=prev_ckpt_bytes)
    assert bytes(restored) == current_ckpt_bytes
    assert len(blob) < 500


def test_deltas_of_everything() -> None:
    before, after = weights(40_000), weights(40_000)
    after[::100] *= 1.001
    blob = z4ai.compress_delta(after, before)
    assert len(blob) < 0.05 * after.nbytes
    reference = bytearray(before.tobytes())
    for known in (before, reference, torch.from_numpy(before.copy()), memoryview(before)):
        assert z4ai.decompress_delta(blob, known) == after.tobytes()
    out = np.empty_like(after)
    assert z4ai.decompress_delta(blob, before, out=out) is out
    assert same_bytes(out, after)
    assert z4ai.decompress_delta(blob, reference, out=reference, threads=2) is reference
    assert reference == after.tobytes()
    room = bytearray(before.nbytes + 8)
    room[4:-4] = before.tobytes()
    z4ai.decompress_delta(blob, memoryview(room)[4:-4], out=room)
    assert room[: after.nbytes] == after.tobytes()
    for effort in EFFORTS:
        again = z4ai.compress_delta(after.tobytes(), before.tobytes(), dtype="fp32", effort=effort)
        assert z4ai.decompress_delta(again, before) == after.tobytes()


def test_deltas_know_their_reference() -> None:
    before, after = bf16_bytes(5000), bf16_bytes(5000, 1)
    blob = z4ai.compress_delta(after, before, dtype="bf16")
    for wrong in (after, before[:-1] + b"\0", before[:-2], before + b"\0", b""):
        with pytest.raises(ValueError, match="reference"):
            z4ai.decompress_delta(blob, wrong)
        out = bytearray(b"\xaa" * len(after))
        with pytest.raises(ValueError, match="reference"):
            z4ai.decompress_delta(blob, wrong, out=out)
        assert out == b"\xaa" * len(after)
    with pytest.raises(ValueError, match="equal length"):
        z4ai.compress_delta(after, before[:-2])
    with pytest.raises(ValueError, match="out has"):
        z4ai.decompress_delta(blob, before, out=bytearray(10))
    with pytest.raises(ValueError, match=r"z4ai.decompress_delta\(blob, reference\)"):
        z4ai.decompress(blob)
    with pytest.raises(ValueError, match=r"not a delta: z4ai\.decompress restores it"):
        z4ai.decompress_delta(z4ai.compress(before), before)
    with pytest.raises(ValueError, match="not a delta"):
        z4ai.decompress_delta(b"nothing", before)


def test_the_delta_module() -> None:
    assert z4ai.delta.MAGIC == b"Z4DL"
    assert z4ai.compress_delta is z4ai.delta.compress
    assert z4ai.decompress_delta is z4ai.delta.decompress
    blob = z4ai.delta.compress(b"new", b"old")
    assert blob.startswith(z4ai.delta.MAGIC)
    assert z4ai.delta.peek_is_delta(blob) and not z4ai.peek_is_z4ai(blob)
    assert not z4ai.delta.peek_is_delta(b"Z4DL") and not z4ai.delta.peek_is_delta(b"")

"""The chunked module, which reads and writes the same frames."""

from __future__ import annotations

from z4ai_data import V1, bf16_bytes

import z4ai
import z4ai.chunked as ck


def test_chunked_as_documented() -> None:
    weights = bf16_bytes(50_000)
    blob = ck.compress(weights, dtype="bf16")
    weights_back = ck.decompress(blob)
    assert weights_back == weights


def test_chunked_and_root_read_each_other() -> None:
    raw = bf16_bytes(400_000)
    mine, theirs = ck.compress(raw, dtype="bf16"), z4ai.compress(raw, dtype="bf16")
    for blob in (mine, theirs, z4ai.compress(raw, effort="max")):
        assert z4ai.decompress(blob) == ck.decompress(blob) == raw
        assert z4ai.peek_is_z4ai(blob) and ck.is_chunked(blob)
    old = (V1 / "chunked_bf16.blob").read_bytes()
    assert ck.is_chunked(old) and old.startswith(ck.MAGIC) and mine.startswith(ck.MAGIC)
    assert z4ai.decompress(old) == ck.decompress(old)
    assert not ck.is_chunked((V1 / "z4ai_fp64_normal.blob").read_bytes())
    assert not ck.is_chunked(b"") and not ck.is_chunked(b"Z4AIMF0")
    out = bytearray(len(raw))
    assert ck.decompress(mine, out=out, threads=1) is out and out == raw
    assert ck.DEFAULT_CHUNK_SIZE == 2097152 and isinstance(ck.DEFAULT_LEVEL, int)
    assert ck.compress(raw, dtype="bf16", level=3, threads=2, chunk_size=1 << 16) == mine

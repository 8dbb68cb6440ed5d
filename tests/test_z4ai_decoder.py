"""The independent decoder of docs/spec/z4ai.md reads the golden frames."""

from pathlib import Path

import pytest

pytest.importorskip("xxhash")
from z4ai_decoder import decode

GOLDEN = Path(__file__).parent.parent / "crates" / "z4ai" / "tests" / "golden"


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.z4ai")))
def test_golden_frames_decode(name: str) -> None:
    frame = (GOLDEN / f"{name}.z4ai").read_bytes()
    if name == "text":
        pytest.importorskip("zstandard")
    content, _, array = decode(frame)
    assert content == (GOLDEN / f"{name}.raw").read_bytes()
    assert array == (("<f4", [20, 20]) if name == "array" else None)


def test_golden_frames_are_there() -> None:
    assert len(list(GOLDEN.glob("*.z4ai"))) >= 14


@pytest.mark.parametrize("name", ["bf16_columns", "bf16_fast_with_patches", "odd_tail"])
def test_flipped_bits_are_noticed(name: str) -> None:
    frame = bytearray((GOLDEN / f"{name}.z4ai").read_bytes())
    for at in range(0, len(frame), 7):
        frame[at] ^= 1 << (at % 8)
        with pytest.raises(ValueError):
            decode(bytes(frame))
        frame[at] ^= 1 << (at % 8)

"""The independent decoder of docs/spec/z4ai.md reads the golden frames."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xxhash")
import z4ai_decoder
from z4ai_decoder import decode

CODERS = 9
GOLDEN = Path(__file__).parent.parent / "crates" / "z4ai" / "tests" / "golden"


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.z4ai")))
def test_golden_frames_decode(name: str) -> None:
    frame = (GOLDEN / f"{name}.z4ai").read_bytes()
    if name == "text":
        pytest.importorskip("zstandard")
    content, _, array = decode(frame)
    assert content == (GOLDEN / f"{name}.raw").read_bytes()
    assert array == (("<f4", [20, 20]) if name == "array" else None)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.z4dl")))
def test_golden_deltas_decode(name: str) -> None:
    frame, reference, current = (
        (GOLDEN / f"{name}.{kind}").read_bytes() for kind in ("z4dl", "ref", "raw")
    )
    assert decode(frame, reference)[0] == current
    with pytest.raises(ValueError, match="102"):
        decode(frame, bytes([reference[0] ^ 1]) + reference[1:])
    damaged = bytearray(frame)
    for at in range(0, len(frame), max(7, len(frame) // 64)):
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(ValueError):
            decode(bytes(damaged), reference)
        damaged[at] ^= 1 << (at % 8)


def test_golden_deltas_have_every_relation_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def note(self: Any, payload: Any, reference: bytes) -> bytes:
        if self.fresh:
            seen.add("fresh")
        elif self.binned:
            seen.add("bins")
        else:
            seen.add(("bits" if self.xor else "distance", bool(self.thresholds)))
            seen.update("marks" if one.marked else "gaps" for one in self.classes if one.places)
        return decode_one(self, payload, reference)

    decode_one = z4ai_decoder.Difference.decode
    monkeypatch.setattr(z4ai_decoder.Difference, "decode", note)
    for path in GOLDEN.glob("*.z4dl"):
        decode(path.read_bytes(), path.with_suffix(".ref").read_bytes())
    relations = {(name, classed) for name in ("bits", "distance") for classed in (False, True)}
    assert seen == relations | {"fresh", "bins", "marks", "gaps"}


def test_golden_frames_are_there() -> None:
    assert len(list(GOLDEN.glob("*.z4ai"))) >= 14


def test_golden_frames_have_every_layout_and_coder(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zstandard")
    seen = set()
    layouts = {"Opaque", "Split", "Indexed", "Sparse", "Range", "Grouped", "Contexts"}
    layouts |= {"Blocks", "Classed", "Leveled"}
    for name in (*layouts, "Stream"):
        layout = getattr(z4ai_decoder, name)
        monkeypatch.setattr(layout, "decode", watched(layout.decode, seen))
    for path in GOLDEN.glob("*.z4ai"):
        decode(path.read_bytes())
    assert seen == layouts | set(range(CODERS))


def watched(decode_one: Callable[..., bytes], seen: set[str | int]) -> Callable[..., bytes]:
    def decode_and_note(self: Any, payload: Any) -> bytes:
        seen.add(self.coder if isinstance(self, z4ai_decoder.Stream) else type(self).__name__)
        return decode_one(self, payload)

    return decode_and_note


@pytest.mark.parametrize(
    "name",
    [
        "bf16_columns",
        "bf16_fast_with_patches",
        "odd_tail",
        "sparse_fp32_with_signs",
        "palette_of_any_numbers",
        "rows_of_few_values",
        "int64_of_a_small_range",
        "bf16_balanced",
        "bf16_max",
        "fp32_with_leaning_signs",
        "blocks_in_classes",
        "blocks_q5_k",
        "blocks_in_pooled_classes",
        "blocks_of_a_convolution",
        "blocks_in_packed_classes",
        "blocks_with_relative_offsets",
        "fp8_rows_and_columns",
        "fp8_of_a_convolution",
        "fp8_of_two_scales",
        "fp8_of_positions",
        "fp8_of_words",
        "fp8_rows",
        "bf16_of_rows_and_columns",
    ],
)
def test_flipped_bits_are_noticed(name: str) -> None:
    frame = bytearray((GOLDEN / f"{name}.z4ai").read_bytes())
    for at in range(0, len(frame), max(7, len(frame) // 64)):
        frame[at] ^= 1 << (at % 8)
        with pytest.raises(ValueError):
            decode(bytes(frame))
        frame[at] ^= 1 << (at % 8)

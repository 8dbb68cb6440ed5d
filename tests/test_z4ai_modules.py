"""The codec's parts under the names of their modules."""

from __future__ import annotations

import numpy as np
import pytest

import z4ai
from z4ai import auto, backend, codec, format, transforms


def test_the_modules_offer_what_the_package_does():
    for name in codec.__all__:
        assert getattr(codec, name) is getattr(z4ai, name), name
    assert format.peek_is_z4ai is z4ai.peek_is_z4ai
    assert auto.decompress is z4ai.decompress


def test_auto_takes_the_most_effort_unless_told():
    data = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    assert auto.compress(data) == z4ai.compress(data, effort="max")
    assert auto.compress(data.tobytes(), dtype="fp32", effort="fast") == z4ai.compress(
        data.tobytes(), dtype="fp32", effort="fast"
    )
    assert np.array_equal(auto.decompress_array(auto.compress(data)), data)
    with pytest.raises(ValueError, match="balanced"):
        auto.compress(data, effort="most")


@pytest.mark.parametrize("width", [1, 2, 3, 8, 255])
@pytest.mark.parametrize("length", [0, 1, 7, 1000])
def test_planes_come_apart_and_together(width, length):
    data = bytes(i % 251 for i in range(length))
    planes, tail = transforms.split_planes(memoryview(data), width)
    assert len(planes) == width
    assert len(tail) == transforms.tail_len(length, width) == length % width
    for j, plane in enumerate(planes):
        assert plane == bytes(data[i * width + j] for i in range(length // width))
    assert transforms.join_planes(planes, tail) == data


def test_planes_of_no_width_or_of_two_lengths_are_refused():
    for width in (0, -1, 256):
        with pytest.raises(ValueError, match="1 to 255"):
            transforms.split_planes(b"abc", width)
    with pytest.raises(ValueError, match="1 to 255"):
        transforms.join_planes([])
    with pytest.raises(ValueError, match="one length"):
        transforms.join_planes([b"ab", b"c"])


def test_a_plane_is_a_frame():
    plane = bytes(3000) + b"end"
    frame = backend.compress_plane(plane, level=5)
    assert len(frame) < 200
    assert backend.decompress_plane(frame) == z4ai.decompress(frame) == plane
    with pytest.raises(ValueError, match="level"):
        backend.compress_plane(plane, level=23)
    with pytest.raises(ValueError):
        backend.decompress_plane(frame[:-1])

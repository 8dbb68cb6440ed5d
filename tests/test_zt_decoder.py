"""The independent decoder of docs/spec/zt.md reads every sample file."""

from pathlib import Path

import numpy as np
import pytest
from zt_decoder import read

SAMPLES = Path(__file__).parent.parent / "crates" / "ztensor" / "tests" / "data" / "zt"


@pytest.mark.parametrize(
    "sample", sorted(path.name for path in SAMPLES.glob("*.zt") if "v01" not in path.name)
)
def test_sample_files_hold_what_their_writer_says(sample: str) -> None:
    objects = read(SAMPLES / sample)
    expected = np.load(SAMPLES / f"{sample}.expected.npz")
    assert expected.files
    for name in expected.files:
        tensor, role = (name, "data") if name in objects else name.rsplit(".", 1)
        assert objects[tensor]["components"][role] == expected[name].tobytes(), name
        if role == "data":
            assert objects[tensor]["shape"] == list(expected[name].shape)


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    ztensor = pytest.importorskip("ztensor")
    path = tmp_path / "model.zt"
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    with ztensor.Writer(path) as writer:
        writer.write_numpy("plain", weights)
        writer.write_numpy("packed", np.zeros((100, 100)), compress=True, checksum="crc32c")
        writer.write_numpy("checked", weights, checksum="sha256")
        writer.write_numpy("scalar", np.float64(7.5))
        writer.write_numpy("complex", np.array([1 + 2j], dtype=np.complex64))
    objects = read(path)
    assert objects["plain"]["components"]["data"] == weights.tobytes()
    assert objects["checked"]["components"]["data"] == weights.tobytes()
    assert objects["packed"]["components"]["data"] == bytes(80_000)
    assert objects["scalar"]["shape"] == []
    assert (
        objects["complex"]["components"]["data"] == np.array([1 + 2j], dtype=np.complex64).tobytes()
    )


def test_damage_to_the_manifest_is_noticed_by_both(tmp_path: Path) -> None:
    ztensor = pytest.importorskip("ztensor")
    path = tmp_path / "model.zt"
    with ztensor.Writer(path) as writer:
        writer.write_numpy("w", np.arange(3, dtype=np.float32))
    whole = path.read_bytes()
    assert whole.count(b"manifest_checksum") == 1
    read(path)
    damaged = bytearray(whole)
    damaged[whole.rindex(b"1.2.0") + 4] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(AssertionError, match="damaged"):
        read(path)
    with pytest.raises(ztensor.ZTensorError, match="damaged"):
        ztensor.open(path)

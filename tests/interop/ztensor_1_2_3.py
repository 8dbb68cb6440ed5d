"""Lets ztensor 1.2.3 read our files, and write files for us to read.

    python3 ztensor_1_2_3.py setup          makes an environment with that version
    python3 ztensor_1_2_3.py check FOLDER   reads each X.zt and compares it with X.json
    python3 ztensor_1_2_3.py make FOLDER    writes X.zt and X.json
    python3 ztensor_1_2_3.py edit FOLDER    edits the file ours.zt in three ways, in copies

`setup` exits with 77 and says why where the version cannot be had (offline, say).
The JSON gives shape, type, layout and the bytes of each component in hexadecimal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

PACKAGES = ["ztensor==1.2.3", "numpy==2.4.6", "ml_dtypes==0.5.4"]
HOME = Path(__file__).resolve().parents[2] / ".cache" / "interop" / "ztensor-1.2.3"
PYTHON = HOME / "bin" / "python"
CANNOT = 77


def setup() -> int:
    complete = HOME / "complete"
    if complete.exists():
        return 0
    try:
        venv.create(HOME, with_pip=True, clear=True)
        install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        subprocess.run([*install, *PACKAGES], check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{PACKAGES[0]} cannot be installed here: {error}")
        return CANNOT
    complete.touch()
    return 0


def describe(reader: Any, name: str) -> dict[str, Any]:
    """What the other version makes of a tensor."""
    tensor = reader.read(name, copy=True)
    return {
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "format": tensor.format,
        "components": {role: part.tobytes().hex() for role, part in tensor.components.items()},
    }


def check(folder: Path) -> int:
    import ztensor

    failures = 0
    for path in sorted(folder.glob("*.zt")):
        expected = json.loads(path.with_suffix(".json").read_text())
        try:
            reader = ztensor.Reader(str(path))
            found = {name: describe(reader, name) for name in reader}
        except Exception as error:
            found = {"error": repr(error)}
        if found == expected:
            print(f"{path.name}: {len(found)} tensors agree")
            continue
        failures += 1
        for name in sorted(found.keys() | expected.keys()):
            if found.get(name) != expected.get(name):
                print(f"{path.name}: {name}: read {found.get(name)}, expected {expected.get(name)}")
    return 1 if failures else 0


def make(folder: Path) -> int:
    import ml_dtypes
    import numpy as np

    import ztensor

    dense: dict[str, Any] = {
        name: np.arange(24).astype(name).reshape(2, 3, 4)
        for name in [
            "float64",
            "float32",
            "float16",
            "int64",
            "int32",
            "int16",
            "int8",
            "uint64",
            "uint32",
            "uint8",
        ]
    }
    dense["bfloat16"] = np.arange(6).astype(ml_dtypes.bfloat16)
    dense["bool"] = np.array([True, False, True])
    sparse = {
        "csr": ztensor.Tensor(
            {
                "values": np.array([1.0, 2.0], dtype=np.float32),
                "indices": np.array([0, 2], dtype=np.uint64),
                "indptr": np.array([0, 1, 2], dtype=np.uint64),
            },
            shape=[2, 3],
            dtype="float32",
            format="sparse_csr",
        ),
        "coo": ztensor.Tensor(
            {
                "values": np.array([1.0, 2.0]),
                "coords": np.array([0, 1, 2, 0], dtype=np.uint64),
            },
            shape=[2, 3],
            dtype="float64",
            format="sparse_coo",
        ),
    }

    def write(writer: Any, **options: Any) -> None:
        for name, array in dense.items():
            writer.write_numpy(name, array, **options)

    for compress in (False, True, 19):
        for checksum in ("none", "crc32c", "sha256"):
            with ztensor.Writer(str(folder / f"dense-{int(compress)}-{checksum}.zt")) as writer:
                write(writer, compress=compress, checksum=checksum)
    with ztensor.Writer(str(folder / "sparse.zt")) as writer:
        for name, tensor in sparse.items():
            writer.write(name, tensor)
    with ztensor.Writer(str(folder / "appended.zt")) as writer:
        write(writer, checksum="sha256")
    writer = ztensor.Writer.append(str(folder / "appended.zt"))
    writer.write_numpy("later", np.arange(100, dtype=np.float32), compress=True)
    writer.finish()
    (folder / "replaced.zt").write_bytes((folder / "appended.zt").read_bytes())
    ztensor.replace_tensor(str(folder / "replaced.zt"), "float64", np.ones((2, 3, 4)))
    ztensor.remove_tensors(
        str(folder / "appended.zt"), str(folder / "removed.zt"), ["int8", "later"]
    )
    for path in folder.glob("*.zt"):
        reader = ztensor.Reader(str(path))
        found = {name: describe(reader, name) for name in reader}
        path.with_suffix(".json").write_text(json.dumps(found))
    return 0


def edit(folder: Path) -> int:
    import numpy as np

    import ztensor

    ours = folder / "ours.zt"
    for name in ("appended.zt", "replaced.zt"):
        (folder / name).write_bytes(ours.read_bytes())
    writer = ztensor.Writer.append(str(folder / "appended.zt"))
    writer.write_numpy("later", np.arange(100, dtype=np.float32))
    writer.finish()
    ztensor.replace_tensor(str(folder / "replaced.zt"), "f64", np.ones((3, 4, 5)))
    ztensor.remove_tensors(str(ours), str(folder / "removed.zt"), ["f64"])
    return 0


def main(command: str, *arguments: str) -> int:
    if command == "setup":
        return setup()
    if Path(sys.prefix) != HOME:
        os.execv(PYTHON, [str(PYTHON), __file__, command, *arguments])
    return {"check": check, "edit": edit, "make": make}[command](Path(*arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

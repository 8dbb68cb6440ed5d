"""Pack a safetensors model losslessly, then read single tensors and rows from the packed file.

python examples/pack_and_serve.py model.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path

from z4ai.safetensors import ZstnReader, compress_file


def main(model: str) -> None:
    packed = str(Path(model).with_suffix(".zstn"))
    stats = compress_file(model, packed, effort="fast")
    print(f"{packed}: {stats['saved_pct']:.1f} % smaller")
    with ZstnReader.open(packed) as reader:
        for name in reader.names()[:3]:
            rows = reader.read_numpy(name, rows=slice(0, 2))
            print(f"  {name}: {rows.dtype} {rows.shape}, {reader.frame_size(name)} bytes stored")


if __name__ == "__main__":
    main(sys.argv[1])

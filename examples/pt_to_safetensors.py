"""Convert a PyTorch checkpoint to safetensors without unpickling it.

    python examples/pt_to_safetensors.py checkpoint.pt model.safetensors

Nothing in the checkpoint is executed. Tensors stream from one file to the other, so models larger
than memory convert.
"""

from __future__ import annotations

import sys

import ztensor


def main(source: str, target: str) -> None:
    with ztensor.open(source) as reader:
        print(f"{source}: {reader.format}, {len(reader)} tensors")
        for name in reader:
            meta = reader.metadata(name)
            print(f"  {name}: {meta.dtype} {meta.shape}")
    ztensor.convert(source, target)
    print(f"wrote {target}")


if __name__ == "__main__":
    main(*sys.argv[1:3])

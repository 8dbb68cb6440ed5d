"""Store a fine-tune as a delta to its base, and restore it byte for byte.

python examples/finetune_delta.py base.safetensors tuned.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path

from z4ai import model_delta


def main(base: str, tuned: str) -> None:
    delta = str(Path(tuned).with_suffix(".z4dm"))
    model_delta.compress_file(tuned, base, delta)
    full, small = Path(tuned).stat().st_size, Path(delta).stat().st_size
    print(f"{delta}: {small} bytes, {full / small:.1f} x smaller than the fine-tune")
    restored = str(Path(tuned).with_suffix(".restored"))
    model_delta.decompress_file(delta, base, restored)
    assert Path(restored).read_bytes() == Path(tuned).read_bytes()
    print(f"{restored}: identical to {tuned}")


if __name__ == "__main__":
    main(*sys.argv[1:3])

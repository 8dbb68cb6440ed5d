"""vLLM on the CPU with two workers, in processes of their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"

import models
import vllm
from vllm_formats import reloaded, tokens

import z4ai
from ztensor.torch import save_file


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    state = models.llama(Path("plain"), 1)
    save_file(models.tuned(state), "new.zt", compression="fast")
    z4ai.pack_model("plain", "packed")
    llm = vllm.LLM(
        "packed",
        load_format="ztensor",
        tensor_parallel_size=2,
        dtype="bfloat16",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=64,
        enable_prefix_caching=False,
    )
    packed = tokens(llm)
    here = Path.cwd()
    other = reloaded(llm, here / "new.zt")
    assert other != packed
    # Plain files, each rank from its own place in them.
    assert reloaded(llm, here / "plain") == packed
    assert reloaded(llm, here / "new.zt") == other
    print("fine")


if __name__ == "__main__":
    main()

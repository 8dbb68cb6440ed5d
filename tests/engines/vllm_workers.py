"""vLLM on the CPU with two workers, in processes of their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"

import models
import vllm
from results import Results, print_all
from vllm_formats import engine, reloaded, tokens

import z4ai
from ztensor import sync
from ztensor.torch import save_file
from ztensor.vllm.transfer import OfflineClient


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    here = Path.cwd()
    state = models.llama(Path("plain"), 1)
    new = models.tuned(state)
    save_file(new, "new.zt", compression="fast")
    z4ai.pack_model("plain", "packed")
    llm = engine(
        here / "packed",
        load_format="ztensor",
        tensor_parallel_size=2,
        weight_transfer_config={"backend": "ztensor"},
    )
    seen = Results("vLLM", vllm.__version__)
    packed = tokens(llm)
    other = reloaded(llm, here / "new.zt")
    assert other != packed
    # Plain files, each rank from its own place in them.
    assert reloaded(llm, here / "plain") == packed
    assert reloaded(llm, here / "new.zt") == other
    assert reloaded(llm, here / "plain") == packed
    seen.checked("two workers (tensor parallelism)")
    # Both workers follow one checkpoint: one applies a version, and both load what it changed.
    publisher = sync.Publisher("stream", state, compression="z4ai")
    client = OfflineClient(llm)
    client.init_weight_transfer_engine(
        {
            "stream": str(here / "stream"),
            "local": str(here / "local"),
            "base": str(here / "plain"),
        }
    )
    for weights, expected in ((new, other), (state, packed), (new, other)):
        version = publisher.publish(weights).version
        client.start_weight_update()
        client.update_weights({"version": version})
        client.finish_weight_update(version)
        assert tokens(llm) == expected, version
    Results("vLLM, weight transfer", vllm.__version__).checked("two workers")
    print_all()


if __name__ == "__main__":
    main()

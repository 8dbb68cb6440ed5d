"""vLLM on the CPU with the experts of a model split between two workers.

Only loading is tested: the kernel of vLLM 0.32 for experts on the CPU crashes when some of them are
on another worker. The parameters of the workers are compared instead.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
# For the function that the workers run.
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"

import models
import vllm
from remote_servers import range_server
from results import Results, print_all
from vllm_formats import engine, stopped


def digests(worker: Any) -> dict[str, str]:
    """Of the parameters that a worker holds."""
    import hashlib

    import torch

    parameters = worker.model_runner.model.named_parameters()
    return {
        name: hashlib.sha256(one.detach().contiguous().view(torch.uint8).numpy()).hexdigest()
        for name, one in parameters
        if one.numel()
    }


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    state = models.mixtral(Path("plain"), 3)
    size = sum(tensor.nbytes for tensor in state.values())
    experts = sum(tensor.nbytes for name, tensor in state.items() if ".experts." in name)
    split = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    with range_server() as server:
        url = server.put("model.safetensors", Path("plain/model.safetensors").read_bytes())
        llm = engine(
            Path("plain").absolute(),
            load_format="ztensor",
            model_loader_extra_config={"weights": url},
            enable_ep_weight_filter=True,
            **split,
        )
        # Each worker reads half of the experts, and all of the rest.
        read = server.received()
        expected = experts + 2 * (size - experts)
        assert expected <= read < 1.05 * expected, (read, expected, size)
    found = llm.collective_rpc(digests)
    stopped(llm)
    assert len(found) == 2 and found[0] != found[1]
    llm = engine(Path("plain").absolute(), **split)
    assert llm.collective_rpc(digests) == found
    stopped(llm)
    Results("vLLM", vllm.__version__).checked("experts of other workers are not read")
    print_all()


if __name__ == "__main__":
    main()

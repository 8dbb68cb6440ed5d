"""vLLM on the CPU, in one process: the same tokens whatever the file."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import models
import safetensors.torch
import torch
import vllm
from remote_servers import range_server
from results import Results, print_all
from vllm.distributed import cleanup_dist_env_and_memory

import z4ai
import ztensor
from z4ai import model_delta
from ztensor.torch import save_file

PROMPTS = [[1, 5, 9, 33], [7, 300, 2], [100, 101, 102, 103, 104]]


def engine(folder: Path | str, **options: Any) -> Any:
    """An engine that is small and needs no tokenizer."""
    settings = {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_model_len": 64,
        "enable_prefix_caching": False,
    }
    return vllm.LLM(str(folder), **{**settings, **options})


def started(folder: Path, load_format: str, **extra: Any) -> Any:
    return engine(folder, load_format=load_format, model_loader_extra_config=extra)


def tokens(llm: Any) -> list[list[int]]:
    settings = vllm.SamplingParams(temperature=0, max_tokens=12, detokenize=False, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(prompts, settings, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def stopped(llm: Any) -> None:
    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()


def reloaded(llm: Any, path: object = None) -> list[list[int]]:
    options = {} if path is None else {"weights_path": str(path)}
    llm.collective_rpc("reload_weights", kwargs=options)
    return tokens(llm)


def refused(what: str, call: Any) -> None:
    """A call fails, and what it says has our message in it."""
    try:
        call()
    except Exception as error:
        said = []
        cause: BaseException | None = error
        while cause is not None:
            said.append(f"{type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
        assert any(what in line for line in said), said
    else:
        raise AssertionError(f"no error that says {what!r}")
    gc.collect()
    cleanup_dist_env_and_memory()


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    seen = Results("vLLM", vllm.__version__)
    folder = Path("plain")
    state = models.llama(folder, 1)
    config = Path("config-only")
    config.mkdir()
    (config / "config.json").write_bytes((folder / "config.json").read_bytes())
    new = models.tuned(state)
    safetensors.torch.save_file(new, "new.safetensors", metadata={"format": "pt"})
    z4ai.safetensors.compress_file("plain/model.safetensors", "packed.safetensors")
    Path("tuned-folder").mkdir()
    os.link("new.safetensors", "tuned-folder/model.safetensors")
    Path("in-folder/sub").mkdir(parents=True)
    os.link("packed.safetensors", "in-folder/sub/model.safetensors")
    save_file(state, "model.zt", compression="fast", checksum="crc32c")
    save_file(state, "raw.zt")
    torch.save(state, "model.pt")
    Path("shards").mkdir()
    save_file(dict(list(state.items())[:9]), "shards/model-00001-of-00002.safetensors")
    save_file(dict(list(state.items())[9:]), "shards/model-00002-of-00002.safetensors")
    (Path("shards") / "config.json").write_bytes((folder / "config.json").read_bytes())
    model_delta.compress_file("new.safetensors", "plain/model.safetensors", "step.z4dm")
    model_delta.compress_file("plain/model.safetensors", "new.safetensors", "back.z4dm")
    repository = ztensor.Repository.init("models")
    repository.commit("plain", tag="first")
    repository.commit("tuned-folder")
    repository.commit("in-folder", branch="runs/a")
    dequantized = models.write_gguf(state, Path("model.gguf"))
    save_file(dequantized, "dequantized.safetensors")

    llm = started(folder, "auto")
    expected = tokens(llm)
    after_step = reloaded(llm, model_folder("new.safetensors", "tuned"))
    assert expected != after_step
    stopped(llm)

    # What stops a start.
    damaged = bytearray(Path("packed.safetensors").read_bytes())
    damaged[len(damaged) // 2] ^= 4
    Path("damaged.safetensors").write_bytes(damaged)
    broken = {
        "checksum": {"weights": "damaged.safetensors"},
        "damaged.safetensors": {"weights": "damaged.safetensors"},
        "not the base that the delta was made from": {
            "weights": "model.zt",
            "delta": "back.z4dm",
        },
        "no option 'wieghts'": {"wieghts": "x"},
        "dequantize cannot be 1": {"dequantize": 1},
        "dequantize=true": {"weights": "model.gguf"},
        "neither model.safetensors.index.z4ai.json": {"variant": "z4ai"},
    }
    for what, extra in broken.items():
        refused(what, lambda extra=extra: started(config, "ztensor", **extra))
    fewer = {name: tensor for name, tensor in state.items() if "lm_head" not in name}
    save_file(fewer, "fewer.zt")
    refused(
        "fewer.zt: no weights for lm_head.weight of LlamaForCausalLM",
        lambda: started(config, "ztensor", weights="fewer.zt"),
    )

    # The weights are elsewhere than the configuration, packed, with a delta on top.
    llm = started(config, "ztensor", weights="packed.safetensors", delta=["step.z4dm"])
    assert tokens(llm) == after_step, "delta at the start"
    assert reloaded(llm) == after_step, "the same again"
    for path, what in {
        "plain": "plain safetensors",
        "packed.safetensors": "packed safetensors",
        "raw.zt": "`.zt`",
        "model.zt": "compressed `.zt`",
        "model.pt": "`.pt`",
        "shards": "shards",
        "ztensor-repo://models@main~1": "versions of repositories",
        "ztensor-repo://models@runs/a/sub": "versions of repositories",
    }.items():
        assert reloaded(llm, "new.safetensors") == after_step, "in between"
        assert reloaded(llm, path) == expected, path
        seen.loads(what)
    assert reloaded(llm, "ztensor-repo://models@main") == after_step
    assert reloaded(llm, "plain") == expected
    seen.checked("same tokens as the built-in loader", "reload")
    # Deltas one after another, without the base being named again.
    assert reloaded(llm, "step.z4dm") == after_step
    assert reloaded(llm) == after_step
    assert reloaded(llm, "back.z4dm") == expected
    seen.loads("model deltas")
    # A wrong base is found before the model is touched.
    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": "raw.zt"})
        llm.collective_rpc("reload_weights", kwargs={"weights_path": "back.z4dm"})
    except Exception as error:
        assert "not the base" in str(error), error
    else:
        raise AssertionError("a delta on a wrong base")
    assert tokens(llm) == expected
    with range_server() as server:
        for name in ("model.zt", "packed.safetensors", "plain/model.safetensors"):
            assert reloaded(llm, "new.safetensors") == after_step
            server.counted()
            assert reloaded(llm, server.put(name, Path(name).read_bytes())) == expected, name
            assert 0 < server.counted() < 20, "ranges are coalesced"
            seen.loads("URLs")
    assert not list(Path(tempfile.gettempdir()).glob("z-*")), "nothing is left of deltas"
    # The scheduler pauses; memory is not given back on the CPU. Weights may change meanwhile.
    for level in (0, 1, 2):
        llm.sleep(level=level)
        llm.collective_rpc("reload_weights", kwargs={"weights_path": "new.safetensors"})
        llm.wake_up(["scheduling"] if level == 0 else None)
        assert tokens(llm) == after_step
        assert reloaded(llm, "plain") == expected
    seen.checked("reload while asleep")
    stopped(llm)

    # A version of a repository from the start.
    llm = started(config, "ztensor", weights="ztensor-repo://models@first")
    assert tokens(llm) == expected
    stopped(llm)

    # Variants, and GGUF against the same numbers in a plain file.
    z4ai.pack_model("plain", "variant")
    llm = started(Path("variant"), "ztensor", variant="z4ai", dequantize=True)
    assert tokens(llm) == expected
    seen.loads("variants")
    of_numbers = reloaded(llm, "dequantized.safetensors")
    assert reloaded(llm, "new.safetensors") == after_step
    assert reloaded(llm, "model.gguf") == of_numbers
    seen.loads("GGUF dequantized")
    seen.checked("damaged files, wrong deltas and missing parameters stop the start")
    stopped(llm)
    print_all()


def model_folder(name: str, folder: str) -> Path:
    """A folder with a model of one file; the file stays where it is, too."""
    Path(folder).mkdir()
    os.link(name, Path(folder) / "model.safetensors")
    (Path(folder) / "config.json").write_bytes(Path("plain/config.json").read_bytes())
    return Path(folder)


if __name__ == "__main__":
    main()

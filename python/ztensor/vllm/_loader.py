"""The model loader of vLLM. Imported by :func:`ztensor.vllm.register` only: it needs vLLM."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

import torch

from ztensor import store
from ztensor._errors import (
    FileError,
    InvalidArgumentError,
    ModelMismatchError,
    UnsupportedError,
)
from ztensor._weights import Options, Share, Weights, is_delta, listed, variant_of
from ztensor.vllm._doors import door, version

_BaseModelLoader = door("vllm.model_executor.model_loader", "BaseModelLoader")
_logger = door("vllm.logger", "init_logger")("vllm.ztensor")

# Files that are downloaded from the Hugging Face Hub: the first kind that a repository has.
_DOWNLOADED = ["*.safetensors", "*.zt", "*.zstn", "*.bin", "*.pt", "*.gguf"]


@dataclass
class Loaded:
    """What a model was loaded from."""

    model: str
    """The model's path in vLLM's configuration at that time."""
    weights: list[str]
    deltas: list[str] = field(default_factory=list)


# A loader is made for each reload; what it starts from belongs to the model.
LOADED: weakref.WeakKeyDictionary[torch.nn.Module, Loaded] = weakref.WeakKeyDictionary()


class ModelLoader(_BaseModelLoader):  # type: ignore[misc, valid-type]
    """``load_format="ztensor"``."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._options = Options.of(
            load_config.model_loader_extra_config or {}, "model_loader_extra_config"
        )

    def download_model(self, model_config: Any) -> None:
        """Downloads the weights of a repository of the Hugging Face Hub."""
        if not self._options.weights:
            self._folder(place(model_config), model_config.revision)

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """Fills a model; parameters that get nothing are an error."""
        began = time.perf_counter()
        loaded = model.load_weights(self.get_all_weights(model_config, model))  # type: ignore[operator]
        _logger.info("Loading weights took %.2f seconds", time.perf_counter() - began)
        check = self._options.check_missing
        if check is None:
            check = model_config.quantization is None and loaded is not None
        if check and loaded is None:
            raise UnsupportedError(
                f"{type(model).__name__} does not say which weights it loaded: "
                "leave check_missing out"
            )
        missing = _parameters(model) - loaded if check else set()
        if missing:
            names = sorted(missing)
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise ModelMismatchError(
                f"{', '.join(LOADED[model].weights)}: no weights for {', '.join(names[:8])}{more} "
                f"of {type(model).__name__} (check_missing=false loads the rest)"
            )

    def get_all_weights(
        self, model_config: Any, model: torch.nn.Module
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """All weights of a model, opened and checked before this returns."""
        if model in LOADED:
            refuse_stale(model, model_config)
            if tied_heads(model):
                raise UnsupportedError(
                    _STALE.format("output weights tied to embeddings", version())
                )
        source = self._source(model_config, model)
        experts = local_experts(model_config)
        unused = getattr(model, "is_unused_checkpoint_weight", None)
        parts = [(self._opened(source), unused)]
        try:
            for other in getattr(model, "secondary_weights", ()):
                parts.append((self._secondary(other), getattr(other, "is_unused_weight", None)))
        except BaseException:
            for weights, _ in parts:
                weights.close()
            raise
        LOADED[model] = replace(source)  # one object for each load

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            try:
                for weights, is_unused in parts:
                    share = Share(*_rank(), skipping(experts, is_unused))
                    yield from weights.tensors(share, model_config.dtype)
            finally:
                for weights, _ in parts:
                    weights.close()

        return tensors()

    def _source(self, model_config: Any, model: torch.nn.Module) -> Loaded:
        """Files to load: those of the options, of the last load, or of another path than that."""
        path = place(model_config)
        last = LOADED.get(model)
        if last is not None and path == last.model:
            return last
        if last is not None and is_delta(path):
            return Loaded(path, last.weights, [*last.deltas, path])
        if is_delta(path):
            raise InvalidArgumentError(f"{path} is a model delta: reload_weights() takes it")
        if last is not None:
            return Loaded(path, self._found(path, None, model))
        if not _is_main(model_config):
            return Loaded(path, self._found(path, model_config.revision, model))
        weights = listed(self._options.weights)
        if not weights:
            weights = self._found(path, model_config.revision, model)
        return Loaded(path, weights, listed(self._options.delta))

    def _found(self, path: str, revision: str | None, model: torch.nn.Module) -> list[str]:
        """The files of a model."""
        if "://" in path or os.path.isfile(path):
            return [path]
        folder = self._folder(path, revision)
        if self._options.variant is not None:
            return [variant_of(folder, self._options.variant, self._options)]
        return _matching(folder, getattr(model, "allow_patterns_overrides", None))

    def _folder(self, path: str, revision: str | None, subfolder: str | None = None) -> str:
        """A local folder, downloaded if a path is a repository of the Hub."""
        if "://" in path or os.path.exists(path):
            return path if subfolder is None else store.join(path, subfolder)
        download = door("vllm.model_executor.model_loader.weight_utils", "download_weights_from_hf")
        folder: str = download(
            path,
            self.load_config.download_dir,
            _DOWNLOADED,
            revision,
            subfolder=subfolder,
            ignore_patterns=self.load_config.ignore_patterns,
        )
        return folder if subfolder is None else os.path.join(folder, subfolder)

    def _opened(self, source: Loaded) -> Weights:
        return Weights(source.weights, self._options, deltas=source.deltas)

    def _secondary(self, source: Any) -> Weights:
        """Weights of another place that a model asks for."""
        folder = self._folder(source.model_or_path, source.revision, source.subfolder)
        paths = _matching(folder, source.allow_patterns_overrides)
        return Weights(paths, self._options.without_sources(), prefix=source.prefix)


_STALE = "{} cannot be changed on the CPU: vLLM {} keeps a copy there; start a new engine"


def refuse_stale(model: torch.nn.Module, model_config: Any) -> None:
    """Refuses to change experts on the CPU, which compute with a copy that is made once."""
    if _on_cpu(model) and getattr(model_config, "is_moe", False):
        raise UnsupportedError(_STALE.format("experts", version()))


def tied_heads(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Heads on the CPU that share the weights of embeddings, and keep a copy of them."""
    method = door(
        "vllm.model_executor.layers.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"
    )
    found = []
    seen: set[int] = set()
    for layer in model.modules() if _on_cpu(model) else ():
        own = {id(parameter) for parameter in layer.parameters(recurse=False)}
        if isinstance(getattr(layer, "quant_method", None), method) and not seen.isdisjoint(own):
            found.append(layer)
        seen |= own
    return found


def _on_cpu(model: torch.nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


def _is_main(model_config: Any) -> bool:
    """Whether a model is the one that options are for, not a draft of speculative decoding."""
    current = door("vllm.config", "get_current_vllm_config_or_none")()
    return current is None or bool(current.model_config.model == model_config.model)


def _parameters(model: torch.nn.Module) -> set[str]:
    """Parameters that a checkpoint has to have."""
    cache_scales = door("vllm.model_executor.layers.quantization.kv_cache", "BaseKVCacheMethod")
    found = {name for name, parameter in model.named_parameters() if parameter.numel()}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        # Quantized while loading, or scales that have defaults.
        if getattr(method, "uses_meta_device", False) or isinstance(method, cache_scales):
            own = (parameter for parameter, _ in module.named_parameters())
            found -= {f"{name}.{parameter}" if name else parameter for parameter in own}
    return found


def place(model_config: Any) -> str:
    """The model's folder, repository or URL."""
    return str(getattr(model_config, "model_weights", "") or model_config.model)


def _matching(folder: str, patterns: list[str] | None) -> list[str]:
    """A folder as a whole, or the files in it that match the first pattern that any file does."""
    if patterns is None:
        return [folder]
    names = [name for name in store.list(folder) if "/" not in name]
    for pattern in patterns:
        found = [store.join(folder, name) for name in names if fnmatch(name, pattern)]
        if found:
            return found
    raise FileError(f"{folder} has no file that matches {', '.join(patterns)}")


def skipping(experts: set[int] | None, unused: Any) -> Any:
    """What a rank does not read: experts of other ranks, and what the model has no use for."""
    if experts is None:
        return unused or (lambda name: False)
    should_skip = door("vllm.model_executor.model_loader.ep_weight_filter", "should_skip_weight")
    return lambda name: should_skip(name, experts) or (unused is not None and unused(name))


def _rank() -> tuple[int, int]:
    """This process among those that load, and how many there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def local_experts(model_config: Any) -> set[int] | None:
    """The experts of this rank; ``None`` where every rank reads all of them.

    Needs ``--enable-expert-parallel`` and ``--enable-ep-weight-filter``. With expert load balancing
    any rank may hold any expert.
    """
    # Not set during a reload, where vLLM reads all experts, too.
    current = door("vllm.config", "get_current_vllm_config_or_none")()
    if current is None:
        return None
    parallel = current.parallel_config
    wanted = getattr(parallel, "enable_ep_weight_filter", False)
    if not (wanted and parallel.enable_expert_parallel and getattr(model_config, "is_moe", False)):
        return None
    if parallel.enable_eplb:
        return None
    local = door("vllm.model_executor.model_loader.ep_weight_filter", "compute_local_expert_ids")
    groups = {
        "data_parallel_size": "get_dp_group",
        "prefill_context_parallel_size": "get_pcp_group",
        "tensor_parallel_size": "get_tp_group",
    }
    size, rank = 1, 0
    for name, group in groups.items():
        count = getattr(parallel, name, 1)
        own = door("vllm.distributed", group)().rank_in_group if count > 1 else 0
        size, rank = size * count, rank * count + own
    count = model_config.get_num_experts()
    found: set[int] | None = (
        local(count, size, rank, placement=parallel.expert_placement_strategy) if count else None
    )
    if found is not None:
        _logger.info("Reading %d of %d experts (vLLM %s)", len(found), count, version())
    return found

"""SGLang loads every format that this package reads, by a plug-in hook.

SGLang finds :func:`register` by its entry point, in the group ``sglang.srt.plugins``, in every
process. The hook does nothing unless the extra configuration of the loader asks for it:

.. code-block:: sh

    python -m sglang.launch_server --model-path folder \\
        --model-loader-extra-config '{"ztensor": {"weights": "s3://bucket/model.zt"}}'

The options are the fields of :class:`ztensor.vllm.Options`; ``{}`` reads the model's folder.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ztensor._errors import UnsupportedError
from ztensor._weights import Options, Share, Weights, listed, variant_of

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

__all__ = ["register"]

_KEY = "ztensor"
_TARGET = "sglang.srt.model_loader.loader.get_model_loader"
_logger = logging.getLogger(__name__)
_registered = False


def register() -> None:
    """Registers the hook; a second call does nothing.

    An SGLang without hooks is warned of, not failed. With ``Z4AI_HF=1`` SGLang's own loaders read
    packed files.
    """
    from z4ai.integrations import enable_if_asked

    enable_if_asked()
    global _registered
    if _registered:
        return
    try:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(_TARGET, around_get_model_loader, hooks.HookType.AROUND)
    except (ModuleNotFoundError, AttributeError) as error:
        _logger.warning("SGLang %s has no plug-in hooks for ztensor: %s", _version(), error)
        return
    _registered = True


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def around_get_model_loader(
    original: Callable[..., Any], load_config: Any, *arguments: Any, **options: Any
) -> Any:
    """SGLang's own loader, with its weights read by this package where that is configured."""
    extra = load_config.model_loader_extra_config
    if not isinstance(extra, Mapping) or _KEY not in extra:
        return original(load_config, *arguments, **options)
    chosen = Options.of(extra[_KEY], f'model_loader_extra_config["{_KEY}"]')
    if chosen.check_missing:
        raise UnsupportedError("SGLang does not report which parameters it loads: no check_missing")
    bare = copy.copy(load_config)
    bare.model_loader_extra_config = {key: extra[key] for key in extra if key != _KEY}
    loader = original(bare, *arguments, **options)
    if not hasattr(loader, "_get_all_weights"):
        raise UnsupportedError(
            f"{type(loader).__name__} of SGLang {_version()} has no _get_all_weights, "
            "which ztensor replaces: use --load-format auto"
        )

    def weights(model_config: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return _weights(loader, chosen, model_config, model)

    loader._get_all_weights = weights
    return loader


def _weights(
    loader: Any, options: Options, model_config: Any, model: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights of a model; the files are opened and checked before this returns."""
    paths = listed(options.weights) or [str(model_config.model_path)]
    if options.variant is not None and not options.weights:
        paths = [variant_of(paths[0], options.variant, options)]
    opened = Weights(paths, options, deltas=listed(options.delta))

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        yield from opened.tensors(Share(*_rank()), model_config.dtype)
        for source in getattr(model, "secondary_weights", ()):
            yield from loader._get_weights_iterator(source)

    return tensors()


def _rank() -> tuple[int, int]:
    """This process among those that load, and how many there are."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1

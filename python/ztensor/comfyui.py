"""ComfyUI shows and loads packed files and ``.zt`` files.

Called by the folder ``integrations/comfyui-ztensor`` of this project's sources, which is copied to
ComfyUI's ``custom_nodes``. Packed ``.safetensors`` files are loaded like plain ones, since ComfyUI
asks ``safetensors`` for them; menus also list ``.zt`` and ``.zstn`` files, which are loaded here.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ztensor._errors import UnsupportedError

__all__ = ["EXTENSIONS", "enable"]

EXTENSIONS = (".zt", ".zstn")
"""File names that menus list in addition."""


def enable() -> None:
    """Patches ``safetensors`` and ``comfy.utils.load_torch_file``; a second call does nothing."""
    import z4ai

    folders = _module("folder_paths", "supported_pt_extensions")
    utils = _module("comfy.utils", "load_torch_file")
    z4ai.enable_hf()
    folders.supported_pt_extensions.update(EXTENSIONS)
    if not hasattr(utils.load_torch_file, "__wrapped__"):
        utils.load_torch_file = _loading(utils.load_torch_file)


def _module(name: str, attribute: str) -> Any:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"this must run inside ComfyUI: {error}") from None
    if not hasattr(module, attribute):
        raise UnsupportedError(f"this version of ComfyUI has no {name}.{attribute}")
    return module


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load_torch_file(
        ckpt: str,
        safe_load: bool = False,
        device: Any = None,
        return_metadata: bool = False,
        **options: Any,
    ) -> Any:
        if not str(ckpt).lower().endswith(EXTENSIONS):
            if return_metadata:
                options["return_metadata"] = True
            return original(ckpt, safe_load=safe_load, device=device, **options)
        from ztensor.torch import load_with_metadata

        tensors, metadata = load_with_metadata(ckpt, "cpu" if device is None else device)
        # ComfyUI expects what safetensors has: text, or nothing.
        text = {name: value for name, value in metadata.items() if isinstance(value, str)}
        return (tensors, text or None) if return_metadata else tensors

    return load_torch_file

"""ComfyUI extension: copy this folder to ``custom_nodes``. Needs ``ztensor`` beside ComfyUI."""

from ztensor.comfyui import enable

enable()

# There are no nodes: the loaders of ComfyUI itself read packed and .zt files from here on.
NODE_CLASS_MAPPINGS: dict[str, type] = {}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {}

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]

"""vLLM loads every format that this package reads: ``load_format="ztensor"``.

Nothing has to be imported: vLLM finds :func:`register` by its entry point, in the group
``vllm.general_plugins``, and calls it in every process.

.. code-block:: python

    from vllm import LLM

    llm = LLM("path/to/model", load_format="ztensor",
              model_loader_extra_config={"weights": "s3://bucket/model.zt"})

The options of ``model_loader_extra_config`` are the fields of :class:`Options`.
"""

from __future__ import annotations

import logging

from ztensor._errors import UnsupportedError
from ztensor._weights import Options
from ztensor.vllm._doors import TESTED, door

__all__ = ["LOAD_FORMAT", "TESTED", "Options", "register"]

LOAD_FORMAT = "ztensor"
"""The name of the load format."""

_registered = False
_logger = logging.getLogger(__name__)


def register() -> None:
    """Makes the load format known to vLLM; a second call does nothing.

    A vLLM that lacks what this needs is warned of, not failed: its other load formats work.
    """
    try:
        get = door("vllm.model_executor.model_loader", "register_model_loader")
        from ztensor.vllm._loader import ModelLoader
    except UnsupportedError as error:
        _logger.warning('load_format="%s" is not available: %s', LOAD_FORMAT, error)
        return
    global _registered
    if not _registered:
        get(LOAD_FORMAT)(ModelLoader)
        _registered = True

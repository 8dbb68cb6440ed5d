"""vLLM loads every format that this package reads: ``load_format="ztensor"``.

Nothing has to be imported: vLLM finds :func:`register` by its entry point, in the group
``vllm.general_plugins``, and calls it in every process.

.. code-block:: python

    from vllm import LLM

    llm = LLM("path/to/model", load_format="ztensor",
              model_loader_extra_config={"weights": "s3://bucket/model.zt"})

The options of ``model_loader_extra_config`` are the fields of :class:`Options`. The same entry
point registers the weight transfer of ``ztensor.vllm.transfer``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from ztensor._errors import UnsupportedError
from ztensor._weights import Options
from ztensor.vllm._doors import TESTED, door

__all__ = ["BACKEND", "LOAD_FORMAT", "TESTED", "Options", "register"]

LOAD_FORMAT = "ztensor"
"""The name of the load format."""

BACKEND = "ztensor"
"""The name of the weight transfer."""

_registered: set[str] = set()
_logger = logging.getLogger(__name__)


def register() -> None:
    """Makes the load format and the weight transfer known to vLLM; a second call does nothing.

    A vLLM that lacks what these need is warned of, not failed: the rest of it works.
    """
    for what, add in _PARTS.items():
        if what in _registered:
            continue
        try:
            add()
        except UnsupportedError as error:
            _logger.warning("%s is not available: %s", what, error)
        else:
            _registered.add(what)


def _add_loader() -> None:
    add = door("vllm.model_executor.model_loader", "register_model_loader")
    from ztensor.vllm._loader import ModelLoader

    add(LOAD_FORMAT)(ModelLoader)


def _add_engine(factory: str, name: str) -> None:
    """By name: it is imported when a transfer is configured."""
    found = door("vllm.distributed.weight_transfer", factory)
    found.register_engine(BACKEND, "ztensor.vllm.transfer", name)


_PARTS: dict[str, Callable[[], None]] = {
    f'load_format="{LOAD_FORMAT}"': _add_loader,
    f"weight transfer to workers by {BACKEND}": functools.partial(
        _add_engine, "WeightTransferEngineFactory", "WorkerEngine"
    ),
    f"weight transfer from trainers by {BACKEND}": functools.partial(
        _add_engine, "WeightTransferTrainerFactory", "TrainerEngine"
    ),
}

"""Weight transfer between a trainer and vLLM over :mod:`ztensor.sync`: backend ``"ztensor"``.

The trainer publishes each step into a stream, a folder or an object store; vLLM's workers bring a
checkpoint on their host to that version and load the tensors that changed. Both sides are
registered by the entry point of :mod:`ztensor.vllm`. Imported by vLLM only, and by trainers: it
needs vLLM.

.. code-block:: python

    llm = LLM("model", load_format="ztensor", weight_transfer_config={"backend": "ztensor"})

    info = TrainerInfo("s3://bucket/run-7", "/scratch/run-7", rank=0)
    trainer = WeightTransferTrainerFactory.trainer_init(
        info, client=OfflineClient(llm), source=ModuleSource(module))
    trainer.send_weights()  # after each step
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from ztensor._errors import InvalidArgumentError
from ztensor._weights import Options, Share, Weights, with_fused
from ztensor.sync import Layout, Published, Publisher, Subscriber
from ztensor.vllm import BACKEND, register
from ztensor.vllm._doors import door
from ztensor.vllm._loader import (
    LOADED,
    Loaded,
    local_experts,
    place,
    refuse_stale,
    skipping,
    tied_heads,
)

__all__ = [
    "InitInfo",
    "OfflineClient",
    "TrainerEngine",
    "TrainerInfo",
    "UpdateInfo",
    "WorkerEngine",
]

_TRANSFER = "vllm.distributed.weight_transfer.base"
_RELOAD = "vllm.model_executor.model_loader.reload"
_WeightTransferEngine = door(_TRANSFER, "WeightTransferEngine")
_WeightTransferInitInfo = door(_TRANSFER, "WeightTransferInitInfo")
_WeightTransferUpdateInfo = door(_TRANSFER, "WeightTransferUpdateInfo")
_TrainerWeightTransferEngine = door(_TRANSFER, "TrainerWeightTransferEngine")
_TrainerInitInfo = door(_TRANSFER, "TrainerInitInfo")
_logger = door("vllm.logger", "init_logger")("vllm.ztensor")

# Formats of vLLM's own that load the files of the model's folder as they are.
_OWN_FORMATS = ("auto", "hf", "safetensors")


@dataclass
class InitInfo(_WeightTransferInitInfo):  # type: ignore[misc, valid-type]
    """What a worker needs to follow a stream."""

    stream: str
    """The folder or URL that versions are published to."""
    local: str
    """A folder of the worker's host for the checkpoint that follows the stream. Workers of one
    engine share it; it belongs to one run."""
    base: str | None = None
    """The model that version 0 of the stream is. Default: what the engine was started with."""
    layout: Layout = "numbered"
    restart: bool = False
    """Whether a checkpoint of another run, or a newer one, is rebuilt rather than refused."""
    threads: int = 0
    durable: bool = False
    """Whether the checkpoint survives a power cut."""
    timeout: float = 600.0
    """How long a worker waits for another one of its host that applies a version, in seconds."""
    storage_options: dict[str, Any] | None = None


@dataclass
class UpdateInfo(_WeightTransferUpdateInfo):  # type: ignore[misc, valid-type]
    """Which version a worker loads."""

    version: int | str
    """A version of the stream. Not the newest by default: workers have to load the same one."""


class WorkerEngine(_WeightTransferEngine):  # type: ignore[misc, valid-type]
    """The side of vLLM: follows a stream, and loads what a version changes.

    Everything is checked before the model is touched. When loading itself fails, each layer has the
    old or the new weights, and the next update loads all of them.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._info: InitInfo | None = None
        self._subscriber: Subscriber | None = None
        # Digests of the tensors that the model holds; what is absent is loaded.
        self._held: dict[str, dict[str, str]] = {}
        self._loaded: Loaded | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Makes the local checkpoint from the base, unless it is there already."""
        refuse_stale(self.model, self.model_config)
        self._loaded = LOADED.get(self.model)
        started_from = self._started_from()
        base = init_info.base if init_info.base is not None else started_from
        if base is None:
            raise InvalidArgumentError(
                "init_info needs base, the model that version 0 of the stream is: "
                "the engine's own weights are not one file or folder"
            )
        subscriber = Subscriber(
            init_info.stream,
            init_info.local,
            base=base,
            layout=init_info.layout,
            threads=init_info.threads,
            durable=init_info.durable,
            storage_options=init_info.storage_options,
        )
        if subscriber.version is None and init_info.layout == "numbered":
            subscriber.pull(0, timeout=init_info.timeout)
        # The model holds what the checkpoint does if it was loaded from either.
        at_base = subscriber.version == "000000" and _same_place(started_from, base)
        if at_base or _same_place(started_from, init_info.local):
            self._held = subscriber.digests()
        else:
            self._held = {}
        self._info, self._subscriber = init_info, subscriber

    def _started_from(self) -> str | None:
        """The file or folder that the model was loaded from, if it is one."""
        if self._loaded is not None:
            whole = len(self._loaded.weights) == 1 and not self._loaded.deltas
            return self._loaded.weights[0] if whole else None
        own = str(self.vllm_config.load_config.load_format) in _OWN_FORMATS
        return place(self.model_config) if own else None

    def start_weight_update(self) -> None:
        """Nothing: the model is prepared when a version is there and was checked."""

    def finish_weight_update(self) -> None:
        """Nothing: a version is whole when it was received."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Brings the local checkpoint to a version, and the model's changed tensors with it."""
        info, subscriber = self._info, self._subscriber
        if info is None or subscriber is None:
            raise InvalidArgumentError("init_weight_transfer_engine comes before update_weights")
        pulled = subscriber.pull(update_info.version, restart=info.restart, timeout=info.timeout)
        # reload_weights has loaded something else since, if this is another object.
        loaded = LOADED.get(self.model)
        held = self._held if loaded is self._loaded else {}
        digests = subscriber.digests()
        weights = Weights([info.local], Options(threads=info.threads))
        with contextlib.closing(weights):
            names = weights.names()
            changed = {name for name in names if not _is_same(digests.get(name), held.get(name))}
            wanted = with_fused(changed, names)
            self._held = {}
            if wanted:
                self._load(weights, wanted)
        self._held, self._loaded = digests, loaded
        _logger.info(
            "Version %s: %d of %d tensors changed, %d loaded",
            pulled.version,
            len(changed),
            len(names),
            len(wanted),
        )

    def _load(self, weights: Weights, wanted: set[str]) -> None:
        """Loads some tensors into the layers that they belong to; other layers stay as they are."""
        initialize = door(_RELOAD, "initialize_layerwise_reload")
        finalize = door(_RELOAD, "finalize_layerwise_reload")
        unchecked = door(
            "vllm.model_executor.model_loader.mtp_validation", "disable_mtp_completeness_check"
        )
        unused = skipping(
            local_experts(self.model_config),
            getattr(self.model, "is_unused_checkpoint_weight", None),
        )
        share = Share(skips=lambda name: name not in wanted or unused(name))
        initialize(self.model)
        try:
            with unchecked():
                self.model.load_weights(weights.tensors(share, self.model_config.dtype))
        except BaseException:
            _discard_incomplete(self.model)
            raise
        finally:
            with _without_warnings():
                finalize(self.model, self.model_config)
            # vLLM has reloaded the embeddings, and not what is tied to them.
            for layer in tied_heads(self.model):
                layer.quant_method.process_weights_after_loading(layer)  # type: ignore[operator, union-attr]

    def shutdown(self) -> None:
        """Forgets the stream; the local checkpoint stays."""
        self._info = self._subscriber = None
        self._held = {}


def _is_same(digests: dict[str, str] | None, others: dict[str, str] | None) -> bool:
    """Whether two tensors are known to be equal."""
    return bool(digests) and digests == others


def _same_place(one: str | None, other: str) -> bool:
    if one is None or "://" in one or "://" in other:
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)


def _discard_incomplete(model: torch.nn.Module) -> None:
    """Drops what was loaded of layers that are not complete: they get their old tensors back."""
    info_of = door(f"{_RELOAD}.layerwise", "get_layerwise_info")
    for layer in model.modules():
        info = info_of(layer)
        if info.can_load():
            info.loaded_weights.clear()
            info.load_numel = 0


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Without a warning for each layer that gets no weights: those have not changed."""
    logger = logging.getLogger(f"{_RELOAD}.layerwise")

    def expected(record: logging.LogRecord) -> bool:
        return "Failed to load weights" not in record.getMessage()

    logger.addFilter(expected)
    try:
        yield
    finally:
        logger.removeFilter(expected)


@dataclass
class TrainerInfo(_TrainerInitInfo):  # type: ignore[misc, valid-type]
    """What the trainer publishes, and where engines follow it."""

    backend: ClassVar[str] = BACKEND

    stream: str
    """The folder or URL that versions are published to."""
    local: str
    """:attr:`InitInfo.local`: a folder of each inference host."""
    base: str | None = None
    """The model that engines were started with, as the trainer's host sees it. Default: the weights
    of the source when the transfer is set up."""
    publish: Mapping[str, Any] = field(default_factory=lambda: {"compression": "z4ai"})
    """Further options of :class:`ztensor.sync.Publisher`."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of :class:`InitInfo`."""


class TrainerEngine(_TrainerWeightTransferEngine):  # type: ignore[misc, valid-type]
    """The side of the trainer: publishes the source's weights, and has the engines load them.

    Names and types of the source's tensors are those of the checkpoint. All ranks iterate over the
    source; rank 0 publishes.
    """

    init_info_cls = TrainerInfo

    def __init__(
        self, *, client: Any, source: Any, is_sender: bool, publisher: Publisher | None
    ) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._publisher = publisher
        self.published: Published | None = None
        """What was published last; ``None`` on other ranks than the sender."""

    @classmethod
    def trainer_init(
        cls, init_info: TrainerInfo, *, client: Any, source: Any | None = None
    ) -> Self:
        """Opens the stream, and has the engines make their checkpoints."""
        if source is None:
            raise InvalidArgumentError("weight transfer by ztensor needs a WeightSource")
        publisher = None
        if init_info.is_sender:
            base = init_info.base if init_info.base is not None else iter(source)
            publisher = Publisher(init_info.stream, base, **init_info.publish)
            followed = {"stream": init_info.stream, "local": init_info.local}
            client.init_weight_transfer_engine({**followed, **init_info.engine})
        elif init_info.base is None:
            _iterate(source)
        return cls(client=client, source=source, is_sender=init_info.is_sender, publisher=publisher)

    def send_weights(self) -> None:
        """Publishes the source's weights as the next version, and updates the engines to it."""
        if not self.is_sender:
            _iterate(self.source)
            return
        if self._publisher is None:
            raise InvalidArgumentError("the transfer was shut down")
        self.published = self._publisher.publish(iter(self.source))
        version = self.published.version
        self.client.start_weight_update()
        self.client.update_weights({"version": version})
        self.client.finish_weight_update(weight_version=version)

    def shutdown(self) -> None:
        """Closes the stream; it can be continued by another publisher."""
        self._publisher = None


def _iterate(source: Any) -> None:
    """Takes part in gathering tensors, which another rank publishes."""
    for _ in source:
        pass


class OfflineClient:
    """An ``LLM`` of the same process as the client that trainers drive."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Sets the transfer up in all workers."""
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begins an update."""
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Has all workers load a version."""
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends an update. Cached prefixes are of the old weights, and dropped."""
        self._llm.finish_weight_update(weight_version)
        self._llm.reset_prefix_cache()


# vLLM calls the entry point in its engines, and not in a process that only trains.
register()

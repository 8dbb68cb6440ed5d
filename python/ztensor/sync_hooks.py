"""Functions that trainers and engines name in their options, to use this library for weight sync.

``--custom-update-weight-post-write-path ztensor.sync_hooks.post_write`` (slime, miles): checks a
version that was just written, before any engine is told of it.

``--custom-pull-weights-pre-read-hook ztensor.sync_hooks.pre_read`` (SGLang with slime's patch):
brings the host's checkpoint up to date; the engine's own pull then finds it there. The hook is not
told the checkpoint's folder: ``ZTENSOR_SYNC_LOCAL`` names it, and ``ZTENSOR_SYNC_BASE`` the model
that the engine was started from.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ztensor import _native, sync
from ztensor._errors import InvalidArgumentError, NotFoundError

__all__ = ["post_write", "pre_read"]


def pre_read(source_dir: str, target_version: int) -> None:
    """Brings ``$ZTENSOR_SYNC_LOCAL`` to a version of the stream in ``source_dir``."""
    local = os.environ.get("ZTENSOR_SYNC_LOCAL")
    if not local:
        raise InvalidArgumentError("ZTENSOR_SYNC_LOCAL must name the local checkpoint")
    base = os.environ.get("ZTENSOR_SYNC_BASE")
    sync.pull(source_dir, local, base=base, version=target_version)


def post_write(args: Any, version_dir: str | os.PathLike[str], rollout_engines: Any) -> None:
    """Checks that the version in ``version_dir`` is complete: it has its index, the last file.

    Trainers also call it once with the empty folder of the stream, when there is nothing to check.
    """
    folder = Path(version_dir)
    if not re.fullmatch(r"weight_v\d{6,}", folder.name):
        return
    found = _native.sync_versions((folder.parent, "numbered", None))
    if folder.name.removeprefix("weight_v") not in found:
        raise NotFoundError(f"{folder} has no index: the version is not complete")

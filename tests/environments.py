"""Environments with other packages than ours, made once in the cache folder."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import CACHE, ROOT

import ztensor


@functools.cache
def _environment(
    name: str,
    packages: tuple[str, ...],
    overrides: tuple[str, ...],
    variables: tuple[tuple[str, str], ...],
) -> Path | str:
    """The interpreter of an environment with packages, or why there is none."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    wanted = " ".join([*packages, *overrides])
    done = folder / ".complete"
    if done.exists() and done.read_text() == wanted:
        return python
    uv = str(Path(sys.executable).parent / "uv")
    options = []
    if overrides:
        listing = CACHE / f"{name.replace('/', '-')}-overrides.txt"
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text("\n".join(overrides))
        options = ["--overrides", str(listing)]
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--quiet", "--python", str(python), *packages, *options],
    ):
        try:
            outcome = subprocess.run(
                command,
                env={**os.environ, **dict(variables)},
                capture_output=True,
                text=True,
                timeout=3600,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"cannot install {name}: {error}"
        if outcome.returncode:
            return f"cannot install {name}: {outcome.stderr.strip()[-200:]}"
    done.write_text(wanted)
    return python


def interpreter(
    name: str,
    *packages: str,
    overrides: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> Path:
    """The interpreter of an environment; tests are skipped where it cannot be made.

    ``variables`` are of the environment in which packages are built.
    """
    found = _environment(name, packages, overrides, tuple((variables or {}).items()))
    if isinstance(found, str):
        pytest.skip(found)
    return found


def only_ours(folder: Path) -> Path:
    """A folder to import our packages from, and nothing else of this environment."""
    path = folder / "ours"
    path.mkdir()
    packages = Path(ztensor.__file__).parent.parent
    for name in ("ztensor", "z4ai"):
        (path / name).symlink_to(packages / name)
    return path


def installed(folder: Path) -> Path:
    """The same with the entry points, as an installed wheel has them."""
    path = only_ours(folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = path / f"ztensor-{ztensor.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: ztensor\nVersion: {ztensor.__version__}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return path

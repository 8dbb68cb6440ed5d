"""Who takes part, in what environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parent.parent
ENVIRONMENTS = BENCHMARK / ".envs"
OURS = "ztensor"


@dataclass(frozen=True)
class Peer:
    """A library as it takes part."""

    name: str
    library: str
    """What workers call it."""
    formats: tuple[str, ...]
    """File name endings that it reads."""
    maps: bool
    """Whether it can give tensors that lie in the mapped file."""
    copies: bool = True
    backends: tuple[str, ...] = ("numpy", "torch")
    writes: str | None = None
    package: str | None = None
    """Installed into an environment of its own, because its import name is taken."""
    selective: bool = True


EVERY = ("zt", "safetensors", "pt", "npz", "gguf", "onnx", "h5")
PEERS = [
    Peer(OURS, "ztensor", EVERY, maps=True, writes="zt"),
    Peer(
        "ztensor 1.2.3",
        "ztensor",
        ("zt",),
        True,
        writes="zt",
        package="ztensor==1.2.3",
        selective=False,
    ),
    # Its .zt is another format than that of version 1, so it reads and writes its own; it has no
    # functions for torch.
    Peer(
        "ztensor 2.1.2",
        "ztensor",
        EVERY[1:],
        True,
        writes="zt",
        package="ztensor==2.1.2",
        selective=False,
        backends=("numpy",),
    ),
    Peer("safetensors", "safetensors", ("safetensors",), True, writes="safetensors"),
    Peer("fastsafetensors", "fastsafetensors", ("safetensors",), False, backends=("torch",)),
    Peer("torch", "torch", ("pt",), True, writes="pt"),
    Peer("pickle", "pickle", ("pkl",), False, writes="pkl", backends=("numpy",)),
    Peer("numpy", "numpy", ("npz",), False, writes="npz", backends=("numpy",)),
    Peer("gguf", "gguf", ("gguf",), True, writes="gguf", backends=("numpy",)),
    Peer("onnx", "onnx", ("onnx",), False, writes="onnx", backends=("numpy",)),
    Peer("h5py", "h5py", ("h5",), False, writes="h5", backends=("numpy",)),
]


def python_of(peer: Peer) -> str | None:
    """The interpreter that has the peer; ``None`` if it cannot be had."""
    python = Path(sys.executable)
    if peer.package:
        folder = ENVIRONMENTS / peer.package.replace("==", "-")
        python = folder / "bin" / "python"
        if not python.exists():
            print(f"making an environment for {peer.name}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", peer.package]
            if subprocess.run(pip, check=False).returncode:
                return None
            share_packages(folder)
    code = f"import {peer.library}, numpy"
    found = subprocess.run([python, "-E", "-c", code], capture_output=True, check=False)
    return str(python) if found.returncode == 0 else None


def share_packages(folder: Path) -> None:
    """Lets an environment find our packages, after its own."""
    own = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    shared = {path for path in sys.path if path.endswith("site-packages")}
    Path(own, "shared.pth").write_text("\n".join(sorted(shared)) + "\n")


def version_of(python: str, library: str) -> str:
    code = f"from importlib.metadata import version; print(version({library!r}))"
    found = subprocess.run([python, "-E", "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip()

"""Parameters of Flax models to and from files: the functions of :mod:`ztensor.jax`."""

from __future__ import annotations

from ztensor.jax import load, load_file, safe_open, save, save_file

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]

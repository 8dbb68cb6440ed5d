"""What the package cannot do without, looked for before anything else: says how to get it."""

from __future__ import annotations

try:
    import numpy as numpy
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise  # NumPy is there, and something of its own is not
    raise ModuleNotFoundError(
        "ztensor and z4ai need NumPy: pip install 'numpy>=1.26'", name="numpy"
    ) from None

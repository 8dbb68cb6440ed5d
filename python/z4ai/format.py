"""What a frame looks like from outside.

>>> import z4ai
>>> from z4ai.format import peek_is_z4ai
>>> peek_is_z4ai(z4ai.compress(b"weights")), peek_is_z4ai(b"weights")
(True, False)
"""

from __future__ import annotations

from z4ai._codec import peek_is_z4ai

__all__ = ["peek_is_z4ai"]

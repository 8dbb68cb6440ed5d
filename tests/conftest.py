"""Fixtures that many tests use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests and examples write files by bare names: each gets an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

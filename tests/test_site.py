"""The documentation site builds without a warning, and every page fits a phone and a desktop."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("needs mkdocs, which `make docs` installs into .venv-docs")
    folder = tmp_path_factory.mktemp("site")
    # Strict: a link or an anchor that leads nowhere is an error.
    command = [str(MKDOCS), "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_the_reference_has_every_public_name(site: Path) -> None:
    import z4ai
    import ztensor
    import ztensor.distributed
    import ztensor.sync
    import ztensor.torch

    pages = {page: (site / "api" / page).read_text() for page in os.listdir(site / "api")}
    for module, page in (
        (ztensor, "ztensor.html"),
        (ztensor.torch, "frameworks.html"),
        (ztensor.distributed, "distributed.html"),
        (ztensor.sync, "sync.html"),
        (z4ai, "z4ai.html"),
    ):
        names = [name for name in module.__all__ if not name.startswith("_")]
        described = [name for name in names if callable(getattr(module, name))]
        assert described and all(name in pages[page] for name in described), page
    # Options that functions take as a group are shown one by one.
    assert 'id="ztensor.torch.load_file"' in pages["frameworks.html"]
    assert "max_total_bytes" in pages["frameworks.html"]


@pytest.mark.parametrize("width", [1280, 400])
def test_pages_fit_the_screen(width: int, site: Path, browser: Any) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        browser.get(page.as_uri())
        found = browser.execute_script("return document.documentElement.scrollWidth")
        assert found <= width, f"{page.relative_to(site)} is {found} pixels wide"

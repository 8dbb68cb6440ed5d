"""``viewer.html`` in a real browser: files of every format, read by ranges, nothing uploaded.

``make viewer`` builds the page; without it these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ztensor
from ztensor.numpy import save_file

By = pytest.importorskip("selenium.webdriver.common.by", reason="selenium is not installed").By
Wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "target" / "viewer.html"
SAMPLES = ROOT / "crates" / "ztensor" / "tests" / "data"
HOSTILE = "</script><img src=x onerror=alert(1)>"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="`make viewer` builds target/viewer.html")


Open = Callable[[Path], None]


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    """Opens a file in the page, as if it had been chosen."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(PAGE.as_uri())

    def opened(path: Path) -> None:
        browser.find_element(By.ID, "choose").send_keys(str(path))
        Wait(browser, 60).until(
            lambda browser: browser.find_element(By.ID, "work").is_displayed() or error(browser)
        )

    yield opened
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert not complaints, "nothing is refused by the policy, and no script fails"
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    local = ("file:", "blob:")
    for request in requests:
        assert any(f'"url":"{kind}' in request for kind in local), f"a connection: {request}"


def error(browser: Any) -> str:
    return browser.find_element(By.ID, "error").text


def rows(browser: Any) -> list[Any]:
    return browser.find_elements(By.CSS_SELECTOR, "tr.row")


def names(browser: Any) -> list[str]:
    return [row.find_element(By.CSS_SELECTOR, "td:first-child").text for row in rows(browser)]


def read_so_far(browser: Any) -> int:
    return int(browser.find_element(By.ID, "status").get_attribute("data-reads"))


def test_headers_are_read_by_ranges(show: Open, browser: Any, tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(3, 1, (3000, 1000)).astype(np.float32)
    path = tmp_path / "model.zt"
    save_file({"layers.0.w": values, HOSTILE: np.arange(5)}, path, metadata={HOSTILE: HOSTILE})
    show(path)
    assert browser.find_element(By.ID, "file").text == "model.zt"
    assert sorted(names(browser)) == sorted(["layers.0.w", HOSTILE])
    assert read_so_far(browser) < 2_000_000 < path.stat().st_size
    rows(browser)[names(browser).index("layers.0.w")].click()
    Wait(browser, 60).until(lambda browser: browser.find_elements(By.CSS_SELECTOR, "svg.plot"))
    detail = browser.find_element(By.CSS_SELECTOR, ".detail").text
    assert f"{values.mean(dtype=np.float64):.5g}"[:4] in detail
    assert "of 3,000,000" in detail
    assert read_so_far(browser) > values.nbytes


def test_all_histograms(show: Open, browser: Any, tmp_path: Path) -> None:
    tensors = {f"layers.{layer}.w": np.full((64, 64), layer, np.float32) for layer in range(12)}
    save_file(tensors, tmp_path / "model.zt")
    show(tmp_path / "model.zt")
    browser.find_element(By.ID, "all").click()
    Wait(browser, 60).until(
        lambda browser: len(browser.find_elements(By.CSS_SELECTOR, "svg.spark")) == 12
    )
    facts = browser.find_element(By.ID, "facts").text
    assert "8.3 %\nzeros" in facts and "0\nNaN or Inf" in facts


def samples() -> list[Path]:
    """One or two files of every format that the library reads, written by its own library."""
    kinds = ["zt", "safetensors", "gguf", "npz", "npy", "pt", "pth", "onnx", "h5", "hdf5", "zstn"]
    found = []
    for kind in kinds:
        # A part of a model in several files is shown as the part that it is.
        whole = (path for path in SAMPLES.rglob(f"*.{kind}") if "-of-" not in path.name)
        paths = sorted(whole, key=lambda path: path.stat().st_size)
        found.extend(paths[-2:])
    return found


@pytest.mark.parametrize("path", samples(), ids=lambda path: path.name)
def test_every_format_is_read_as_python_reads_it(show: Open, browser: Any, path: Path) -> None:
    try:
        with ztensor.open(path) as reader:
            expected = sorted(reader.keys())
    except ztensor.ZTensorError:
        expected = None
    show(path)
    if expected is None:
        assert error(browser)
        return
    if error(browser):
        # External data and shards are other files, which a browser does not hand over.
        assert "file" in error(browser)
        return
    script = "return JSON.parse(document.getElementById('data').textContent).tensors.length"
    assert browser.execute_script(script) == len(expected)
    rows(browser)[0].click()
    Wait(browser, 60).until(lambda browser: browser.find_elements(By.CSS_SELECTOR, ".detail"))


def test_damage_is_an_error_and_another_file_can_follow(
    show: Open, browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    show(tmp_path / "bad.safetensors")
    assert error(browser)
    save_file({"x": np.arange(3)}, tmp_path / "good.zt")
    browser.find_element(By.ID, "choose").send_keys(str(tmp_path / "good.zt"))
    Wait(browser, 60).until(lambda browser: rows(browser))
    assert names(browser) == ["x"]
    browser.find_element(By.ID, "other").click()
    assert browser.find_element(By.ID, "drop").is_displayed()

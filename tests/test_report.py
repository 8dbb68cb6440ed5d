"""The page that ``ztensor report`` writes, in a real browser."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ztensor.numpy import save_file

By = pytest.importorskip("selenium.webdriver.common.by", reason="selenium is not installed").By
Wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def page(tmp_path: Path, rng: np.random.Generator, browser: Any) -> Iterator[Path]:
    """A model's report, opened."""
    tensors: dict[str, np.ndarray] = {"embed.weight": rng.normal(0, 0.02, (2000, 64))}
    for layer in range(12):
        for part, shape in [("attn.q", (64, 64)), ("attn.k", (64, 64)), ("mlp.up", (256, 64))]:
            weight = rng.normal(0, 0.02 + layer / 500, shape).astype(np.float32)
            tensors[f"layers.{layer}.{part}.weight"] = weight.astype(np.float16)
        tensors[f"layers.{layer}.norm"] = np.ones(64, np.float32)
    pruned = rng.normal(0, 1, (256, 64)).astype(np.float32)
    pruned[rng.random(pruned.shape) < 0.8] = 0
    tensors["head.pruned"] = pruned
    tensors[HOSTILE] = np.arange(256, dtype=np.int32)
    tensors["odd"] = np.array([1, np.nan, np.inf], np.float64)
    tensors["empty"] = np.zeros((0, 4), np.float32)
    save_file(tensors, tmp_path / "model.zt", metadata={HOSTILE: HOSTILE})
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "ztensor", "report", tmp_path / "model.zt", "-o", report]
    subprocess.run(command, check=True, capture_output=True)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(report.as_uri())
    yield report
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"]
    assert not complaints, "nothing is refused by the policy, and no script fails"


def names(browser: Any) -> list[str]:
    return [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "tr.row td:first-child")]


def search(browser: Any, text: str) -> list[str]:
    field = browser.find_element(By.ID, "search")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE, text)
    return names(browser)


def layer(browser: Any, name: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, f'.layer[title="{name}"]')


def column(browser: Any, title: str) -> Any:
    for cell in browser.find_elements(By.CSS_SELECTOR, "th"):
        if cell.text.startswith(title):
            return cell.find_element(By.TAG_NAME, "button")
    raise AssertionError(f"no column {title}")


def test_it_loads_with_everything_in_it(page: Path, browser: Any) -> None:
    assert browser.find_element(By.ID, "file").text == "model.zt"
    assert len(names(browser)) == 53
    assert browser.find_element(By.ID, "found").text == "53 tensors"
    facts = browser.find_element(By.ID, "facts").text
    assert "parameters" in facts and "2\nNaN or Inf" in facts
    assert "bits per weight" not in facts, "nothing is quantized"
    assert not browser.find_element(By.ID, "quantized").is_displayed()
    types = [
        button.text.split()[0]
        for button in browser.find_elements(By.CSS_SELECTOR, ".legend button")
    ]
    assert sorted(types) == ["f16", "f32", "f64", "i32"]
    layers = browser.find_elements(By.CSS_SELECTOR, ".layer")
    titles = [layer.get_attribute("title") for layer in layers]
    listed = [title for title in titles if title.startswith("layers.")]
    assert listed == [f"layers.{index}" for index in range(12)], "10 comes after 9"
    bars = layer(browser, "layers.0").find_elements(By.TAG_NAME, "rect")
    assert len(bars) == 2, "a layer of two types has a bar of two parts"
    assert len(browser.find_elements(By.CSS_SELECTOR, "td svg.spark")) == 52, (
        "all but the empty one"
    )
    requests = [
        entry for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]
    ]
    assert all(page.as_uri() in entry["message"] for entry in requests), "nothing else is loaded"


def test_it_names_quantization_schemes(tmp_path: Path, browser: Any) -> None:
    blocks = np.arange(64 * 4 * 16, dtype=np.int64).reshape(64, 4, 16).astype(np.uint8)
    scales = np.full((64, 4), 120, np.uint8)
    save_file({"experts_blocks": blocks, "experts_scales": scales}, tmp_path / "model.safetensors")
    report = tmp_path / "report.html"
    command = [
        sys.executable,
        "-m",
        "ztensor",
        "report",
        tmp_path / "model.safetensors",
        "-o",
        report,
    ]
    subprocess.run(command, check=True, capture_output=True)
    browser.get(report.as_uri())
    shown = browser.find_element(By.ID, "quantized").text
    assert "MXFP4, 4 bits in groups of 32: 1 weight, 8.19 k elements, 4.25 bits per weight" in shown


def test_it_searches(page: Path, browser: Any) -> None:
    assert search(browser, "mlp layers.1.") == ["layers.1.mlp.up.weight"]
    assert len(search(browser, "MLP")) == 12
    assert len(search(browser, "f16 64x64")) == 24
    assert search(browser, "nothing at all") == []
    assert "No tensor matches" in browser.find_element(By.ID, "tensors").text
    assert len(search(browser, "")) == 53
    layer(browser, "layers.1").click()
    assert len(names(browser)) == 4 and all(name.startswith("layers.1.") for name in names(browser))
    browser.find_element(By.CSS_SELECTOR, "#filters button").click()
    assert len(names(browser)) == 53


def test_it_sorts(page: Path, browser: Any) -> None:
    unsorted = names(browser)
    column(browser, "Size").click()
    assert names(browser)[0] == "embed.weight"
    column(browser, "Size").click()
    assert names(browser)[0] == "empty"
    column(browser, "Size").click()
    assert names(browser) == unsorted
    column(browser, "Zeros").click()
    assert names(browser)[0] == "head.pruned"
    assert names(browser)[-1] == "empty", "what has no share of zeros comes last"
    column(browser, "Name").click()
    layers = [name for name in names(browser) if name.endswith(".norm")]
    assert layers == [f"layers.{layer}.norm" for layer in range(12)], "10 comes after 9"
    sorted_by = browser.find_element(By.CSS_SELECTOR, "th[aria-sort]")
    assert (sorted_by.text[:4], sorted_by.get_attribute("aria-sort")) == ("Name", "ascending")


def test_a_tensor_opens(page: Path, browser: Any) -> None:
    search(browser, "odd")
    browser.find_element(By.CSS_SELECTOR, "tr.row button").send_keys(Keys.ENTER)
    detail = browser.find_element(By.CSS_SELECTOR, "tr.more").text
    assert "NaN" in detail and "Inf" in detail
    assert browser.find_elements(By.CSS_SELECTOR, "tr.more svg.plot path")
    browser.find_element(By.CSS_SELECTOR, "tr.row").click()
    assert not browser.find_elements(By.CSS_SELECTOR, "tr.more")


def test_names_from_the_file_are_text(page: Path, browser: Any) -> None:
    assert HOSTILE in names(browser)
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 2
    # Even markup that found its way in would not run.
    browser.execute_script(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')"
    )
    browser.execute_script(
        "const made = document.createElement('script'); made.textContent = 'document.title=2';"
        "document.body.append(made)"
    )
    assert browser.title == "model.zt"
    assert (
        len(
            [
                entry
                for entry in browser.get_log("browser")
                if "Content Security Policy" in entry["message"]
            ]
        )
        >= 2
    )


def brightness(picture: bytes) -> float:
    """The mean brightness of a PNG picture's first pixel row, 0 to 255."""
    width = struct.unpack(">I", picture[16:20])[0]
    at, packed = 8, b""
    while at < len(picture):
        length, kind = struct.unpack(">I4s", picture[at : at + 8])
        if kind == b"IDAT":
            packed += picture[at + 8 : at + 8 + length]
        at += length + 12
    first = np.frombuffer(zlib.decompress(packed), np.uint8)[1 : 1 + 3]
    assert width > 300
    return float(first.mean())


def test_light_and_dark(page: Path, browser: Any, tmp_path: Path) -> None:
    def scheme(value: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": value}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    scheme("light")
    light = browser.get_screenshot_as_png()
    scheme("dark")
    dark = browser.get_screenshot_as_png()
    assert brightness(light) > 200 > 60 > brightness(dark)
    browser.find_element(By.ID, "theme").click()
    assert brightness(browser.get_screenshot_as_png()) > 200, "the reader's choice comes first"
    browser.find_element(By.ID, "theme").click()
    assert brightness(browser.get_screenshot_as_png()) < 60
    browser.execute_script("try { localStorage.clear() } catch {}")
    scheme("")


def test_tens_of_thousands_of_tensors(tmp_path: Path, browser: Any) -> None:
    save_file({f"t.{n}": np.full(1, n, np.int32) for n in range(20_000)}, tmp_path / "many.zt")
    report = tmp_path / "many.html"
    command = [sys.executable, "-m", "ztensor", "report", tmp_path / "many.zt", "-o", report]
    subprocess.run(command, check=True, capture_output=True)
    browser.get(report.as_uri())
    drawn = len(names(browser))
    assert 100 <= drawn < 1000, "rows are made as they come into view"
    assert search(browser, "t.19999") == ["t.19999"]
    search(browser, "")
    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    rows = "return document.querySelectorAll('tr.row').length"
    Wait(browser, 20).until(lambda _: browser.execute_script(rows) > drawn)


def test_the_page_of_a_repository(tmp_path: Path, browser: Any) -> None:
    """``ztensor repo page``: one row for each version, hostile messages as text, nothing loaded."""
    import ztensor

    repository = ztensor.Repository.init(tmp_path / "repo")
    weights = np.random.default_rng(1).normal(0, 0.02, (200, 64)).astype(np.float32)
    for step in range(4):
        weights.reshape(-1)[step::50] *= 1.01
        repository.commit({"w": weights}, HOSTILE if step == 2 else f"step {step}")
    repository.tag("best", "main~1")
    repository.gc(keep_last=3, grace=0)
    out = tmp_path / "page.html"
    command = [sys.executable, "-m", "ztensor", "repo", "page", str(tmp_path / "repo")]
    subprocess.run([*command, "-o", str(out)], check=True, capture_output=True)
    browser.get_log("browser")
    browser.get(out.as_uri())
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    rows = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert len(rows) == 4
    assert rows[1].text.endswith(HOSTILE)
    assert "best" in rows[1].text
    assert "forgotten" in rows[3].text
    assert "saved" in browser.find_element(By.ID, "summary").text
    bars = rows[0].find_elements(By.CSS_SELECTOR, "svg rect")
    assert float(bars[1].get_attribute("width")) < float(bars[0].get_attribute("width")) / 2
    assert bars[0].size["width"] > 0
    # A parent's link leads to its row.
    rows[0].find_element(By.TAG_NAME, "a").click()
    assert browser.current_url.endswith("#" + rows[1].get_attribute("id"))

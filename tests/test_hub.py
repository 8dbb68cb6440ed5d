"""``hf://`` URLs, against a server of this machine that speaks the paths of the Hub."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest

import ztensor
import ztensor.numpy
import ztensor.torch

TOKEN = "hf_secret"


class Hub(ThreadingHTTPServer):
    """Repositories in memory: files by repository, revision and path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.files: dict[str, bytes] = {}
        self.private = False
        self.page_size = 0
        self.endless = False
        self.seen: list[tuple[str, str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, repo: str, path: str, data: bytes, revision: str = "main") -> None:
        self.files[f"/{repo}/resolve/{revision}/{path}"] = data


class Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        authorization = self.headers.get("authorization")
        self.server.seen.append((self.command, self.path, authorization))
        if self.server.private and authorization != f"Bearer {TOKEN}":
            return self.answer(401, b"")
        if self.path.startswith("/api/models/"):
            path, _, query = self.path.partition("?")
            repo, _, rest = path.removeprefix("/api/models/").partition("/tree/")
            prefix = f"/{repo}/resolve/{rest}/"
            found = [
                {"type": "file", "path": name.removeprefix(prefix), "size": len(data)}
                for name, data in self.server.files.items()
                if name.startswith(prefix)
            ]
            return self.answer_page(found, int(parse_qs(query).get("cursor", ["0"])[0]))
        data = self.server.files.get(self.path)
        if data is None:
            return self.answer(404, b"Entry not found")
        asked = self.headers.get("range")
        if asked is None:
            return self.answer(200, data)
        first, last = asked.removeprefix("bytes=").split("-")
        if first:
            start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
        else:
            start, stop = max(0, len(data) - int(last)), len(data)
        part = data[start:stop]
        return self.answer(206, part, f"bytes {start}-{stop - 1}/{len(data)}")

    def answer_page(self, entries: list[Any], first: int) -> None:
        size = self.server.page_size
        page = entries[first : first + size] if size else entries
        link = None
        if size and (self.server.endless or first + size < len(entries)):
            # The Hub names itself, also where a mirror answers.
            path = self.path.partition("?")[0]
            link = f'<https://hub.example{path}?limit={size}&cursor={first + size}>; rel="next"'
        return self.answer(200, json.dumps(page).encode(), link=link)

    def answer(
        self, status: int, body: bytes, content_range: str | None = None, link: str | None = None
    ) -> None:
        self.send_response(status)
        if link is not None:
            self.send_header("link", link)
        self.send_header("content-length", str(len(body)))
        self.send_header("accept-ranges", "bytes")
        self.send_header("etag", '"1"')
        if content_range is not None:
            self.send_header("content-range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no such folder"))
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


WEIGHTS = {"w": np.arange(1000, dtype=np.float32), "b": np.zeros(3, np.float16)}


def contents(format: Any = "safetensors", **tensors: Any) -> bytes:
    return ztensor.numpy.save(tensors or WEIGHTS, format=format)


def test_files_of_repositories(hub: Hub) -> None:
    hub.add("owner/repo", "model.safetensors", contents())
    hub.add("owner/repo", "sub/model.zt", contents("zt"), revision="v1.0")
    for url in ("hf://owner/repo/model.safetensors", "hf://owner/repo@v1.0/sub/model.zt"):
        loaded = ztensor.numpy.load_file(url)
        assert all(np.array_equal(loaded[name], array) for name, array in WEIGHTS.items())
        with ztensor.safe_open(url, "pt") as file:
            assert file.get_slice("w")[5:7].tolist() == [5.0, 6.0]
    with pytest.raises(FileNotFoundError):
        ztensor.open("hf://owner/repo/nothing.safetensors")
    assert all(authorization is None for _, _, authorization in hub.seen)


def test_folders_are_models(hub: Hub) -> None:
    hub.add("owner/one", "model.safetensors", contents())
    hub.add("owner/one", "config.json", b"{}")
    for url in ("hf://owner/one", "hf://owner/one/", "hf://owner/one@main"):
        assert sorted(ztensor.open(url)) == ["b", "w"]
    hub.add("owner/many", "model-00001-of-00002.safetensors", contents(a=np.zeros(2)))
    hub.add("owner/many", "model-00002-of-00002.safetensors", contents(b=np.ones(2)))
    index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    hub.add(
        "owner/many", "model.safetensors.index.json", json.dumps({"weight_map": index}).encode()
    )
    loaded = ztensor.torch.load_file("hf://owner/many")
    assert sorted(loaded) == ["a", "b"] and loaded["b"].tolist() == [1.0, 1.0]


def test_listings_of_several_pages(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    names = [f"model-{n:05}-of-00007.safetensors" for n in range(1, 8)]
    for name in names:
        hub.add("owner/many", name, contents(**{name[:11]: np.zeros(2)}))
    hub.page_size = 3
    assert ztensor.store.list("hf://owner/many") == names
    pages = [path for _, path, _ in hub.seen if path.startswith("/api/")]
    assert [path.partition("?")[2] for path in pages] == [
        "",
        "limit=3&cursor=3",
        "limit=3&cursor=6",
    ]
    assert len(ztensor.open("hf://owner/many")) == 7
    hub.endless = True
    with pytest.raises(ztensor.UnsupportedError, match="more than 1000 pages"):
        ztensor.store.list("hf://owner/many")


def test_tokens_go_to_the_endpoint_only(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("owner/repo", "model.safetensors", contents())
    hub.private = True
    with pytest.raises(ztensor.FileError):
        ztensor.open("hf://owner/repo/model.safetensors")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert len(ztensor.open("hf://owner/repo/model.safetensors")) == 2
    assert len(ztensor.open(f"{hub.url}/owner/repo/resolve/main/model.safetensors")) == 2
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(ztensor.FileError):
        ztensor.open("hf://owner/repo/model.safetensors")
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    hub.seen.clear()
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    with pytest.raises(ztensor.FileError):
        ztensor.open(f"{hub.url}/owner/repo/resolve/main/model.safetensors")
    assert hub.seen and all(authorization is None for _, _, authorization in hub.seen)


def test_a_token_of_a_login(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.add("owner/repo", "model.safetensors", contents())
    hub.private = True
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert len(ztensor.open("hf://owner/repo/model.safetensors")) == 2


def test_urls_that_are_wrong(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("hf://owner", "hf://owner/../x", "hf://owner/repo@/x"):
        with pytest.raises(ValueError, match="hf://owner/repo"):
            ztensor.open(url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        ztensor.open("hf://owner/repo/x.zt")
    assert not hub.seen


def test_a_refused_connection_is_an_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", f"http://{server}")
        for url in ("hf://owner/repo/model.safetensors", "hf://owner/repo"):
            with pytest.raises(ConnectionError, match=f"{server} refused the connection"):
                ztensor.open(url)

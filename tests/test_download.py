"""``ztensor download-hf`` over HTTPS, from servers that redirect as the Hub does."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ztensor.numpy import load_file, save_file

trustme = pytest.importorskip("trustme", reason="trustme is not installed")


class Servers:
    """A hub that redirects to a store, both with certificates that one authority signed."""

    def __init__(self, model: bytes, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self.requests: list[tuple[str, str, str | None, str | None]] = []
        self.model = model
        self.certificate = authority.issue_cert("localhost")
        self.store = self.start("store")
        self.hub = self.start("hub")

    def start(self, name: str) -> str:
        servers = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                span = self.headers.get("Range")
                servers.requests.append((name, self.path, self.headers.get("Authorization"), span))
                if name == "hub" and "/resolve/" in self.path:
                    self.send_response(302)
                    self.send_header("Location", f"{servers.store}/blob?signature=s")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if name == "hub":
                    size = len(servers.model)
                    entry = {"type": "file", "path": "model.safetensors", "size": size}
                    body, code = json.dumps([entry]).encode(), 200
                else:
                    start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
                    body, code = servers.model[start:], 206 if span else 200
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                if code == 206:
                    last = len(servers.model) - 1
                    self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("localhost", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"https://localhost:{server.server_port}"

    def download(self, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ztensor", "download-hf", "owner/model", "-o", folder]
        proxies = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
        clean = {key: value for key, value in os.environ.items() if key.upper() not in proxies}
        environment = clean | {"HF_ENDPOINT": self.hub, "HF_TOKEN": "secret"} | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def servers(tmp_path: Path, rng: np.random.Generator) -> Iterator[Servers]:
    path = tmp_path / "source.safetensors"
    save_file({"w": rng.normal(size=50_000)}, tmp_path / "source.zt")
    command = [sys.executable, "-m", "ztensor", "convert", tmp_path / "source.zt", "-o", path]
    subprocess.run(command, check=True, capture_output=True)
    yield Servers(path.read_bytes(), tmp_path)


def test_over_https_through_redirects(servers: Servers, tmp_path: Path) -> None:
    folder = tmp_path / "got"
    done = servers.download(folder, SSL_CERT_FILE=str(servers.authority))
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(
        load_file(folder / "model.safetensors")["w"], load_file(tmp_path / "source.zt")["w"]
    )
    assert {name for name, _, token, _ in servers.requests if token} == {"hub"}
    assert {name for name, _, token, _ in servers.requests if not token} == {"store"}


def test_downloads_go_on_where_they_stopped(servers: Servers, tmp_path: Path) -> None:
    folder = tmp_path / "got"
    folder.mkdir()
    (folder / "model.safetensors.part").write_bytes(servers.model[:100_000])
    done = servers.download(folder, SSL_CERT_FILE=str(servers.authority))
    assert done.returncode == 0, done.stderr
    assert (folder / "model.safetensors").read_bytes() == servers.model
    assert [span for name, _, _, span in servers.requests if name == "store"] == ["bytes=100000-"]


def test_servers_that_nobody_vouches_for_are_refused(servers: Servers, tmp_path: Path) -> None:
    refused = servers.download(tmp_path / "got")
    assert refused.returncode == 4
    assert "certificate" in refused.stderr.lower()
    assert servers.requests == [], "nothing is told to them, least of all the token"
    assert not (tmp_path / "got").exists()


def test_bad_certificate_files_are_named(servers: Servers, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in [empty, tmp_path / "absent.pem"]:
        failed = servers.download(tmp_path / "got", SSL_CERT_FILE=str(path))
        assert failed.returncode == 2 and path.name in failed.stderr


def test_a_file_without_authorities_is_refused(servers: Servers, tmp_path: Path) -> None:
    none = tmp_path / "none"
    none.mkdir()
    (none / "empty.pem").write_text("")
    failed = servers.download(tmp_path / "got", SSL_CERT_FILE=str(none / "empty.pem"))
    assert failed.returncode == 2
    assert "there are no certificates in it" in failed.stderr
    assert servers.requests == []

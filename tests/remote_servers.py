"""Servers on loopback for tests of remote files: one that serves ranges, counts requests and
misbehaves on request, and an S3-compatible one."""

from __future__ import annotations

import hashlib
import logging
import re
import socketserver
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit


class RangeServer(ThreadingHTTPServer):
    """Serves the bytes in ``objects`` by ranges, and takes what is put there.

    ``requests`` lists what was asked for. Each of ``faults`` spoils one answer: a status,
    ``"hang up"``, ``"truncate"``, ``"stall"``, ``"hold"`` (until ``let_go`` is set; ``held`` says
    that it is), ``"ignore range"`` or ``"wrong range"``.
    Blobs can be put in blocks, as Azure's are.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.blocks: dict[str, dict[str, bytes]] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.faults: deque[int | str] = deque()
        self.always: int | str | None = None
        self.tags = True
        self.token: str | None = None
        self.delay = 0.0
        self.held, self.let_go = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, name: str, data: bytes) -> str:
        """Puts an object there and returns its URL."""
        self.objects["/" + name] = data
        return f"{self.url}/{name}"

    def counted(self) -> int:
        """How many requests came since the last time."""
        count = len(self.requests)
        self.requests.clear()
        return count

    def received(self) -> int:
        """How many bytes were asked for since the last time."""
        total = 0
        for _, path, wanted in self.requests:
            bounds = _range(wanted, len(self.objects[path]))
            total += bounds[1] - bounds[0] if bounds else len(self.objects[path])
        self.requests.clear()
        return total

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients go away in the middle of things, and are meant to


def _range(text: str | None, total: int) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    assert match, text
    first, last = match.groups()
    if not first:
        return max(0, total - int(last)), total
    return int(first), min(total, int(last) + 1) if last else total


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        wanted = self.headers["Range"] or self.headers["x-ms-range"]
        self.server.requests.append((self.command, path, wanted))
        fault = self.server.faults.popleft() if self.server.faults else self.server.always
        time.sleep(self.server.delay)
        if self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            return self.refuse(401)
        if isinstance(fault, int):
            return self.refuse(fault)
        if fault == "hang up":
            self.close_connection = True
            return None
        if fault == "stall":
            time.sleep(2)
        if fault == "hold":
            self.server.held.set()
            self.server.let_go.wait(60)
        data = self.server.objects.get(path)
        if data is None:
            return self.refuse(404)
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"' if self.server.tags else None
        if self.headers["If-Match"] and self.headers["If-Match"] != tag:
            return self.refuse(412)
        bounds = None if fault == "ignore range" else _range(wanted, len(data))
        if bounds and bounds[0] >= bounds[1]:
            return self.refuse(416)
        first, last = bounds or (0, len(data))
        self.send_response(206 if bounds else 200)
        if bounds:
            shift = 1 if fault == "wrong range" else 0
            self.send_header(
                "Content-Range", f"bytes {first + shift}-{last + shift - 1}/{len(data)}"
            )
        self.send_header("Content-Length", str(last - first))
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command == "HEAD":
            return None
        body = memoryview(data)[first:last]
        if fault == "truncate":
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)
        return None

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        query, path = parse_qs(url.query), unquote(url.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.command, path, None))
        fault = self.server.faults.popleft() if self.server.faults else self.server.always
        if isinstance(fault, int):
            return self.refuse(fault)
        if query.get("comp") == ["block"]:
            self.server.blocks.setdefault(path, {})[query["blockid"][0]] = body
        elif query.get("comp") == ["blocklist"]:
            names = re.findall(r"<(?:Uncommitted|Latest)>(.*?)</", body.decode())
            blocks = self.server.blocks.pop(path, {})
            self.server.objects[path] = b"".join(blocks[name] for name in names)
        else:
            self.server.objects[path] = body
        self.send_response(201)
        self.send_header("ETag", '"new"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None


Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """A server that answers, in a thread of its own, until the end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def range_server() -> AbstractContextManager[RangeServer]:
    """A server of files in memory."""
    return serving(RangeServer())


class S3:
    """A bucket of an S3-compatible server, and the variables by which it is found."""

    def __init__(self, endpoint: str) -> None:
        import boto3
        from botocore.config import Config

        self.endpoint, self.bucket = endpoint, "models"
        self.variables = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 1}),
        )
        self.client.create_bucket(Bucket=self.bucket)

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)
        return self.url(key)

    def keys(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.bucket)
        return [entry["Key"] for entry in found.get("Contents", [])]

    def unfinished(self) -> int:
        """Uploads that were neither completed nor aborted."""
        return len(self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []))


@contextmanager
def s3_server() -> Iterator[S3]:
    """An S3-compatible server with one empty bucket; needs ``moto``."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it reports every request otherwise
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3(f"http://{host}:{port}")
    finally:
        server.stop()


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to another server, counts them, and misbehaves as a store can.

    ``fault(method, path)`` says what becomes of a request: ``None``, a status that is answered
    without passing it on, or ``"lost"``: it is passed on, and the connection ends without an
    answer. With ``stale`` set to a dictionary, listings stay as they are first asked for. Every
    answer takes ``delay`` seconds. ``requests`` has method, path, start, end and bytes of each.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Proxied)
        self.upstream = urlsplit(upstream)
        self.fault: Any = lambda method, path: None
        self.stale: dict[str, tuple[int, list[tuple[str, str]], bytes]] | None = None
        self.requests: list[tuple[str, str, float, float, int]] = []
        self.delay = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rounds(self) -> int:
        """How many requests had to wait for others since the last time: the longest chain of
        requests of which each began after the one before had ended."""
        longest: list[tuple[float, int]] = []
        for _, _, start, end, _ in sorted(self.requests, key=lambda request: request[3]):
            before = max((count for ended, count in longest if ended <= start), default=0)
            longest.append((end, before + 1))
        self.requests.clear()
        return max((count for _, count in longest), default=0)


class _Proxied(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def _handle(self) -> None:
        start = time.monotonic()
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = self.server.fault(self.command, self.path)
        if isinstance(fault, int):
            self._answer(fault, [], b"")
            return
        listing = self.command == "GET" and "list-type=" in self.path
        stale = self.server.stale
        if listing and stale is not None and self.path in stale:
            self._answer(*stale[self.path])
            return
        upstream = self.server.upstream
        connection = HTTPConnection(str(upstream.hostname), upstream.port, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        status, given = answer.status, answer.getheaders()
        connection.close()
        if listing and stale is not None:
            stale[self.path] = (status, given, data)
        if fault == "lost":
            self.close_connection = True
            self.connection.close()
            return
        time.sleep(self.server.delay)
        # Before the answer: the client's next request may come at once.
        entry = (self.command, self.path, start, time.monotonic(), len(data))
        self.server.requests.append(entry)
        self._answer(status, given, data)

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        own = {"connection", "transfer-encoding", "content-length"}
        for key, value in headers:
            if key.lower() not in own:
                self.send_header(key, value)
        length = dict((key.lower(), value) for key, value in headers).get("content-length")
        head = self.command == "HEAD" and length is not None
        self.send_header("content-length", str(length) if head else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle


def proxied(upstream: str) -> AbstractContextManager[FaultyProxy]:
    """A proxy in front of a server."""
    return serving(FaultyProxy(upstream))

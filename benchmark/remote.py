"""Remote files against plain range reads: `python benchmark/remote.py [FILTER]`.

A server on loopback, in a process of its own, hands out ranges of one large file with `sendfile`.
The limit is a program that knows nothing of tensors: it reads the same bytes into fresh memory
with a few connections at a time, and the best number of connections counts. A tensor of the large
file is compared with downloading the file and loading the tensor from the disk.

Contestants are processes that take turns; a claim is the median of the ratios within a round, with
its quartiles. Run it with the environment that has this package (`make wheel` installs an
optimised one).
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WORK = ROOT / ".work" / "remote"
ROUNDS = 9
SIZE = 384 << 20

CONTESTANT = r"""
import http.client, os, sys, time, threading, urllib.request
import numpy as np, ztensor
from ztensor.numpy import load_file
url, copy = sys.argv[1:]
host, name = url.removeprefix("http://").split("/", 1)

def size():
    connection = http.client.HTTPConnection(host)
    connection.request("HEAD", "/" + name)
    return int(connection.getresponse().headers["Content-Length"])

def plain(connections):
    total, step = size(), 8 << 20
    out = np.empty(total, dtype=np.uint8)
    starts = iter(range(0, total, step))
    def work():
        connection = http.client.HTTPConnection(host)
        for start in starts:
            end = min(total, start + step)
            connection.request("GET", "/" + name, headers={"Range": f"bytes={start}-{end - 1}"})
            response = connection.getresponse()
            at = start
            while at < end:
                at += response.readinto(out[at:end])
    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return out

def load(): return load_file(url)
# A setting of the HTTP client's own rules out the raw reader (`remote/raw_http.rs`).
def client(): return load_file(url, storage_options={"user_agent": "benchmark"})
def one(): return ztensor.open(url).read_numpy("layers.7.weight")
def rows(): return ztensor.safe_open(url, framework="np").get_slice("layers.7.weight")[100:110]
def download():
    with urllib.request.urlopen(url) as response, open(copy, "wb") as file:
        while piece := response.read(8 << 20):
            file.write(piece)
    return ztensor.open(copy).read_numpy("layers.7.weight", copy=True)

for line in sys.stdin:
    command, *arguments = line.split()
    work = globals()[command]
    arguments = [int(argument) for argument in arguments]
    start = time.perf_counter()
    result = work(*arguments)
    seconds = time.perf_counter() - start
    del result
    print(seconds, flush=True)
"""


class Handler(BaseHTTPRequestHandler):
    """Ranges of files of a folder; below `/far/` after 20 ms, and 100 MB/s for a connection."""

    protocol_version = "HTTP/1.1"
    folder = WORK

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        far = self.path.startswith("/far/")
        with open(self.folder / Path(self.path).name, "rb") as file:
            total = os.fstat(file.fileno()).st_size
            first, last = 0, total - 1
            wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"] or "")
            if wanted and wanted[1]:
                first, last = int(wanted[1]), min(last, int(wanted[2] or last))
            elif wanted:
                first = max(0, total - int(wanted[2]))
            if far:
                time.sleep(0.02)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", '"one"')
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.flush()
            while first <= last:
                count = min(last + 1 - first, 1 << 20 if far else 1 << 30)
                sent = os.sendfile(self.connection.fileno(), file.fileno(), first, count)
                first += sent
                if far:
                    time.sleep(sent / 100e6)


def serve(handler: type[Handler] = Handler) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()


class Contestant:
    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", CONTESTANT, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, command: str) -> float:
        assert self.process.stdin and self.process.stdout
        print(command, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def ratio(contestant: Contestant, ours: str, theirs: str, rounds: int) -> str:
    """How many times as fast the first is as the second."""
    for command in (ours, theirs):
        contestant(command)  # everything is touched before anything counts
    ratios = []
    for number in range(rounds):
        pair = [ours, theirs] if number % 2 else [theirs, ours]
        took = {command: contestant(command) for command in pair}
        ratios.append(took[theirs] / took[ours])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def prepare() -> None:
    import numpy as np

    from ztensor.numpy import save_file

    WORK.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    count = SIZE // (2048 * 2048 * 4)
    tensors = {}
    for n in range(count):
        tensors[f"layers.{n}.weight"] = rng.random((2048, 2048), dtype=np.float32)
        tensors[f"layers.{n}.bias"] = rng.random(2048, dtype=np.float32)
    if not (WORK / "raw.zt").exists():
        save_file(tensors, WORK / "raw.zt")
    if not (WORK / "fast.zt").exists():
        save_file(tensors, WORK / "fast.zt", compression="fast")


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    prepare()
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout
    root = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    try:
        contestant = Contestant(f"{root}/raw.zt", str(WORK / "copy.zt"))
        if wanted in "whole model":
            contestant("plain 4")
            speeds = {n: min(contestant(f"plain {n}") for _ in range(3)) for n in (1, 2, 4, 8, 16)}
            best = min(speeds, key=lambda n: speeds[n])
            print(f"plain: {SIZE / speeds[best] / 1e9:.2f} GB/s with {best} connections")
            found = ratio(contestant, "load", f"plain {best}", ROUNDS)
            print(f"whole model: {found} of plain range reads (at least 0.9)", flush=True)
        if wanted in "raw HTTP":
            found = ratio(contestant, "load", "client", ROUNDS)
            print(f"raw HTTP: {found} x the general HTTP client", flush=True)
        if wanted in "one tensor":
            found = ratio(contestant, "one", "download", 5)
            print(f"one tensor: {found} x download and load (at least 10)", flush=True)
        if wanted in "rows":
            found = ratio(contestant, "rows", "download", 5)
            print(f"ten rows: {found} x download and load (at least 10)", flush=True)
        coded = Contestant(f"{root}/fast.zt", str(WORK / "copy.zt"))
        if wanted in "compressed":
            found = ratio(coded, "load", "plain 4", ROUNDS)
            print(f"compressed model: {found} of plain reads of the compressed bytes", flush=True)
        if wanted in "compressed rows":
            found = ratio(coded, "rows", "download", 5)
            print(f"ten compressed rows: {found} x download and load (at least 10)", flush=True)
    finally:
        server.terminate()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()

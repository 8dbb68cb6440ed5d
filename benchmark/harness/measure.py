"""Taking turns: every contestant of a case in a fresh process of its own, round after round."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import models, peers
from .peers import OURS, Peer

WORK = peers.BENCHMARK / ".work"
WORKER = Path(__file__).resolve().parent / "worker.py"
ONNX_LIMIT = 1 << 30
HUGE = 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Entry:
    """One contestant of one case, and what was found."""

    case: str
    peer: str
    format: str
    mode: str
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    file_bytes: int = 0
    peak_anonymous: int | None = None
    error: str | None = None

    def speed(self) -> float:
        """GB/s, of the median."""
        return self.bytes / statistics.median(self.seconds) / 1e9 if self.seconds else 0.0

    def json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value not in (None, 0, [])}


class Worker:
    """A process that times one library."""

    def __init__(self, python: str, library: str) -> None:
        command = [python, "-E", str(WORKER), library]  # -E: a PYTHONPATH would mix the libraries
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.send(request)
        return self.answer()

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process died"}

    def ask_memory(self, request: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Also the most anonymous memory that there was meanwhile, above what there was before."""
        before = most = self.anonymous()
        self.send(request)
        while not select.select([self.process.stdout], [], [], 0.001)[0]:
            most = max(most, self.anonymous())
        return self.answer(), most - before

    def anonymous(self) -> int:
        try:
            fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        except OSError:
            return 0
        return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Contestant:
    entry: Entry
    start: Callable[[], Worker]
    request: dict[str, Any]
    first: dict[str, Any] = field(default_factory=dict)
    """What the first request says besides: to check what came of it."""
    leaves: bool = False
    """Whether its process ends after each turn: all of them together would hold too much."""


def turns(
    contestants: list[Contestant], runs: int, warmup: int, memory: bool = True
) -> list[Entry]:
    """Lets all take turns; the first round is checked, warm-up rounds do not count."""
    workers: dict[int, Worker] = {}
    for number in range(warmup + runs):
        order = list(enumerate(contestants))
        for index, contestant in order if number % 2 else reversed(order):
            entry = contestant.entry
            if entry.error:
                continue
            worker = workers.get(index) or contestant.start()
            request = contestant.request | (contestant.first if number == 0 else {})
            answer = worker.ask(request)
            if contestant.leaves:
                worker.close()
            else:
                workers[index] = worker
            if "error" in answer:
                entry.error = answer["error"]
                continue
            entry.bytes, entry.file_bytes = answer["bytes"], answer.get("file", 0)
            if number >= warmup:
                entry.seconds.append(answer["seconds"])
    for worker in workers.values():
        worker.close()
    for contestant in contestants:
        if memory and not contestant.entry.error and contestant.request["do"] != "limit":
            # Apart from the timed rounds, and again in a fresh process.
            fresh = contestant.start()
            fresh.ask({"do": "prepare", "request": contestant.request})
            _, contestant.entry.peak_anonymous = fresh.ask_memory(contestant.request)
            fresh.close()
    return [contestant.entry for contestant in contestants]


class Session:
    """A model on disk, in every format, and those who can take part."""

    def __init__(self, dist: str, size: int, style: str, formats: list[str]) -> None:
        self.dist, self.size, self.style = dist, size, style
        self.present: dict[str, tuple[Peer, str]] = {}
        self.absent: list[str] = []
        for peer in peers.PEERS:
            python = peers.python_of(peer)
            if python:
                self.present[peer.name] = (peer, python)
            else:
                self.absent.append(peer.name)
                print(f"{peer.name} is not here and is left out", file=sys.stderr)
        own = "" if dist == "llama-1b" else f"-{size >> 20}"
        self.folder = WORK / f"{dist}{own}-{style}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.formats = formats
        self.make_sources()

    def path(self, format: str) -> Path:
        return self.folder / f"model.{format}"

    def expected(self, format: str) -> Path:
        return self.folder / ("manifest-onnx.json" if format == "onnx" else "manifest.json")

    def source(self, format: str) -> Path:
        return self.folder / ("source-onnx.npz" if format == "onnx" else "source.npz")

    def make_sources(self) -> None:
        """What every library is given to write, and what it must be when it is read."""
        whole = self.source("npz")
        for limit, format in ((None, "npz"), (ONNX_LIMIT, "onnx")):
            source = self.source(format)
            if source.exists():
                continue
            if limit and whole.stat().st_size <= limit:
                os.link(whole, source)
                os.link(self.expected("npz"), self.expected(format))
                continue
            arrays = models.make(self.dist, self.size, self.style, limit)
            manifest = {
                name: [
                    str(array.dtype),
                    zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1)),
                ]
                for name, array in arrays.items()
            }
            self.expected(format).write_text(json.dumps(manifest))
            np.savez(source, **arrays)

    def make(self, format: str) -> None:
        """A format's file, by its own library."""
        if self.path(format).exists():
            return
        if format == "npz":
            os.link(self.source("npz"), self.path("npz"))  # NumPy has written it already
            return
        writer = next((p for p, _ in self.present.values() if p.writes == format), None)
        if writer is None:
            return
        worker = self.start(writer.name)
        part = self.folder / f"part.{format}"
        request = {"do": "write", "source": str(self.source(format)), "target": str(part)}
        expected = str(self.expected(format))
        answer = worker.ask(request | {"options": {}, "expected": expected, "keep": True})
        worker.close()
        if "error" in answer:
            print(f".{format} cannot be written: {answer['error']}", file=sys.stderr)
        else:
            part.rename(self.path(format))

    def done_with(self, format: str) -> None:
        """Removes a format's file if there is not room for all of them."""
        if self.is_huge():
            self.path(format).unlink(missing_ok=True)

    def is_huge(self) -> bool:
        """Whether all formats, or all libraries, at once would be too much."""
        return self.source("npz").stat().st_size > HUGE

    def clean(self) -> None:
        """Removes what was written for the sake of writing."""
        for path in self.folder.glob("written*"):
            path.unlink()

    def start(self, name: str) -> Worker:
        peer, python = self.present[name]
        return Worker(python, peer.library)

    def reading(self, format: str, backend: str, mode: str, cold: bool) -> list[Contestant]:
        """Those who read a format in that mode: full_load, zero_copy, selective or fastest."""
        path = self.path(format)
        if not path.exists():
            return []
        case = f"{self.dist} {self.style} .{format} {mode} {backend} {'cold' if cold else 'warm'}"
        names = None
        if mode == "selective":
            names = list(json.loads(self.expected(format).read_text()))[::10]
        found = []
        for peer, _ in self.present.values():
            able = peer.maps if mode == "zero_copy" else peer.copies
            if format not in peer.formats or backend not in peer.backends or not able:
                continue
            if mode == "selective" and not peer.selective:
                continue
            copy = mode == "full_load" or not peer.maps
            request = {
                "do": "read",
                "path": str(path),
                "backend": backend,
                "copy": copy,
                "names": names,
                "cold": cold,
                "expected": None,
            }
            found.append(
                self.contestant(case, peer.name, format, mode, request, str(self.expected(format)))
            )
        if found and mode != "selective":
            for kind in ("plain read", "fresh read") if mode == "full_load" else ("plain read",):
                limit = {"do": "limit", "kind": kind, "path": str(path), "size": 0, "cold": cold}
                found.append(self.contestant(case, kind, format, mode, limit))
        return found

    def writing(self, formats: list[str], options: dict[str, Any], label: str) -> list[Contestant]:
        """Those who write these formats."""
        case = f"{self.dist} {self.style} write{label}"
        found = []
        for peer, _ in self.present.values():
            if peer.writes not in formats or (options and peer.library != "ztensor"):
                continue
            target = self.folder / f"written-{peer.name.replace(' ', '-')}.{peer.writes}"
            request = {
                "do": "write",
                "source": str(self.source(peer.writes)),
                "target": str(target),
                "options": options,
                "expected": None,
                "keep": bool(options),  # what was compressed is read afterwards
            }
            expected = str(self.expected(peer.writes))
            mode = f"write{label}"
            found.append(self.contestant(case, peer.name, peer.writes, mode, request, expected))
        if found and not options:
            size = self.source("npz").stat().st_size
            kind = {
                "do": "limit",
                "kind": "plain write",
                "path": str(self.folder / "written.bin"),
                "size": size,
                "cold": False,
            }
            found.append(self.contestant(case, "plain write", "", "write", kind))
        return found

    def contestant(
        self,
        case: str,
        name: str,
        format: str,
        mode: str,
        request: dict[str, Any],
        expected: str = "",
    ) -> Contestant:
        entry = Entry(case, name, format, mode)
        first = {"expected": expected} if expected else {}
        owner = name if name in self.present else OURS
        leaves = self.is_huge() and request["do"] == "write"
        return Contestant(entry, lambda: self.start(owner), request, first, leaves)

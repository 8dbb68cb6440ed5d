"""Results: JSON files, one per run, and what they say in words."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import machine, peers
from .measure import WORK, Entry, Session
from .peers import OURS

RESULTS = peers.BENCHMARK / "results"
LIMITS = ("plain read", "fresh read", "plain write", "memcpy")


def save(kind: str, command: list[str], session: Session, entries: list[Entry]) -> Path:
    """Writes a run's results, with everything that is needed to read them."""
    versions = {
        name: peers.version_of(python, peer.library)
        for name, (peer, python) in session.present.items()
        if peer.library != "pickle"
    }
    document = {
        "kind": kind,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine.describe(WORK),
        "versions": versions,
        "absent": session.absent,
        "dist": session.dist,
        "style": session.style,
        "size": session.size,
        "entries": [entry.json() for entry in entries],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{kind}-{session.folder.name}.json"
    if path.exists():
        # A run of some cases leaves the others as they were, if they were measured on the same.
        old = load(path)
        same = all(old[key] == document[key] for key in ("machine", "versions"))
        measured = {entry.case for entry in entries}
        kept = [entry for entry in old["entries"] if same and entry["case"] not in measured]
        document["entries"] = kept + document["entries"]
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def entries_of(document: dict[str, Any]) -> list[Entry]:
    return [Entry(**entry) for entry in document["entries"]]


def by_case(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    cases: dict[str, list[Entry]] = {}
    for entry in entries:
        cases.setdefault(entry.case, []).append(entry)
    return cases


def ratio(ours: Entry, theirs: Entry) -> tuple[float, float, float]:
    """How many times faster ours is, per byte: first quartile, median, third quartile."""
    scale = ours.bytes / theirs.bytes
    ratios = [b / a * scale for a, b in zip(ours.seconds, theirs.seconds, strict=True)]
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def summary(entries: list[Entry]) -> str:
    """A table of a run."""
    lines = []
    for case, found in by_case(entries).items():
        lines.append(case)
        ours = next((entry for entry in found if entry.peer == OURS and entry.seconds), None)
        for entry in found:
            if entry.error:
                lines.append(f"  {entry.peer:<18} failed: {entry.error}")
                continue
            memory = "" if entry.peak_anonymous is None else f"{entry.peak_anonymous / 1e6:8.0f} MB"
            against = ""
            if ours and entry is not ours:
                low, middle, high = ratio(ours, entry)
                against = f"   ours is {middle:5.2f} x ({low:.2f} to {high:.2f})"
            format = f".{entry.format}" if entry.format else ""
            lines.append(
                f"  {entry.peer:<18} {format:<13} {entry.speed():6.2f} GB/s {memory}{against}"
            )
    return "\n".join(lines)

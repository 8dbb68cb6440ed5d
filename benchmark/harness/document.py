"""``docs/benchmarks.md`` and its charts, from the newest results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from . import charts, peers, results
from .measure import Entry
from .peers import OURS

ROOT = peers.BENCHMARK.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
CHARTS = ROOT / "docs" / "benchmarks"
README = ROOT / "README.md"
WORKLOADS = ("large", "mixed", "small")
STYLES = {
    "dense": "Dense fp32",
    "quantized": "Quantized int8",
    "pruned80": "Pruned 80 %",
    "ternary": "Ternary",
}

HEAD = """# Benchmarks

Made by `python benchmark/bench.py report` from the JSON files in `benchmark/results`; nothing on
this page is typed by hand. Every contestant runs in a fresh process at its best settings and all
take turns; the first result of each is compared bit for bit; memory that a round freed is given
back before the next. Mapped tensors are touched page by page within the time, less what touching
small ones a second time takes, which is the harness's own. Numbers are medians in GB/s of tensor
data, “cold” after the file was dropped from the page cache. Absolute numbers vary between machines
and runs: compare within one table. Ratios are medians of the ratios of single rounds, so they may
differ from the ratio of two medians. `ztensor 1.2.3` and `ztensor 2.1.2` are packages of other
projects that have this name on the public index.
"""

FRESH = """“Of a fresh read” compares a copying load with a short program that does no more than the
load must: all cores read the file concurrently into untouched memory, bypassing the page cache
if the file is not in it. The plain read that cold loads are measured by uses the same few megabytes
of memory again and again, which no library that gives out memory of its own can do.
"""

COLD = """A copying load of a file that is not cached reads half of it with `O_DIRECT`, at the
same time as the other half through the page cache: so it can be faster than a plain read.
The second load finds half of the file cached, and caches the rest.
"""

MEMORY = """Anonymous memory only: pages of a mapped file can be given back at any time. Writing
with compression, several tensors are coded at a time, and what is not yet written is held: 32 MB of
tensors for each thread, or one tensor if that is larger. A library that codes one tensor after
another on one thread, straight into the file, holds less and takes longer.
"""

LEVELS = """## The codec by SIMD level, on one thread

`python benchmark/codec.py table`. Ratios of speeds within a run: decompressing into the caller's
memory and compressing as a multiple of ZipNN's speed, decompressing the effort `fast` as a multiple
of a memory copy; then the ratio of the effort `default`, and that divided by the best of the peers
that decode at half of ZipNN's speed or more, and by the best of the slower ones. Deltas as a
multiple of XOR with zstd level 1. An asterisk marks what misses its aim: 2.0, 1.5 for fp16, fp32
and bytes; 2.0; 0.75 from 20 MB on; 1.0; 0.995; deltas 2.0 and 4.0. The two virtual processors are
threads of one core, and other machines used the same core while this was measured: MB/s are half of
what it does alone, and two threads cannot be twice as fast as one.
"""
REPEAT = """
## Again, on your machine

```sh
make wheel                                     # our own package, optimised
python benchmark/bench.py run --dist llama-1b --runs 5 --warmup 2
python benchmark/bench.py run --size 512 --dist large --runs 5 --warmup 2
python benchmark/bench.py run --size 512 --dist mixed --runs 5 --warmup 2
python benchmark/bench.py run --size 512 --dist mixed --runs 5 --warmup 2 --backend torch
python benchmark/bench.py run --size 512 --dist small --runs 5 --warmup 2
python benchmark/bench.py sweep --runs 5 --warmup 2
python benchmark/bench.py codec
python benchmark/bench.py report
```
"""


class Newest:
    """The newest results of every model, at its largest size."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], dict[str, Any]] = {}
        for path in sorted(results.RESULTS.glob("formats-*.json")):
            document = results.load(path)
            key = (document["dist"], document["style"])
            known = self.documents.get(key)
            rank = (document["size"], document["when"])
            if known is None or rank > (known["size"], known["when"]):
                self.documents[key] = document

    def entries(
        self, dist: str, style: str = "dense", backend: str = "numpy", **wanted: str
    ) -> list[Entry]:
        document = self.documents.get((dist, style))
        found = results.entries_of(document) if document else []
        fits = [e for e in found if all(getattr(e, key) == value for key, value in wanted.items())]
        return [e for e in fits if e.seconds and backend_of(e) in (backend, None)]

    def one(
        self,
        dist: str,
        peer: str,
        format: str,
        mode: str,
        cache: str,
        style: str = "dense",
        backend: str = "numpy",
    ) -> Entry | None:
        found = self.entries(dist, style, backend, peer=peer, format=format, mode=mode)
        return next((entry for entry in found if not cache or entry.case.endswith(cache)), None)


def backend_of(entry: Entry) -> str | None:
    """What the tensors were, as the case says; ``None`` if that makes no difference."""
    return next((word for word in ("numpy", "torch") if word in entry.case.split()), None)


NOTHING = "\u2013"
TIMES = "\u00d7"


def speed(entry: Entry | None) -> str:
    return f"{entry.speed():.2f}" if entry else NOTHING


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def best_peer(found: list[Entry]) -> Entry | None:
    others = [entry for entry in found if entry.peer not in (OURS, *results.LIMITS)]
    return max(others, key=Entry.speed, default=None)


def reading(newest: Newest, dist: str, cache: str, backend: str = "numpy") -> str:
    """One row per format: ours both ways, each peer's best, and the machine's limit."""

    def one(peer: str, format: str, mode: str) -> Entry | None:
        return newest.one(dist, peer, format, mode, cache, backend=backend)

    rows = []
    for format in ("zt", "safetensors", "pt", "npz", "gguf", "onnx", "h5"):
        mapped, copied = (one(OURS, format, mode) for mode in ("zero_copy", "full_load"))
        found = [
            e
            for mode in ("zero_copy", "full_load")
            for e in newest.entries(dist, backend=backend, format=format, mode=mode)
            if e.case.endswith(cache)
        ]
        if not mapped and not copied:
            continue
        others = sorted({entry.peer for entry in found} - {OURS, *results.LIMITS})
        cell = []
        for peer in others:
            both = [speed(one(peer, format, mode)) for mode in ("zero_copy", "full_load")]
            cell.append(f"{peer} {' / '.join(both)}")
        limits = [speed(one(kind, format, "full_load")) for kind in ("plain read", "fresh read")]
        rows.append(
            [f"`.{format}`", speed(mapped), speed(copied), ", ".join(cell) or NOTHING, *limits]
        )
    head = [
        "file",
        "ztensor, zero-copy",
        "ztensor, copied",
        "others: zero-copy / copied",
        "plain read",
        "fresh read",
    ]
    return table(head, rows)


def workloads(newest: Newest, modes: list[str], cache: str) -> str:
    """One row per contestant, one column per workload."""
    names: dict[tuple[str, str, str], None] = {}
    for dist in WORKLOADS:
        for mode in modes:
            for entry in newest.entries(dist, mode=mode):
                own = entry.peer != OURS or entry.format in ("zt", "")
                if own and (not cache or entry.case.endswith(cache)):
                    names[(entry.peer, entry.format, mode)] = None
    rows = []
    for peer, format, mode in names:
        label = f"{peer} `.{format}`" if format and peer not in results.LIMITS else peer
        how = {"zero_copy": ", zero-copy", "full_load": ", copied"}.get(mode, "")
        cells = [speed(newest.one(dist, peer, format, mode, cache)) for dist in WORKLOADS]
        if peer not in results.LIMITS or format in ("zt", ""):
            rows.append([label + ("" if peer in results.LIMITS else how), *cells])
    return table(["", "large", "mixed", "small"], rows)


def compression(newest: Newest) -> str:
    rows = []
    for style, title in STYLES.items():
        written = newest.one("mixed", OURS, "zt", "write zstd-3", "", style)
        read = newest.one("mixed", OURS, "zt", "read zstd-3", "", style)
        raw = newest.one("mixed", OURS, "zt", "write", "", style)
        plain = newest.one("mixed", OURS, "zt", "full_load", "warm", style)
        if written:
            share = f"{100 * written.file_bytes / written.bytes:.1f} %"
            rows.append([title, share, speed(plain), speed(read), speed(raw), speed(written)])
    return table(
        ["weights", "size at zstd 3", "read", "read zstd-3", "write", "write zstd-3"], rows
    )


def memory(newest: Newest, dist: str) -> str:
    rows = []
    for entry in newest.entries(dist, mode="full_load") + newest.entries(dist, mode="zero_copy"):
        if (
            entry.peer not in results.LIMITS
            and entry.case.endswith("warm")
            and entry.peak_anonymous is not None
        ):
            how = "zero-copy" if entry.mode == "zero_copy" else "copied"
            rows.append(
                [
                    f"`.{entry.format}`",
                    how,
                    entry.peer,
                    f"{entry.peak_anonymous / 1e6:.0f} MB",
                    f"{held(entry):.2f}",
                ]
            )
    rows.sort(key=lambda row: (row[0], row[1], float(row[4])))
    return table(["file", "", "library", "most anonymous memory", "per byte of tensors"], rows)


def codec() -> str:
    """Sizes and speeds of every codec, on one thread."""
    path = results.RESULTS / "codec.json"
    if not path.exists():
        return "Not measured yet: `python benchmark/bench.py codec`.\n"
    rows = []
    for entry in results.load(path)["entries"]:
        fast = {k: entry["bytes"] / statistics.median(t) / 1e6 for k, t in entry["seconds"].items()}
        ratio = "" if entry["codec"] == "memcpy" else f"{entry['ratio']:.3f}"
        weights = f"{entry['model']} {entry['kind']}"
        cells = [
            weights,
            entry["codec"],
            ratio,
            f"{fast['compress']:.0f}",
            f"{fast['decompress']:.0f}",
        ]
        rows.append(cells)
    return table(["weights", "codec", "ratio", "compress, MB/s", "decompress, MB/s"], rows)


def codec_levels() -> str:
    """The codec at every SIMD level, as `codec.py table` printed it."""
    path = results.RESULTS / "codec_levels.md"
    return path.read_text() if path.exists() else ""


def judged(
    claim: str, ours: Entry | None, other: Entry | None, bar: float, limit: Entry | None = None
) -> list[list[str]]:
    """A row: how many times as fast as another, how that compares with the claim, and with a
    plain program that does the same."""
    if not ours or not other:
        return []
    low, middle, high = results.ratio(ours, other)
    # Two that differ by less than three in a hundred are equally fast.
    reached = "yes" if middle >= (0.97 if bar == 1 else bar) else "**no**"
    found = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    near = f"{results.ratio(ours, limit)[1]:.2f}" if limit else NOTHING
    return [[claim, other.peer, f"{bar:g}", found, reached, near]]


def leanest(newest: Newest, across: str, compressed: bool) -> list[list[str]]:
    """A row: where ours takes most memory compared with the leanest other library, in bytes for
    every byte of tensors. A hundredth is less than two measurements differ by."""
    worst: tuple[float, Entry, Entry] | None = None
    for ours in newest.entries(across, peer=OURS):
        if ("zstd" in ours.case) != compressed:
            continue
        found = [e for e in newest.entries(across) if e.case == ours.case]
        others = [e for e in found if e.peer not in (OURS, *results.LIMITS)]
        known = [e for e in others if e.peak_anonymous is not None]
        if ours.peak_anonymous is None or not known:
            continue
        least = min(known, key=held)
        if worst is None or held(ours) - held(least) > worst[0]:
            worst = (held(ours) - held(least), ours, least)
    if worst is None:
        return []
    more, ours, least = worst
    found = f"{held(ours):.2f} against {held(least):.2f} ({ours.case.removeprefix(across).strip()})"
    reached = "yes" if more < 0.01 else "**no**"
    claim = "most memory, compressed" if compressed else "most memory, whatever the file"
    return [[claim, least.peer, "no more", found, reached, NOTHING]]


def held(entry: Entry) -> float:
    """Anonymous memory for every byte of tensors."""
    return (entry.peak_anonymous or 0) / max(entry.bytes, 1)


def claims(newest: Newest, across: str) -> str:
    """What is claimed of every format and workload, and what was found."""
    rows: list[list[str]] = []

    def others(dist: str, format: str, mode: str, cache: str) -> Entry | None:
        found = newest.entries(dist, format=format, mode=mode)
        return best_peer([entry for entry in found if entry.case.endswith(cache)])

    for cache in ("warm", "cold"):
        for format in ("zt", "safetensors", "gguf", "pt", "npz"):
            ours = newest.one(across, OURS, format, "zero_copy", cache)
            best = others(across, format, "zero_copy", cache)
            rows += judged(f"`.{format}` zero-copy, {cache}", ours, best, 1)
    for cache, bar in (("warm", 1.5), ("cold", 0.9)):
        for format in ("zt", "safetensors", "gguf", "pt", "npz", "onnx", "h5"):
            ours, plain, fresh = (
                newest.one(across, who, format, "full_load", cache)
                for who in (OURS, "plain read", "fresh read")
            )
            other = plain if cache == "cold" else others(across, format, "full_load", cache)
            rows += judged(f"`.{format}` copied, {cache}", ours, other, bar, fresh)
    for format in ("zt", "safetensors", "gguf", "pt", "npz"):
        ours = newest.one("small", OURS, format, "zero_copy", "warm")
        best = others("small", format, "zero_copy", "warm")
        rows += judged(f"`.{format}` zero-copy, 50,000 tensors", ours, best, 3)
    for dist in WORKLOADS:
        ours = newest.one(dist, OURS, "zt", "write", "")
        rows += judged(f"write, {dist}", ours, best_peer(newest.entries(dist, mode="write")), 1)
    rows += leanest(newest, across, False) + leanest(newest, across, True)
    head = ["", "against", "claimed", "found (quartiles)", "reached", "of a fresh read"]
    return table(head, rows)


def machine(newest: Newest) -> str:
    lines = []
    for (dist, style), document in newest.documents.items():
        m = document["machine"]
        size = "its own size" if dist == "llama-1b" else f"{document['size'] >> 20} MB"
        lines.append(
            f"- {dist}, {style}, {size}: {document['when'][:10]}, {m['processor']}, "
            f"{m['cores']} cores, {m['memory'] / 1e9:.0f} GB, Linux {m['kernel']}, "
            f"{m['file_system']}, Python {m['python']}"
        )
    versions = {
        k: v for document in newest.documents.values() for k, v in document["versions"].items()
    }
    absent = sorted({name for document in newest.documents.values() for name in document["absent"]})
    lines.append(
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"
    )
    if absent:
        lines.append(f"- not available; skipped: {', '.join(absent)}")
    return "\n".join(lines) + "\n"


def across_formats(newest: Newest) -> str:
    """The model that every format was measured with."""
    return "mixed" if ("mixed", "dense") in newest.documents else "llama-1b"


def also(newest: Newest, across: str) -> list[str]:
    """What was measured besides: torch tensors, and a whole model."""
    parts = []
    for cache in ("warm", "cold"):
        if newest.entries(across, backend="torch", mode="full_load"):
            parts += [
                f"## Torch tensors, {cache} ({across})\n",
                reading(newest, across, cache, "torch"),
            ]
    for cache in ("warm", "cold"):
        if across != "llama-1b" and newest.entries("llama-1b"):
            parts += [f"## A model of 2.8 GB, {cache}\n", reading(newest, "llama-1b", cache)]
    return parts


def text(newest: Newest) -> str:
    across = across_formats(newest)
    return "\n".join(
        [
            HEAD,
            "## Claims\n",
            "How many times as fast as the fastest other library, or as a plain read of the file;",
            "where 1 is claimed, 0.97 counts as equal.\n",
            claims(newest, across),
            FRESH,
            *safetensors_section(),
            f"## Every format, warm ({across})\n",
            reading(newest, across, "warm"),
            f"![Reading every format](benchmarks/{across}-reading.svg)\n",
            f"## Every format, cold ({across})\n",
            reading(newest, across, "cold"),
            COLD,
            *also(newest, across),
            "## Reading by workload, warm\n",
            "Few big matrices, the shapes of transformer blocks, many tensors of 10 KB.\n",
            workloads(newest, ["zero_copy", "full_load"], "warm"),
            "## Writing by workload\n",
            workloads(newest, ["write"], ""),
            "## Compression\n",
            compression(newest),
            "## Codecs, on one thread\n",
            "“normal” are random weights, “minilm” those of a sentence encoder.\n",
            codec(),
            *([LEVELS, codec_levels()] if codec_levels() else []),
            f"## Memory ({across})\n",
            MEMORY,
            memory(newest, across),
            "## Measured on\n",
            machine(newest),
            REPEAT.strip() + "\n",
        ]
    )


def plot() -> list[Path]:
    """Charts of the newest results."""
    newest = Newest()
    CHARTS.mkdir(parents=True, exist_ok=True)
    made = []
    for dist in dict.fromkeys(dist for dist, _ in newest.documents):
        groups: dict[str, list[tuple[str, float, str]]] = {}
        for mode, how in (("zero_copy", "zero-copy"), ("full_load", "copied")):
            for entry in newest.entries(dist, mode=mode):
                if entry.case.endswith("warm") and entry.peer not in results.LIMITS:
                    kind = "ours" if entry.peer == OURS else "bar"
                    groups.setdefault(f".{entry.format}", []).append(
                        (f"{entry.peer}, {how}", entry.speed(), kind)
                    )
        if groups:
            path = CHARTS / f"{dist}-reading.svg"
            path.write_text(charts.bars(f"Reading, warm: {dist}", "GB/s", groups))
            made.append(path)
        written = [
            (f"{e.peer} .{e.format}", e.speed(), "ours" if e.peer == OURS else "bar")
            for e in newest.entries(dist, mode="write")
            if e.peer not in results.LIMITS
        ]
        if written:
            path = CHARTS / f"{dist}-writing.svg"
            path.write_text(charts.bars(f"Writing: {dist}", "GB/s", {"": written}))
            made.append(path)
    compared = against_safetensors()
    if compared:
        path = CHARTS / "torch-safetensors.svg"
        groups = {
            SAFETENSORS_CASES[case]: [
                ("ztensor", best["ratio"], "ours"),
                ("safetensors 0.9", 1.0, "bar"),
            ]
            for case, (best, _) in compared.items()
        }
        title = "Torch tensors of .safetensors files"
        path.write_text(charts.bars(title, "times as fast as safetensors 0.9", groups))
        made.append(path)
    return made


SAFETENSORS_CASES = {
    "torch load mixed touch as safetensors": "zero-copy load, every page touched",
    "torch load mixed copy as safetensors": "copying load, warm",
    "torch load mixed copy cold as safetensors": "copying load, cold",
    "torch load small touch as safetensors": "zero-copy load of 20,000 small tensors",
    "torch load small copy as safetensors": "copying load of 20,000 small tensors",
    "torch save small as safetensors": "save 20,000 small tensors",
    "torch save mixed as safetensors": "save, mixed sizes",
    "torch save big as safetensors": "save, 25 MB each",
}


def against_safetensors() -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
    """By case: compared with the faster backend of safetensors, and with a fresh read."""
    path = results.RESULTS / "python.json"
    figures = json.loads(path.read_text()) if path.exists() else []
    compared = {}
    for case in SAFETENSORS_CASES:
        found = [one for one in figures if one["case"] == case]
        peers = [one for one in found if one["peer"].startswith("safetensors")]
        if peers:
            limit = next((one for one in found if one["peer"] == "fresh read"), None)
            compared[case] = (min(peers, key=lambda one: one["ratio"]), limit)
    return compared


def safetensors_section() -> list[str]:
    """Torch tensors of `.safetensors` files against safetensors itself, where it was measured."""
    if not against_safetensors():
        return []
    return [
        "## Torch tensors and safetensors\n",
        "`benchmark/python/run.py` compares with both CPU backends of safetensors 0.9.0rc1, in",
        "turns; the table has the faster of them. Quartiles are in parentheses.\n",
        torch_safetensors(),
    ]


def torch_safetensors() -> str:
    """The same as a table."""
    rows = []
    for case, (best, limit) in against_safetensors().items():
        title = SAFETENSORS_CASES[case]
        spread = f"{best['ratio']:.2f} {TIMES} ({best['low']:.2f} to {best['high']:.2f})"
        near = f"{limit['ratio']:.2f}" if limit else NOTHING
        backend = best["peer"].rpartition(" ")[2] if "load" in case else NOTHING
        rows.append([title, spread, backend, near])
    head = [
        "torch tensors, `.safetensors`",
        "as fast as safetensors 0.9",
        "its backend",
        "of a fresh read",
    ]
    return table(head, rows)


def headline(newest: Newest) -> str:
    """For the README: torch tensors against the fastest other library."""
    if against_safetensors():
        return torch_safetensors()
    rows = []
    dist = across_formats(newest)
    for format in ("safetensors", "pt"):
        row = [f"`.{format}`"]
        for mode in ("zero_copy", "full_load"):
            ours = newest.one(dist, OURS, format, mode, "warm", backend="torch")
            found = newest.entries(dist, backend="torch", format=format, mode=mode)
            best = best_peer([entry for entry in found if entry.case.endswith("warm")])
            if ours and best:
                row.append(f"{results.ratio(ours, best)[1]:.2f} {TIMES} {best.peer}")
            else:
                row.append(NOTHING)
        rows.append(row)
    return table(["torch tensors, warm", "zero-copy, every page touched", "copied"], rows)


def write() -> Path:
    """Everything, from the newest results."""
    newest = Newest()
    if not newest.documents:
        raise SystemExit("there are no results yet: python benchmark/bench.py run")
    plot()
    DOCUMENT.write_text(text(newest))
    start, end = "<!-- benchmark -->\n", "<!-- end of benchmark -->\n"
    readme = README.read_text()
    if start in readme and end in readme:
        before, rest = readme.split(start, 1)
        after = rest.split(end, 1)[1]
        README.write_text(f"{before}{start}{headline(newest)}{end}{after}")
    return DOCUMENT.relative_to(ROOT)

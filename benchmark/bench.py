"""Every claim re-run, against every peer.

    python benchmark/bench.py run --dist llama-1b --runs 5 --warmup 2
    python benchmark/bench.py run --size 512 --dist mixed --runs 5 --warmup 2
    python benchmark/bench.py sweep --runs 5 --warmup 2
    python benchmark/bench.py codec
    python benchmark/bench.py plot
    python benchmark/bench.py report

Each contestant is a fresh process; all take turns; what they return is compared bit for bit in
the first round. Models are made under ``.work`` and kept; older packages that share our name get
environments of their own under ``.envs``. Results are JSON files under ``results``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import codecs, document, models, results  # noqa: E402
from harness.measure import Contestant, Entry, Session, turns  # noqa: E402

SCENARIOS = ("full_load", "zero_copy", "selective", "fastest")
FORMATS = ("zt", "safetensors", "pt", "npz", "gguf", "onnx", "h5", "pkl")
DISTS = ("llama-1b", "large", "mixed", "small")


def run_one(arguments: argparse.Namespace, dist: str, size: int, style: str) -> None:
    """One distribution of tensors in all formats: reading, writing and, for ours, compressing."""
    session = Session(dist, size << 20, style, arguments.formats)
    entries: list[Entry] = []

    def measure(contestants: list[Contestant]) -> None:
        if contestants:
            found = turns(contestants, arguments.runs, arguments.warmup)
            print(results.summary(found), flush=True)
            entries.extend(found)

    def save() -> None:
        # Now and then, so that a long run that is stopped was not for nothing.
        if arguments.save and entries:
            path = results.save("formats", sys.argv[1:], session, entries)
            print(f"{path.relative_to(HERE.parent)}: {len(entries)} results", flush=True)

    for format in arguments.formats:
        session.make(format)
        for scenario in arguments.scenario:
            for temperature in arguments.cache:
                measure(session.reading(format, arguments.backend, scenario, temperature == "cold"))
        session.done_with(format)
        save()
    if arguments.write:
        measure(session.writing(arguments.formats, {}, ""))
        if "zt" in arguments.formats:
            measure(session.writing(["zt"], {"compression": 3}, " zstd-3"))
            measure(compressed_reading(session, arguments.backend))
    session.clean()
    save()


def compressed_reading(session: Session, backend: str) -> list[Contestant]:
    """Reading what the packages of our name compressed."""
    found = []
    for peer, _ in session.present.values():
        path = session.folder / f"written-{peer.name.replace(' ', '-')}.zt"
        if peer.library != "ztensor" or not path.exists():
            continue
        request = {
            "do": "read", "path": str(path), "backend": backend, "copy": True,
            "names": None, "cold": False, "expected": None,
        }  # fmt: skip
        case = f"{session.dist} {session.style} read zstd-3 {backend} warm"
        expected = str(session.expected("zt"))
        found.append(session.contestant(case, peer.name, "zt", "read zstd-3", request, expected))
    return found


def run(arguments: argparse.Namespace) -> None:
    run_one(arguments, arguments.dist, arguments.size, arguments.data_style)


def sweep(arguments: argparse.Namespace) -> None:
    """All distributions, sizes and styles."""
    for dist in arguments.dists:
        for size in [0] if dist == "llama-1b" else arguments.sizes:
            run_one(arguments, dist, size, "dense")
    for style in list(models.STYLES)[1:]:
        arguments.formats = ["zt"]
        run_one(arguments, "mixed", arguments.sizes[-1], style)


def codec(arguments: argparse.Namespace) -> None:
    """The weight codec against others, on real and synthetic weights."""
    path = codecs.run(arguments.runs, arguments.filter, arguments.save)
    if path:
        print(path.relative_to(HERE.parent))


def plot(_: argparse.Namespace) -> None:
    for path in document.plot():
        print(path)


def report(_: argparse.Namespace) -> None:
    print(document.write())


def chosen(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        words = text.split(",")
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(known)}")
        return words

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    measuring = []
    for name, work in (("run", run), ("sweep", sweep)):
        command = commands.add_parser(name)
        measuring.append(command)
        command.set_defaults(work=work)
        command.add_argument("--runs", type=int, default=5)
        command.add_argument("--warmup", type=int, default=2)
        command.add_argument("--formats", type=chosen(FORMATS), default=list(FORMATS))
        command.add_argument("--backend", choices=["numpy", "torch"], default="numpy")
        command.add_argument("--cache", type=chosen(("cold", "warm")), default=["cold", "warm"])
        every = ["full_load", "zero_copy"] if name == "run" else list(SCENARIOS)
        command.add_argument("--scenario", type=chosen(SCENARIOS), default=every)
        command.add_argument("--no-write", dest="write", action="store_false")
        if name == "run":
            command.add_argument("--dist", choices=DISTS, default="mixed")
            command.add_argument("--size", type=int, default=512, help="MB; llama-1b has its own")
            command.add_argument("--data-style", choices=list(models.STYLES), default="dense")
        else:
            command.add_argument("--dists", type=chosen(DISTS), default=list(DISTS))
            command.add_argument(
                "--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[128, 512]
            )
    codec_command = commands.add_parser("codec")
    codec_command.set_defaults(work=codec)
    codec_command.add_argument("filter", nargs="*", help="words that a model or a type has")
    codec_command.add_argument("--runs", type=int, default=5)
    commands.add_parser("plot").set_defaults(work=plot)
    commands.add_parser("report").set_defaults(work=report)
    for command in (*measuring, codec_command):
        command.add_argument(
            "--print-only", dest="save", action="store_false", help="leave the results as they are"
        )
    arguments = parser.parse_args()
    arguments.work(arguments)


if __name__ == "__main__":
    main()

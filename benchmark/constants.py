"""Constants of the I/O paths, halved and doubled: `python benchmark/constants.py [FILTER]`.

In a scratch copy of the sources each constant of `CONSTANTS` becomes a function that multiplies
its value by a factor from the environment, and an optimised wheel of that is installed into an
environment of its own, under `.work/constants`. Processes with factors 1, 1/2, 2 (and 1/4, 4) take
turns in the cases of a constant; what is printed is the time with each factor as a multiple of the
time with the value that is there: the median of the ratios within a round, with its quartiles. A
line of factor 1 against itself says how much of that is noise.

`--build` only makes the copy and the wheel.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import remote

ROOT = Path(__file__).resolve().parent
WORK = ROOT / ".work" / "constants"
COPY, DATA = WORK / "sources", WORK / "data"
PYTHON = COPY / ".venv" / "bin" / "python"
ROUNDS = 7

CONSTANTS = {
    # file and name below crates/ztensor/src: other files that use it, cases
    "decode/strided.rs:TILE": ([], ["fortran"]),
    "decode/z4ai.rs:INDEX_PART": ([], ["far_coded_rows"]),
    "decode/zstd_seekable.rs:FRAME_LEN": ([], ["write_seekable", "zstd_rows"]),
    "read/direct_io.rs:PROBES": ([], ["cold_load"]),
    "read/subarray.rs:MAX_GAP": ([], ["columns_near", "columns_apart"]),
    "remote/coalesce.rs:MAX_GAP": ([], ["far_sparse", "near_sparse"]),
    "remote/coalesce.rs:MAX_REQUEST": ([], ["near_whole", "far_whole"]),
    "remote/coalesce.rs:MIN_REQUEST": ([], ["near_one", "far_one"]),
    "remote/fetch.rs:THREADS": ([], ["near_whole"]),
    "remote/fetch.rs:WORTH_SHARING": ([], ["near_one", "far_one"]),
    "remote/runtime.rs:WORKERS": ([], ["near_whole", "near_sparse"]),
    "remote/source.rs:MIN_READAHEAD": ([], ["far_open_h5", "far_open_gguf", "far_open_pt"]),
    "remote/source.rs:MAX_READAHEAD": ([], ["far_open_h5", "far_open_gguf", "far_open_pt"]),
    "remote/source.rs:FIRST_REQUEST": ([], ["far_open_st", "far_open_pt", "far_open_gguf"]),
    "repository/choose.rs:DEEPEST": ([], ["chain"]),
    "repository/choose.rs:SAMPLED": ([], ["commit_tuned"]),
    "source/cursor.rs:AFTER_JUMP": (["format/hdf5/store.rs"], ["cold_open_pt", "cold_open_h5"]),
    "source/cursor.rs:CURSOR_BLOCK": ([], ["open_file_gguf", "open_file_h5"]),
    "source/cursor.rs:FAR_JUMP": (
        ["format/mod.rs", "format/hdf5/store.rs"],
        ["cold_open_pt", "cold_open_h5"],
    ),
    # In `distributed.py consolidate`, with ZTENSOR_TUNED set by hand: it takes two ranks.
    "write/assemble.rs:PLAIN_BLOCK": ([], []),
    "write/assemble.rs:DECODED_BLOCK": ([], []),
    "write/batch.rs:WORTH_GATHERING": ([], ["write_1k", "write_2k", "write_4k"]),
    "write/compress.rs:HARDLY_LARGER": ([], ["write_zstd"]),
    "write/compress.rs:JOB": (["write/stream.rs"], ["write_zstd_large"]),
    "write/compress.rs:JOBS_ABOVE": (
        ["write/batch.rs", "write/stream.rs"],
        ["write_zstd", "write_zstd_large"],
    ),
    "write/compress.rs:SAMPLE_PIECE": ([], ["write_zstd", "write_zstd_small"]),
    "write/from_reader.rs:STAGED": ([], ["far_convert"]),
    "write/vectored.rs:MAX_WRITE": ([], ["write_mixed", "write_4k"]),
    "write/writer.rs:WRITE_BUFFER": (
        ["write/batch.rs"],
        ["write_1k", "write_mixed", "write_checked"],
    ),
}

TUNED = """
/// A constant of the sources times the factor in the environment.
pub(crate) fn tuned(name: &str) -> f64 {
    let set = std::env::var("ZTENSOR_TUNED").unwrap_or_default();
    set.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')?.parse().ok()).unwrap_or(1.0)
}
"""


# --- the scratch copy


def outside_of_use(text: str, change: Callable[[str], str]) -> str:
    """Changes everything but `use` declarations, comments, strings and tests."""
    text, tests, rest = text.partition("#[cfg(test)]")
    kept = r"^\s*(?:pub(?:\([a-z]+\))? )?use [^;]*;|^\s*//.*$|\"[^\"\n]*\""
    parts = re.split(f"(?m)({kept})", text)
    changed = [part if n % 2 else change(part) for n, part in enumerate(parts)]
    return "".join(changed) + tests + rest


def make_function(text: str, name: str, key: str) -> str:
    """Turns `const NAME: T = value;` into a function, and the constants that are made of it."""
    found = re.search(rf"const {name}: ([\w]+) = ([^;]+);", text)
    assert found, key
    kind, value = found[1], found[2]
    if kind == "Duration":
        scaled = f"({value}).mul_f64(crate::tuned({key!r}))"
    else:
        scaled = f"(({value}) as f64 * crate::tuned({key!r})).max(1.0) as {kind}"
    scaled = scaled.replace("'", '"')
    function = (
        f"fn {name}() -> {kind} {{ static TUNED: std::sync::OnceLock<{kind}> = "
        f"std::sync::OnceLock::new(); *TUNED.get_or_init(|| {scaled}) }}"
    )
    return text.replace(found[0], function)


def use_function(text: str, name: str) -> str:
    def change(part: str) -> str:
        part = re.sub(rf"(?<!fn )\b{name}\b(?!\()", f"{name}()", part)
        # A constant that is made of it is computed each time, too.
        return re.sub(
            r"const (\w+): (\w+) = ([^;]*\w+\(\)[^;]*);",
            r"fn \1() -> \2 { \3 }",
            part,
        )

    changed = outside_of_use(text, change)
    for made in re.findall(r"\bfn ([A-Z_0-9]+)\(\) -> \w+ \{ [^s]", changed):
        changed = outside_of_use(
            changed, lambda part, made=made: re.sub(rf"\b{made}\b(?!\()", f"{made}()", part)
        )
    return changed


def build() -> None:
    """The copy with functions for constants, and its wheel."""
    if not (COPY / "Cargo.toml").exists():
        COPY.mkdir(parents=True, exist_ok=True)
        archive = subprocess.Popen(["git", "archive", "HEAD"], cwd=ROOT.parent, stdout=-1)
        subprocess.run(["tar", "-x", "-C", COPY], stdin=archive.stdout, check=True)
        sources = COPY / "crates" / "ztensor" / "src"
        texts = {path: path.read_text() for path in sources.rglob("*.rs")}
        for key, (users, _) in CONSTANTS.items():
            file, name = key.split(":")
            texts[sources / file] = make_function(texts[sources / file], name, key)
            for user in [file, *users]:
                texts[sources / user] = use_function(texts[sources / user], name)
        texts[sources / "lib.rs"] += TUNED
        for path, text in texts.items():
            if text != path.read_text():
                path.write_text(text)
    subprocess.run(["make", "wheel"], cwd=COPY, check=True)


class Handler(remote.Handler):
    folder = DATA


# --- cases, in processes of the other environment


def small(size: int, count: int) -> dict[str, Any]:
    import numpy as np

    rng = np.random.default_rng(size)
    return {
        f"layers.{n}.weight": rng.standard_normal(size // 4, dtype=np.float32) for n in range(count)
    }


def large(megabytes: int, each: int) -> dict[str, Any]:
    """Normal fp32 of bf16 precision: what zstd takes a third off."""
    import numpy as np

    rng = np.random.default_rng(each)
    found = {}
    for n in range(megabytes // each):
        values = rng.standard_normal((each << 8, 1024), dtype=np.float32) * 0.02
        values.view(np.uint32)[:] &= 0xFFFF0000
        found[f"layers.{n}.weight"] = values
        found[f"layers.{n}.bias"] = values[0].copy()
    return found


def prepare() -> None:
    """The files that the cases read."""
    import gguf
    import h5py
    import numpy as np
    import torch

    from ztensor import numpy as zn

    DATA.mkdir(parents=True, exist_ok=True)
    if (DATA / "done").exists():
        return
    mixed = large(128, 4)
    zn.save_file(mixed, DATA / "mixed.zt")
    zn.save_file(large(512, 32), DATA / "cold.zt")
    zn.save_file(mixed, DATA / "coded.zt", compression="fast")
    zn.save_file({"one": mixed["layers.0.weight"]}, DATA / "one4.zt")
    zn.save_file({"one": next(iter(large(64, 64).values()))}, DATA / "one64.zt")
    few = small(8 << 10, 4000)
    zn.save_file(few, DATA / "small.zt")
    zn.save_file(few, DATA / "small.safetensors")
    torch.save({name: torch.from_numpy(value) for name, value in few.items()}, DATA / "small.pt")
    writer = gguf.GGUFWriter(str(DATA / "small.gguf"), "llama")
    writer.add_array("tokens", [f"token {n}" for n in range(30000)])
    with h5py.File(DATA / "small.h5", "w") as file:
        for name, value in few.items():
            writer.add_tensor(name, value)
            file.create_dataset(name.replace(".", "/"), data=value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    middle = small(1 << 20, 200)
    with h5py.File(DATA / "large.h5", "w") as file:
        for name, value in middle.items():
            file.create_dataset(name.replace(".", "/"), data=value)
    legacy = {name: torch.from_numpy(value) for name, value in middle.items()}
    torch.save(legacy, DATA / "large.pt", _use_new_zipfile_serialization=False)
    np.savez(DATA / "fortran.npz", a=np.asfortranarray(large(64, 64)["layers.0.weight"]))
    (DATA / "done").touch()


def evict(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Cases:
    """Each makes what it needs, then yields once for each time that counts."""

    def __init__(self, root: str, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.out = folder / "out.zt"

    def repeat(self, work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> Any:
        while True:
            before()
            yield work

    def loading(self, where: str, name: str) -> Any:
        from ztensor.numpy import load_file

        return self.repeat(lambda: load_file(f"{self.root}/{where}/{name}"))

    def near_whole(self) -> Any:
        return self.loading("near", "mixed.zt")

    def far_whole(self) -> Any:
        return self.loading("far", "mixed.zt")

    def one(self, where: str) -> Any:
        import ztensor

        reader = ztensor.open(f"{self.root}/{where}/one64.zt")
        return self.repeat(lambda: reader.read_numpy("one"))

    def near_one(self) -> Any:
        return self.one("near")

    def far_one(self) -> Any:
        return self.one("far")

    def sparse(self, where: str) -> Any:
        import ztensor

        reader = ztensor.open(f"{self.root}/{where}/small.zt")
        # Gaps of 8 kB to 1 MB.
        names = [f"layers.{n}.weight" for n in range(0, 400, 2)]
        names += [f"layers.{n}.weight" for n in range(400, 1600, 16)]
        names += [f"layers.{n}.weight" for n in range(1600, 4000, 100)]
        return self.repeat(lambda: reader.read_numpy(names))

    def far_sparse(self) -> Any:
        return self.sparse("far")

    def near_sparse(self) -> Any:
        return self.sparse("near")

    def opening(self, name: str) -> Any:
        import ztensor

        return self.repeat(lambda: ztensor.open(f"{self.root}/far/{name}").keys())

    def far_open_st(self) -> Any:
        return self.opening("small.safetensors")

    def far_open_pt(self) -> Any:
        return self.opening("small.pt")

    def far_open_gguf(self) -> Any:
        return self.opening("small.gguf")

    def far_open_h5(self) -> Any:
        return self.opening("small.h5")

    def far_coded_rows(self) -> Any:
        import ztensor

        def rows() -> None:
            reader = ztensor.safe_open(f"{self.root}/far/coded.zt", framework="np")
            reader.get_slice("layers.7.weight")[100:110]

        return self.repeat(rows)

    def far_convert(self) -> Any:
        import ztensor

        to = self.folder / "out.safetensors"
        return self.repeat(
            lambda: ztensor.convert(f"{self.root}/far/small.zt", to),
            lambda: to.unlink(missing_ok=True),
        )

    def writing(self, tensors: dict[str, Any], **options: Any) -> Any:
        from ztensor.numpy import save_file

        return self.repeat(lambda: save_file(tensors, self.out, **options))

    def write_1k(self) -> Any:
        return self.writing(small(1 << 10, 40000))

    def write_2k(self) -> Any:
        return self.writing(small(2 << 10, 20000))

    def write_4k(self) -> Any:
        return self.writing(small(4 << 10, 10000))

    def write_mixed(self) -> Any:
        return self.writing(large(128, 4))

    def write_checked(self) -> Any:
        return self.writing(large(128, 4), checksum="crc32c")

    def write_zstd(self) -> Any:
        return self.writing(large(96, 24), compression=3)

    def write_zstd_large(self) -> Any:
        return self.writing(large(64, 64), compression=3)

    def write_zstd_small(self) -> Any:
        return self.writing(small(1 << 20, 64), compression=3)

    def write_seekable(self) -> Any:
        import ztensor

        return self.repeat(lambda: self.seekable(ztensor))

    def seekable(self, ztensor: Any) -> None:
        options = {"format": "zt2", "compression": 3, "overwrite": True}
        ztensor.convert(DATA / "mixed.zt", self.out, **options)

    def zstd_rows(self) -> Any:
        import ztensor

        self.seekable(ztensor)
        reader = ztensor.safe_open(self.out, framework="np")
        return self.repeat(lambda: reader.get_slice("layers.7.weight")[100:110])

    def fortran(self) -> Any:
        import ztensor

        reader = ztensor.open(DATA / "fortran.npz")
        return self.repeat(lambda: reader.read_numpy("a", copy=True))

    def columns(self, width: int) -> Any:
        import ztensor

        reader = ztensor.safe_open(DATA / "cold.zt", framework="np")
        return self.repeat(lambda: reader.get_slice("layers.3.weight")[:, 100 : 100 + width])

    def columns_near(self) -> Any:
        return self.columns(900)

    def columns_apart(self) -> Any:
        return self.columns(10)

    def cold_load(self) -> Any:
        from ztensor.numpy import load_file

        path = DATA / "cold.zt"
        return self.repeat(lambda: load_file(path, copy=True), lambda: evict(path))

    def cold_open(self, name: str) -> Any:
        import ztensor

        path = DATA / name
        return self.repeat(lambda: ztensor.open(path).keys(), lambda: evict(path))

    def cold_open_pt(self) -> Any:
        return self.cold_open("large.pt")

    def cold_open_h5(self) -> Any:
        return self.cold_open("large.h5")

    def open_file(self, name: str) -> Any:
        import ztensor

        path = DATA / name
        return self.repeat(lambda: ztensor.safe_open(path, framework="np", backend="pread").keys())

    def open_file_gguf(self) -> Any:
        return self.open_file("small.gguf")

    def open_file_h5(self) -> Any:
        return self.open_file("small.h5")

    def chain(self) -> Any:
        import numpy as np

        import ztensor
        from ztensor.numpy import save_file

        repository = ztensor.Repository(self.folder / "chain", create=True)
        rng = np.random.default_rng(0)
        values = (rng.standard_normal((4096, 1024)) * 0.02).astype(np.float16)
        for step in range(24):
            save_file({"weight": values}, self.folder / "step.safetensors")
            repository.commit(self.folder / "step.safetensors", message=str(step))
            flat = values.reshape(-1).view(np.uint16)
            flat[rng.integers(0, flat.size, flat.size // 100)] ^= 1

        def read() -> None:
            repository.open("main").read_numpy("weight")

        return self.repeat(read)

    def commit_tuned(self) -> Any:
        import numpy as np

        import ztensor
        from ztensor.numpy import save_file

        rng = np.random.default_rng(0)
        base = large(64, 4)
        save_file(base, self.folder / "base.safetensors")
        tuned = {
            name: value + rng.standard_normal(value.shape, dtype=np.float32) * 1e-4
            for name, value in base.items()
        }
        save_file(tuned, self.folder / "tuned.safetensors")
        root = self.folder / "tuned"

        def before() -> None:
            shutil.rmtree(root, ignore_errors=True)
            ztensor.Repository(root, create=True).commit(self.folder / "base.safetensors")

        def work() -> None:
            ztensor.Repository(root).commit(self.folder / "tuned.safetensors")

        return self.repeat(work, before)


def work(case: str, root: str, folder: str) -> None:
    turns = getattr(Cases(root, Path(folder)), case)()
    for line in sys.stdin:
        total = 0.0
        for _ in range(int(line)):
            action = next(turns)
            start = time.perf_counter()
            result = action()
            total += time.perf_counter() - start
            del result
        print(total, flush=True)


class Contestant:
    def __init__(self, case: str, root: str, key: str, factor: float, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"ZTENSOR_TUNED": f"{key}={factor}"}
        command = [PYTHON, __file__, "--work", case, root, str(folder)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def __call__(self, times: int) -> float:
        assert self.process.stdin and self.process.stdout
        print(times, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(key: str, case: str, root: str, factors: list[float]) -> Iterator[str]:
    folder = WORK / "run"
    shutil.rmtree(folder, ignore_errors=True)
    them = [
        Contestant(case, root, key, factor, folder / str(n))
        for n, factor in enumerate([1.0, 1.0, *factors])
    ]
    try:
        for one in them:
            one(1)
        took = them[0](1)
        times = max(1, min(200, round(0.08 / max(took, 1e-6))))
        ratios: list[list[float]] = [[] for _ in them]
        for number in range(ROUNDS):
            order = them[number % len(them) :] + them[: number % len(them)]
            seconds = {id(one): one(times) for one in order}
            for n, one in enumerate(them):
                ratios[n].append(seconds[id(one)] / seconds[id(them[0])])
        yield f"{key} {case}: {took * 1e3:.2f} ms"
        for factor, found in zip([1.0, *factors], ratios[1:], strict=True):
            low, middle, high = statistics.quantiles(found, n=4)
            yield f"  x {factor:<5g} {middle:.3f} ({low:.3f} to {high:.3f})"
    finally:
        for one in them:
            one.end()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--build", action="store_true", help="only make the copy and the wheel")
    parser.add_argument("--factors", type=float, nargs="+", default=[0.5, 2.0])
    options = parser.parse_args()
    build()
    if options.build:
        return
    subprocess.run([PYTHON, __file__, "--prepare"], check=True)
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=-1, text=True)
    assert server.stdout
    root = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    try:
        for key, (_, cases) in CONSTANTS.items():
            for case in cases:
                if options.filter in f"{key} {case}":
                    for line in measure(key, case, root, options.factors):
                        print(line, flush=True)
    finally:
        server.terminate()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve"]:
            remote.serve(Handler)
        case ["--prepare"]:
            prepare()
        case ["--work", case, root, folder]:
            work(case, root, folder)
        case _:
            main()

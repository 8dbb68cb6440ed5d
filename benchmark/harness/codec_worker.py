"""A process that times one codec on one file: a command per line in, seconds or bytes out.

    codec_worker.py CODEC FILE KIND

The file is held in memory; one thread; what was decoded is compared with it before anything
is timed.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")
name, path, kind = sys.argv[1:4]
WIDTH = {"bf16": 2, "fp16": 2, "fp32": 4}.get(kind, 1)
Pair = tuple[Callable[[bytes], Any], Callable[[Any], Any]]


def z4ai(effort: str) -> Pair:
    import z4ai

    def compress(data: bytes) -> bytes:
        return z4ai.compress(data, dtype=kind, effort=effort, threads=1)

    return compress, lambda frame: z4ai.decompress(frame, threads=1)


def z4ai_tensors(effort: str) -> Pair:
    """A frame per tensor, by the places and shapes in the file beside."""
    import z4ai

    lines = Path(path + ".shapes").read_text().splitlines()
    places = [tuple(map(int, line.split())) for line in lines]
    blocks = {"blocks": kind.removeprefix("blocks ")} if kind.startswith("blocks") else {}
    dtype = "uint8" if blocks else kind

    def compress(data: bytes) -> list[bytes]:
        parts = ((data[at : at + length], shape) for at, length, *shape in places)
        settings = {"dtype": dtype, "effort": effort, "threads": 1, **blocks}
        return [z4ai.compress(part, shape=shape, **settings) for part, shape in parts]

    def decompress(frames: list[bytes]) -> bytearray:
        out = bytearray(places[-1][0] + places[-1][1])
        view = memoryview(out)
        for frame, (at, length, *_) in zip(frames, places, strict=True):
            z4ai.decompress(frame, out=view[at : at + length], threads=1)
        return out

    return compress, decompress


def older_z4ai(effort: str) -> Pair:
    from importlib.metadata import version

    import z4ai

    # Ours has the same name, and would be found if the older one is not there.
    assert version("z4ai").startswith("0.2.")

    def compress(data: bytes) -> bytes:
        return z4ai.compress(data, dtype=kind, effort=effort, threads=1)

    return compress, z4ai.decompress


def zipnn(_: str) -> Pair:
    import zipnn

    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8_e5m2": "float8_e5m2"}
    # It has no integers; those of eight bits are compressed as the floats of eight bits are.
    names = {**names, "fp8_e4m3": "float8_e4m3fn", "int8": "float8_e4m3fn"}
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype=names[kind], threads=1)
    # The codec may overwrite its input.
    return lambda data: codec.compress(bytearray(data)), codec.decompress


def zstd(level: str) -> Pair:
    import zstandard

    return zstandard.ZstdCompressor(int(level)).compress, zstandard.ZstdDecompressor().decompress


def blosc2(_: str) -> Pair:
    import blosc2

    settings = {
        "typesize": WIDTH,
        "codec": blosc2.Codec.ZSTD,
        "clevel": 5,
        "filters": [blosc2.Filter.BITSHUFFLE],
        "nthreads": 1,
    }
    return (
        lambda data: blosc2.compress2(data, **settings),
        lambda frame: blosc2.decompress2(frame, nthreads=1),
    )


def pcodec(_: str) -> Pair:
    from pcodec import ChunkConfig, standalone

    # It knows no bfloat16, whose order as integers is the same.
    dtypes = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}
    dtype = dtypes.get(kind, np.uint8)
    config = ChunkConfig(enable_8_bit=True) if dtype == np.uint8 else ChunkConfig()
    return (
        lambda data: standalone.simple_compress(np.frombuffer(data, dtype), config),
        lambda frame: np.asarray(standalone.simple_decompress(frame)).tobytes(),
    )


def openzl(_: str) -> Pair:
    import openzl.ext as zl

    nodes = {
        "bf16": zl.nodes.BFloat16Deconstruct,
        "fp16": zl.nodes.Float16Deconstruct,
        "fp32": zl.nodes.Float32Deconstruct,
    }
    compressor = zl.Compressor()
    if kind not in nodes:
        compressor.select_starting_graph(zl.graphs.Entropy()(compressor))
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        return openzl_pair(zl, compressor, np.uint8)
    rest, exponents = zl.graphs.Store()(compressor), zl.graphs.Entropy()(compressor)
    graph = nodes[kind]()(compressor, sign_frac=rest, exponent=exponents)
    compressor.select_starting_graph(graph)
    compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
    return openzl_pair(zl, compressor, np.uint16 if WIDTH == 2 else np.uint32)


def openzl_pair(zl: Any, compressor: Any, dtype: Any) -> Pair:
    def compress(data: bytes) -> bytes:
        context = zl.CCtx()
        context.ref_compressor(compressor)
        return context.compress([zl.Input(zl.Type.Numeric, np.frombuffer(data, dtype))])

    def decompress(frame: bytes) -> bytes:
        return zl.DCtx().decompress(frame)[0].content.as_nparray()

    return compress, decompress


def memcpy(_: str) -> Pair:
    return bytearray, bytearray


CODECS: dict[str, Callable[[str], Pair]] = {
    "z4ai": z4ai,
    "z4ai-tensors": z4ai_tensors,
    "z4ai-0.2": older_z4ai,
    "zipnn": zipnn,
    "zstd": zstd,
    "blosc2": blosc2,
    "pcodec": pcodec,
    "openzl": openzl,
    "memcpy": memcpy,
}


def main() -> None:
    codec, _, option = name.partition(" ")
    compress, decompress = CODECS[codec](option)
    data = Path(path).read_bytes()
    frame = compress(data)
    assert bytes(memoryview(decompress(frame)).cast("B")) == data, "it does not come back the same"
    parts = frame if isinstance(frame, list) else [frame]
    print(sum(map(len, parts)), flush=True)
    for line in sys.stdin:
        work, given = (compress, data) if line.strip() == "compress" else (decompress, frame)
        start = time.perf_counter()
        result = work(given)
        print(time.perf_counter() - start, flush=True)
        del result


if __name__ == "__main__":
    main()

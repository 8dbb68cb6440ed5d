"""How each library reads and writes each format, at its best settings. Used inside workers.

A reader takes a path and the names that are wanted (``None`` for all) and returns a dictionary
of arrays; a writer takes a dictionary and a path. Libraries are imported when they are asked
for, so that a worker only ever has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Arrays = dict[str, Any]
Reader = Callable[[str, list[str] | None], Arrays]
Writer = Callable[[Arrays, str], None]


def ztensor_reader(backend: str, copy: bool) -> Reader:
    """This project, and older packages of the same name."""
    from importlib import import_module

    module = import_module(f"ztensor.{backend}")

    def read(path: str, names: list[str] | None) -> Arrays:
        if names is None:
            return module.load_file(path, copy=copy)
        import ztensor

        with ztensor.Reader(path) as reader:
            kind = "read_numpy" if backend == "numpy" else "read_torch"
            if hasattr(reader, kind):
                return {name: getattr(reader, kind)(name, copy=copy) for name in names}
            loaded = module.load_file(path, copy=False)
            return {name: loaded[name] for name in names}

    return read


def safetensors_reader(backend: str, copy: bool) -> Reader:
    from importlib import import_module

    from safetensors import safe_open

    module = import_module(f"safetensors.{backend}")

    def read(path: str, names: list[str] | None) -> Arrays:
        if copy and names is None:
            loaded = module.load_file(path)
            # The torch functions map; a copy of one's own is what is compared.
            return loaded if backend == "numpy" else {k: t.clone() for k, t in loaded.items()}
        with safe_open(path, framework="pt" if backend == "torch" else "np") as opened:
            return {name: opened.get_tensor(name) for name in names or opened.keys()}

    return read


def fastsafetensors_reader(backend: str, copy: bool) -> Reader:
    from fastsafetensors import fastsafe_open

    def read(path: str, names: list[str] | None) -> Arrays:
        with fastsafe_open(filenames=[path], nogds=True, device="cpu", debug_log=False) as opened:
            keys = names or list(opened.keys())
            return {name: opened.get_tensor(name).clone().detach() for name in keys}

    return read


def torch_reader(backend: str, copy: bool) -> Reader:
    import torch

    def read(path: str, names: list[str] | None) -> Arrays:
        loaded = torch.load(path, mmap=not copy, weights_only=True)
        loaded = {name: loaded[name] for name in names} if names else loaded
        return loaded if backend == "torch" else {k: t.numpy() for k, t in loaded.items()}

    return read


def pickle_reader(backend: str, copy: bool) -> Reader:
    import pickle

    def read(path: str, names: list[str] | None) -> Arrays:
        with open(path, "rb") as file:
            loaded = pickle.load(file)
        return {name: loaded[name] for name in names} if names else loaded

    return read


def numpy_reader(backend: str, copy: bool) -> Reader:
    import numpy as np

    def read(path: str, names: list[str] | None) -> Arrays:
        with np.load(path) as archive:
            return {name: archive[name] for name in names or archive.files}

    return read


def gguf_reader(backend: str, copy: bool) -> Reader:
    import numpy as np
    from gguf import GGUFReader

    def read(path: str, names: list[str] | None) -> Arrays:
        wanted = set(names) if names else None
        found = [t for t in GGUFReader(path).tensors if wanted is None or t.name in wanted]
        return {t.name: np.array(t.data) if copy else t.data for t in found}

    return read


def onnx_reader(backend: str, copy: bool) -> Reader:
    import onnx
    from onnx import numpy_helper

    def read(path: str, names: list[str] | None) -> Arrays:
        wanted = set(names) if names else None
        held = onnx.load(path).graph.initializer
        return {t.name: numpy_helper.to_array(t) for t in held if not wanted or t.name in wanted}

    return read


def h5py_reader(backend: str, copy: bool) -> Reader:
    import h5py

    def read(path: str, names: list[str] | None) -> Arrays:
        with h5py.File(path) as file:
            return {name: file[name][()] for name in names or file}

    return read


READERS: dict[str, Callable[[str, bool], Reader]] = {
    "ztensor": ztensor_reader,
    "safetensors": safetensors_reader,
    "fastsafetensors": fastsafetensors_reader,
    "torch": torch_reader,
    "pickle": pickle_reader,
    "numpy": numpy_reader,
    "gguf": gguf_reader,
    "onnx": onnx_reader,
    "h5py": h5py_reader,
}


def ztensor_writer(**options: Any) -> Writer:
    from ztensor.numpy import save_file

    return lambda arrays, path: save_file(arrays, path, **options)


def safetensors_writer() -> Writer:
    from safetensors.numpy import save_file

    return lambda arrays, path: save_file(arrays, path)


def torch_writer() -> Writer:
    import torch

    def write(arrays: Arrays, path: str) -> None:
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)

    return write


def pickle_writer() -> Writer:
    import pickle

    def write(arrays: Arrays, path: str) -> None:
        with open(path, "wb") as file:
            pickle.dump(arrays, file, protocol=5)

    return write


def numpy_writer() -> Writer:
    import numpy as np

    return lambda arrays, path: np.savez(Path(path).open("wb"), **arrays)


def gguf_writer() -> Writer:
    from gguf import GGUFWriter

    def write(arrays: Arrays, path: str) -> None:
        writer = GGUFWriter(path, "bench")
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return write


def onnx_writer() -> Writer:
    import onnx
    from onnx import helper, numpy_helper

    def write(arrays: Arrays, path: str) -> None:
        held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        graph = helper.make_graph([], "bench", [], [], initializer=held)
        onnx.save(helper.make_model(graph), path)

    return write


def h5py_writer() -> Writer:
    import h5py

    def write(arrays: Arrays, path: str) -> None:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array)

    return write


WRITERS: dict[str, Callable[..., Writer]] = {
    "ztensor": ztensor_writer,
    "safetensors": safetensors_writer,
    "torch": torch_writer,
    "pickle": pickle_writer,
    "numpy": numpy_writer,
    "gguf": gguf_writer,
    "onnx": onnx_writer,
    "h5py": h5py_writer,
}

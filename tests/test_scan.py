"""Malicious pickles, models and archives: found by ``ztensor scan``, warned of or refused on load.

The files are made here. Nothing in them is ever unpickled.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import io
import json
import operator
import os
import pathlib
import pickle
import random
import runpy
import struct
import subprocess
import tarfile
import uuid
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ztensor
from ztensor import _native
from ztensor.numpy import load, load_file


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


EVIL = Call(os.system, "echo owned")


def scan(path: Path, *options: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    capfd.readouterr()
    code = _native.cli_main(["ztensor", "scan", str(path), "--json", *options])
    return code, json.loads(capfd.readouterr().out)


def names(report: Any, severity: str = "dangerous") -> set[str]:
    findings = [finding for file in report["files"] for finding in file["findings"]]
    return {finding["what"] for finding in findings if finding["severity"] == severity}


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def call(module: str, name: str) -> bytes:
    """Protocol 4: a call of any name, whether this machine has it or not."""
    return b"\x80\x04" + text(module) + text(name) + b"\x93" + text("x") + b"\x85R."


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("protocol", range(6))
def test_calls_of_every_protocol(
    protocol: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for value, expected in [
        (EVIL, f"{os.name}.system"),
        (Call(eval, "1"), "builtins.eval"),
        (Call(exec, "1"), "builtins.exec"),
        (Call(getattr, os, "system") if protocol > 5 else Call(getattr, 1, "real"), "getattr"),
        (Call(__import__, "os"), "__import__"),
        (Call(open, "x"), "open"),
        (Call(subprocess.Popen, "x"), "subprocess.Popen"),
        (Call(runpy.run_path, "x"), "runpy.run_path"),
        (Call(operator.attrgetter, "x"), "operator.attrgetter"),
        (Call(functools.partial, print), "functools.partial"),
        (Call(pickle.loads, b"N."), "pickle.loads"),
        (Call(np.load, "x"), "numpy.load"),
        (Call(torch.load, "x"), "torch.serialization.load"),
        (Call(torch.hub.load, "x"), "torch.hub.load"),
        ({"a": [1, (2, EVIL)], "w": np.ones(3)}, f"{os.name}.system"),
    ]:
        path = tmp_path / "x.pkl"
        path.write_bytes(pickle.dumps(value, protocol))
        code, report = scan(path, capfd=capfd)
        found = names(report)
        assert code == 1, (expected, report)
        # Protocols before 3 write the names that Python 2 had.
        expected = expected.replace("subprocess.", "commands.") if protocol < 3 else expected
        assert any(name.endswith(expected.removeprefix("builtins.")) for name in found), (
            expected,
            found,
        )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("nt", "system"),
        ("httplib", "HTTPSConnection"),
        ("requests.api", "get"),
        ("aiohttp.client", "ClientSession"),
        ("socket", "create_connection"),
        ("sys", "exit"),
        ("__builtin__", "apply"),
        ("__builtin__", "execfile"),
        ("timeit", "timeit"),
        ("numpy.testing._private.utils", "runstring"),
        ("numpy.f2py.crackfortran", "myeval"),
        ("torch.utils.bottleneck.__main__", "run_cprofile"),
        ("torch._dynamo.guards", "GuardBuilder.get"),
        ("torch.utils._config_module", "ConfigModule.load_config"),
        ("torch.jit.unsupported_tensor_ops", "execWrapper"),
        ("idlelib.pyshell", "ModifiedInterpreter.runcode"),
        ("lib2to3.pgen2.grammar", "Grammar.loads"),
        ("doctest", "debug_script"),
        ("ensurepip", "_run_pip"),
        ("pkgutil", "resolve_name"),
        ("pydoc", "pipepager"),
        ("uuid", "_get_command_stdout"),
        ("_osx_support", "_find_build_tool"),
        ("code", "InteractiveInterpreter.runcode"),
        ("imaplib", "IMAP4_stream"),
        ("logging", "FileHandler"),
        ("types", "CodeType"),
        ("cloudpickle.cloudpickle", "_make_function"),
        ("joblib", "_io.open"),
        ("collections", "_sys.modules.get"),
    ],
)
def test_names_that_are_dangerous(
    module: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(call(module, name))
    code, report = scan(path, capfd=capfd)
    assert (code, names(report)) == (1, {f"{module}.{name}"})


def broken_zip(flag: int) -> bytes:
    """A zip whose member has a flag set in both of its headers."""
    data = bytearray(zipped({"data.pkl": pickle.dumps(EVIL)}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(signature) + offset
        data[at : at + 2] = struct.pack("<H", flag)
    return bytes(data)


def renamed_zip() -> bytes:
    """A zip whose two directories name the member differently."""
    data = zipped({"data.pkl": pickle.dumps(EVIL)})
    at = data.rindex(b"data.pkl")
    return data[:at] + b"data.txt" + data[at + 8 :]


def torch_zip(pickled: bytes) -> bytes:
    return zipped({"archive/data.pkl": pickled, "archive/version": b"3\n"})


def object_npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([EVIL, None], dtype=object), allow_pickle=True)
    return out.getvalue()


def gzipped() -> bytes:
    import gzip

    return gzip.compress(pickle.dumps(EVIL))


def zlibbed() -> bytes:
    import zlib

    return zlib.compress(pickle.dumps(EVIL))


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        data = pickle.dumps(EVIL)
        info = tarfile.TarInfo("model/weights.dat")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def magic_mismatch() -> bytes:
    """An old torch file whose magic number is computed by a call."""
    magic = pickle.dumps(Call(eval, "0x1950a86a20f9469cfc6c"), 2)
    rest = [pickle.dumps(value, 2) for value in (1001, {}, EVIL, [])]
    return b"".join([magic, *rest])


DISGUISED: dict[str, Callable[[], bytes]] = {
    "zip.zip": lambda: zipped({"data.pkl": pickle.dumps(EVIL)}),
    "zip_wrong_extension.zip": lambda: zipped({"readme.txt": pickle.dumps(EVIL)}),
    "zip_called.pkl": lambda: zipped({"a/b/c": pickle.dumps(EVIL, 0)}, zipfile.ZIP_DEFLATED),
    "zip_in_zip.zip": lambda: zipped({"in.zip": zipped({"x": pickle.dumps(EVIL)})}),
    "zip_deflated_in_zip.zip": lambda: zipped(
        {"in": zipped({"x": pickle.dumps(EVIL)})}, zipfile.ZIP_DEFLATED
    ),
    "flag_encrypted.zip": lambda: broken_zip(0x1),
    "flag_patched.zip": lambda: broken_zip(0x20),
    "flag_strong.zip": lambda: broken_zip(0x40),
    "renamed.zip": renamed_zip,
    "cut.zip": lambda: zipped({"data.pkl": pickle.dumps(EVIL)})[:-40],
    "behind_text.zip": lambda: b"#!/bin/sh\n" + zipped({"data.pkl": pickle.dumps(EVIL)}),
    "torch.pt": lambda: torch_zip(pickle.dumps({"x": EVIL}, 2)),
    "object.npy": object_npy,
    "object.npz": lambda: zipped({"a.npy": object_npy()}),
    "object_deflated.npz": lambda: zipped({"a.npy": object_npy()}, zipfile.ZIP_DEFLATED),
    "x.pkl.gz": gzipped,
    "x.joblib": zlibbed,
    "x.tar": tarred,
    "magic.pt": magic_mismatch,
    "truncated.pkl": lambda: pickle.dumps([EVIL, "x" * 100])[:-50],
    "trailing.pkl": lambda: pickle.dumps(EVIL)[:-1] + b"\xff\xfe\xfd",
    "leading.bin": lambda: b"\x00\x01\x02 header \xff" + pickle.dumps(EVIL),
    "leading_text.bin": lambda: b"\x00\x01\x02 header \xff" + pickle.dumps(EVIL, 0),
    "second.pkl": lambda: pickle.dumps(1) + pickle.dumps(EVIL),
    "nested.pkl": lambda: pickle.dumps({"inner": pickle.dumps(EVIL)}),
    "nested_in_call.pkl": lambda: pickle.dumps(
        Call(torch.storage._load_from_bytes, pickle.dumps(EVIL))
    ),
    "inst.pkl": lambda: b"(S'x'\nios\nsystem\n.",
    "obj.pkl": lambda: b"(cos\nsystem\nS'x'\no.",
    "newobj_ex.pkl": lambda: b"\x80\x04" + text("os") + text("system") + b"\x93)}\x92.",
    "memoized.pkl": lambda: (
        b"\x80\x04" + text("system") + b"\x94" + text("os") + b"\x9400"
        b"h\x01h\x00\x93" + text("x") + b"\x85R."
    ),
    "build.pkl": lambda: call("os", "system")[:-1] + b"}b.",
    "persistent.pkl": lambda: b"\x80\x04Pid\n0" + call("os", "system")[2:],
    "escaped.pkl": lambda: b"\x80\x04S'\\x6fs'\nS'sys\\x74em'\n\x93S'x'\n\x85R.",
    "no_extension": lambda: pickle.dumps(EVIL, 1),
    "picture.png": lambda: pickle.dumps(EVIL, 4),
}


@pytest.mark.parametrize("name", DISGUISED)
def test_disguises(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_bytes(DISGUISED[name]())
    code, report = scan(path, capfd=capfd)
    found = names(report)
    assert code == 1, report
    assert any(one.endswith(".system") for one in found), report


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_keras_archives(
    compression: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    function = {"class_name": "__lambda__", "config": {"code": "4wAA", "defaults": None}}
    layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"function": function}}
    config = {"class_name": "Sequential", "config": {"layers": [layer]}}
    path = tmp_path / "model.keras"
    path.write_bytes(zipped({"config.json": json.dumps(config).encode()}, compression))
    code, report = scan(path, capfd=capfd)
    assert code == 1
    assert any("Lambda" in name for name in names(report))


def test_keras_hdf5(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    layer = {"class_name": "Lambda", "config": {"function": ["4wAA", None, None]}}
    config = json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
    for kind, value in [("text", config), ("bytes", np.bytes_(config))]:
        path = tmp_path / f"{kind}.h5"
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = value
            file["w"] = np.ones(3)
        code, report = scan(path, capfd=capfd)
        assert (code, len(names(report))) == (1, 1), kind


def real_checkpoint(path: Path, tmp_path: Path) -> None:
    """What training scripts save."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    torch.save(
        {
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "default": collections.defaultdict(list, a=[1]),
            "scalar": np.float64(3),
            "array": np.ones(3, np.int16),
            "args": argparse.Namespace(lr=0.1, path=pathlib.PurePosixPath("/data")),
            "path": pathlib.Path("/data"),
            "time": datetime.datetime.now(datetime.UTC),
            "elapsed": datetime.timedelta(3),
            "id": uuid.uuid4(),
            "rng": torch.get_rng_state(),
            "numpy_rng": np.random.get_state(),
            "generator": np.random.default_rng(3),
            "python_rng": random.getstate(),
            "module": model,
            "dtype": torch.bfloat16,
            "device": torch.device("cpu"),
            "set": {1, 2},
            "complex": 1j,
            "slice": slice(1, 2),
        },
        path,
    )


def test_what_training_scripts_save_gives_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoint.pt"
    real_checkpoint(path, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "state_dict.0.weight" in load_file(path, pickle="strict")
        assert ztensor.Reader(path).unsafe_globals == []
    code, report = scan(path, capfd=capfd)
    assert (code, names(report)) == (0, set())
    assert names(report, "suspicious") == set(), report


def test_a_lightning_checkpoint_gives_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The entries of a trainer's checkpoint: loops, callbacks, schedulers, hyperparameters."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoint = {
        "epoch": 3,
        "global_step": 100,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': 'loss'}": {
                "best_model_score": torch.tensor(0.5),
                "dirpath": pathlib.PurePosixPath("/checkpoints"),
                "best_k_models": collections.OrderedDict(a=np.float32(1)),
            }
        },
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {
            "namespace": argparse.Namespace(lr=0.1, started=datetime.date(2024, 1, 2)),
            "scale": np.int64(3),
            "flag": np.bool_(True),
        },
    }
    for legacy in (False, True):
        path = tmp_path / "last.ckpt"
        torch.save(checkpoint, path, _use_new_zipfile_serialization=not legacy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert "state_dict.weight" in load_file(path, pickle="strict")
        code, report = scan(path, "--strict", capfd=capfd)
        assert code == 0, report


def test_other_packages_give_no_warning(tmp_path: Path) -> None:
    """Names as omegaconf, lightning and transformers write them."""
    array = pickle.dumps(np.ones(2), 4)[2:-1]
    for module, name in [
        ("omegaconf.dictconfig", "DictConfig"),
        ("omegaconf.base", "ContainerMetadata"),
        ("omegaconf.nodes", "AnyNode"),
        ("typing", "Any"),
        ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"),
        ("lightning.pytorch.utilities.parsing", "AttributeDict"),
        ("transformers.training_args", "TrainingArguments"),
        ("transformers.trainer_utils", "IntervalStrategy"),
        ("my_own_package.config", "Config"),
    ]:
        data = b"\x80\x04(" + call(module, name)[2:-1] + array + b"t."
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(load(data, pickle="strict")) == 1, module


def test_loading_warns_once_and_strict_refuses(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3), "x": EVIL, "y": EVIL, "z": Call(eval, "1")}, path)
    data = path.read_bytes()
    system = f"{os.name}.system"
    for opened in (
        lambda **options: load_file(path, **options)["w"],
        lambda **options: load(data, **options)["w"],
        lambda **options: ztensor.torch.load_file(path, **options)["w"],
        lambda **options: ztensor.torch.load(data, **options)["w"],
        lambda **options: ztensor.open(path, **options).read_numpy("w"),
        lambda **options: ztensor.Reader(path, **options).read_numpy("w"),
        lambda **options: ztensor.safe_open(path, "np", **options).get_tensor("w"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert np.asarray(opened()).tolist() == [1, 1, 1]
        assert [one.category for one in caught] == [ztensor.UnsafePickleWarning]
        message = str(caught[0].message)
        assert system in message
        assert "__builtin__.eval" in message  # as protocol 2, which torch writes, calls it
        assert caught[0].filename == __file__
        with pytest.raises(ztensor.CorruptError, match=system) as error:
            opened(pickle="strict")
        assert error.value.rule == "pickle.unsafe"
        with pytest.raises(ztensor.InvalidArgumentError, match="pickle"):
            opened(pickle="never")


def test_a_pickle_without_tensors_is_an_error(tmp_path: Path) -> None:
    for value in ({}, {"a": 1}, EVIL):
        with pytest.raises(ztensor.CorruptError, match="no tensor"):
            load(pickle.dumps(value))


def test_bombs_end_with_the_budget() -> None:
    text = ["x" * 70_000] * 35_000  # memoized: two bytes for each reference
    # Pickle does not memoize integers, but its format can: LONG4, BINPUT, and BINGET of it.
    number = b"\x8b" + struct.pack("<i", 70_001) + b"\1" * 70_001 + b"q\xfa" + b"h\xfa" * 35_000
    marked = pickle.dumps({"w": np.ones(2), "bomb": "MARKER"}, 2)
    bombs = [
        pickle.dumps({"w": np.ones(2), "bomb": text}, 4),
        marked.replace(b"X\6\0\0\0MARKER", b"](" + number + b"e"),
    ]
    for bomb in bombs:
        assert len(bomb) < 200_000
        with pytest.raises(ztensor.CorruptError, match=r"pickle\.expansion"):
            load(bomb)

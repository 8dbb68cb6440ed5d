"""What Keras itself saves, in each of its three kinds of file, against the model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ztensor

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras  # after the variable, which it reads when it is imported


@pytest.fixture(scope="module")
def model() -> keras.Model:
    layers = [
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(4, 3, name="conv"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Flatten(),
        keras.layers.Dense(5, name="head"),
    ]
    return keras.Sequential(layers)


def contents(arrays: list[np.ndarray]) -> list[tuple[tuple[int, ...], bytes]]:
    return sorted((array.shape, array.tobytes()) for array in arrays)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5"])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_every_weight_is_found(model: keras.Model, tmp_path: Path, name: str, copy: bool) -> None:
    path = tmp_path / name
    (model.save_weights if "weights" in name else model.save)(path)
    reader = ztensor.Reader(path)
    assert reader.format == "hdf5"
    found = [reader.read_numpy(key, copy=copy) for key in reader.keys()]
    weights = [np.asarray(weight) for weight in model.get_weights()]
    assert len(weights) == 8
    # Names differ between the three; each weight is there, bit by bit. Files may hold more,
    # such as the state of an optimizer.
    stored = contents(found)
    for weight in contents(weights):
        assert weight in stored
        stored.remove(weight)

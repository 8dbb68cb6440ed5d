"""Distributed checkpoints of several processes: saved by some, loaded by others, killed midway."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Ranks

import ztensor

pytest.importorskip("torch.distributed.tensor")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Four processes' worth of patience: torch is imported once for all of them."""
    found = Ranks()
    yield found
    found.close()


@pytest.mark.parametrize("options", [{}, {"compression": "default", "checksum": "sha256"}])
def test_other_numbers_of_ranks(ranks: Ranks, options: dict[str, str]) -> None:
    ranks.fine(4, "save", path="four", **options)
    assert len(list(Path("four").glob("rank-*.zt"))) == 4
    for world in (4, 2, 1):
        ranks.fine(world, "load", path="four")
    if not options:
        ranks.fine(1, "save", path="one")
        ranks.fine(3, "load", path="one")


def test_versions_of_a_repository(ranks: Ranks) -> None:
    for version in range(3):
        done = ranks.fine(2, "save_version", repository="run", staging="staging", version=version)
        assert done == [True, False], "the coordinator commits"
        assert not Path("staging").exists()
    repository = ztensor.Repository("run")
    assert [entry.message for entry in repository.log()] == ["version 2", "version 1", "version 0"]
    paths = {file.path for file in repository.version().files()}
    assert len([path for path in paths if path.endswith(".zt")]) == 2, paths
    for world in (2, 1, 3):
        for version in range(3):
            ref, folder = f"main~{2 - version}", f"restored{world}"
            ranks.fine(
                world, "load_version", repository="run", ref=ref, folder=folder, version=version
            )
    assert repository.fsck(full=True).errors == []


def test_chunks_know_where_they_belong(ranks: Ranks) -> None:
    ranks.fine(2, "save", path="two")
    for number, file in enumerate(sorted(Path("two").glob("rank-*.zt"))):
        found = ztensor.open(file).metadata(f"model.columns[0:6, {5 * number}:{5 * number + 5}]")
        assert found.shape == [6, 5]
        about = found.attributes["ztensor.distributed"]
        assert about == {"tensor": "model.columns", "shape": [6, 10], "offsets": [0, 5 * number]}


def test_parity_with_torch(ranks: Ranks) -> None:
    ranks.fine(2, "save_like_torch", path="theirs")
    ranks.fine(2, "load_like_torch", path="theirs")
    ranks.fine(2, "save", path="ours")
    ranks.fine(2, "load", path="ours")


def test_saving_in_the_background(ranks: Ranks) -> None:
    ranks.fine(2, "save_asynchronously", path="checkpoint", version=1)
    ranks.fine(2, "load", path="checkpoint", version=1)
    ranks.fine(2, "save_asynchronously", path="checkpoint", version=2)
    ranks.fine(1, "load", path="checkpoint", version=2)


def test_plans_that_are_cached(ranks: Ranks) -> None:
    ranks.fine(2, "cached_plans", path="checkpoint")


def test_sharded_training(ranks: Ranks) -> None:
    [saved, *_] = ranks.fine(4, "train", path="checkpoint", restore=False)
    for world in (2, 1):
        for restored in ranks.fine(world, "train", path="checkpoint", restore=True):
            assert restored == pytest.approx(saved)


def test_ranks_read_what_they_need(ranks: Ranks) -> None:
    ranks.fine(4, "large", path="checkpoint", restore=False)
    size = sum(file.stat().st_size for file in Path("checkpoint").glob("rank-*.zt"))
    for read in ranks.fine(2, "large", path="checkpoint", restore=True):
        assert size // 2 <= read < size // 2 + size // 8
    for read in ranks.fine(3, "large", path="checkpoint", restore=True):
        assert size // 3 - 1024 * 1024 <= read < size // 3 + size // 8


@pytest.mark.parametrize("moment", ["writing", "finishing"])
def test_a_killed_rank(ranks: Ranks, moment: str) -> None:
    """Whichever rank is killed, and when: the last complete checkpoint stays."""
    victim = 1 if moment == "writing" else 0
    answers = ranks(3, "killed", path="checkpoint", version=1, victim=victim, moment=moment)
    assert answers[victim] == -signal.SIGKILL
    assert all("error" in answer for rank, answer in enumerate(answers) if rank != victim)
    [answer] = ranks(1, "load", path="checkpoint", version=1)
    assert "a save began here but never finished" in answer["error"]

    ranks.fine(2, "save", path="checkpoint", version=2)
    ranks(3, "killed", path="checkpoint", version=3, victim=victim, moment=moment)
    ranks.fine(2, "load", path="checkpoint", version=2)

    # The next save that succeeds also clears what the others left.
    ranks.fine(2, "save", path="checkpoint", version=4)
    ranks.fine(3, "load", path="checkpoint", version=4)
    names = [name for name in os.listdir("checkpoint") if name != "checkpoint.json"]
    assert len(names) == 2 and all(name.startswith("rank-") for name in names)


def test_a_full_disk(ranks: Ranks) -> None:
    ranks.fine(2, "save", path="checkpoint", version=1)
    before = sorted(os.listdir("checkpoint"))
    for answer in ranks(2, "full_disk", path="checkpoint", version=2, limit=600):
        assert "cannot write" in answer["error"]
    after = [name for name in sorted(os.listdir("checkpoint")) if name.endswith(".json")]
    assert set(before) <= set(os.listdir("checkpoint")) and after == ["checkpoint.json"]
    ranks.fine(2, "load", path="checkpoint", version=1)


def test_consolidating_together(ranks: Ranks) -> None:
    ranks.fine(4, "save", path="checkpoint")
    answers = ranks.fine(3, "together", path="checkpoint", out="model.zt", back="again")
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]) > 3 and all(Path(file).exists() for file in answers[0])
    assert len(list(Path("again").glob("rank-*.zt"))) == 3


def test_failing_together(ranks: Ranks) -> None:
    ranks.fine(2, "save", path="checkpoint")
    [file, *_] = sorted(Path("checkpoint").glob("rank-*.zt"))
    shutil.copy(file, "copy")
    os.truncate(file, 100)
    answers = ranks(2, "failing_together", path="checkpoint", out="model.zt")
    assert all("truncated" in answer["error"] for answer in answers)
    assert not list(Path().glob("*model.zt*"))

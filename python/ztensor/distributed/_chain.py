"""Chains of checkpoints: one that is stored as differences from another, and so on.

A base lies in a folder beside the checkpoint and is named with the identity of its save: one that
is missing or was replaced is noticed before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ztensor import _errors, _native
from ztensor._errors import InvalidArgumentError, MismatchError
from ztensor.distributed import _checkpoint
from ztensor.distributed._checkpoint import Base, Checkpoint
from ztensor.distributed._store import Store

Link = tuple[Store, Checkpoint]


def resolve(place: Store) -> list[Link]:
    """A checkpoint, its base, the base of that, and so on: the shortest way that there is.

    A base is looked for under its name. If it is not there, or another save has replaced it, the
    folders beside it are searched for the same state.
    """
    first = _checkpoint.load(place)
    if first.base is None:
        return [(place, first)]
    links: list[Link] = [(place, first)]
    known = {first.save}
    wanted = [(place, first.base)]
    while wanted:
        child, base = wanted.pop()
        if base.save in known:
            continue
        known.add(base.save)
        if len(known) > _checkpoint.MAX_CHAIN:
            raise MismatchError(f"{child.root}: more than {_checkpoint.MAX_CHAIN} bases")
        copies = list(_copies(child, base))
        if not copies:
            raise _missing(child, base)
        links += copies
        wanted += [(store, copy.base) for store, copy in copies if copy.base is not None]
    way = _native.chain_way([_described(checkpoint) for _, checkpoint in links], first.save)
    if way is None:
        raise MismatchError(f"{place.root} and its bases are based on each other")
    return [links[index] for index in reversed(way)]


def _described(checkpoint: Checkpoint) -> tuple[str | None, str, int]:
    base = checkpoint.base.save if checkpoint.base else None
    return base, checkpoint.save, checkpoint.stored_bytes


def _copies(child: Store, base: Base) -> Iterable[Link]:
    """The state that a checkpoint is a difference from: under its name, or else anywhere beside."""
    for names in ([base.name], child.sibling_names()):
        found = False
        for name in names:
            store = child.sibling(name)
            if _checkpoint.exists(store):
                checkpoint = _checkpoint.load(store)
                if checkpoint.save == base.save:
                    found = True
                    yield store, checkpoint
        if found:
            return


def _missing(child: Store, base: Base) -> _errors.ZTensorError:
    place = child.sibling(base.name).root
    message = (
        f"{child.root} is stored as differences from {place} (save {base.save}), "
        "which is missing or was replaced by another save: restore that folder first"
    )
    return _errors.make("io", message, 2, place)


def dependents(place: Store, save: str) -> list[str]:
    """Folders beside a checkpoint that hold differences from it."""
    found = []
    for name in place.sibling_names():
        store = place.sibling(name)
        if store.root == place.root or not _checkpoint.exists(store):
            continue
        base = _checkpoint.load(store).base
        if base is not None and base.save == save:
            found.append(name)
    return found


def refuse_loss(place: Store) -> None:
    """Refuses to replace a checkpoint that others are differences from."""
    if not _checkpoint.exists(place):
        return
    others = dependents(place, _checkpoint.load(place).save)
    if others:
        raise InvalidArgumentError(
            f"{place.root} has the checkpoint that {', '.join(others)} "
            f"{'is a difference' if len(others) == 1 else 'are differences'} from: "
            "save elsewhere, or make these full with rebase first"
        )


def needless(links: Sequence[Link], keep: Sequence[str]) -> list[int]:
    """The places of checkpoints that restoring the saves ``keep`` does not need."""
    return _native.chain_removable([_described(checkpoint) for _, checkpoint in links], keep)

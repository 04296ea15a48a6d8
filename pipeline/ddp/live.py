"""Adding up states over the ranks of a process group: a handshake, then one all_reduce.

Collectives are matched by their order alone. A rank that does something else meanwhile makes the
others hang, or read its bytes as theirs. So ranks first meet in the store of the process group,
which needs no collective: only when all have joined, with one declaration, is one vector of a
length known beforehand added up. A meeting is held or given up for all ranks alike: whoever is
late finds the decision, and is told.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from pipeline.choice import differing
from pipeline.content import digest, from_tree, to_tree
from pipeline.errors import ConfigError, DataError, FeatfoldError, NotJoinedError

if TYPE_CHECKING:
    from pipeline.ddp.collection import Collection

__all__ = ["Meeting", "Ranks", "meet", "meet_alike", "ranks", "reduced"]

WARN_SECONDS = 30.0
ROOT = "featfold/sync"
HELD = b"held"
AGREED = ("declaration", "prefix", "way", "states", "length", "ids")
"""What the records of all ranks have alike."""
OF_BATCHES = ("states", "length", "ids")
"""What a rank without a batch does not know."""
FIRST_POLL_SECONDS, POLL_SECONDS = 0.001, 0.2

Record = Mapping[str, Any]
Vector = np.ndarray[Any, np.dtype[np.int64]]


class Ranks(NamedTuple):
    """The processes that take part, as one of them sees them."""

    rank: int
    size: int
    store: Any
    """A torch.distributed.Store that all of them reach."""
    timeout_seconds: float
    group: Any = None
    members: tuple[int, ...] = ()
    """Their ranks in the world, where they are not all of it."""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


class Meeting(NamedTuple):
    """A sync that all ranks joined."""

    number: int
    records: Sequence[Record]
    """What each rank brought, by rank."""


def ranks(
    group: Any = None, store: Any = None, timeout_seconds: float | None = None
) -> Ranks | None:
    """Return the ranks of a process group, the default one if none is given.

    None where torch.distributed was not initialised. Time-outs are those of the group unless
    one is given.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    rank = dist.get_rank(group)
    if rank < 0:
        raise ConfigError("this process is no member of the process group it was given")
    own = group if group is not None else dist.group.WORLD
    found = _store_of(own) if store is None else store
    seconds = _timeout_seconds(own, found) if timeout_seconds is None else timeout_seconds
    size = dist.get_world_size(group)
    members = dist.get_process_group_ranks(own) if size < dist.get_world_size() else ()
    return Ranks(rank, size, found, seconds, group, tuple(members))


def meet(here: Ranks, record: Record, warn_seconds: float = WARN_SECONDS) -> Meeting:
    """Wait until every rank has come with a record, and return all of them.

    No collective is issued. Raises :class:`NotJoinedError` naming the ranks that did not come in
    time, on all the others, and later on those ranks too.
    """
    store, place = here.store, ""
    try:
        number = store.add(f"{ROOT}/joined/{here.rank}", 1)
        place = f"{ROOT}/{number}"
        store.set(f"{place}/{here.rank}", json.dumps(record))
        if store.add(f"{place}/joined", 1) == here.size:
            _decide(store, place, HELD)
        decision = _awaited(here, number, warn_seconds)
        if decision != HELD:
            raise NotJoinedError(_given_up(number, here.rank, json.loads(decision)))
        records = [json.loads(store.get(f"{place}/{rank}")) for rank in range(here.size)]
        _forget(here, number - 1)
    except RuntimeError as error:  # the store's own: DistNetworkError, DistStoreError
        raise FeatfoldError(
            f"{here}: the store of the process group cannot be reached ({error}); the process that "
            "holds it, rank 0 as a rule, may have ended"
        ) from None
    return Meeting(number, records)


def _awaited(here: Ranks, number: int, warn_seconds: float) -> bytes:
    """Return whether the meeting is held, or the record of why not, and decide that in time."""
    store, place = here.store, f"{ROOT}/{number}"
    start, poll, warned = time.monotonic(), FIRST_POLL_SECONDS, False
    try:
        while not store.check([f"{place}/decision"]):
            waited = time.monotonic() - start
            if waited >= here.timeout_seconds:
                return _give_up(here, place, seconds=here.timeout_seconds)
            if waited >= warn_seconds and not warned:
                warned = True
                _warn(here, number, waited)
            time.sleep(min(poll, here.timeout_seconds - waited))
            poll = min(1.5 * poll, POLL_SECONDS)
    except BaseException as error:  # interrupted, or a warning that is an error: tell the others
        if not isinstance(error, RuntimeError):
            _give_up(here, place, error=type(error).__name__)
        raise
    return bytes(store.get(f"{place}/decision"))


def _give_up(here: Ranks, place: str, **why: Any) -> bytes:
    """Return the decision, which is to give up unless the last rank has just come."""
    record = {"by": here.rank, "missing": _missing(here, place), **why}
    return _decide(here.store, place, json.dumps(record).encode())


def _decide(store: Any, place: str, decision: bytes) -> bytes:
    """Return the decision of a meeting: the first that was proposed, on every rank."""
    return bytes(store.compare_set(f"{place}/decision", "", decision.decode()))


def _missing(here: Ranks, place: str) -> list[int]:
    return [rank for rank in range(here.size) if not here.store.check([f"{place}/{rank}"])]


def _warn(here: Ranks, number: int, waited: float) -> None:
    missing = _missing(here, f"{ROOT}/{number}")
    if here.rank == min(set(range(here.size)) - set(missing)):  # one voice is enough
        warnings.warn(
            f"ranks {missing} did not join metric sync {number} for {waited:.0f} s; waiting until "
            f"{here.timeout_seconds:.0f} s are over",
            RuntimeWarning,
            stacklevel=2,
        )


def _given_up(number: int, rank: int, why: Record) -> str:
    if "error" in why:
        return f"metric sync {number} was given up: {why['error']} on rank {why['by']}"
    missing = why["missing"]
    late = f" (this is rank {rank}, which was late)" if rank in missing else ""
    return (
        f"ranks {missing} did not join metric sync {number} within {why['seconds']:g} s{late}; "
        "nothing was exchanged and no state was changed. Call compute() on every rank, outside of "
        "`if is_global_zero`; or merge the partial files, which needs no other rank; or "
        "compute(sync=False) for the numbers of this rank alone"
    )


def _forget(here: Ranks, number: int) -> None:
    """Remove what a rank left of an earlier meeting: all have left it, for they came to a later."""
    if number < 1:
        return
    place = f"{ROOT}/{number}"
    here.store.delete_key(f"{place}/{here.rank}")
    if here.rank == 0:
        here.store.delete_key(f"{place}/joined")
        here.store.delete_key(f"{place}/decision")


def meet_alike(here: Ranks, record: Record, warn_seconds: float = WARN_SECONDS) -> Meeting:
    """Wait until every rank has come with a record that says the same.

    Raises :class:`DataError` naming the ranks that came with another, as :func:`meet` otherwise.
    """
    meeting = meet(here, record, warn_seconds)
    for key in AGREED:
        said = [record.get(key) for record in meeting.records]
        if key in OF_BATCHES:
            known = next(filter(None, said), None)
            said = [one or known for one in said]
        others = [rank for rank, one in enumerate(said) if one != said[0]]
        if others:
            raise DataError(
                f"metric sync {meeting.number}: ranks {others} came with another collection than "
                f"rank 0: {_difference(key, meeting, others[0], said)}; compute the same one on "
                "every rank, in the same order"
            )
    return meeting


def reduced(
    collection: Collection, here: Ranks, record: Record, warn_seconds: float = WARN_SECONDS
) -> tuple[Collection, Meeting]:
    """Return a collection with the states of all ranks added up; the one given stays as it is.

    ``record`` is what all ranks must agree on, beside the declaration, the states and the length
    of them all. A rank without a batch adds zeros to whatever states the others have. Raises
    :class:`ConfigError` for states that grow with their rows, :class:`NotJoinedError` naming ranks
    that did not come, :class:`DataError` naming those that declare something else: in each case
    before any collective and any allocation.
    """
    packed = collection.packed()
    own = {"declaration": collection.declaration, "way": "sum", **record}
    if collection.updates:
        schema = collection.schema
        own |= {
            "length": len(packed), "states": digest(sorted(collection.states)),
            "arrays": sorted(schema.arrays), "schema": to_tree(schema),
        }  # fmt: skip
    meeting = meet_alike(here, own, warn_seconds)
    known = next((one["schema"] for one in meeting.records if "schema" in one), None)
    if known is None:
        return collection.clone(), meeting
    if not collection.updates:
        collection = collection.begun(from_tree(known, {}))
        packed = collection.packed()
    try:
        total = _added_up(packed, here)
    except RuntimeError as error:
        raise FeatfoldError(
            f"metric sync {meeting.number} failed though all ranks joined ({error}); a rank may "
            "have ended; no state was changed"
        ) from error
    return collection.with_packed(total), meeting


def _difference(key: str, meeting: Meeting, other: int, said: Sequence[Any]) -> str:
    """Say in what the record of a rank differs from the one of rank zero."""
    record = meeting.records[other]
    first = next((one for one in meeting.records if one.get(key)), meeting.records[0])
    if key == "declaration":
        return differing(record["declared"], first["declared"])
    if key == "states" and record["arrays"] != first["arrays"]:
        return f"batches of {', '.join(record['arrays'])}, not of {', '.join(first['arrays'])}"
    return f"{key} {said[other]!r}, not {said[0]!r}"


def _added_up(packed: Vector, here: Ranks) -> Vector:
    tensor = torch.from_numpy(packed).to(_device(here.group))
    dist.all_reduce(tensor, dist.ReduceOp.SUM, group=here.group)
    total: Vector = tensor.cpu().numpy()
    return total


def _device(group: Any) -> torch.device:
    """Return where a group adds up: the host if it can, as gloo does, else its current device."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], getattr(torch, kinds[0]).current_device())


def _store_of(group: Any) -> Any:
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._get_default_store()


def _timeout_seconds(group: Any, store: Any) -> float:
    """Return the time-out that a group was made with, or else the one of its store."""
    try:
        backend = group._get_backend(group._device_types[0])
        return float(backend.options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return float(store.timeout.total_seconds())

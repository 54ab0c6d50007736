"""What every batch of changes does the same way: who goes with whom into one transaction.

Up to MAX_PARTITIONS partitions share one: a commit for each would take longer than all the rest.
Their locks are taken in one order and held until that commit. A refused item leaves no trace, so
that it needs no transaction of its own; where the database refuses a statement, each partition is
done again by itself, and the one at fault stops no other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from sqlalchemy.orm import Session

from services.api.calls import Call, MutationOutcome, current_call
from services.api.errors import InvalidRequestError, RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId
from services.api.segment_batches import MAX_BATCH
from services.api.validation import require_count
from services.rlmm.json_rows import PartitionKey, key_of
from services.rlmm.segment_change import SegmentChange, tp_of
from services.rlmm.transactions import Transactions

MAX_PARTITIONS = 100
"""Whose locks a batch holds at once."""

Item = TypeVar("Item", bound=SegmentChange)
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Asked(Generic[Item_co]):
    """An item of a batch, and the call that asked for it."""

    item: Item_co
    call: Call = field(default_factory=current_call)


Outcome: TypeAlias = MutationOutcome | RemoteStorageError
Outcomes: TypeAlias = dict[int, Outcome]
"""By the item's place in the batch."""


def require_distinct(segment_ids: Sequence[RemoteLogSegmentId], field: str) -> None:
    """
    Raises:
        InvalidRequestError: there are none or too many, or a segment comes twice.
    """
    require_count(segment_ids, field, MAX_BATCH)
    places: dict[tuple[object, ...], int] = {}
    for place, segment_id in enumerate(segment_ids):
        key = (*key_of(segment_id.topic_id_partition), segment_id.id)
        first = places.setdefault(key, place)
        if first != place:
            raise InvalidRequestError(f"{field}[{place}]: {field}[{first}] has {segment_id} too")


def change_sound(
    transactions: Transactions,
    items: Sequence[Item],
    check: Callable[[Item], None],
    work: Callable[[Session, Mapping[int, Asked[Item]]], Outcomes],
) -> list[Outcome]:
    """change_all of those items that `check` passes; the others' outcome is what it raises."""
    outcomes, sound = Outcomes(), {}
    for place, item in enumerate(items):
        try:
            check(item)
            sound[place] = Asked(item)
        except RemoteStorageError as e:
            outcomes[place] = e
    outcomes |= change_all(transactions, sound, work)
    return [outcomes[place] for place in range(len(items))]


def change_all(
    transactions: Transactions,
    items: Mapping[int, Asked[Item]],
    work: Callable[[Session, Mapping[int, Asked[Item]]], Outcomes],
) -> Outcomes:
    """Do `work` on all items, some partitions at a time, in the order of (topic id, partition).

    Raises:
        RetriableRemoteStorageError: the database is unreachable or busy; some partitions may be
            done and others not.
    """
    by_partition: dict[PartitionKey, dict[int, Asked[Item]]] = {}
    for place, asked in items.items():
        key = key_of(tp_of(asked.item))
        by_partition.setdefault(key, {})[place] = asked
    outcomes: Outcomes = {}
    in_order = [by_partition[key] for key in sorted(by_partition)]
    for start in range(0, len(in_order), MAX_PARTITIONS):
        outcomes |= _change_some(transactions, in_order[start : start + MAX_PARTITIONS], work)
    return outcomes


def _change_some(
    transactions: Transactions,
    partitions: Sequence[Mapping[int, Asked[Item]]],
    work: Callable[[Session, Mapping[int, Asked[Item]]], Outcomes],
) -> Outcomes:
    items = dict(_items(partitions))
    try:
        return transactions.change(lambda session: work(session, items))
    except RetriableRemoteStorageError:
        raise  # the database's: it would be every other item's too
    except RemoteStorageError as e:
        if len(partitions) == 1:
            return dict.fromkeys(items, e)
    outcomes: Outcomes = {}
    for partition in partitions:
        outcomes |= _change_some(transactions, [partition], work)
    return outcomes


def _items(
    partitions: Sequence[Mapping[int, Asked[Item]]],
) -> Iterator[tuple[int, Asked[Item]]]:
    for partition in partitions:
        yield from partition.items()

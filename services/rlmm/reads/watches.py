"""Serve watches: the changes since the revisions that a client knows, then each later change.

watch_reader.py reads the changes and hands them to the watches (docs/adr/0014-watches.md).
"""

import time
from array import array
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from uuid import UUID

from prometheus_client import Gauge
from sqlalchemy import Connection, Engine

from services.api.calls import current_call
from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_count
from services.api.watches import (
    HEARTBEAT_S,
    MAX_WATCHED,
    ChangedSegment,
    PartitionUpdate,
    WatchedPartition,
    WatchUpdate,
)
from services.rlmm.database.db import (
    JsonRow,
    PartitionKey,
    Transactions,
    key_of,
    partition_row,
    run,
)
from services.rlmm.database.shares import WatchedPartitions, WatchLimits
from services.rlmm.guards import TOPIC_FIELD, check_topic_name
from services.rlmm.reads.lookups import revisions
from services.rlmm.reads.watch_reader import (
    AT_US,
    ENDED,
    EVENT_COLUMNS,
    EventRow,
    Reader,
    Watch,
    stopping,
)

MAX_MISSED = 10_000
"""The most earlier changes that the first update of a watch reports one by one."""

MAX_MISSED_OF_PARTITION = 1_000

WATCHES = Gauge("sediment_rlmm_watches", "Watches of partitions that this process serves.")

MISSED = f"""
    SELECT wanted.place, wanted.topic, changed.*
    FROM json_to_recordset(%(rows)s) AS wanted (
        place int, topic text, topic_id uuid, partition int, after_revision bigint)
    CROSS JOIN LATERAL (
        SELECT {EVENT_COLUMNS} FROM events
        WHERE topic_id = wanted.topic_id AND partition = wanted.partition
            AND revision > wanted.after_revision
        ORDER BY revision LIMIT {MAX_MISSED_OF_PARTITION}
    ) AS changed"""

_OF_REVISION = f"""
    SELECT {AT_US} FROM events
    WHERE topic_id = wanted.topic_id AND partition = wanted.partition"""

# Two histories of a partition have the same revisions, and make no change at the same time.
TIMES = f"""
    SELECT wanted.place, ({_OF_REVISION} AND revision = wanted.present) AS present_us,
        ({_OF_REVISION} AND revision = wanted.known) AS known_us
    FROM json_to_recordset(%(rows)s) AS wanted (
        place int, topic_id uuid, partition int, present bigint, known bigint)"""

_CHANGES_LOOK_UPS = {
    state.value: state
    for state in (
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    )
}

_CHANGES_NO_LOOK_UP = frozenset(
    {"LEADERSHIP", "SEGMENT", "LINEAGE", "LOG_START", "GAP", "LEADER_EPOCH_RESET"}
    | {"OBJECT_DELETION"}
)
"""Kinds of events. SEGMENT: with a state that is not in _CHANGES_LOOK_UPS."""


@dataclass(slots=True)
class _Changes:
    """The changes of one partition that one update reports."""

    segments: list[ChangedSegment] = field(default_factory=list)
    everything: bool = False


class _Known:
    """What a watch has reported: the revision of each of its partitions.

    It lasts as long as the watch, and a process has many: each partition costs three words here.
    """

    def __init__(self, partitions: Sequence[WatchedPartition]) -> None:
        # Parsed from a request, each partition has a copy of its topic's name.
        names: dict[str, str] = {}
        topics = (each.topic_id_partition.topic for each in partitions)
        self._topics = [names.setdefault(topic, topic) for topic in topics]
        self.revisions = array("q", [each.after_revision or 0 for each in partitions])
        self.changed_at_us = array("q", bytes(8 * len(partitions)))

    def changes_of(self, events: Iterable[tuple[int, EventRow]]) -> dict[int, _Changes]:
        """Return the changes of events that are not reported yet, by the partition's place.

        Raises:
            InvalidRequestError: a topic that was not known yet has another name than the watch's.
        """
        changes: dict[int, _Changes] = {}
        for place, event in events:
            reported = self.revisions[place]
            if event.revision <= reported:
                continue
            path = f"partitions[{place}].{TOPIC_FIELD}"
            tp = TopicIdPartition(event.topic_id, self._topics[place], event.partition)
            check_topic_name(tp, event.topic, path)
            change = changes.setdefault(place, _Changes())
            if event.revision != reported + 1:
                change.everything = True  # The audit trail has lost events between the two.
            self.revisions[place] = event.revision
            self.changed_at_us[place] = event.at_us
            state = _CHANGES_LOOK_UPS.get(event.to_state)
            if event.kind == "SEGMENT" and state is not None:
                change.segments.append(ChangedSegment(event.segment_id, state))
            elif event.kind not in _CHANGES_NO_LOOK_UP:
                change.everything = True
        return changes

    def update_of(self, place: int, change: _Changes) -> PartitionUpdate:
        segments = () if change.everything else tuple(change.segments)
        revision, at_us = self.revisions[place], self.changed_at_us[place]
        return PartitionUpdate(place, revision, segments, change.everything, at_us)


class Watches:
    """All watches of a process. Thread-safe."""

    def __init__(
        self, engine: Engine, transactions: Transactions, limits: WatchLimits | None = None
    ) -> None:
        self._engine = engine
        self._transactions = transactions
        self._limits = limits or WatchLimits()
        self._watched = WatchedPartitions(self._limits)
        self._lock = Lock()
        self._reader: Reader | None = None
        self._is_closed = False

    def watch(self, partitions: Sequence[WatchedPartition]) -> Generator[WatchUpdate, None, None]:
        """See RemoteLogMetadataManager.watch_partitions."""
        require_count(partitions, "partitions", MAX_WATCHED)
        return self._counted_updates([partitions], time.monotonic())

    def read_soon(self) -> None:
        """Let the reader read at once what this process has just committed."""
        reader = self._reader
        if reader is not None:
            reader.read_soon()

    def close(self) -> None:
        """End all watches and refuse later ones."""
        with self._lock:
            self._is_closed = True
            reader = self._reader
        if reader is not None:
            # Not joined: it may wait for the database, and the watchers need not.
            reader.stop()
            reader.end_all(stopping(), "stopping")

    def _counted_updates(
        self, request: list[Sequence[WatchedPartition]], called_s: float
    ) -> Generator[WatchUpdate, None, None]:
        with self._watched.counted(current_call().actor, len(request[0])):
            yield from self._updates(request, called_s)

    def _updates(
        self, request: list[Sequence[WatchedPartition]], called_s: float
    ) -> Generator[WatchUpdate, None, None]:
        """Yield the updates of a watch.

        Args:
            request: the partitions; emptied once they are registered, because they take most of
                the memory of a watch.
        """
        ends_s = called_s + self._limits.random_age_s()
        places = _places_of(request[0])
        watch = Watch()
        reader = self._add(watch, places)
        WATCHES.inc()
        try:
            reader.wait_for_first_read()
            complete_s = time.monotonic()
            known, first = self._first_update(request.pop())
            while True:
                yield WatchUpdate(first, int((complete_s - called_s) * 1000))
                first = ()
                if time.monotonic() >= ends_s:
                    raise self._too_old()
                events, read_through_s = watch.wait(HEARTBEAT_S)
                changes = known.changes_of(events)
                first = tuple(known.update_of(place, each) for place, each in changes.items())
                complete_s = max(complete_s, read_through_s)
        finally:
            WATCHES.dec()
            self._remove(reader, watch)

    def _too_old(self) -> RetriableRemoteStorageError:
        ENDED.labels("age").inc()
        return RetriableRemoteStorageError(
            "the watch has reached its maximum age (RLMM_WATCH_MAX_AGE_MS, "
            f"{self._limits.max_age_s * 1000:,.0f}); watch again from the revisions that arrived"
        )

    def _add(self, watch: Watch, places: Mapping[PartitionKey, int]) -> Reader:
        with self._lock:
            if self._is_closed:
                raise stopping()
            if self._reader is None or self._reader.is_over:
                reader = Reader(self._engine)
                try:
                    reader.start()
                except RuntimeError as e:
                    raise RetriableRemoteStorageError(
                        f"no thread could be started to read changes; watch again: {e}"
                    ) from e
                self._reader = reader
            self._reader.add(watch, places)
            return self._reader

    def _remove(self, reader: Reader, watch: Watch) -> None:
        with self._lock:
            if reader.remove(watch):
                reader.stop()

    def _first_update(
        self, partitions: Sequence[WatchedPartition]
    ) -> tuple[_Known, tuple[PartitionUpdate, ...]]:
        """Read the revisions, and what has changed since those that the client knows."""
        tps = [each.topic_id_partition for each in partitions]
        present = self._transactions.read(revisions, tps, TOPIC_FIELD)
        missed = self._transactions.read(_missed_events, partitions, present)
        times = self._transactions.read(_times, partitions, present)
        known = _Known(partitions)
        changes = known.changes_of(missed)
        for place, each in enumerate(partitions):
            change = changes.setdefault(place, _Changes())
            present_us, known_us = times.get(place, (0, 0))
            if each.after_revision is None:
                known.revisions[place] = present[place]
            elif (
                known.revisions[place] < present[place]
                or each.after_revision > present[place]
                or each.after_changed_at_us not in (None, known_us)
            ):
                change.everything = True
                known.revisions[place] = present[place]
            if known.revisions[place] == present[place]:
                known.changed_at_us[place] = present_us
        return known, tuple(known.update_of(place, changes[place]) for place in range(len(tps)))


def _places_of(partitions: Sequence[WatchedPartition]) -> dict[PartitionKey, int]:
    """Return the place of each partition; partitions of one topic share its id."""
    ids: dict[UUID, UUID] = {}
    places: dict[PartitionKey, int] = {}
    for place, each in enumerate(partitions):
        topic_id, partition = key_of(each.topic_id_partition)
        first = places.setdefault((ids.setdefault(topic_id, topic_id), partition), place)
        if first != place:
            raise InvalidRequestError(
                f"partitions[{place}]: is partitions[{first}] too; name it once"
            )
    return places


def _times(
    connection: Connection, partitions: Sequence[WatchedPartition], present: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Read when the present and the known revision were made, by place; 0 if there is no event."""
    wanted: list[JsonRow] = [
        {
            **partition_row(key_of(each.topic_id_partition)),
            "place": place,
            "present": revision,
            "known": each.after_revision,
        }
        for place, (each, revision) in enumerate(zip(partitions, present, strict=True))
        if revision
    ]
    rows = run(connection, TIMES, wanted) if wanted else ()
    return {row.place: (row.present_us or 0, row.known_us or 0) for row in rows}


def _missed_events(
    connection: Connection, partitions: Sequence[WatchedPartition], present: Sequence[int]
) -> list[tuple[int, EventRow]]:
    """Read the events since the revisions that the client knows, unless they are too many."""
    wanted: list[JsonRow] = []
    left = MAX_MISSED
    for place, (each, revision) in enumerate(zip(partitions, present, strict=True)):
        tp: TopicIdPartition = each.topic_id_partition
        missed = 0 if each.after_revision is None else revision - each.after_revision
        if 0 < missed <= min(left, MAX_MISSED_OF_PARTITION):
            left -= missed
            row = partition_row(key_of(tp))
            wanted.append(
                {**row, "place": place, "topic": tp.topic, "after_revision": each.after_revision}
            )
    if not wanted:
        return []
    events = [(row.place, row) for row in run(connection, MISSED, wanted)]
    return sorted(events, key=lambda each: each[1].revision)

"""Watch partitions: one thread reads what was committed, for all watches of the process.

Each event has the id of its transaction. A snapshot of PostgreSQL says which transactions are
committed; so the events that are new since the last read are those of the transactions that this
snapshot sees and the last one did not. That misses nothing, in whatever order transactions commit,
and costs one index look-up while nothing changes (docs/adr/0014-watches.md).
"""

import logging
import time
from array import array
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Event, Lock, Thread
from typing import Any, TypeAlias
from uuid import UUID

from prometheus_client import Counter, Gauge
from sqlalchemy import Connection, Engine

from services.api.calls import current_call
from services.api.errors import (
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
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
from services.rlmm.db import (
    JsonRow,
    PartitionKey,
    Transactions,
    errors_named,
    key_of,
    partition_row,
    run,
)
from services.rlmm.guards import TOPIC_FIELD, check_topic_name
from services.rlmm.lookups import revisions
from services.rlmm.shares import WatchedPartitions, WatchLimits

READ_INTERVAL_S = 0.05
"""The pause between two reads: the greater part of the time from a commit to its update."""

START_TIMEOUT_S = 10.0

MAX_PENDING = 10_000
"""The most changes that wait for one watcher to take them."""

MAX_MISSED = 10_000
"""The most earlier changes that the first update of a watch reports one by one."""

MAX_MISSED_OF_PARTITION = 1_000

WATCHES = Gauge("sediment_rlmm_watches", "Watches of partitions that this process serves.")
ENDED = Counter(
    "sediment_rlmm_watches_ended",
    "Watches that RLMM ended, by reason: slow (the watcher did not take its changes), database "
    "(the changes could not be read), age (it reached its maximum) or stopping (this process "
    "stops).",
    ["reason"],
)

_log = logging.getLogger(__name__)

_EVENT = "topic_id, partition, revision, kind, to_state, segment_id"

# The server's start time identifies the server: after a failover, transactions that only the
# failed server had may have had ids that the new one uses again.
#
# The upper bound of the ids matters only in a database that was restored from a dump: events of
# the dumped server have ids that this server has yet to use.
CHANGES = f"""
    WITH present AS MATERIALIZED (
        SELECT snapshot::text AS snapshot, pg_postmaster_start_time()::text AS server,
            pg_snapshot_xmax(snapshot)::text::bigint AS next_id
        FROM (SELECT pg_current_snapshot() AS snapshot) AS each)
    SELECT present.snapshot, present.server, changed.*,
        (SELECT name FROM topics WHERE topic_id = changed.topic_id) AS topic
    FROM present
    LEFT JOIN LATERAL (
        SELECT {_EVENT} FROM events
        WHERE transaction_id >= %(next_id)s AND transaction_id < present.next_id
        UNION ALL
        SELECT {_EVENT} FROM events WHERE transaction_id = ANY(%(unfinished)s::bigint[])
    ) AS changed ON true"""

MISSED = f"""
    SELECT wanted.place, wanted.topic, changed.*
    FROM json_to_recordset(%(rows)s) AS wanted (
        place int, topic text, topic_id uuid, partition int, after_revision bigint)
    CROSS JOIN LATERAL (
        SELECT {_EVENT} FROM events
        WHERE topic_id = wanted.topic_id AND partition = wanted.partition
            AND revision > wanted.after_revision
        ORDER BY revision LIMIT {MAX_MISSED_OF_PARTITION}
    ) AS changed"""

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a read saw: all transactions before `next_id` but the unfinished ones.

    Attributes:
        server: identifies the server, because transaction ids mean nothing at another one.
    """

    server: str
    next_id: int
    unfinished: tuple[int, ...]

    @classmethod
    def of(cls, server: str, text: str) -> "Snapshot":
        """Parse PostgreSQL's text of a snapshot, "xmin:xmax:id,id,..."."""
        _, next_id, unfinished = text.split(":")
        return cls(server, int(next_id), tuple(int(id) for id in unfinished.split(",") if id))

    def follows(self, earlier: "Snapshot") -> bool:
        """Return whether this is a later snapshot of the same server."""
        return self.server == earlier.server and self.next_id >= earlier.next_id


EventRow: TypeAlias = Any
"""A row of CHANGES or MISSED; its topic is the topic's name."""


def read_changes(connection: Connection, since: Snapshot | None) -> tuple[Snapshot, list[EventRow]]:
    """Return the snapshot of this read, and the events that an earlier one did not see.

    The events of each partition are in order.

    Args:
        since: the earlier snapshot; None reads no events.

    Raises:
        RetriableRemoteStorageError: the earlier snapshot is of another server.
    """
    values = {
        "next_id": None if since is None else since.next_id,
        "unfinished": [] if since is None else list(since.unfinished),
    }
    rows = run(connection, CHANGES, [], values).fetchall()
    present = Snapshot.of(rows[0].server, rows[0].snapshot)
    if since is not None and not present.follows(since):
        raise RetriableRemoteStorageError(
            "the metadata database is another server than before, or was restarted; watch again"
        )
    events = [row for row in rows if row.revision is not None]
    return present, sorted(events, key=lambda row: row.revision)


@dataclass(slots=True)
class _Changes:
    """The changes of one partition that one update reports."""

    segments: list[ChangedSegment] = field(default_factory=list)
    everything: bool = False


class _Known:
    """What a watch has reported: the revision of each of its partitions.

    It lasts as long as the watch, and a process has many: each partition costs two words here.
    """

    def __init__(self, partitions: Sequence[WatchedPartition]) -> None:
        # Parsed from a request, each partition has a copy of its topic's name.
        names: dict[str, str] = {}
        topics = (each.topic_id_partition.topic for each in partitions)
        self._topics = [names.setdefault(topic, topic) for topic in topics]
        self.revisions = array("q", [each.after_revision or 0 for each in partitions])

    def take(self, events: Iterable[tuple[int, EventRow]]) -> dict[int, _Changes]:
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
            state = _CHANGES_LOOK_UPS.get(event.to_state)
            if event.kind == "SEGMENT" and state is not None:
                change.segments.append(ChangedSegment(event.segment_id, state))
            elif event.kind not in _CHANGES_NO_LOOK_UP:
                change.everything = True
        return changes

    def update_of(self, place: int, change: _Changes) -> PartitionUpdate:
        segments = () if change.everything else tuple(change.segments)
        return PartitionUpdate(place, self.revisions[place], segments, change.everything)


class Watch:
    """The changes that wait for one watcher. `put` and `end` are the reader's."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._pending: deque[tuple[int, EventRow]] = deque()
        self._error: RemoteStorageError | None = None
        self.complete_through_s = 0.0

    def put(self, events: Sequence[tuple[int, EventRow]]) -> None:
        with self._changed:
            if self._error is not None:
                return
            if len(self._pending) + len(events) > MAX_PENDING:
                self._end(_too_slow(), "slow")
                return
            self._pending.extend(events)
            self._changed.notify()

    def end(self, error: RemoteStorageError, reason: str) -> None:
        with self._changed:
            if self._error is None:
                self._end(error, reason)

    def _end(self, error: RemoteStorageError, reason: str) -> None:
        ENDED.labels(reason).inc()
        self._error = error
        self._pending.clear()
        self._changed.notify()

    def wait(self, timeout_s: float) -> tuple[list[tuple[int, EventRow]], float]:
        """Wait for events; return them and the time up to which they are all.

        Raises:
            RemoteStorageError: the watch has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._error, timeout_s)
            # Read before the events: the reader sets it after them.
            complete_through_s = self.complete_through_s
            if self._error is not None:
                raise self._error
            events = list(self._pending)
            self._pending.clear()
            return events, complete_through_s


def _too_slow() -> ThrottledError:
    return ThrottledError(
        f"the watcher is too slow: {MAX_PENDING:,} changes wait for it; watch again from the "
        "revisions that arrived"
    )


def _stopping() -> RetriableRemoteStorageError:
    return RetriableRemoteStorageError("RLMM stops; watch at another one")


class Reader(Thread):
    """Read the changes and hand them to the watches, from its first watch until its last one."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="watch-reader", daemon=True)
        self._engine = engine
        self._lock = Lock()
        self._watches: dict[Watch, Mapping[PartitionKey, int]] = {}
        # Most partitions have one watch, and all of these share a tuple.
        self._watching: dict[PartitionKey, tuple[Watch, ...]] = {}
        self._stopping = Event()
        self._first_read = Event()
        self._ended: tuple[RemoteStorageError, str] | None = None

    def add(self, watch: Watch, places: Mapping[PartitionKey, int]) -> None:
        with self._lock:
            if self._ended is not None:
                # Since the caller asked `is_over`.
                watch.end(*self._ended)
            self._watches[watch] = places
            alone = (watch,)
            for key in places:
                others = self._watching.get(key)
                self._watching[key] = alone if others is None else (*others, watch)

    def remove(self, watch: Watch) -> bool:
        """Return whether no watch is left."""
        with self._lock:
            for key in self._watches.pop(watch, {}):
                others = tuple(each for each in self._watching[key] if each is not watch)
                if others:
                    self._watching[key] = others
                else:
                    del self._watching[key]
            return not self._watches

    def stop(self) -> None:
        self._stopping.set()

    @property
    def is_over(self) -> bool:
        return self._stopping.is_set()

    def wait_for_first_read(self) -> None:
        """Return when every later commit will be handed to the watches."""
        if not self._first_read.wait(START_TIMEOUT_S):
            raise RetriableRemoteStorageError("the metadata database has not answered; watch again")

    def run(self) -> None:
        error: RemoteStorageError = _stopping()
        try:
            with errors_named(), self._connected() as connection:
                self._read(connection)
        except RemoteStorageError as e:
            error = RetriableRemoteStorageError(f"the changes cannot be read: {e}; watch again")
        except Exception as e:  # noqa: BLE001 - logged; each watch gets it
            _log.exception("the changes for watches cannot be read")
            error = RetriableRemoteStorageError(f"the changes cannot be read: {e!r}; watch again")
        finally:
            reason = "stopping" if self._stopping.is_set() else "database"
            self._stopping.set()
            self.end_all(error, reason)
            self._first_read.set()

    def end_all(self, error: RemoteStorageError, reason: str) -> None:
        with self._lock:
            self._ended = error, reason
            for watch in self._watches:
                watch.end(error, reason)

    @contextmanager
    def _connected(self) -> Generator[Connection, None, None]:
        """Yield a connection of its own: calls that fill the pool must not delay all watches."""
        engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.detach()
            yield connection

    def _read(self, connection: Connection) -> None:
        seen, _ = read_changes(connection, None)
        self._first_read.set()
        while not self._stopping.wait(READ_INTERVAL_S):
            began_s = time.monotonic()
            seen, events = read_changes(connection, seen)
            self._hand_out(events, began_s)

    def _hand_out(self, events: Sequence[EventRow], complete_through_s: float) -> None:
        with self._lock:
            of_watch: dict[Watch, list[tuple[int, EventRow]]] = {}
            for event in events:
                key = event.topic_id, event.partition
                for watch in self._watching.get(key, ()):
                    of_watch.setdefault(watch, []).append((self._watches[watch][key], event))
            for watch, mine in of_watch.items():
                watch.put(mine)
            for watch in self._watches:
                watch.complete_through_s = complete_through_s


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

    def close(self) -> None:
        """End all watches and refuse later ones."""
        with self._lock:
            self._is_closed = True
            reader = self._reader
        if reader is not None:
            # Not joined: it may wait for the database, and the watchers need not.
            reader.stop()
            reader.end_all(_stopping(), "stopping")

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
                changes = known.take(events)
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
                raise _stopping()
            if self._reader is None or self._reader.is_over:
                self._reader = Reader(self._engine)
                self._reader.add(watch, places)
                self._reader.start()
            else:
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
        present = self._transactions.read(
            lambda connection: revisions(connection, tps, TOPIC_FIELD)
        )
        missed = self._transactions.read(
            lambda connection: _missed_events(connection, partitions, present)
        )
        known = _Known(partitions)
        changes = known.take(missed)
        for place, each in enumerate(partitions):
            change = changes.setdefault(place, _Changes())
            if each.after_revision is None:
                known.revisions[place] = present[place]
            elif known.revisions[place] < present[place] or each.after_revision > present[place]:
                change.everything = True
                known.revisions[place] = present[place]
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
    found = [(row.place, row) for row in run(connection, MISSED, wanted)]
    return sorted(found, key=lambda each: each[1].revision)

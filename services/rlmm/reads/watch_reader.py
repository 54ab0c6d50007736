"""Read the changes of partitions, in one thread for all watches, and hand them to the watches.

Each event has the id of its transaction. A snapshot of PostgreSQL says which transactions are
committed; so the events that are new since the last read are those of the transactions that this
snapshot sees and the last one did not. That misses nothing, in whatever order transactions commit,
and costs one index look-up while nothing changes (docs/adr/0014-watches.md).
"""

import logging
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event, Lock, Thread
from typing import Any, TypeAlias

from prometheus_client import Counter
from sqlalchemy import Connection, Engine

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.rlmm.database.db import PartitionKey, errors_named, run
from services.rlmm.database.engine import SESSION_MAX_AGE_S

READ_INTERVAL_S = 0.05
"""The pause between two reads if this process commits nothing: what other processes commit waits
for half of it on average.
"""

SHORTEST_INTERVAL_S = 0.025
"""The pause between two reads if this process commits all the time."""

START_TIMEOUT_S = 10.0

MAX_PENDING = 10_000
"""The most changes that wait for one watcher to take them."""

ENDED = Counter(
    "sediment_rlmm_watches_ended",
    "Watches that RLMM ended, by reason: slow (the watcher did not take its changes), database "
    "(the changes could not be read), age (it reached its maximum) or stopping (this process "
    "stops).",
    ["reason"],
)

_log = logging.getLogger(__name__)

AT_US = "(extract(epoch FROM at) * 1000000)::bigint"
EVENT_COLUMNS = f"topic_id, partition, revision, kind, to_state, segment_id, {AT_US} AS at_us"

# The server's start time identifies the server: after a failover, transactions that only the
# failed server had may have had ids that the new one uses again.
#
# The upper bound of the ids matters only in a database that was restored from a dump: events of
# the dumped server have ids that this server has yet to use.
CHANGES = f"""
    WITH present AS MATERIALIZED (
        SELECT snapshot::text AS snapshot, pg_postmaster_start_time()::text AS server,
            pg_snapshot_xmax(snapshot)::text::bigint AS next_id,
            current_setting('transaction_read_only') = 'on' AS is_read_only
        FROM (SELECT pg_current_snapshot() AS snapshot) AS each)
    SELECT present.snapshot, present.server, present.is_read_only, changed.*,
        (SELECT name FROM topics WHERE topic_id = changed.topic_id) AS topic
    FROM present
    LEFT JOIN LATERAL (
        SELECT {EVENT_COLUMNS} FROM events
        WHERE transaction_id >= %(next_id)s AND transaction_id < present.next_id
        UNION ALL
        SELECT {EVENT_COLUMNS} FROM events WHERE transaction_id = ANY(%(unfinished)s::bigint[])
    ) AS changed ON true"""


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
        RetriableRemoteStorageError: the earlier snapshot is of another server, or this one is
            read-only.
    """
    values = {
        "next_id": None if since is None else since.next_id,
        "unfinished": [] if since is None else list(since.unfinished),
    }
    rows = run(connection, CHANGES, [], values).fetchall()
    present = Snapshot.of(rows[0].server, rows[0].snapshot)
    if rows[0].is_read_only:
        # Another server has replaced this one, or will: what it commits is not read here.
        raise RetriableRemoteStorageError("the metadata database takes no changes; watch again")
    if since is not None and not present.follows(since):
        raise RetriableRemoteStorageError(
            "the metadata database is another server than before, or was restarted; watch again"
        )
    events = [row for row in rows if row.revision is not None]
    return present, sorted(events, key=lambda row: row.revision)


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


def stopping() -> RetriableRemoteStorageError:
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
        self._wanted = Event()
        self._first_read = Event()
        self._ended: tuple[RemoteStorageError, str] | None = None

    def add(self, watch: Watch, places: Mapping[PartitionKey, int]) -> None:
        with self._lock:
            if self._ended is not None:
                # It ended after the caller read `is_over`.
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

    def read_soon(self) -> None:
        """Read without the rest of the pause, because there is something new."""
        self._wanted.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()

    @property
    def is_over(self) -> bool:
        return self._stopping.is_set()

    def wait_for_first_read(self) -> None:
        """Return when every later commit will be handed to the watches."""
        if not self._first_read.wait(START_TIMEOUT_S):
            raise RetriableRemoteStorageError("the metadata database has not answered; watch again")

    def run(self) -> None:
        error: RemoteStorageError = stopping()
        try:
            snapshot = None
            while not self._stopping.is_set():
                with errors_named(), self._connected() as connection:
                    snapshot = self._read(connection, snapshot)
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

    def _read(self, connection: Connection, snapshot: Snapshot | None) -> Snapshot:
        """Read until the end, or until the session is as old as those of the pool may become."""
        ends_s = time.monotonic() + SESSION_MAX_AGE_S
        if snapshot is None:
            snapshot, _ = read_changes(connection, None)
        self._first_read.set()
        while not self._is_stopped_in_pause(time.monotonic() + SHORTEST_INTERVAL_S):
            # Before the read: a commit during the read requests another one.
            self._wanted.clear()
            began_s = time.monotonic()
            snapshot, events = read_changes(connection, snapshot)
            self._distribute(events, began_s)
            if began_s > ends_s:
                break
        return snapshot

    def _is_stopped_in_pause(self, earliest_s: float) -> bool:
        """Wait for the time of the next read; return whether there is none."""
        self._wanted.wait(READ_INTERVAL_S)
        return self._stopping.wait(max(0.0, earliest_s - time.monotonic()))

    def _distribute(self, events: Sequence[EventRow], complete_through_s: float) -> None:
        with self._lock:
            of_watch: dict[Watch, list[tuple[int, EventRow]]] = {}
            for event in events:
                key = event.topic_id, event.partition
                for watch in self._watching.get(key, ()):
                    of_watch.setdefault(watch, []).append((self._watches[watch][key], event))
            for watch, own in of_watch.items():
                watch.put(own)
            for watch in self._watches:
                watch.complete_through_s = complete_through_s

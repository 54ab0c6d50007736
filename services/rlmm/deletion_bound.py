"""Bound what a day deletes of the tier, unless a person has confirmed a topic's deletions.

One rule at the mark, so that every deleter has it. A partition's row has the bytes that were marked
on its latest such day (UTC), written under the lock that a mark holds anyway. The sums of the tier
are read every READ_EVERY_S at most; until the next read a process knows its own marks alone, so
that several processes may together mark a little more.
"""

import threading
import time
from collections.abc import Callable
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from services.api.errors import DeletionRefusedError
from services.api.retention import DAILY_DELETION_BYTES, DAILY_DELETION_PERCENT
from services.rlmm.database.db import execute, wait_for_answers
from services.rlmm.database.rows import AnyRow

READ_EVERY_S = 10.0
TODAY = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
_SUMS = f"""
    SELECT coalesce(sum(p.finished_bytes), 0)::bigint AS finished_bytes,
        coalesce(sum(p.marked_bytes) FILTER (WHERE p.marked_on = {TODAY}
            AND t.confirmed_revision IS DISTINCT FROM t.config_revision), 0)::bigint AS marked_bytes
    FROM partitions AS p JOIN topics AS t USING (topic_id)"""
_STORE_REFUSED = """
    UPDATE topics SET deletions_refused_at = clock_timestamp() WHERE topic_id = ANY(%(ids)s)"""
_lock = threading.Lock()
_BOUNDS: "WeakKeyDictionary[Engine, DeletionBound]" = WeakKeyDictionary()


class DeletionBound:
    """Know how much of the tier was marked today. Thread-safe; one for each database.

    A transaction that is rolled back after its marks counts until the next read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at_s = -READ_EVERY_S
        self._finished_bytes = 0
        self._marked_bytes = 0
        self._refused: set[UUID] = set()

    def require(
        self, connection: Connection, topic: AnyRow, size_bytes: int, *, marks: bool
    ) -> None:
        """Refuse a deletion that passes the bound, unless the topic's deletions are confirmed.

        Args:
            topic: its id, name, revision of the settings, and the one that was confirmed.
            marks: count the bytes as marked.

        Raises:
            DeletionRefusedError: names the figures and the command that confirms.
        """
        if topic.confirmed_revision == topic.config_revision:
            return
        with self._lock:
            if self._clock() - self._read_at_s >= READ_EVERY_S:
                self._read(connection)
            marked_bytes = self._marked_bytes + max(size_bytes, 0)
            # What was marked today was finished when the day began.
            tier_bytes = self._finished_bytes + self._marked_bytes
            share_bytes = tier_bytes * DAILY_DELETION_PERCENT // 100
            if marked_bytes <= max(DAILY_DELETION_BYTES, share_bytes):
                if marks:
                    self._marked_bytes = marked_bytes
                    self._finished_bytes -= max(size_bytes, 0)
                return
            self._refused.add(topic.topic_id)
        raise DeletionRefusedError(
            f"topic {topic.name}: {_gib(marked_bytes)} would be deleted today of a tier of "
            f"{_gib(tier_bytes)}, more than {DAILY_DELETION_PERCENT} % and "
            f"{_gib(DAILY_DELETION_BYTES)}; check `sediment retention`, then run `sediment "
            f"deletions confirm {topic.name} --revision {topic.config_revision}`"
        )

    def read_soon(self) -> None:
        """Read the sums again at the next mark: a confirmation began or ended."""
        with self._lock:
            self._read_at_s = self._clock() - READ_EVERY_S

    def store_refused(self, connection: Connection, refused: list[UUID]) -> None:
        """Store which topics wait for a confirmation, for lists."""
        execute(connection, _STORE_REFUSED, {"ids": refused})

    def take_refused(self) -> list[UUID]:
        """Return the topics that were refused since the last call."""
        with self._lock:
            refused, self._refused = sorted(self._refused), set()
        return refused

    def _read(self, connection: Connection) -> None:
        rows = execute(connection, _SUMS, {})
        wait_for_answers(connection)
        sums = rows.fetchone()
        assert sums is not None
        self._finished_bytes, self._marked_bytes = sums.finished_bytes, sums.marked_bytes
        self._read_at_s = self._clock()


def deletion_bound(engine: Engine) -> DeletionBound:
    """Return the process's bound for a database."""
    with _lock:
        return _BOUNDS.setdefault(engine, DeletionBound())


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB"

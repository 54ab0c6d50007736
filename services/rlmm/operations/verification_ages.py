"""Publish how old verifications, the database's maintenance and reports of trimmed logs are."""

import logging
from contextlib import suppress
from threading import Event, Thread

from prometheus_client import Gauge

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.operations import CHECKS
from services.api.topic_config import LOCAL_RETENTION_OWNER, LocalRetentionOwner
from services.rlmm.changes.audit import NO_BROKER
from services.rlmm.database.db import IS_KNOWN, PARTITIONS, Transactions, execute

_log = logging.getLogger(__name__)

INTERVAL_S = 60.0
STOP_TIMEOUT_S = 1.0
_CHECKS = [kind.value for kind in CHECKS]

OLDEST = Gauge(
    "sediment_rlmm_oldest_verification_timestamp_seconds",
    "When the topic was verified whose last whole verification is the oldest, Unix time, by kind: "
    "RECONCILE or SCRUB. Of topics with finished segments; absent if none was ever verified.",
    ["kind"],
)

UNVERIFIED = Gauge(
    "sediment_rlmm_unverified_topics",
    "Topics with finished segments that were never verified as a whole, by kind.",
    ["kind"],
)

MAINTAINED = Gauge(
    "sediment_rlmm_last_maintenance_timestamp_seconds",
    "When the last `sediment db maintain` ended, Unix time; when the schema was made, if none did.",
)

TRIMMED = Gauge(
    "sediment_rlmm_oldest_trim_report_timestamp_seconds",
    "When the partition was reported whose latest report is the oldest, Unix time, by the broker "
    "that led it. Of topics whose local records RLM deletes (sediment.local.retention.owner=rlm).",
    ["broker_id"],
)

_TRIMMED = f"""
    SELECT s.broker_id, extract(epoch FROM min(s.reported_at))::float8 AS oldest_s
    FROM {PARTITIONS}
    JOIN partition_states AS s ON s.topic_id = p.topic_id AND s.partition = p.partition
    WHERE t.config ->> '{LOCAL_RETENTION_OWNER}' = '{LocalRetentionOwner.RLM.value}'
        AND p.delete_state IS NULL AND s.broker_id <> {NO_BROKER}
    GROUP BY s.broker_id"""
_MAINTAINED = """
    SELECT extract(epoch FROM coalesce(max(ended_at), (SELECT made_at FROM deployment)))::float8
        AS at_s
    FROM tool_runs WHERE kind = 'MAINTENANCE'"""
# A verification is whole if all its parts are there, and as old as the oldest of them.
AGES = f"""
    SELECT kinds.kind, extract(epoch FROM min(last.ended_at))::float8 AS oldest_s,
        count(*) FILTER (WHERE last.ended_at IS NULL AND topic_id IS NOT NULL) AS unverified
    FROM (VALUES {", ".join(f"('{kind}')" for kind in _CHECKS)}) AS kinds (kind)
    LEFT JOIN (
        SELECT DISTINCT topic_id FROM partitions AS p WHERE {IS_KNOWN} AND finished_segments > 0
    ) AS topics ON true
    LEFT JOIN LATERAL (
        SELECT max(whole.ended_at) AS ended_at FROM (
            SELECT min(v.ended_at) AS ended_at FROM tool_runs AS v
            WHERE v.scope = topics.topic_id AND v.kind = kinds.kind
            GROUP BY v.parts HAVING count(*) = v.parts
        ) AS whole
    ) AS last ON true
    GROUP BY kinds.kind"""


class VerificationAges:
    """Read the ages in a thread; while the database is away, the last ones stay published."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="verification-ages", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after its query if one runs."""
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def refresh(self) -> None:
        """Read the ages and publish them.

        Raises:
            RetriableRemoteStorageError: the database is unreachable or busy.
            RemoteStorageError: the database has no such table yet.
        """
        read = self._transactions.read
        [maintained] = read(lambda c: execute(c, _MAINTAINED, {}).fetchall())
        MAINTAINED.set(maintained.at_s)
        trimmed = read(lambda c: execute(c, _TRIMMED, {}).fetchall())
        TRIMMED.clear()
        for row in trimmed:
            TRIMMED.labels(row.broker_id).set(row.oldest_s)
        rows = read(lambda c: execute(c, AGES, {}).fetchall())
        for row in rows:
            UNVERIFIED.labels(row.kind).set(row.unverified)
            if row.oldest_s is not None:
                OLDEST.labels(row.kind).set(row.oldest_s)
                continue
            with suppress(KeyError):
                OLDEST.remove(row.kind)

    def _run(self) -> None:
        while True:
            try:
                self.refresh()
            except RetriableRemoteStorageError:
                # Readiness reports that the database is away.
                _log.debug("cannot read when topics were verified", exc_info=True)
            except RemoteStorageError as e:
                _log.warning("cannot read when topics were verified: %s", e)
            except Exception:  # noqa: BLE001 - a boundary: without this thread the ages stand still
                _log.exception("cannot read when topics were verified: a defect of RLMM")
            if self._stopping.wait(INTERVAL_S):
                return

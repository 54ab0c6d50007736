"""Renew copy leases (renew_copy_leases)."""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TypeAlias

import psycopg
from sqlalchemy import Connection

from services.api.errors import (
    InvalidStateTransitionError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.remote_log_metadata_manager import RenewOutcome
from services.api.segment_batches import require_lease
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_int32
from services.rlmm.changes.batch import SegmentKey, require_distinct, segment_key, stored_segments
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.database.db import PartitionKey, Transactions, execute, key_of, run, segment_row
from services.rlmm.database.rows import AnyRow
from services.rlmm.guards import unknown_segment

LOCK_TIMEOUT_MS = 1_000
"""The longest wait for one partition's lock."""

LOCK_WAIT_SHARE = 0.05
"""The share of the lease that a call waits for all its locks, so that the response arrives before
the renewed leases expire.
"""

_LEAST_LOCK_TIMEOUT_MS = 1  # 0 would disable the limit
Outcomes: TypeAlias = dict[SegmentKey, RenewOutcome]
SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %(lock_timeout_ms)s, true)"

# Written by ctid, like batch.MOVE. The greatest of NULL and a time is the time.
RENEW = """
    UPDATE segments AS s SET copy_lease_until = greatest(
        s.copy_lease_until, clock_timestamp() + %(lease_ms)s * interval '1 millisecond')
    FROM (
        SELECT found.segment_ctid
        FROM json_to_recordset(%(rows)s) AS leased (topic_id uuid, partition int, segment_id uuid)
        CROSS JOIN LATERAL (
            SELECT ctid AS segment_ctid FROM segments
            WHERE topic_id = leased.topic_id AND partition = leased.partition
                AND segment_id = leased.segment_id AND state = 'COPY_SEGMENT_STARTED'
            LIMIT 1
        ) AS found
    ) AS leased
    WHERE s.ctid = leased.segment_ctid"""


def renew_all(
    transactions: Transactions,
    segment_ids: Sequence[RemoteLogSegmentId],
    lease_ms: int,
    broker_id: int,
) -> list[RenewOutcome]:
    """Renew copy leases; see RemoteLogMetadataManager.renew_copy_leases."""
    require_distinct(segment_ids, "segments")
    require_lease(lease_ms)
    require_int32(broker_id, "broker_id")
    by_partition: dict[PartitionKey, list[RemoteLogSegmentId]] = {}
    for segment_id in segment_ids:
        by_partition.setdefault(key_of(segment_id.topic_id_partition), []).append(segment_id)
    until_s = monotonic() + lease_ms / 1000 * LOCK_WAIT_SHARE
    outcomes: Outcomes = {}
    for ids in by_partition.values():
        left_ms = max(int((until_s - monotonic()) * 1000), _LEAST_LOCK_TIMEOUT_MS)
        timeout_ms = min(left_ms, LOCK_TIMEOUT_MS)
        try:
            outcomes |= transactions.change(_renew, ids, lease_ms, broker_id, timeout_ms)
        except _PartitionLockedError:
            text = f"partition {ids[0].topic_id_partition} is locked by another change; retry"
            outcomes |= dict.fromkeys(map(segment_key, ids), RetriableRemoteStorageError(text))
        except RetriableRemoteStorageError:
            raise  # A failure of the database would repeat for every other partition.
        except RemoteStorageError as e:
            outcomes |= dict.fromkeys(map(segment_key, ids), e)
    return [outcomes[segment_key(segment_id)] for segment_id in segment_ids]


class _PartitionLockedError(Exception):
    """The partition's lock was not free within the time that this call may wait."""


def _renew(
    connection: Connection,
    segment_ids: Sequence[RemoteLogSegmentId],
    lease_ms: int,
    broker_id: int,
    lock_timeout_ms: int,
) -> Outcomes:
    """Renew leases of copies of one partition."""
    execute(connection, SET_LOCK_TIMEOUT, {"lock_timeout_ms": str(lock_timeout_ms)})
    try:
        partitions = LockedPartitions.lock(connection, [segment_ids[0].topic_id_partition])
    except psycopg.errors.LockNotAvailable as e:
        raise _PartitionLockedError from e
    stored = stored_segments(connection, segment_ids)
    outcomes = {
        segment_key(segment_id): _refusal_of(partitions, stored, segment_id, broker_id)
        for segment_id in segment_ids
    }
    rows = [segment_row(each) for each in segment_ids if outcomes[segment_key(each)] is None]
    if rows:
        run(connection, RENEW, rows, {"lease_ms": lease_ms})
    return outcomes


def _refusal_of(
    partitions: LockedPartitions,
    stored: Mapping[SegmentKey, AnyRow],
    segment_id: RemoteLogSegmentId,
    broker_id: int,
) -> RenewOutcome:
    """Return why the lease is not renewed; None if it is renewed."""
    try:
        partitions.of(segment_id.topic_id_partition)
    except RemoteStorageError as e:
        return e
    row = stored.get(segment_key(segment_id))
    if row is None:
        return unknown_segment(segment_id)
    if row.state != RemoteLogSegmentState.COPY_SEGMENT_STARTED.value:
        return InvalidStateTransitionError(
            f"segment {segment_id} is in {row.state}: its copy has ended; stop it"
        )
    if row.broker_id != broker_id:
        return InvalidStateTransitionError(
            f"segment {segment_id} is copied by broker {row.broker_id}, not {broker_id}; stop it"
        )
    return None

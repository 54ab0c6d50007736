"""Test that leases stay valid while others change the partition."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import NO_CONTEXT, MutationOutcome
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate, UpdateOutcome
from services.api.segment_batches import MAX_LEASE_MS, MIN_LEASE_MS
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.changes.idempotency import body_digest
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_STARTED,
    OTHER_BROKER,
    segment,
    update_to,
)
from tests.harness.databases import OwnRlmm, waiting
from tests.harness.eventually import PATIENCE_MS, eventually

TP = TopicIdPartition(uuid4(), "orders", 0)


@contextmanager
def held_up(engine: Engine, *partitions: int) -> Iterator[None]:
    """Hold the locks of partition 0, or of the given ones, in another session."""
    lock = text("SELECT FROM partitions WHERE topic_id = :id AND partition = ANY(:n) FOR UPDATE")
    with engine.begin() as connection:
        connection.execute(lock, {"id": TP.topic_id, "n": list(partitions or (0,))})
        yield


def leased(
    rlmm: SqlRemoteLogMetadataManager, lease_ms: int | None, partition: int = 0
) -> RemoteLogSegmentMetadata:
    copy = segment(replace(TP, partition=partition), 0, 9)
    rlmm.add_remote_log_segment_metadata(copy, lease_ms=lease_ms)
    return copy


def is_leased(rlmm: SqlRemoteLogMetadataManager, partition: int = 0) -> bool:
    (listed,) = rlmm.list_remote_log_segments(replace(TP, partition=partition)).segments
    return listed.copy_leased


def test_lease_is_not_renewed_while_the_partition_is_locked(rlmm: OwnRlmm) -> None:
    """Otherwise a deletion decided by the earlier lease would overtake the response."""
    copy = leased(rlmm, None)
    with held_up(rlmm.engine):
        (outcome,) = rlmm.renew_copy_leases([copy.remote_log_segment_id], MAX_LEASE_MS, BROKER)
        assert type(outcome) is RetriableRemoteStorageError
        assert "orders-0 is locked by another change; retry" in str(outcome)
    assert not is_leased(rlmm)


def test_a_partition_that_is_held_up_holds_up_no_other(rlmm: OwnRlmm) -> None:
    """The lock timeout of a session would be a minute here."""
    ids = [leased(rlmm, None, number).remote_log_segment_id for number in range(3)]
    with held_up(rlmm.engine, 1):
        outcomes = rlmm.renew_copy_leases(ids, MAX_LEASE_MS, BROKER)
        # Before the lock is free again.
        assert is_leased(rlmm, 0)
        assert is_leased(rlmm, 2)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        RetriableRemoteStorageError,
        type(None),
    ]
    assert rlmm.renew_copy_leases(ids, MAX_LEASE_MS, BROKER) == [None] * 3


def test_all_locks_together_are_waited_for_no_longer_than_the_lease_allows(rlmm: OwnRlmm) -> None:
    """A call that outlasted the leases would renew none of them."""
    many = range(40)
    ids = [leased(rlmm, None, number).remote_log_segment_id for number in many]
    with held_up(rlmm.engine, *many[:-1]):
        began_s = time.monotonic()
        outcomes = rlmm.renew_copy_leases(ids, MIN_LEASE_MS, BROKER)
        took_s = time.monotonic() - began_s
    assert [outcome is None for outcome in outcomes] == [False] * 39 + [True]
    # By the lock timeout of each alone it would be 39.
    assert took_s < 20


@pytest.mark.parametrize("in_batch", [False, True], ids=["alone", "in a batch"])
def test_a_lease_is_judged_at_the_time_at_which_the_lock_is_had(
    rlmm: OwnRlmm, in_batch: bool
) -> None:
    copy = leased(rlmm, MIN_LEASE_MS)
    by_another = update_to(copy, DELETE_STARTED, broker_id=OTHER_BROKER)

    def give_up() -> UpdateOutcome:
        if not in_batch:
            return rlmm.update_remote_log_segment_metadata(by_another)
        (outcome,) = rlmm.update_remote_log_segment_metadata_batch([SegmentUpdate(by_another)])
        return outcome

    with ThreadPoolExecutor(1) as pool:
        with held_up(rlmm.engine):
            giving_up = pool.submit(give_up)
            eventually(lambda: waiting(rlmm.engine) == 1, PATIENCE_MS)
            # Of both transactions the lease ends before the lock and after the beginning.
            eventually(lambda: not is_leased(rlmm), PATIENCE_MS)
        outcome = giving_up.result()
    assert isinstance(outcome, MutationOutcome), outcome


def test_a_lease_is_no_part_of_a_request_digest() -> None:
    reported = replace(segment(TP, 0, 9), copy_leased=True)
    assert "leased" not in repr(reported)
    assert body_digest(reported, NO_CONTEXT) == body_digest(
        replace(reported, copy_leased=False), NO_CONTEXT
    )

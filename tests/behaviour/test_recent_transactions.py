"""Test committed reads by metadata of a moment ago: no aborted record may seem committed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.ids import RemoteLogSegmentId, random_uuid
from services.api.offset_queries import OffsetQueries, OffsetQuery, SpecialTime
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import AbortedTransaction, FetchError, FetchPart
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from services.records.index_files import AbortedTxn
from services.rlm.fetch.segment_reader import RemoteReadLimits
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.committed_reads import READ_COMMITTED
from tests.harness.eventually import eventually
from tests.harness.ship_stack import EVERYTHING, Stack, fetch, lose_rolled_segments, read
from tests.harness.tier import SmallTier, now_ms
from tests.harness.troubled_managers import SilentRlmm
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    NAME,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
)

SWEEP = MutationContext(reason="sweep", retention_owner=RetentionOwner.SWEEP)
ABORTED = (AbortedTransaction(1, 9),)
LIMITS = RlmLimits(read=RemoteReadLimits(wait_s=60.0, recent_s=60.0))


def _write_up_to_abort(files: PartitionFiles) -> None:
    files.segment(0, [batch(0), in_transaction(1, 9), batch(2)])
    files.snapshot(3, {9: 1})
    files.segment(3, [batch(3), in_transaction(4, 9)])
    files.snapshot(5, {9: 1})
    files.segment(5, [marker(5, 9, ABORT), batch(6), batch(7)])
    files.file(5, ".txnindex").write_bytes(AbortedTxn(9, 1, 5, 6).to_bytes())


@pytest.fixture
def files(stack: Stack, log_dir: Path) -> PartitionFiles:
    """Segments at 0, 3, 5 and 8, and the active one at 9: producer 9 aborts in the third one."""
    files = PartitionFiles(log_dir)
    _write_up_to_abort(files)
    for offset in (8, 9):
        files.snapshot(offset)
        files.segment(offset, [batch(offset)])
    stack.ship(log_dir)
    return files


@pytest.fixture
def rlmm(stack: Stack, files: PartitionFiles) -> Any:
    return SilentRlmm(stack.rlmm)


@pytest.fixture
def rlm(stack: Stack, rlmm: Any) -> BrokerRemoteLogManager:
    """An RLM without the log, which knows all segments for a minute.

    It has their records, and what the last stable offset needs, but no transaction index.
    """
    rlm = stack.rlm(rlmm=rlmm, limits=LIMITS)
    assert isinstance(read(rlm, 0), bytes)
    rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, SpecialTime.LATEST),), READ_COMMITTED))
    assert rlmm.searches == 0
    rlmm.lists = 0
    return rlm


def committed(rlm: BrokerRemoteLogManager, offset: int, max_bytes: int = 1) -> FetchPart:
    (part,) = fetch(rlm, offset, max_bytes=max_bytes, isolation=READ_COMMITTED)
    return part


def move_partition(stack: Stack, state: RemotePartitionDeleteState) -> None:
    metadata = RemotePartitionDeleteMetadata(NAME, state, now_ms(), 1)
    stack.rlmm.put_remote_partition_delete_metadata(metadata)


def test_committed_reads_in_known_segments_ask_rlmm_once(
    rlm: BrokerRemoteLogManager, rlmm: Any
) -> None:
    def read_all() -> list[tuple[AbortedTransaction, ...]]:
        return [committed(rlm, offset).aborted_transactions for offset in (0, 1, 3, 4, 6, 7)]

    # The search of a read that begins after the index's segment goes on behind it.
    expected = [(), ABORTED, ABORTED, ABORTED, (), ()]
    assert read_all() == expected
    assert rlmm.lists == 0
    searches = rlmm.searches
    assert searches <= 2
    assert read_all() == expected
    assert (rlmm.lists, rlmm.searches) == (0, searches)


def test_a_search_that_comes_after_the_deletion_refuses_the_records(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    """RLM has the records in memory, but the index that names their abort is gone."""
    stack.rlmm.raise_log_start_offset(NAME, 9, SWEEP)
    SmallTier(stack.rsm, stack.rlmm).delete(*stack.segments())
    part = committed(rlm, 0, EVERYTHING)
    assert (part.error, part.record_batches) == (FetchError.OFFSET_OUT_OF_RANGE, b"")
    assert "offsets 0 to 8 were deleted during the read" in part.error_message


def test_a_search_of_before_the_deletion_names_what_it_found(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    assert committed(rlm, 1).aborted_transactions == ABORTED
    stack.rlmm.raise_log_start_offset(NAME, 9, SWEEP)
    SmallTier(stack.rsm, stack.rlmm).delete(*stack.segments())
    assert committed(rlm, 2).aborted_transactions == ABORTED


def test_a_search_finds_the_index_that_replaced_another(
    stack: Stack, files: PartitionFiles, rlmm: Any
) -> None:
    limits = RlmLimits(read=RemoteReadLimits(wait_s=60.0, recent_s=60.0), index_memory_bytes=0)
    rlm = stack.rlm(rlmm=rlmm, limits=limits)
    assert committed(rlm, 1).aborted_transactions == ABORTED
    copied = stack.segments()[2]
    entries = files.file(5, ".txnindex").read_bytes()
    again = replace(
        copied,
        remote_log_segment_id=RemoteLogSegmentId(NAME, random_uuid()),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        custom_metadata=None,
    )
    indexes = {**Files(b"").indexes, IndexType.TRANSACTION: entries}
    content = Files(files.file(5, ".log").read_bytes(), indexes)
    tier = SmallTier(stack.rsm, stack.rlmm)
    tier.copy(again, content)
    tier.delete(copied)
    assert committed(rlm, 1).aborted_transactions == ABORTED


def test_a_topic_that_was_deleted_has_no_committed_records(
    stack: Stack, rlm: BrokerRemoteLogManager
) -> None:
    move_partition(stack, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
    move_partition(stack, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
    SmallTier(stack.rsm, stack.rlmm).delete(*stack.segments())
    move_partition(stack, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
    part = committed(rlm, 0, EVERYTHING)
    assert (part.error, part.record_batches) == (FetchError.UNKNOWN_TOPIC_ID, b"")


def test_a_stable_offset_that_was_deleted_is_found_again(stack: Stack, rlmm: Any) -> None:
    """The newest segment has it."""
    rlm = stack.rlm(rlmm=rlmm, limits=LIMITS)
    assert isinstance(read(rlm, 0), bytes)
    SmallTier(stack.rsm, stack.rlmm).delete(*stack.segments()[2:])
    part = committed(rlm, 0, EVERYTHING)
    assert (part.error, part.last_stable_offset) == (FetchError.NONE, 1)
    assert part.record_batches == batch(0)


def test_a_segment_that_left_the_log_since_is_looked_for_in_the_tier(
    stack: Stack, log_dir: Path
) -> None:
    """Its index is neither in the log nor in the tier of a moment ago."""
    files = PartitionFiles(log_dir)
    _write_up_to_abort(files)
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    rlmm: Any = SilentRlmm(stack.rlmm)
    rlm = stack.rlm(log_dir, rlmm=rlmm, limits=LIMITS)
    assert committed(rlm, 1).aborted_transactions == ABORTED
    assert committed(rlm, 1).aborted_transactions == ABORTED
    assert rlmm.lists == 1
    files.snapshot(8)
    files.segment(8, [batch(8)])
    stack.ship(log_dir)
    lose_rolled_segments(log_dir)
    rlmm.is_silent = True
    part = committed(rlm, 1)
    assert (part.error, part.record_batches) == (FetchError.TIERED_STORAGE_NOT_AVAILABLE, b"")
    rlmm.is_silent = False
    assert eventually(lambda: committed(rlm, 1).aborted_transactions) == ABORTED

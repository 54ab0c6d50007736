"""Test committed reads by metadata of a moment ago: no aborted record may seem committed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId, random_uuid
from services.api.offset_queries import OffsetQueries, OffsetQuery, SpecialTime
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
)
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from services.records.index_files import AbortedTxn
from services.records.runs import BatchRun
from services.rlm.fetch.reads import ReadLimits
from services.rlm.fetch.segment_reader import local_runs
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.committed_reads import READ_COMMITTED
from tests.harness.eventually import eventually
from tests.harness.ship_stack import (
    EVERYTHING,
    Stack,
    fetch,
    fetch_once,
    lose_rolled_segments,
    read,
)
from tests.harness.tier import SmallTier, now_ms
from tests.harness.troubles import SilentRlmm, TroubledPartition
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    NAME,
    PartitionFiles,
    batch,
    high_watermarks,
    in_transaction,
    marker,
    producer_snapshot,
)

SWEEP = MutationContext(reason="sweep", retention_owner=RetentionOwner.SWEEP)
ABORTED = (AbortedTransaction(1, 9),)
LIMITS = RlmLimits(read=ReadLimits(wait_s=60.0, recent_s=60.0))


def _write_up_to_abort(files: PartitionFiles) -> None:
    files.segment(0, [batch(0), in_transaction(1, 9), batch(2)])
    files.snapshot(3, {9: 1})
    files.segment(3, [batch(3), in_transaction(4, 9)])
    files.snapshot(5, {9: 1})
    files.segment(5, [marker(5, 9, ABORT), batch(6), batch(7)])
    files.file(5, ".txnindex").write_bytes(AbortedTxn(9, 1, 5, 6).to_bytes())


@pytest.fixture
def files(stack: Stack) -> PartitionFiles:
    """Segments at 0, 3, 5 and 8, and the active one at 9: producer 9 aborts in the third one."""
    files = PartitionFiles(stack.log_dir)
    _write_up_to_abort(files)
    for offset in (8, 9):
        files.snapshot(offset)
        files.segment(offset, [batch(offset)])
    stack.ship()
    return files


@pytest.fixture
def rlmm(stack: Stack, files: PartitionFiles) -> Any:
    return SilentRlmm(stack.rlmm)


@pytest.fixture
def rlm(stack: Stack, rlmm: Any) -> BrokerRemoteLogManager:
    """An RLM without the log, which knows all segments for a minute.

    It has their records, and what the last stable offset needs, but no transaction index.
    """
    rlm = stack.tier_reader(rlmm=rlmm, limits=LIMITS)
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


def replace_segment(stack: Stack, files: PartitionFiles, start_offset: int) -> None:
    """Copy a segment once more, then delete the first copy."""
    (copied,) = (each for each in stack.segments() if each.start_offset == start_offset)
    again = replace(
        copied,
        remote_log_segment_id=RemoteLogSegmentId(NAME, random_uuid()),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        custom_metadata=None,
    )
    transactions = files.file(start_offset, ".txnindex")
    indexes = {
        IndexType.OFFSET: b"",
        IndexType.TIMESTAMP: b"",
        IndexType.PRODUCER_SNAPSHOT: producer_snapshot(),
        IndexType.LEADER_EPOCH: (files.path / "leader-epoch-checkpoint").read_bytes(),
    }
    if transactions.exists():
        indexes[IndexType.TRANSACTION] = transactions.read_bytes()
    tier = SmallTier(stack.rsm, stack.rlmm)
    tier.copy(again, Files(files.file(start_offset, ".log").read_bytes(), indexes))
    tier.delete(copied)


NO_INDEXES = RlmLimits(read=ReadLimits(wait_s=60.0, recent_s=60.0, index_memory_bytes=0))


def test_a_search_finds_the_index_that_replaced_another(
    stack: Stack, files: PartitionFiles, rlmm: Any
) -> None:
    rlm = stack.tier_reader(rlmm=rlmm, limits=NO_INDEXES)
    assert committed(rlm, 1).aborted_transactions == ABORTED
    replace_segment(stack, files, 5)
    assert committed(rlm, 1).aborted_transactions == ABORTED


def test_an_index_that_is_replaced_while_the_client_is_slow_is_found(stack: Stack) -> None:
    """The read began before: the tier is not read again for its later parts."""
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, payload=b"x" * 40_000)])
    files.snapshot(1)
    files.segment(1, [in_transaction(1, 8), marker(2, 8, ABORT)])
    files.file(1, ".txnindex").write_bytes(AbortedTxn(8, 1, 2, 3).to_bytes())
    files.snapshot(3, {9: 3})
    files.segment(3, [in_transaction(3, 9)])
    files.snapshot(4, {9: 3})
    files.segment(4, [marker(4, 9, ABORT), batch(5)])
    files.file(4, ".txnindex").write_bytes(AbortedTxn(9, 3, 4, 6).to_bytes())
    for offset in (6, 7):
        files.snapshot(offset)
        files.segment(offset, [batch(offset)])
    stack.ship()
    reads = ReadLimits(wait_s=60.0, recent_s=0.0, index_memory_bytes=0)
    rlm = stack.tier_reader(limits=RlmLimits(read=reads))
    assert committed(rlm, 3).aborted_transactions == (AbortedTransaction(3, 9),)
    wanted = FetchPartition(NAME, 0, EVERYTHING)
    parts = rlm.fetch(FetchRequest((wanted,), EVERYTHING, READ_COMMITTED))
    assert next(parts).record_batches == batch(0, payload=b"x" * 40_000)
    replace_segment(stack, files, 4)
    rest = list(parts)
    assert in_transaction(3, 9) in b"".join(part.record_batches for part in rest)
    named = {each for part in rest for each in part.aborted_transactions}
    assert named == {AbortedTransaction(1, 8), AbortedTransaction(3, 9)}


@pytest.mark.parametrize("beside", [0, 1])
def test_the_leader_epochs_of_a_segment_that_was_replaced_are_found_again(
    stack: Stack, files: PartitionFiles, beside: int
) -> None:
    """RLM knows the newest segment, but has read nothing but its snapshot."""
    rlm = stack.tier_reader(limits=LIMITS)
    fetch(rlm, 0, max_bytes=1)
    committed(rlm, 9)
    replace_segment(stack, files, 8)
    others = [FetchPartition(replace(NAME, topic_id=random_uuid()), 0, 1)] * beside
    wanted = (FetchPartition(NAME, 0, EVERYTHING), *others)
    part, *_ = rlm.fetch(FetchRequest(wanted, EVERYTHING, READ_COMMITTED))
    assert (part.error, part.aborted_transactions) == (FetchError.NONE, ABORTED)


def test_any_read_finds_the_leader_epochs_of_a_segment_that_was_replaced(stack: Stack) -> None:
    """They were needed before, and RSM was away."""
    files = PartitionFiles(stack.log_dir)
    files.epochs((0, 0), (1, 3))
    for offset in (0, 3, 6):
        files.segment(offset, [batch(offset, 3)])
        files.snapshot(offset + 3)
    stack.ship()
    is_away = True

    def be_away() -> None:
        if is_away:
            raise RetriableRemoteStorageError("away")

    rsm: Any = TroubledPartition(stack.rsm, NAME, frozenset({"fetch_index"}), be_away)
    limits = RlmLimits(read=ReadLimits(wait_s=1.0, recent_s=60.0))
    rlm = stack.tier_reader(rsm=rsm, limits=limits)
    assert fetch_once(rlm, 0)[0].record_batches == b""
    replace_segment(stack, files, 3)
    is_away = False
    assert read(rlm, 0) == batch(0, 3) + batch(3, 3, leader_epoch=1)


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
    rlm = stack.tier_reader(rlmm=rlmm, limits=LIMITS)
    assert isinstance(read(rlm, 0), bytes)
    SmallTier(stack.rsm, stack.rlmm).delete(*stack.segments()[2:])
    part = committed(rlm, 0, EVERYTHING)
    assert (part.error, part.last_stable_offset) == (FetchError.NONE, 1)
    assert part.record_batches == batch(0)


def test_a_segment_that_left_the_log_since_is_looked_for_in_the_tier(stack: Stack) -> None:
    """Its index is neither in the log nor in the tier of a moment ago."""
    files = PartitionFiles(stack.log_dir)
    _write_up_to_abort(files)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    rlmm: Any = SilentRlmm(stack.rlmm)
    rlm = stack.rlm(rlmm=rlmm, limits=LIMITS)
    assert committed(rlm, 1).aborted_transactions == ABORTED
    assert committed(rlm, 1).aborted_transactions == ABORTED
    assert rlmm.lists == 1
    files.snapshot(8)
    files.segment(8, [batch(8)])
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    rlmm.is_silent = True
    part = committed(rlm, 1)
    assert (part.error, part.record_batches) == (FetchError.TIERED_STORAGE_NOT_AVAILABLE, b"")
    rlmm.is_silent = False
    assert eventually(lambda: committed(rlm, 1).aborted_transactions) == ABORTED


def test_segments_that_leave_the_log_during_a_read_are_not_searched_without_rlmm(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records that were read stay with the reader only if their abort can be named."""
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0), batch(1), batch(2)])
    files.snapshot(3)
    files.segment(3, [in_transaction(3, 9), batch(4)])
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    rlmm: Any = SilentRlmm(stack.rlmm)
    limits = RlmLimits(read=ReadLimits(wait_s=0.5, stale_s=0.0))
    rlm = stack.rlm(rlmm=rlmm, limits=limits)
    assert isinstance(read(rlm, 0), bytes)  # The tier ends at 3.
    files.snapshot(5, {9: 3})
    files.segment(5, [marker(5, 9, ABORT), batch(6)])
    files.file(5, ".txnindex").write_bytes(AbortedTxn(9, 3, 5, 6).to_bytes())
    files.snapshot(7)
    files.segment(7, [batch(7)])
    high_watermarks(stack.log_dir, {("t", 0): 8})
    assert committed(rlm, 3, EVERYTHING).aborted_transactions == (AbortedTransaction(3, 9),)

    def vanishing_runs(segment: Any, *rest: Any) -> Iterator[BatchRun]:
        yield from local_runs(segment, *rest)
        if segment.base_offset == 3:
            stack.ship()
            lose_rolled_segments(stack.log_dir)
            rlmm.is_silent = True

    monkeypatch.setattr("services.rlm.fetch.partition_fetch.local_runs", vanishing_runs)
    (part,) = fetch_once(rlm, 3, isolation=READ_COMMITTED)
    assert (part.error, part.record_batches) == (FetchError.TIERED_STORAGE_NOT_AVAILABLE, b"")

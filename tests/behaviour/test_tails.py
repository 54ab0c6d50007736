"""Test tails: the records behind the last copy, and what becomes of them when their segment rolls.

RSM is on files, RLMM on PostgreSQL, without gRPC.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId, random_uuid
from services.api.lineage import Lineage
from services.api.partitions import OffsetGap
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.superseded import is_tail
from services.records.index_files import open_transactions, parse_aborted_txns
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.tier import Tier
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.retained_log import AT_ONCE, Changed, take_turns
from tests.harness.ship_stack import FINISHED, Stack, description, fetch_once, read
from tests.harness.tier import SmallTier
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    COMMIT,
    NAME,
    PartitionFiles,
    batch,
    high_watermarks,
    in_transaction,
    marker,
    three_segments,
)

pytestmark = pytest.mark.deep

BROKER_ID = 7
AGE_S = 3600.0
TAILS = {"sediment.tail.copy.ms": "3600000"}
ROLLED = [(0, 9), (10, 19)]
KEPT: list[IndexType] = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class Sender:
    """An RLM with a clock that a test moves, and the bytes of logs that it sends."""

    def __init__(
        self, stack: Stack, limits: RlmLimits = AT_ONCE, **methods: Callable[..., Any]
    ) -> None:
        self.ahead_s = 0.0
        self.sent_bytes = self.calls = 0
        self._stack = stack
        rsm = Changed(stack.rsm, **{"copy_log_segment_data": self._copy, **methods})
        self.rlm = BrokerRemoteLogManager(
            [stack.log_dir],
            rsm,
            Changed(stack.rlmm, list_remote_log_segments=self._list),
            limits,
            clock=lambda: time.monotonic() + self.ahead_s,
        )
        self.listings = 0

    def _copy(self, metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        self.calls += 1
        self.sent_bytes += metadata.segment_size_in_bytes
        return self._stack.rsm.copy_log_segment_data(metadata, data)

    def _list(self, *arguments: Any, **named: Any) -> Any:
        self.listings += 1
        return self._stack.rlmm.list_remote_log_segments(*arguments, **named)

    def wait_and_copy(self) -> None:
        """See what is new, let it get old enough, and copy it."""
        take_turns(self.rlm)
        self.ahead_s += AGE_S
        take_turns(self.rlm)


@pytest.fixture
def files(stack: Stack) -> PartitionFiles:
    put(stack, TAILS)
    return three_segments(stack.log_dir)


@pytest.fixture
def sender(stack: Stack, files: PartitionFiles) -> Sender:
    return Sender(stack)


def put(stack: Stack, settings: dict[str, str]) -> None:
    stack.rlmm.on_partition_leadership_changes([PartitionLeadership(NAME, 0)], [], BROKER_ID)
    stack.rlmm.put_topic_config(NAME.topic_id, settings, now=True)


def append(files: PartitionFiles, *batches: bytes, base_offset: int = 20) -> None:
    with files.file(base_offset, ".log").open("ab") as log:
        log.write(b"".join(batches))


def roll(files: PartitionFiles, at_offset: int, base_offset: int = 20) -> None:
    files.snapshot(at_offset)
    files.segment(at_offset, [batch(at_offset, 5)])


def tails(stack: Stack) -> list[tuple[int, int]]:
    found = [s for s in stack.segments() if is_tail(s)]
    return [(segment.start_offset, segment.end_offset) for segment in found]


def bytes_from(stack: Stack, offset: int) -> bytes | object:
    return read(stack.tier_reader(), offset)


def test_records_are_copied_when_they_are_old_enough_and_only_new_bytes_are_sent(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    take_turns(sender.rlm)
    assert stack.ranges() == ROLLED  # the tail is too young
    sender.ahead_s += AGE_S
    take_turns(sender.rlm)
    assert stack.ranges() == [*ROLLED, (20, 24)]
    before = sender.sent_bytes
    new = batch(25, 5), batch(30, 2)
    append(files, *new)
    sender.wait_and_copy()
    assert stack.ranges() == [*ROLLED, (20, 24), (25, 31)]
    assert tails(stack) == [(20, 24), (25, 31)]
    assert sender.sent_bytes - before == len(b"".join(new))
    assert bytes_from(stack, 20) == files.file(20, ".log").read_bytes()
    # What is only in tails is not copied, for whoever deletes local segments by that.
    assert description(sender.rlm).copied_through_offset == 19


def test_a_tail_is_not_copied_unless_the_topic_has_the_setting(
    stack: Stack, sender: Sender
) -> None:
    stack.rlmm.put_topic_config(NAME.topic_id, {}, now=True)
    sender.ahead_s += 10 * AGE_S
    sender.wait_and_copy()
    assert stack.ranges() == ROLLED


def test_nothing_is_sent_when_nothing_is_new(stack: Stack, sender: Sender) -> None:
    sender.wait_and_copy()
    calls = sender.calls
    sender.wait_and_copy()
    sender.wait_and_copy()
    assert sender.calls == calls == 3


def test_a_tail_causes_no_listing_of_the_partition(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    sender.wait_and_copy()
    tier = sender.rlm.led_partitions()[0].tier
    before, read_pages = tier.cached, []
    tier._read = lambda *args: read_pages.append(args)  # type: ignore[method-assign,assignment]
    append(files, batch(25, 5))
    sender.wait_and_copy()
    sender.wait_and_copy()
    assert tails(stack) == [(20, 24), (25, 29)]
    assert read_pages == []
    listed = Tier(known=True, revision=tier.cached.revision)
    for segment in stack.segments():
        listed.add(segment)
    assert (tier.cached.segments, before.segments) == (4, 3)
    same: dict[str, Any] = {
        "newest": None,
        "ranges": {},
        "ranges_without_tails": {},
        "before_tails": None,
    }
    assert replace(tier.cached, **same) == replace(listed, **same)
    whole = Lineage()
    assert list(tier.cached.covered(whole)) == list(listed.covered(whole)) == [(0, 29)]
    assert list(tier.cached.copied(whole)) == list(listed.copied(whole)) == [(0, 19)]
    assert list(before.covered(whole)) == [(0, 24)]  # a tier that was returned never changes


def test_tails_of_a_partition_at_rest_read_nothing_of_rlmm(
    stack: Stack, files: PartitionFiles
) -> None:
    put(stack, {**TAILS, "retention.ms": str(10**15)})
    sender = Sender(stack, replace(AT_ONCE, interval_s=60.0))

    def pass_on() -> int:
        sender.ahead_s += AGE_S
        before = sender.listings
        sender.rlm.lanes.revisions.tick()
        assert sender.rlm.lanes.revisions.wait_idle(60.0)
        take_turns(sender.rlm)
        return sender.listings - before

    for _ in range(4):
        pass_on()
    for number in range(3):
        append(files, batch(25 + number))
        assert [pass_on(), pass_on(), pass_on()] == [0, 0, 0]
    assert tails(stack) == [(20, 24), (25, 25), (26, 26), (27, 27)]
    # Another process is noticed.
    stack.rlmm.record_gap(NAME, OffsetGap(900, 901), BROKER_ID)
    append(files, batch(28))
    assert pass_on() > 0


def test_a_rolled_segment_is_sent_whole_and_its_tails_are_deleted(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    sender.wait_and_copy()
    append(files, batch(25, 5))
    sender.wait_and_copy()
    roll(files, 30)  # exactly where the tails end
    take_turns(sender.rlm)
    assert (20, 29) in [(s.start_offset, s.end_offset) for s in stack.segments()]
    sender.wait_and_copy()
    take_turns(sender.rlm)
    assert stack.ranges() == [*ROLLED, (20, 29), (30, 34)]
    assert tails(stack) == [(30, 34)]
    assert len(list(stack.objects.rglob("*.log"))) == 4
    log = b"".join(files.file(base, ".log").read_bytes() for base in (0, 10, 20, 30))
    appended = len(log)
    assert sender.sent_bytes <= 2 * appended
    assert bytes_from(stack, 0) == log
    assert description(sender.rlm).copied_through_offset == 29


def test_a_tail_ends_with_the_last_stable_batch(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    append(files, batch(25, 2), in_transaction(27, 9, 3), batch(30, 5))
    sender.wait_and_copy()
    assert tails(stack) == [(20, 26)]  # the transaction is open
    append(files, marker(35, 9, ABORT), batch(36, 4))
    high_watermarks(stack.log_dir, {("t", 0): 38})
    sender.ahead_s += 2.0  # the checkpoint is looked at once a second
    sender.wait_and_copy()
    assert tails(stack) == [(20, 26), (27, 35)]  # 36 to 39 is above the high watermark
    aborted = next(s for s in stack.segments() if s.start_offset == 27)
    index = b"".join(stack.rsm.fetch_index(aborted, IndexType.TRANSACTION))
    assert [(a.producer_id, a.first_offset, a.last_offset) for a in parse_aborted_txns(index)] == [
        (9, 27, 35)
    ]


def test_the_producers_of_a_tail_are_replayed(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    append(files, in_transaction(25, 3, 2), in_transaction(27, 9, 1), marker(28, 3, COMMIT))
    sender.wait_and_copy()
    assert tails(stack) == [(20, 26)]  # from 27 on, a transaction is open
    (tail,) = (s for s in stack.segments() if is_tail(s))
    snapshot = b"".join(stack.rsm.fetch_index(tail, IndexType.PRODUCER_SNAPSHOT))
    assert open_transactions(snapshot) == {3: 25}


def test_a_tail_waits_behind_a_damaged_log(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    sender.wait_and_copy()
    append(files, b"\xff" * 12 + batch(25, 5)[12:-1] + b"\0")
    append(files, batch(30, 5))
    sender.wait_and_copy()
    assert tails(stack) == [(20, 24)]


def test_a_damaged_snapshot_holds_no_tail_up(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    files.file(20, ".snapshot").write_bytes(b"damaged")
    sender.wait_and_copy()
    assert tails(stack) == [(20, 24)]
    assert ProblemKind.PRODUCER_SNAPSHOT_MISSING not in {
        p.kind for p in description(sender.rlm).problems
    }


def test_a_reader_in_the_middle_of_a_tail_continues_in_the_rolled_segment(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    append(files, batch(25, 5))
    sender.wait_and_copy()
    roll(files, 30)
    whole = files.file(20, ".log").read_bytes()
    reader = stack.tier_reader()
    first = fetch_once(reader, 20, max_bytes=1)
    got = b"".join(part.record_batches for part in first)
    assert got == batch(20, 5)
    take_turns(sender.rlm, 3)
    assert tails(stack) == []
    rest = read(reader, 25)
    assert isinstance(rest, bytes)
    assert got + rest[: len(whole) - len(got)] == whole


def test_a_tail_that_is_deleted_during_a_read_is_no_error(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    append(files, batch(25, 5))
    sender.wait_and_copy()
    roll(files, 30)
    deleted: list[object] = []

    def deleting_first(*args: Any, **kwargs: Any) -> Any:
        if not deleted:
            deleted.append(args)
            take_turns(sender.rlm, 3)
            assert tails(stack) == []
        return stack.rsm.fetch_log_segment(*args, **kwargs)

    reader = stack.tier_reader(rsm=Changed(stack.rsm, fetch_log_segment=deleting_first))
    got = read(reader, 22)
    assert deleted
    assert isinstance(got, bytes)
    assert got.startswith(files.file(20, ".log").read_bytes())


def test_of_equal_copies_of_two_leaders_one_stays(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    take_turns(sender.rlm)
    first = stack.segments()[0]
    other = replace(
        first,
        remote_log_segment_id=RemoteLogSegmentId(NAME, random_uuid()),
        broker_id=8,
        custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )
    indexes = {kind: b"".join(stack.rsm.fetch_index(first, kind)) for kind in KEPT}
    SmallTier(stack.rsm, stack.rlmm).copy(other, Files(files.file(0, ".log").read_bytes(), indexes))
    assert stack.ranges() == [(0, 9), *ROLLED]
    take_turns(sender.rlm, 2)
    assert stack.ranges() == ROLLED
    assert bytes_from(stack, 0) == b"".join(
        files.file(base, ".log").read_bytes() for base in (0, 10)
    )


def test_a_killed_pass_leaves_what_the_next_one_finishes(
    stack: Stack, files: PartitionFiles, sender: Sender
) -> None:
    """A process dies after the rolled segment finished, before its tails are marked."""
    sender.wait_and_copy()
    roll(files, 25)
    take_turns(sender.rlm)
    assert [s.state for s in stack.segments()].count(FINISHED) == 4
    again = Sender(stack)
    take_turns(again.rlm, 2)
    assert stack.ranges() == [*ROLLED, (20, 24)]
    assert tails(stack) == []


def test_a_rolled_segment_that_only_tails_have_is_a_lag(
    stack: Stack, files: PartitionFiles
) -> None:
    def refuse(metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        if metadata.start_offset == 20 and not is_tail(metadata):
            raise RetriableRemoteStorageError("away")
        return stack.rsm.copy_log_segment_data(metadata, data)

    sender = Sender(stack, copy_log_segment_data=refuse)
    sender.wait_and_copy()
    roll(files, 25)
    take_turns(sender.rlm)
    assert description(sender.rlm).copied_through_offset == 19
    assert sender.rlm.led_partitions()[0].copy.lag.segments == 1


def test_a_tail_that_the_store_refuses_is_tried_again(stack: Stack, files: PartitionFiles) -> None:
    failures = [RetriableRemoteStorageError("away")]

    def refuse(metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        if is_tail(metadata) and failures:
            raise failures.pop()
        return stack.rsm.copy_log_segment_data(metadata, data)

    sender = Sender(stack, copy_log_segment_data=refuse)
    sender.wait_and_copy()
    assert [(s.state, s.start_offset) for s in stack.segments() if is_tail(s)] == [(DELETING, 20)]
    take_turns(sender.rlm, 2)
    assert stack.ranges() == [*ROLLED, (20, 24)]

"""Test reads of shipped data, partly or wholly from the tier."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from socket import socket
from threading import Semaphore
from typing import Any, cast

import grpc
import pytest

from services.api.errors import CorruptSegmentError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    RecordSource,
    RemoteLogManager,
)
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import PLAINTEXT
from services.common.settings import ServiceSettings
from services.records.batches import MemoryWindow, walk_batches
from services.rlm.fetch.chunk_cache import MIB, ChunkCache
from services.rlm.fetch.index_cache import RemoteIndexCache, check_index
from services.rlm.fetch.partition_fetch import PartitionBudget, PartitionFetch, RequestBudget
from services.rlm.fetch.reads import ReadLimits
from services.rlm.fetch.segment_reader import RemoteSegmentReader
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import SegmentVanishedError
from services.rlm.manager import BrokerRemoteLogManager, RlmLimits
from services.rlm.partition import new_partition
from services.rlm.servicer import add_to_server
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.server.server import Service, start_grpc
from services.rsm.manager import ObjectRemoteStorageManager
from tests.harness.eventually import eventually
from tests.harness.ship_stack import (
    EVERYTHING,
    Stack,
    bytes_of,
    fetch,
    fetch_once,
    lose_rolled_segments,
    read,
)
from tests.harness.troubles import FailingRlmm, Hanging, SizesUnknown
from tests.harness.wrapper import Counted, Wrapper
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch, three_segments


def test_one_lost_object_makes_exactly_its_offsets_fail(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    lost = stack.object_of(stack.segments()[0])
    lost.unlink()
    rlm = stack.rlm()
    answers = {offset: read(rlm, offset) for offset in range(26)}
    failed = [offset for offset, answer in answers.items() if isinstance(answer, FetchError)]
    assert failed == list(range(10))
    assert {answers[offset] for offset in failed} == {FetchError.UNKNOWN_SERVER_ERROR}
    (part,) = fetch(rlm, 3)
    assert "offset 3" in part.error_message
    assert part.error_message.count(str(stack.segments()[0].remote_log_segment_id)) == 1
    assert lost.name in part.error_message
    assert f"sediment scrub --topic {NAME.topic}" in part.error_message


def test_fetch_returns_records_before_a_lost_object(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    first = files.file(0, ".log").read_bytes()
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    stack.object_of(stack.segments()[1]).unlink()
    assert read(stack.rlm(), 0) == first
    assert read(stack.rlm(), 10) is FetchError.UNKNOWN_SERVER_ERROR


def test_reads_in_order_cost_one_read_of_the_log_and_no_index(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    files.epochs((0, 0))
    whole = bytes_of(files.path)
    stack.ship()
    rlmm, rsm = Counted(stack.rlmm), Counted(stack.rsm)
    rlm = BrokerRemoteLogManager([], cast(Any, rsm), cast(Any, rlmm))
    rsm.calls.clear()  # RLM takes methods over when it is made, which counts.
    assert whole.startswith(b"".join(part.record_batches for part in fetch(rlm, 0, max_bytes=1)))
    assert rlmm.calls == {"list_remote_log_segments": 1}
    assert rsm.calls == {"fetch_log_segment": 1}
    (part,) = fetch(rlm, 5, max_bytes=1)
    assert part.record_batches == batch(5, 5)
    assert set(rsm.calls) == {"fetch_log_segment"}


def test_a_damaged_object_is_a_corrupt_message(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    path = stack.object_of(stack.segments()[0])
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    rlm = stack.rlm()
    (part,) = fetch(rlm, 5)
    assert part.error is FetchError.CORRUPT_MESSAGE
    segment, size = stack.segments()[0], len(batch(5, 5))
    assert part.error_message == (
        f"{segment.remote_log_segment_id}, offsets 0 to 9: wrong CRC-32C (batch at offset 5, bytes "
        f"{len(damaged) - size} to {len(damaged) - 1}) of the copied log; `sediment scrub --topic "
        f"{NAME.topic}` verifies the topic's segments and names damaged objects"
    )
    assert read(rlm, 10) != FetchError.CORRUPT_MESSAGE


def test_a_damaged_local_file_is_named_with_the_bytes(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    path = files.file(0, ".log")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    (part,) = fetch(stack.rlm(), 5)
    assert part.error is FetchError.CORRUPT_MESSAGE
    first = len(damaged) - len(batch(5, 5))
    assert part.error_message == (
        f"{NAME}: {path}: wrong CRC-32C (batch at offset 5, bytes {first} to {len(damaged) - 1}); "
        f"`kafka-dump-log.sh --deep-iteration --files {path}` shows what is left of it"
    )


def test_a_damaged_offset_index_names_its_segment_and_the_next_command(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    segment = stack.segments()[0]
    name = f"{segment.remote_log_segment_id}, offsets 0 to 9: OFFSET index: "
    with pytest.raises(CorruptSegmentError, match=f"{name}.*`sediment scrub --topic {NAME.topic}`"):
        check_index(segment, IndexType.OFFSET, b"123")


def test_epochs_that_the_broker_forgot_are_read_from_the_tier(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    files.epochs((0, 0), (2, 12))
    whole = bytes_of(files.path)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    files.epochs((2, 20))
    assert read(stack.rlm(), 0) == whole


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(24, FetchError.NONE), (25, FetchError.NONE), (26, FetchError.OFFSET_OUT_OF_RANGE)],
)
def test_the_log_end_is_the_last_offset_that_may_be_asked_for(
    stack: Stack, offset: int, expected: FetchError
) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    assert fetch(stack.rlm(), offset)[-1].error is expected


def test_below_the_log_start_is_out_of_range(stack: Stack) -> None:
    three_segments(stack.log_dir)
    lose_rolled_segments(stack.log_dir)
    assert read(stack.rlm(), 3) is FetchError.OFFSET_OUT_OF_RANGE


def test_an_unknown_partition_is_named(stack: Stack) -> None:
    assert read(stack.tier_reader(), 0) is FetchError.UNKNOWN_TOPIC_ID


def test_whole_batches_up_to_the_limit_and_at_least_one(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    rlm = stack.rlm()
    size = len(batch(0, 5))
    assert files.path.exists()
    for limit, batches in ((1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (3 * size, 3)):
        (part,) = fetch(rlm, 0, max_bytes=limit)
        assert len(part.record_batches) == batches * size


def test_a_read_in_the_middle_of_a_batch_begins_with_that_batch(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    (part,) = fetch(stack.rlm(), 7, max_bytes=1)
    assert (part.record_batches, part.source) == (batch(5, 5), RecordSource.REMOTE)


@pytest.mark.parametrize("lost", [True, False])
def test_a_batch_larger_than_a_message_is_cut_and_joins_again(stack: Stack, lost: bool) -> None:
    files = PartitionFiles(stack.log_dir)
    large = batch(0, payload=b"x" * 3_000_000)
    files.segment(0, [large, batch(1)])
    files.snapshot(2)
    files.segment(2, [batch(2)])
    stack.ship()
    if lost:
        lose_rolled_segments(stack.log_dir)
    parts = fetch(stack.rlm(), 0, max_bytes=1)
    assert max(len(part.record_batches) for part in parts) <= 1024 * 1024
    assert b"".join(part.record_batches for part in parts) == large


def test_a_request_of_several_partitions_shares_its_limit(stack: Stack) -> None:
    second = TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    three_segments(stack.log_dir)
    three_segments(stack.log_dir, second)
    size = len(batch(0, 5))
    wanted = tuple(FetchPartition(name, 0, EVERYTHING) for name in (NAME, second))
    parts = list(stack.rlm().fetch(FetchRequest(wanted, 6 * size)))
    assert [(p.topic_id_partition, len(p.record_batches)) for p in parts] == [
        (NAME, 5 * size),
        (second, size),
    ]


def test_a_dead_database_never_slows_local_reads(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    with closing(socket()) as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody_listens.getsockname()[1]}"
        with grpc.insecure_channel(address) as channel:
            dead = RemoteLogMetadataManagerClient(channel, address)
            _check_local_reads_only(stack, files, dead)


@pytest.mark.deep
def test_a_silent_database_leaves_threads_to_local_reads(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    for file in (stack.log_dir / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    hanging = Semaphore(0)
    rlmm: Any = Hanging(stack.rlmm, "remote_log_segment_metadata", hanging)
    limits = RlmLimits(read=ReadLimits(threads=2, wait_s=2.0))
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, rlmm, limits)
    with served_rlm(rlm, stream_threads=4) as client, ThreadPoolExecutor(5) as pool:
        stuck = [pool.submit(read, client, 0) for _ in range(4)]
        try:
            assert hanging.acquire(timeout=30.0)
            assert isinstance(pool.submit(read, client, 10).result(timeout=60.0), bytes)
        finally:
            rlmm.let_go()
        assert [a for x in stuck if not isinstance(a := x.result(timeout=60.0), bytes)] == []


def test_a_silent_store_holds_no_reader_and_one_request(stack: Stack) -> None:
    files = three_segments(stack.log_dir)
    whole = bytes_of(files.path)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    hanging = Semaphore(0)
    rsm = Hanging(stack.rsm, "fetch_log_segment", hanging)
    rlm = stack.rlm(rsm=rsm, limits=RlmLimits(read=ReadLimits(wait_s=0.05)))
    for _ in range(2):
        (part,) = fetch_once(rlm, 0)
        assert (part.error, part.record_batches) == (FetchError.NONE, b"")
        # A reader must not take it for the end of the log.
        assert part.throttle_time_ms > 0
    assert hanging.acquire(timeout=30.0)
    assert not hanging.acquire(blocking=False)
    rsm.let_go()
    eventually(lambda: read(rlm, 0) == whole)


@contextmanager
def served_rlm(rlm: BrokerRemoteLogManager, stream_threads: int) -> Iterator[RemoteLogManager]:
    name = "tieredstorage.v1.RemoteLogManager"
    service = Service(
        "rlm",
        name,
        partial(add_to_server, rlm),
        check=lambda: None,
        close=lambda: None,
    )
    settings = ServiceSettings(plaintext=True, stream_threads=stream_threads, drain_timeout_ms=1000)
    with ExitStack() as cleanup:
        address = start_grpc(service, settings, cleanup).address
        channel = cleanup.enter_context(open_channel(address, PLAINTEXT))
        yield RemoteLogManagerClient(channel, address)


def test_readers_that_miss_the_same_index_at_once_cause_one_fetch(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    segment = stack.segments()[0]
    fetches = Semaphore(0)
    rsm = Hanging(stack.rsm, "fetch_index", fetches)
    cache = RemoteIndexCache(rsm, 1024 * 1024, wait_s=60.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.offset_index, segment)
        assert fetches.acquire(timeout=30.0)
        second = pool.submit(cache.offset_index, segment)
        another = fetches.acquire(timeout=0.2)
        rsm.let_go()
        assert not another
        assert list(first.result(timeout=30.0)) == list(second.result(timeout=30.0))
    assert list(cache.offset_index(segment)) == list(first.result())
    assert not fetches.acquire(blocking=False)


class Outdated(LocalPartition):
    """Always returns the state of its first read."""

    looks = 0
    first: LocalLog | None = None

    def read(self) -> LocalLog | None:
        self.looks += 1
        self.first = self.first or super().read()
        return self.first


def test_read_of_repeatedly_vanishing_segments_ends(stack: Stack) -> None:
    three_segments(stack.log_dir)
    local = Outdated(find_partitions([stack.log_dir]).partitions[NAME])
    local.read()
    lose_rolled_segments(stack.log_dir)
    partition = new_partition(NAME, local, stack.rsm, stack.rlmm)
    cache = RemoteIndexCache(stack.rsm, 1024 * 1024)
    chunks = ChunkCache(stack.rsm)
    remote = RemoteSegmentReader(stack.rlmm, cache, chunks)
    fetch_of_one = PartitionFetch(partition, remote, 0)
    fetch_of_one.find_bounds()
    budget = PartitionBudget(RequestBudget(EVERYTHING), EVERYTHING)
    with pytest.raises(SegmentVanishedError):
        list(fetch_of_one.runs(budget))
    assert local.looks == 2 + 3


def test_the_log_start_is_shown_only_if_the_tier_was_read(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    for file in (stack.log_dir / "t-0").glob(f"{0:020}.*"):
        file.unlink()
    rlm = stack.rlm()
    assert fetch(rlm, 10)[0].log_start_offset == -1
    assert fetch(rlm, 5)[0].log_start_offset == 0
    assert fetch(rlm, 10)[0].log_start_offset == 0


def _check_local_reads_only(
    stack: Stack, files: PartitionFiles, dead: RemoteLogMetadataManagerClient
) -> None:
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, dead)
    assert read(rlm, 0) == bytes_of(files.path)
    lose_rolled_segments(stack.log_dir)
    assert read(rlm, 3) is FetchError.TIERED_STORAGE_NOT_AVAILABLE


def test_read_at_the_log_end_does_not_call_the_database(stack: Stack) -> None:
    three_segments(stack.log_dir)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, FailingRlmm(stack.rlmm))
    assert read(rlm, 25) == b""
    assert read(rlm, 26) is FetchError.OFFSET_OUT_OF_RANGE


def test_a_segment_of_unknown_size_is_an_error_and_never_skipped(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    rlm = BrokerRemoteLogManager([stack.log_dir], stack.rsm, SizesUnknown(stack.rlmm))
    assert read(rlm, 0) is FetchError.UNKNOWN_SERVER_ERROR


class RangesRead(Wrapper[ObjectRemoteStorageManager]):
    """The real RSM, and how many bytes of a log it reads in the store, in whole MiBs."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.rsm)
        self.read_bytes = 0

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> Iterator[bytes | memoryview]:
        end = min(end_position + 1 + -(end_position + 1) % MIB, metadata.segment_size_in_bytes)
        self.read_bytes += end - start_position // MIB * MIB
        return self.real.fetch_log_segment(metadata, start_position, end_position)


@pytest.mark.parametrize("max_bytes", [100_000, MIB, 3 * MIB])
def test_a_sequential_reader_reads_each_byte_of_the_store_about_once(
    stack: Stack, max_bytes: int
) -> None:
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(n, payload=os.urandom(70_000)) for n in range(150)])
    files.snapshot(150)
    files.segment(150, [batch(150)])
    stack.ship()
    size_bytes = stack.segments()[0].segment_size_in_bytes
    rsm = RangesRead(stack)
    rlm, offset, delivered_bytes = stack.tier_reader(rsm=rsm), 0, 0
    while offset < 150:
        (found, *more) = fetch(rlm, offset, max_bytes=max_bytes)
        data = b"".join(part.record_batches for part in (found, *more))
        delivered_bytes += len(data)
        offset += len(list(walk_batches(MemoryWindow(data), 0, len(data), offset, verify=False)))
    assert delivered_bytes == size_bytes
    assert rsm.read_bytes <= 1.05 * size_bytes

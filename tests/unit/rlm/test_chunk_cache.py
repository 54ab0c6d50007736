"""Test the chunks of remote segments in memory, over RSM on files."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Lock
from typing import Any, cast
from weakref import ref

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.chunk_cache import ABANDONED_AFTER_S, MIB, ChunkCache
from services.rlm.fetch.errors import ReadTimeoutError
from services.rlm.fetch.read_ahead import (
    RANGE_BYTES,
    SegmentWindow,
    SequentialRead,
    SequentialReads,
)
from services.rlm.fetch.tier_calls import TierWait
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.clocks import Clock
from tests.harness.eventually import eventually
from tests.harness.published import growth, published
from tests.harness.tier import a_topic, segment

SIZE = 24 * MIB
LOG = bytes(range(256)) * (SIZE // 256)
BATCH_BYTES = 64 * 1024
WAIT_S = 30.0
(TP,) = a_topic()


@dataclass
class RecordedRsm:
    """The real RSM; keeps the range of each read, and lets a test hold or fail reads."""

    rsm: ObjectRemoteStorageManager
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    before_read: Callable[[], None] = lambda: None
    copies: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> Iterator[bytes]:
        assert end is not None
        self.reads.append((metadata.start_offset, start, end + 1))
        self.before_read()
        return self.rsm.fetch_log_segment(metadata, start, end)

    def copied(self, number: int) -> RemoteLogSegmentMetadata:
        metadata = replace(segment(TP, number), segment_size_in_bytes=SIZE)
        custom = self.rsm.copy_log_segment_data(metadata, Files(LOG).data())
        return replace(metadata, custom_metadata=custom)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rsm, name)


@dataclass
class HeldLogs:
    """Logs whose end a test holds."""

    fetch_log_segment: Callable[[RemoteLogSegmentMetadata, int, int], Iterator[bytes]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectRemoteStorageManager]:
    buffers = PartBuffers(4, 8 * MIB, 10_000)
    objects = FilesystemStorage(tmp_path_factory.mktemp("objects"))
    manager = ObjectRemoteStorageManager(Locations(Location(1, objects, "")), buffers, 2)
    yield manager
    manager.close()


@pytest.fixture
def rsm(store: ObjectRemoteStorageManager, copies: list[RemoteLogSegmentMetadata]) -> RecordedRsm:
    return RecordedRsm(store, copies=copies)


@pytest.fixture(scope="module")
def copies(store: ObjectRemoteStorageManager) -> list[RemoteLogSegmentMetadata]:
    return [RecordedRsm(store).copied(number) for number in range(2)]


@pytest.fixture(scope="module")
def eight_copies(
    store: ObjectRemoteStorageManager, copies: list[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    return [*copies, *(RecordedRsm(store).copied(number) for number in range(2, 8))]


def partition_of(copied: RemoteLogSegmentMetadata) -> TopicIdPartition:
    """Return a partition for each segment."""
    return TopicIdPartition(TP.topic_id, TP.topic, copied.start_offset)


def require(condition: bool) -> None:
    assert condition


def cache_of(rsm: RecordedRsm, total_bytes: int = 64 * MIB, fills: int = 4) -> ChunkCache:
    return ChunkCache(cast(RemoteStorageManager, rsm), total_bytes, fills, Clock())


def read(
    cache: ChunkCache,
    copied: RemoteLogSegmentMetadata,
    start: int,
    size: int,
    reader: SequentialRead,
    following: RemoteLogSegmentMetadata | None = None,
    readers: int = 1,
    skipped: int = 0,
) -> int:
    """Read as one fetch does; return the position after its last byte."""
    wait = TierWait(WAIT_S)
    window = SegmentWindow(cache, copied, size, reader, wait, lambda: following, readers, skipped)
    position = start
    with closing(window):
        while position < start + size and (piece := window.read(position, BATCH_BYTES)):
            assert piece == LOG[position : position + len(piece)]
            position += len(piece)
    reader.run_bytes += position - start
    return position


def fill(
    cache: ChunkCache,
    copied: RemoteLogSegmentMetadata,
    start: int,
    wanted: int,
    expected: int,
    passed: bool = True,
) -> None:
    """Use a chunk of `expected` bytes once it is whole; `wanted` are requested."""
    chunk = cache.acquire(copied, start, wanted)
    assert chunk.counted_bytes == expected
    assert chunk.view(start, start + expected, WAIT_S) is not None
    eventually(lambda: not chunk.is_filling)
    cache.release(chunk)
    if passed:
        cache.mark_consumed(chunk)


def is_reading(rsm: RecordedRsm, copied: RemoteLogSegmentMetadata) -> bool:
    return rsm.reads[-1][0] == copied.start_offset


def test_a_sequential_reader_needs_few_requests_over_segment_borders(rsm: RecordedRsm) -> None:
    cache, reader = cache_of(rsm), SequentialRead()
    for copied, following in ((rsm.copies[0], rsm.copies[1]), (rsm.copies[1], None)):
        position = 0
        while position < SIZE:
            position = read(cache, copied, position, MIB, reader, following)
        if following is not None:  # Requested by the reader of the segment before it.
            eventually(partial(is_reading, rsm, following))
    requested = [end - start for _, start, end in rsm.reads]
    assert sum(requested) == 2 * SIZE
    assert len(requested) <= 6
    assert max(requested) == 2 * RANGE_BYTES


def test_a_reader_that_goes_on_needs_half_as_many_requests(rsm: RecordedRsm) -> None:
    cache, reader = cache_of(rsm), SequentialRead(run_bytes=cache_of(rsm).total_bytes)
    read(cache, rsm.copies[0], 0, SIZE, reader)
    assert [end - start for _, start, end in rsm.reads] == [16 * MIB, 8 * MIB]


class Gate:
    """Holds the reads of logs until it is opened, and counts those that wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self.opened = Event()
        self._lock = Lock()

    def __call__(self) -> None:
        with self._lock:
            self.waiting += 1
        require(self.opened.wait(WAIT_S))


def begun(cache: ChunkCache, copied: RemoteLogSegmentMetadata, size: int) -> SegmentWindow:
    """Begin a read of `size` bytes that is not served in time."""
    wait = TierWait(0.01)
    window = SegmentWindow(cache, copied, size, SequentialRead(), wait, lambda: None)
    with pytest.raises(ReadTimeoutError):
        window.read(0, 1)
    return window


def test_what_a_new_reader_surely_reads_is_requested_in_ranges_at_once(rsm: RecordedRsm) -> None:
    rsm.before_read = gate = Gate()
    cache = cache_of(rsm)
    try:
        with closing(begun(cache, rsm.copies[0], SIZE)):
            eventually(lambda: gate.waiting == 3)
    finally:
        gate.opened.set()
    # They arrive in any order, and are read in theirs.
    assert read(cache, rsm.copies[0], 0, SIZE, SequentialRead()) == SIZE
    assert sorted((start, end) for _, start, end in rsm.reads) == [
        (start, start + RANGE_BYTES) for start in range(0, SIZE, RANGE_BYTES)
    ]


def test_ranges_at_once_take_no_more_memory_than_a_readers_share(rsm: RecordedRsm) -> None:
    rsm.before_read = gate = Gate()
    cache = cache_of(rsm, total_bytes=2 * 2 * RANGE_BYTES)
    try:
        with closing(begun(cache, rsm.copies[0], SIZE)):
            eventually(lambda: gate.waiting == 2)
            assert published("sediment_rlm_chunk_cache_bytes") == 2 * RANGE_BYTES
    finally:
        gate.opened.set()
    assert read(cache, rsm.copies[0], 0, SIZE, SequentialRead()) == SIZE
    assert published("sediment_rlm_chunk_cache_bytes") <= cache.total_bytes


def test_an_error_in_one_of_several_ranges_is_that_ranges_alone(rsm: RecordedRsm) -> None:
    failed: list[int] = []

    def second_fails(metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        if start == RANGE_BYTES and not failed:
            failed.append(start)
            raise RemoteStorageError("gone")
        return rsm.fetch_log_segment(metadata, start, end)

    cache = ChunkCache(cast(RemoteStorageManager, HeldLogs(second_fails)), 64 * MIB, 4, Clock())
    copied, arrived = rsm.copies[0], list[int]()
    window = SegmentWindow(cache, copied, SIZE, SequentialRead(), TierWait(WAIT_S), lambda: None)

    def read_all() -> None:
        for position in range(0, SIZE, BATCH_BYTES):
            window.read(position, BATCH_BYTES)
            arrived.append(position)

    with closing(window):
        # If the error comes before its reader, the range is requested again.
        with suppress(RemoteStorageError):
            read_all()
        assert len(arrived) * BATCH_BYTES in (RANGE_BYTES, SIZE)
    assert read(cache, copied, 0, SIZE, SequentialRead()) == SIZE
    assert sorted(start for _, start, _ in rsm.reads) == [0, RANGE_BYTES, 2 * RANGE_BYTES]


def test_a_cache_that_is_closed_frees_all_ranges_at_once(rsm: RecordedRsm) -> None:
    rsm.before_read = gate = Gate()
    cache = cache_of(rsm)
    with closing(begun(cache, rsm.copies[0], SIZE)) as window:
        eventually(lambda: gate.waiting == 3)
        cache.close()
        assert published("sediment_rlm_chunk_cache_bytes") == 0
    gate.opened.set()
    left = [ref(chunk) for chunk in window._read.used]
    del window
    eventually(lambda: all(each() is None for each in left))


def test_several_sequential_readers_share_the_memory(
    rsm: RecordedRsm, eight_copies: list[RemoteLogSegmentMetadata]
) -> None:
    """Eight of them have room for requests of 8 MiB, without reading ahead."""
    logs = eight_copies
    cache, reads = cache_of(rsm, fills=16), SequentialReads(Clock())
    for position in range(0, SIZE, MIB):
        # All at once: each that is alone for a moment would take more of the memory.
        readers = [reads.begin(partition_of(copied), position) for copied in logs]
        for copied, reader in zip(logs, readers, strict=True):
            assert read(cache, copied, position, MIB, reader, readers=reads.active())
        for copied, reader in zip(logs, readers, strict=True):
            reads.end(partition_of(copied), position + MIB, reader)
    assert sum(end - start for _, start, end in rsm.reads) == len(logs) * SIZE
    assert len(rsm.reads) <= 5 * len(logs)


def test_a_reader_that_pauses_gets_its_share_again_at_once() -> None:
    clock = Clock()
    reads = SequentialReads(clock)
    names = [TopicIdPartition(TP.topic_id, TP.topic, number) for number in range(3)]
    for name in names:
        reads.end(name, 1, SequentialRead())
    held = [reads.begin(name, 1) for name in names]
    assert reads.active() == 3
    for name, reader in zip(names, held, strict=True):
        reads.end(name, 2, reader)
    clock.now_s = ABANDONED_AFTER_S + 1
    busy = reads.begin(names[0], 2)
    assert reads.active() == 1
    returned = reads.begin(names[1], 2)
    assert returned is held[1]
    assert reads.active() == 2
    assert busy is held[0]


def test_a_chunk_that_is_being_read_is_not_evicted(rsm: RecordedRsm) -> None:
    """Not even if its reader is slow, and others need the room."""
    clock = Clock()
    cache = ChunkCache(cast(RemoteStorageManager, rsm), 16 * MIB, 4, clock)
    slow = cache.acquire(rsm.copies[0], 0, 8 * MIB)
    assert slow.view(0, 8 * MIB, WAIT_S) is not None
    eventually(lambda: not slow.is_filling)
    cache.mark_consumed(slow)
    clock.now_s = 2 * ABANDONED_AFTER_S
    for position in range(0, SIZE, 4 * MIB):
        fill(cache, rsm.copies[1], position, 4 * MIB, 4 * MIB)
    assert cache.acquire(rsm.copies[0], 0, 8 * MIB) is slow
    cache.release(slow)
    assert (
        sum(start == 0 and name == rsm.copies[0].start_offset for name, start, _ in rsm.reads) == 1
    )


def test_a_chunk_makes_room_as_soon_as_all_of_its_bytes_are_read(rsm: RecordedRsm) -> None:
    """The stream's end, which the store sends later, holds no room."""
    may_end = Event()

    def held(metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        yield from rsm.fetch_log_segment(metadata, start, end)
        require(may_end.wait(WAIT_S))

    logs = cast(RemoteStorageManager, HeldLogs(held))
    cache = ChunkCache(logs, 8 * MIB, 4, Clock())
    try:
        chunk = cache.acquire(rsm.copies[0], 0, 8 * MIB)
        assert len(chunk.view(0, 8 * MIB, WAIT_S) or b"") == 8 * MIB
        cache.release(chunk)
        cache.mark_consumed(chunk)
        following = cache.acquire(rsm.copies[0], 8 * MIB, 8 * MIB)
        assert following.counted_bytes == 8 * MIB
        cache.release(following)
    finally:
        may_end.set()


def test_a_reader_that_does_not_continue_gets_the_whole_mibs_of_what_it_asked_for(
    rsm: RecordedRsm,
) -> None:
    cache, starts = cache_of(rsm), (5 * MIB, MIB, 20 * MIB, 9 * MIB)
    for start in starts:
        read(cache, rsm.copies[0], start, MIB, SequentialRead())
    for start in starts:  # The same with something to skip, and at no boundary.
        read(cache, rsm.copies[0], start + 2 * MIB - 5, MIB, SequentialRead(), skipped=1)
    assert [(start, end - start) for _, start, end in rsm.reads] == [
        *((start, MIB) for start in starts),
        *((start + MIB, 2 * MIB) for start in starts),
    ]


def test_what_other_chunks_have_is_not_requested_again(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm)
    for start in (5 * MIB + 7, 4 * MIB + 7, 6 * MIB + 7, 7 * MIB + 7):
        read(cache, rsm.copies[0], start, 100, SequentialRead())
    assert [(start, end) for _, start, end in rsm.reads] == [
        (5 * MIB, 6 * MIB),
        (4 * MIB, 5 * MIB),
        (6 * MIB, 7 * MIB),
        (7 * MIB, 8 * MIB),
    ]


def test_readers_of_the_same_bytes_share_a_request(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm)
    chunks = [cache.acquire(rsm.copies[0], 3, MIB) for _ in range(3)]
    assert len(set(chunks)) == len(rsm.reads) == 1
    assert chunks[0].view(3, 4, WAIT_S) is not None


def test_a_read_that_is_left_goes_on_for_the_next_reader(rsm: RecordedRsm) -> None:
    may_read = Event()
    rsm.before_read = lambda: require(may_read.wait(WAIT_S))
    cache = cache_of(rsm)
    window = SegmentWindow(
        cache, rsm.copies[0], MIB, SequentialRead(), TierWait(0.01), lambda: None
    )
    with pytest.raises(ReadTimeoutError, match=r"position 0 within 0\.01 s"):
        window.read(0, 1)
    may_read.set()
    assert read(cache, rsm.copies[0], 0, MIB, SequentialRead()) == MIB
    assert len(rsm.reads) == 1


def test_failed_requests_are_retried_if_that_may_help(rsm: RecordedRsm) -> None:
    errors = [
        RemoteStorageError("gone"),
        RetriableRemoteStorageError("away"),
        ThrottledError("busy"),
    ]

    def fail() -> None:
        if len(rsm.reads) <= len(errors):
            raise errors[len(rsm.reads) - 1]

    cache = cache_of(rsm)
    rsm.before_read = fail
    with pytest.raises(RemoteStorageError, match="gone"):
        read(cache, rsm.copies[0], 0, MIB, SequentialRead())
    assert read(cache, rsm.copies[0], 0, MIB, SequentialRead()) == MIB
    assert len(rsm.reads) == 4


def test_a_scan_does_not_evict_what_several_readers_use(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm, total_bytes=20 * MIB)
    for _ in range(2):
        fill(cache, rsm.copies[1], 0, 2 * MIB, 2 * MIB)
    reader, position = SequentialRead(), 0
    while position < SIZE:
        position = read(cache, rsm.copies[0], position, MIB, reader)
    before = len(rsm.reads)
    cache.release(cache.acquire(rsm.copies[1], 0, MIB))
    assert len(rsm.reads) == before


def test_hits_misses_and_evictions_are_published(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm, total_bytes=4 * MIB)
    prefix = "sediment_rlm_chunk_cache_"
    grown = growth(
        *(f"{prefix}{name}" for name in ("hits_total", "misses_total", "evictions_total"))
    )
    fill(cache, rsm.copies[0], 0, 3 * MIB, 3 * MIB)
    assert (grown(), published(f"{prefix}bytes")) == ([0, 1, 0], 3 * MIB)
    cache.release(cache.acquire(rsm.copies[0], MIB, MIB))
    assert grown() == [1, 1, 0]
    fill(cache, rsm.copies[1], 0, 2 * MIB, 2 * MIB)
    assert (grown(), published(f"{prefix}bytes")) == ([1, 2, 1], 2 * MIB)


def test_bytes_that_were_requested_ahead_and_never_read_are_published(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm, total_bytes=4 * MIB)
    grown = growth(
        "sediment_rlm_read_ahead_bytes_total", "sediment_rlm_read_ahead_unused_bytes_total"
    )
    cache.fetch_ahead(rsm.copies[0], 0, 2 * MIB)
    assert grown() == [2 * MIB, 0]
    eventually(lambda: len(rsm.reads) == 1)
    cache.remove([rsm.copies[0].remote_log_segment_id])
    assert grown() == [2 * MIB, 2 * MIB]


def test_without_room_a_reader_gets_a_little_more_memory_and_nothing_is_read_ahead(
    rsm: RecordedRsm,
) -> None:
    clock = Clock()
    cache = ChunkCache(cast(RemoteStorageManager, rsm), 4 * MIB, 4, clock)
    fill(cache, rsm.copies[0], 0, 4 * MIB, 4 * MIB, passed=False)
    cache.fetch_ahead(rsm.copies[0], 10 * MIB, 4 * MIB)
    assert len(rsm.reads) == 1
    fill(cache, rsm.copies[0], 10 * MIB, 4 * MIB, MIB, passed=False)
    cache.fetch_ahead(rsm.copies[0], 10 * MIB, 4 * MIB)
    assert [end - start for _, start, end in rsm.reads] == [4 * MIB, MIB]
    clock.now_s = ABANDONED_AFTER_S
    cache.fetch_ahead(rsm.copies[0], 10 * MIB, 4 * MIB)
    assert rsm.reads[2:] == [(rsm.copies[0].start_offset, 10 * MIB, 14 * MIB)]


def test_requests_to_a_store_that_hangs_are_bounded(rsm: RecordedRsm) -> None:
    may_read = Event()
    rsm.before_read = lambda: require(may_read.wait(WAIT_S))
    cache = cache_of(rsm, fills=2)
    for position in (0, 2 * MIB):
        cache.acquire(rsm.copies[0], position, MIB)
    try:
        with pytest.raises(ThrottledError, match=r"limit 2\); retry"):
            cache.acquire(rsm.copies[0], 4 * MIB, MIB)
    finally:
        may_read.set()


def test_chunks_of_a_deleted_segment_are_removed(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm)
    read(cache, rsm.copies[0], 0, MIB, SequentialRead())
    cache.remove([rsm.copies[0].remote_log_segment_id])
    read(cache, rsm.copies[0], 0, MIB, SequentialRead())
    assert len(rsm.reads) == 2


def test_a_remembered_reader_keeps_no_bytes_that_the_cache_has_dropped(rsm: RecordedRsm) -> None:
    cache, readers = cache_of(rsm), [SequentialRead() for _ in range(3)]
    for number, reader in enumerate(readers):
        read(cache, rsm.copies[0], number * 4 * MIB, MIB, reader)
    left = [ref(chunk) for reader in readers for chunk in reader.used]
    assert len(left) == 3
    cache.close()
    eventually(lambda: all(each() is None for each in left))


def test_bytes_for_later_are_not_requested_without_room(rsm: RecordedRsm) -> None:
    cache = cache_of(rsm, total_bytes=4 * MIB)
    fill(cache, rsm.copies[0], 0, 4 * MIB, 4 * MIB, passed=False)
    with pytest.raises(ThrottledError, match="no room"):
        cache.acquire(rsm.copies[1], 0, MIB, needs_room=True)
    assert len(rsm.reads) == 1

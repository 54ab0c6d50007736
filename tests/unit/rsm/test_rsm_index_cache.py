"""Test the cache of whole .indexes objects: its limit, its time, and readers at the same moment."""

from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.active_copies import Waiter
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.deadline import ByteRate
from services.rsm.factory import build_manager
from services.rsm.fetch import SegmentReader
from services.rsm.index_cache import ENTRY_OVERHEAD_BYTES, IndexCache
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location, Locations
from services.rsm.settings import RsmSettings
from services.rsm.verification import ReadVerification
from tests.contract.remote_storage_manager_contract import MIB, Files, copied, some_bytes
from tests.harness.clocks import Clock
from tests.harness.eventually import eventually
from tests.harness.published import published

FOREVER_S = 3_600.0
SIZES = {
    IndexType.OFFSET: 40_000,
    IndexType.TIMESTAMP: 60_000,
    IndexType.PRODUCER_SNAPSHOT: 0,
    IndexType.TRANSACTION: 34,
    IndexType.LEADER_EPOCH: 8,
}
INDEXES = {kind: some_bytes(size, seed) for seed, (kind, size) in enumerate(SIZES.items())}
OBJECT_BYTES = sum(SIZES.values())
ENTRY_BYTES = OBJECT_BYTES + ENTRY_OVERHEAD_BYTES


class CountingStore(FilesystemStorage):
    """Counts ranged reads; each waits for `gate` and advances a clock by `read_s` per chunk."""

    def __init__(self, root: Path, clock: "Clock") -> None:
        super().__init__(root)
        self.reads: list[tuple[int, int]] = []
        self.fails = False
        self.gate = Event()
        self.gate.set()
        self.chunk_s = 0.0
        self._clock = clock

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        self.reads.append((start, end))
        assert self.gate.wait(60)
        if self.fails:
            self.fails = False
            raise RetriableRemoteStorageError("the store is not well")
        for chunk in super().fetch(key, start, end):
            yield chunk
            self._clock.now_s += self.chunk_s


@dataclass
class World:
    """A reader over files, with the cache and the clock of a test."""

    root: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.store = CountingStore(self.root, self.clock)
        self.location = Location(1, self.store, "")
        self.use(IndexCache(ttl_s=FOREVER_S, clock=self.clock))

    def use(self, cache: IndexCache) -> None:
        self.cache = cache
        verification = ReadVerification("off", MIB)
        self.reader = SegmentReader(
            Locations(self.location), verification, cache, ByteRate(0, Waiter())
        )

    def copy(self, indexes: Mapping[IndexType, bytes] = INDEXES) -> RemoteLogSegmentMetadata:
        settings = RsmSettings(backend="filesystem", directory=self.root)
        with closing(build_manager(settings)) as manager:
            return copied(manager, Files(b"log", indexes))

    def read(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        return b"".join(self.reader.fetch_index(segment, kind, as_stored=True))

    def read_all(self, segment: RemoteLogSegmentMetadata) -> None:
        assert {kind: self.read(segment, kind) for kind in IndexType} == INDEXES

    def key(self, segment: RemoteLogSegmentMetadata) -> str:
        found = CustomMetadata.from_bytes(segment.custom_metadata or b"")
        return self.location.keys(segment).indexes(found.attempt)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_all_indexes_of_a_segment_are_read_at_once(world: World) -> None:
    segment = world.copy()
    for _ in range(3):
        world.read_all(segment)
    assert world.store.reads == [(0, OBJECT_BYTES - 1)]


def test_indexes_are_read_again_after_their_time(world: World) -> None:
    segment = world.copy()
    world.use(IndexCache(ttl_s=5, clock=world.clock))
    world.read_all(segment)
    world.clock.now_s = 4.9
    world.read_all(segment)
    assert len(world.store.reads) == 1
    world.clock.now_s = 5
    world.read_all(segment)
    assert len(world.store.reads) == 2


def test_readers_that_miss_at_once_cause_one_request(world: World) -> None:
    segment = world.copy()
    world.store.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        kinds = [kind for kind in IndexType for _ in range(8 // len(IndexType) + 1)][:8]
        answers = [pool.submit(world.read, segment, kind) for kind in kinds]
        eventually(lambda: len(world.store.reads) == 1)
        world.store.gate.set()
        assert [a.result(timeout=60) for a in answers] == [INDEXES[kind] for kind in kinds]
    assert len(world.store.reads) == 1


def test_a_failed_request_is_sent_again_by_the_next_reader(world: World) -> None:
    segment = world.copy()
    world.store.fails = True
    with pytest.raises(RetriableRemoteStorageError):
        world.read(segment, IndexType.OFFSET)
    world.read_all(segment)
    assert len(world.store.reads) == 2


def test_the_least_recently_used_is_evicted(world: World) -> None:
    first, second, third = (world.copy() for _ in range(3))
    world.use(IndexCache(2 * ENTRY_BYTES, ttl_s=FOREVER_S))
    for segment in (first, second, first, third, first):
        world.read_all(segment)
    assert len(world.store.reads) == 3
    world.read_all(second)
    assert len(world.store.reads) == 4


def test_borrowed_objects_leave_no_room_for_others(world: World) -> None:
    slow, other = world.copy(), world.copy()
    world.use(IndexCache(2 * OBJECT_BYTES - 1, ttl_s=FOREVER_S))
    stream = world.reader.fetch_index(slow, IndexType.TRANSACTION)
    assert isinstance(stream, Generator)
    with closing(stream):
        next(stream)
        world.store.reads.clear()
        assert world.read(other, IndexType.OFFSET) == INDEXES[IndexType.OFFSET]
        assert world.read(other, IndexType.PRODUCER_SNAPSHOT) == b""
        assert world.store.reads == [(0, SIZES[IndexType.OFFSET] - 1), (0, 0)]
    world.read_all(other)
    assert world.store.reads[2:] == [(0, OBJECT_BYTES - 1)]


def test_an_object_that_is_too_large_is_read_by_ranges(world: World) -> None:
    segment = world.copy()
    world.use(IndexCache(max_object_bytes=OBJECT_BYTES - 1, ttl_s=FOREVER_S))
    for _ in range(2):
        assert world.read(segment, IndexType.TRANSACTION) == INDEXES[IndexType.TRANSACTION]
    start = sum(
        SIZES[kind] for kind in list(IndexType)[: list(IndexType).index(IndexType.TRANSACTION)]
    )
    assert world.store.reads == [(start, start + 33)] * 2


def test_the_indexes_of_a_slow_store_are_read_by_ranges(world: World) -> None:
    large = some_bytes(2 * MIB)
    segment = world.copy({**INDEXES, IndexType.OFFSET: large})
    world.store.chunk_s = 5.1
    assert world.read(segment, IndexType.OFFSET) == large
    whole_bytes = OBJECT_BYTES - SIZES[IndexType.OFFSET] + len(large)
    assert world.store.reads == [(0, whole_bytes - 1), (0, len(large) - 1)]


def test_a_deleted_object_is_not_kept_even_if_it_is_being_read(world: World) -> None:
    segment = world.copy()
    world.store.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.read, segment, IndexType.OFFSET)
        eventually(lambda: len(world.store.reads) == 1)
        world.cache.drop([world.key(segment)])
        world.store.gate.set()
        assert answer.result(timeout=60) == INDEXES[IndexType.OFFSET]
    assert not world.store.delete([world.key(segment)])
    for kind in IndexType:
        with pytest.raises(RemoteResourceNotFoundError):
            world.read(segment, kind)


def test_a_changed_index_is_dropped_and_the_others_are_still_verified(world: World) -> None:
    segment = world.copy()
    path = world.root / world.key(segment)
    whole = bytearray(path.read_bytes())
    whole[5] ^= 1
    path.write_bytes(whole)
    for _ in range(2):
        with pytest.raises(CorruptSegmentError, match="OFFSET index"):
            world.read(segment, IndexType.OFFSET)
    whole[5] ^= 1
    path.write_bytes(whole)
    world.read_all(segment)


def test_indexes_before_a_lost_end_are_still_read(world: World) -> None:
    segment = world.copy()
    path = world.root / world.key(segment)
    path.write_bytes(path.read_bytes()[:-1])
    for kind in IndexType:
        if kind is not IndexType.LEADER_EPOCH:
            assert world.read(segment, kind) == INDEXES[kind]
    with pytest.raises(CorruptSegmentError):
        world.read(segment, IndexType.LEADER_EPOCH)


def test_each_read_without_a_request_is_counted_as_a_hit(world: World) -> None:
    def hits() -> float:
        return published("sediment_rsm_index_cache_hits_total")

    segment, before = world.copy(), hits()
    world.read(segment, IndexType.OFFSET)
    assert hits() == before
    world.read(segment, IndexType.TIMESTAMP)
    world.read(segment, IndexType.OFFSET)
    assert hits() == before + 2
    assert len(world.store.reads) == 1

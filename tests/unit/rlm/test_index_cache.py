"""Test the index cache over a real RSM: the fetches, their number, and stale indexes."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from struct import pack
from typing import Any, cast

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.chunk_cache import ChunkCache
from services.rlm.fetch.index_cache import RemoteIndexCache, name_of
from services.rlm.fetch.index_files import IndexFileLimits, IndexFiles
from services.rlm.fetch.reads import CacheInvalidatingStorage
from services.rlm.metrics import TopicCounts
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.eventually import eventually
from tests.harness.tier import SIZE_BYTES, a_topic, segment
from tests.unit.rlm.kafka_bytes import producer_snapshot

MIB = 1024 * 1024
(TP,) = a_topic()


def indexes_of(number: int) -> dict[IndexType, bytes]:
    """Make valid indexes that differ from segment to segment."""
    return {
        IndexType.OFFSET: pack(">iiii", 10 + number, 100, 20 + number, 500),
        IndexType.TIMESTAMP: pack(">qiqi", 1000 + number, 0, 2000, 99),
        IndexType.TRANSACTION: pack(">hqqqq", 0, number, 1, 2, 3),
        IndexType.PRODUCER_SNAPSHOT: producer_snapshot({number: 1}),
        IndexType.LEADER_EPOCH: b"0\n1\n%d 0\n" % number,
    }


@dataclass
class CountedRsm:
    """The real RSM; counts the index requests, and lets a test act in between."""

    rsm: ObjectRemoteStorageManager
    fetches: int = 0
    before_fetch: Callable[[], None] = lambda: None

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> Iterator[bytes]:
        self.fetches += 1
        self.before_fetch()
        return self.rsm.fetch_index(metadata, kind)

    def copied(self, number: int, **indexes: bytes | None) -> RemoteLogSegmentMetadata:
        metadata = segment(TP, number)
        changed = {IndexType[name]: data for name, data in indexes.items()}
        files = {k: data for k, data in {**indexes_of(number), **changed}.items() if data}
        custom = self.rsm.copy_log_segment_data(metadata, Files(bytes(SIZE_BYTES), files).data())
        return replace(metadata, custom_metadata=custom)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rsm, name)


@pytest.fixture
def rsm(tmp_path: Path) -> Iterator[CountedRsm]:
    objects = tmp_path / "objects"
    objects.mkdir()
    buffers = PartBuffers(4, 8 * MIB, 10_000)
    manager = ObjectRemoteStorageManager(
        Locations(Location(1, FilesystemStorage(objects), "")), buffers, 2
    )
    yield CountedRsm(manager)
    manager.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "indexes"


Opens = Callable[..., RemoteIndexCache]


@pytest.fixture
def opens(rsm: CountedRsm, directory: Path) -> Opens:
    """Open the cache as a starting process does."""

    def opened(
        memory_bytes: int = MIB, total_bytes: int = MIB, wait_s: float = 30.0
    ) -> RemoteIndexCache:
        files = IndexFiles(IndexFileLimits(directory, total_bytes))
        cache = RemoteIndexCache(_storage(rsm), memory_bytes, files, wait_s)
        cache.maintain()
        return cache

    return opened


def _storage(rsm: CountedRsm) -> RemoteStorageManager:
    return cast(RemoteStorageManager, rsm)


@pytest.mark.parametrize("kind", IndexType)
def test_an_index_is_fetched_once_over_restarts(
    rsm: CountedRsm, opens: Opens, kind: IndexType
) -> None:
    copied = rsm.copied(3)
    for _ in range(3):
        cache = opens()
        assert cache.index(copied, kind) == indexes_of(3)[kind]
        assert cache.index(copied, kind) == indexes_of(3)[kind]
    assert rsm.fetches == 1


def test_an_offset_is_looked_up_the_same_from_the_store_memory_and_a_file(
    rsm: CountedRsm, opens: Opens
) -> None:
    copied = rsm.copied(3)
    first = opens()
    answers = [cache.offset_index(copied).lookup(315) for cache in (first, first, opens())]
    assert answers == [(313, 100)] * 3


def test_without_memory_files_are_read_again(rsm: CountedRsm, opens: Opens) -> None:
    cache, copied = opens(memory_bytes=1), rsm.copied(0)
    for _ in range(3):
        assert cache.index(copied, IndexType.OFFSET) == indexes_of(0)[IndexType.OFFSET]
    assert rsm.fetches == 1


def test_without_a_directory_there_is_memory(rsm: CountedRsm) -> None:
    cache, copied = RemoteIndexCache(_storage(rsm), MIB), rsm.copied(0)
    for _ in range(3):
        cache.index(copied, IndexType.OFFSET)
    assert rsm.fetches == 1


@pytest.mark.deep
def test_a_file_with_any_damaged_byte_is_fetched_again(
    rsm: CountedRsm, opens: Opens, directory: Path
) -> None:
    copied = rsm.copied(0)
    expected = indexes_of(0)
    for kind in IndexType:
        path = directory / name_of(copied.remote_log_segment_id, kind)
        opens().index(copied, kind)
        sound = path.read_bytes()
        for at in range(len(sound)):
            damaged = bytearray(sound)
            damaged[at] ^= 0x80
            path.write_bytes(damaged)
            before = rsm.fetches
            assert opens().index(copied, kind) == expected[kind]
            assert rsm.fetches == before + 1
            assert path.read_bytes() == sound


def test_metadata_without_transaction_index_causes_no_fetch(rsm: CountedRsm, opens: Opens) -> None:
    copied = replace(rsm.copied(0, TRANSACTION=None), txn_idx_empty=True)
    assert opens().index(copied, IndexType.TRANSACTION) == b""
    assert rsm.fetches == 0


def test_a_missing_transaction_index_is_not_cached(rsm: CountedRsm, opens: Opens) -> None:
    cache, copied = opens(), rsm.copied(0)

    def miss() -> None:
        raise RemoteResourceNotFoundError("by mistake")

    rsm.before_fetch = miss
    assert cache.index(copied, IndexType.TRANSACTION) == b""
    rsm.before_fetch = lambda: None
    expected = indexes_of(0)[IndexType.TRANSACTION]
    assert cache.index(copied, IndexType.TRANSACTION) == expected
    assert opens().index(copied, IndexType.TRANSACTION) == expected
    assert rsm.fetches == 2


def test_a_missing_segment_is_not_cached(rsm: CountedRsm, opens: Opens) -> None:
    cache, copied = opens(), rsm.copied(0)
    rsm.rsm.delete_log_segment_data(copied)
    for fetches in (1, 2):
        with pytest.raises(RemoteResourceNotFoundError):
            cache.index(copied, IndexType.OFFSET)
        assert rsm.fetches == fetches


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (IndexType.OFFSET, b"1234567"),
        (IndexType.OFFSET, pack(">iiii", 20, 100, 10, 500)),
        (IndexType.OFFSET, pack(">ii", 20, SIZE_BYTES)),
        (IndexType.TIMESTAMP, b"1234567"),
        (IndexType.TIMESTAMP, pack(">qiqi", 2000, 0, 1000, 1)),
        (IndexType.TIMESTAMP, pack(">qi", 1000, 100)),
        (IndexType.TRANSACTION, b"1234567"),
        (IndexType.PRODUCER_SNAPSHOT, b"1234567"),
        (IndexType.LEADER_EPOCH, b"\xff"),
        (IndexType.LEADER_EPOCH, b"0\n2\n0 0\n"),
    ],
)
def test_an_invalid_index_is_reported_and_not_kept(
    rsm: CountedRsm, opens: Opens, directory: Path, kind: IndexType, data: bytes
) -> None:
    cache, copied = opens(), rsm.copied(0, **{kind.name: data})
    for fetches in (1, 2):
        with pytest.raises(CorruptSegmentError, match=f"{kind.name} index"):
            cache.index(copied, kind)
        assert rsm.fetches == fetches
    assert list(directory.iterdir()) == []


def test_a_failure_reaches_all_waiting_readers_and_is_not_cached(
    rsm: CountedRsm, opens: Opens
) -> None:
    cache, copied = opens(), rsm.copied(0)
    is_asked, may_fail = threading.Event(), threading.Event()

    def fail() -> None:
        is_asked.set()
        assert may_fail.wait(30.0)
        raise RetriableRemoteStorageError("the store is away")

    rsm.before_fetch = fail
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(cache.index, copied, IndexType.OFFSET)
        assert is_asked.wait(30.0)
        others = [pool.submit(cache.index, copied, IndexType.OFFSET) for _ in range(4)]
        eventually(lambda: all(other.running() for other in others))
        may_fail.set()
        for future in (first, *others):
            with pytest.raises(RetriableRemoteStorageError, match="the store is away"):
                future.result(timeout=30.0)
    rsm.before_fetch = lambda: None
    assert cache.index(copied, IndexType.OFFSET) == indexes_of(0)[IndexType.OFFSET]


def test_a_slow_disk_delays_no_waiting_reader(
    rsm: CountedRsm, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, copied = opens(), rsm.copied(0)
    is_asked, may_answer = threading.Event(), threading.Event()
    is_writing, may_write = threading.Event(), threading.Event()
    replace_file = os.replace

    def hang_in_the_store() -> None:
        is_asked.set()
        assert may_answer.wait(30.0)

    def hang_at_the_disk(*names: Path) -> None:
        is_writing.set()
        assert may_write.wait(30.0)
        replace_file(*names)

    rsm.before_fetch = hang_in_the_store
    monkeypatch.setattr(os, "replace", hang_at_the_disk)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(cache.index, copied, IndexType.OFFSET)
        try:
            assert is_asked.wait(30.0)
            others = [pool.submit(cache.index, copied, IndexType.OFFSET) for _ in range(4)]
            eventually(lambda: all(other.running() for other in others))
            may_answer.set()
            assert is_writing.wait(30.0)
            for other in others:
                assert other.result(timeout=30.0) == indexes_of(0)[IndexType.OFFSET]
            assert cache.index(copied, IndexType.OFFSET) == indexes_of(0)[IndexType.OFFSET]
        finally:
            may_write.set()
        assert first.result(timeout=30.0) == indexes_of(0)[IndexType.OFFSET]
    assert rsm.fetches == 1


@pytest.mark.parametrize("is_batch", [True, False])
def test_indexes_of_deleted_segments_are_removed(
    rsm: CountedRsm, opens: Opens, directory: Path, is_batch: bool
) -> None:
    cache, gone, kept = opens(), rsm.copied(0), rsm.copied(1)
    for copied in (gone, kept):
        for kind in IndexType:
            cache.index(copied, kind)
    chunks = ChunkCache(rsm.rsm)
    storage = CacheInvalidatingStorage(rsm.rsm, cache, chunks, TopicCounts())
    if is_batch:
        assert storage.delete_log_segment_data_batch([gone]) == [None]
    else:
        storage.delete_log_segment_data(gone)
    segment_id = kept.remote_log_segment_id
    assert {path.name for path in directory.iterdir()} == {
        name_of(segment_id, kind) for kind in IndexType
    }
    with pytest.raises(RemoteResourceNotFoundError):
        cache.index(gone, IndexType.OFFSET)
    before = rsm.fetches
    cache.index(kept, IndexType.OFFSET)
    assert rsm.fetches == before


@pytest.mark.deep
def test_many_readers_of_a_small_cache_with_damaged_files(
    rsm: CountedRsm, opens: Opens, directory: Path
) -> None:
    """No reader gets anything but its index, and the bounds hold afterwards."""
    segments = [rsm.copied(number) for number in range(12)]
    total_bytes = 16 * 4096
    cache = opens(memory_bytes=2_000, total_bytes=total_bytes)
    is_over = threading.Event()

    def spoil() -> int:
        chance, spoiled = random.Random(1), 0
        while not is_over.is_set():
            for path in directory.iterdir():
                try:
                    match chance.randrange(3):
                        case 0:
                            path.unlink()
                        case 1:
                            path.write_bytes(chance.randbytes(50))
                        case 2:
                            with path.open("r+b") as file:
                                file.truncate(10)
                except FileNotFoundError:
                    continue
                spoiled += 1
        return spoiled

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            number = chance.randrange(12)
            kind = chance.choice(list(IndexType))
            assert cache.index(segments[number], kind) == indexes_of(number)[kind]
            if chance.random() < 0.02:
                cache.remove([segments[number].remote_log_segment_id])
            if chance.random() < 0.02:
                cache.maintain()

    with ThreadPoolExecutor(9) as pool:
        spoiling = pool.submit(spoil)
        reads = [pool.submit(read, seed) for seed in range(8)]
        try:
            for each in reads:
                each.result(timeout=120.0)
        finally:
            is_over.set()
        assert spoiling.result(timeout=30.0) > 0
    cache.maintain()
    assert len(list(directory.iterdir())) <= 16

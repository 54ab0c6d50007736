"""Test that the objects of a failed copy are removed, within a bounded time."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.calls import Call, serving
from services.api.errors import CorruptSegmentError, RemoteStorageError
from services.api.remote_storage_manager import IndexType, LogSegmentData, SegmentChunk
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.deadline import Limits
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import Files, a_segment
from tests.harness.clocks import Clock
from tests.harness.stores import keys_in

PREFIX = "tier/"
# At a key a second, what is deleted before the copy holds deletes up for so long.
KEYS_BEFORE = 300


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStorage:
    return FilesystemStorage(tmp_path)


@pytest.fixture
def rsm(store: FilesystemStorage, clock: Clock) -> Iterator[ObjectRemoteStorageManager]:
    manager = ObjectRemoteStorageManager(
        Locations(Location(1, store, PREFIX)),
        PartBuffers(2, 64 * 1024, 60_000),
        upload_threads=1,
        limits=Limits(delete_rate_keys_per_s=1),
        waiter=clock.waiter,
    )
    with closing(manager):
        yield manager


def copy_that_fails_last(
    rsm: ObjectRemoteStorageManager, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Its log is written when its last index turns out to be another than was announced."""
    files = Files(b"log")
    *others, last = files.headers()
    headers = (*others, replace(last, crc32c=(last.crc32c or 0) ^ 1))

    *first_chunks, last_chunk = files.chunks()

    def chunks() -> Iterator[SegmentChunk]:
        yield from first_chunks
        meanwhile()
        yield last_chunk

    with pytest.raises(CorruptSegmentError):
        rsm.copy_log_segment_data(a_segment(3), LogSegmentData(headers, chunks()))


def delete_many(rsm: ObjectRemoteStorageManager) -> None:
    gone = CustomMetadata(1, "00" * 8, 3, dict.fromkeys(IndexType, 0), bytes(16)).to_bytes()
    segments = [replace(a_segment(), custom_metadata=gone) for _ in range(KEYS_BEFORE // 3)]
    outcomes: list[RemoteStorageError | None] = rsm.delete_log_segment_data_batch(segments)
    assert set(outcomes) == {None}


def test_it_is_removed_though_the_caller_has_left(
    rsm: ObjectRemoteStorageManager, store: FilesystemStorage
) -> None:
    with serving(Call("caller", "-", is_active=lambda: False)):
        copy_that_fails_last(rsm)
    assert not list(keys_in(store, PREFIX))


def test_failed_copy_is_removed_ahead_of_other_deletes(
    rsm: ObjectRemoteStorageManager, store: FilesystemStorage, clock: Clock
) -> None:
    delete_many(rsm)
    began_s = clock.now_s
    copy_that_fails_last(rsm)
    assert clock.now_s == began_s
    assert not list(keys_in(store, PREFIX))


def test_it_is_removed_by_a_service_that_stops_while_it_deletes_others(
    rsm: ObjectRemoteStorageManager, store: FilesystemStorage
) -> None:
    def delete_and_stop() -> None:
        delete_many(rsm)
        rsm.stop_waiting()

    copy_that_fails_last(rsm, meanwhile=delete_and_stop)
    assert not list(keys_in(store, PREFIX))

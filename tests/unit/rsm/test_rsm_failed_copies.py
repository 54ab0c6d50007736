"""What a failed copy wrote is removed, whoever still waits, and for a bounded time."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.calls import Call, serving
from services.api.errors import CorruptSegmentError, RemoteStorageError
from services.api.remote_storage_manager import IndexType, LogSegmentData
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.custom_metadata import CustomMetadata
from services.rsm.limits import Limits
from services.rsm.location import Location
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.parts import PartBuffers
from tests.contract.remote_storage_manager_contract import Files, a_segment
from tests.harness.moved_clock import MovedClock

PREFIX = "tier/"
# At a key a second, what is deleted before the copy holds deletes up for so long.
KEYS_BEFORE = 300
LONGEST_WAIT_S = 10.0


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStorage:
    return FilesystemStorage(tmp_path)


@pytest.fixture
def rsm(store: FilesystemStorage, clock: MovedClock) -> Iterator[ObjectRemoteStorageManager]:
    manager = ObjectRemoteStorageManager(
        Location(1, store, PREFIX),
        PartBuffers(2, 64 * 1024, 60_000),
        upload_threads=1,
        limits=Limits(delete_rate_keys_per_s=1),
        waiting=clock.waiting,
    )
    with closing(manager):
        yield manager


def copy_that_fails_last(rsm: ObjectRemoteStorageManager) -> None:
    """Its log is written when its last index turns out to be another than was announced."""
    files = Files(b"log")
    *others, last = files.headers()
    headers = (*others, replace(last, crc32c=(last.crc32c or 0) ^ 1))
    with pytest.raises(CorruptSegmentError):
        rsm.copy_log_segment_data(a_segment(3), LogSegmentData(headers, files.chunks()))


def delete_many(rsm: ObjectRemoteStorageManager) -> None:
    gone = CustomMetadata(1, "00" * 8, 3, dict.fromkeys(IndexType, 0)).to_bytes()
    segments = [replace(a_segment(), custom_metadata=gone) for _ in range(KEYS_BEFORE // 3)]
    outcomes: list[RemoteStorageError | None] = rsm.delete_log_segment_data_batch(segments)
    assert set(outcomes) == {None}


def test_it_is_removed_though_the_caller_has_left(
    rsm: ObjectRemoteStorageManager, store: FilesystemStorage
) -> None:
    with serving(Call("caller", "-", is_active=lambda: False)):
        copy_that_fails_last(rsm)
    assert not list(store.list_keys(PREFIX))


def test_it_waits_for_its_turn_to_delete_for_so_long_and_no_longer(
    rsm: ObjectRemoteStorageManager,
    store: FilesystemStorage,
    clock: MovedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delete_many(rsm)
    began_s = clock.now_s
    copy_that_fails_last(rsm)
    assert clock.now_s - began_s == pytest.approx(LONGEST_WAIT_S, abs=0.5)
    (log,) = store.list_keys(PREFIX)
    assert f"{log} is left behind: gave up waiting for its turn" in caplog.text

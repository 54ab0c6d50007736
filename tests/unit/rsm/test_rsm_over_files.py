"""Test RSM over the file system, which shows its objects and lets each step fail."""

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.calls import Call, serving
from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    SegmentAlreadyExistsError,
    StoreNotFoundError,
)
from services.api.remote_storage_manager import IndexType, LogSegmentData, SegmentChunk
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES, StorageBackend, Upload
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import (
    Files,
    a_segment,
    copied,
    fetched,
    some_bytes,
)
from tests.harness.eventually import eventually

PART = 64 * 1024


def manager_over(backend: StorageBackend) -> ObjectRemoteStorageManager:
    buffers = PartBuffers(3, PART, wait_timeout_ms=10_000)
    return ObjectRemoteStorageManager(
        Locations(Location(1, backend, "tier/")), buffers, upload_threads=2
    )


@pytest.fixture
def rsm(tmp_path: Path) -> Iterator[ObjectRemoteStorageManager]:
    with closing(manager_over(FilesystemStorage(tmp_path))) as manager:
        yield manager


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_the_log_object_is_the_log(rsm: ObjectRemoteStorageManager, tmp_path: Path) -> None:
    files = Files(some_bytes(5 * PART + 1))
    copied(rsm, files)
    (log,) = tmp_path.rglob("*.log")
    assert log.read_bytes() == files.log


def test_other_users_can_read_nothing(rsm: ObjectRemoteStorageManager, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        copied(rsm, Files(some_bytes(PART)))
    finally:
        os.umask(umask)
    made = [*tmp_path.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o640}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o750}


def test_a_copy_makes_no_root(tmp_path: Path) -> None:
    root = tmp_path / "unmounted"
    with closing(manager_over(FilesystemStorage(root))) as rsm:
        with pytest.raises(StoreNotFoundError, match="mount or create it"):
            copied(rsm, Files(some_bytes(PART)))
        assert not root.exists()


def test_manifest_has_the_position_of_each_index(
    rsm: ObjectRemoteStorageManager, tmp_path: Path
) -> None:
    files = Files(b"log")
    copied(rsm, files)
    (indexes,), (manifest,) = tmp_path.rglob("*.indexes"), tmp_path.rglob("*.manifest")
    sections = json.loads(manifest.read_bytes())["indexes"]
    found = {
        kind: indexes.read_bytes()[section["position"] :][: section["size_bytes"]]
        for kind, section in ((kind, sections[kind.name]) for kind in IndexType)
    }
    assert found == files.indexes


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit])
def test_an_interrupted_copy_leaves_nothing(
    rsm: ObjectRemoteStorageManager, tmp_path: Path, error: type[BaseException]
) -> None:
    files = Files(some_bytes(5 * PART))

    def chunks() -> Iterator[SegmentChunk]:
        yield from list(files.chunks(PART))[:3]
        raise error

    with pytest.raises(error):
        rsm.copy_log_segment_data(a_segment(), LogSegmentData(files.headers(), chunks()))
    assert files_in(tmp_path) == []


def test_more_copies_than_buffers_come_through_one_after_another(
    rsm: ObjectRemoteStorageManager,
) -> None:
    for seed in range(20):
        files = Files(some_bytes(3 * PART + seed, seed))
        assert fetched(rsm, copied(rsm, files)) == files.log


def test_failed_copies_release_their_buffers(rsm: ObjectRemoteStorageManager) -> None:
    files = Files(some_bytes(5 * PART))
    for taken in range(12):
        data = LogSegmentData(files.headers(), list(files.chunks(PART // 2))[:taken])
        with pytest.raises(RemoteStorageError):
            rsm.copy_log_segment_data(a_segment(), data)
    assert fetched(rsm, copied(rsm, files)) == files.log


def test_manifest_without_its_objects_does_not_count_as_a_copy(
    rsm: ObjectRemoteStorageManager, tmp_path: Path
) -> None:
    files, metadata = Files(b"log"), a_segment()
    copied(rsm, files, metadata)
    (log,) = tmp_path.rglob("*.log")
    log.unlink()
    with pytest.raises(SegmentAlreadyExistsError, match="lost its objects"):
        copied(rsm, files, metadata)


def test_a_manifest_that_is_none_is_reported(
    rsm: ObjectRemoteStorageManager, tmp_path: Path
) -> None:
    metadata = copied(rsm, Files(b"log"))
    (manifest,) = tmp_path.rglob("*.manifest")
    manifest.write_bytes(b"{}")
    with pytest.raises(CorruptSegmentError, match="manifest"):
        fetched(rsm, replace(metadata, custom_metadata=None))


def test_a_copy_over_a_manifest_that_is_too_large_leaves_nothing(
    rsm: ObjectRemoteStorageManager, tmp_path: Path
) -> None:
    metadata, files = a_segment(), Files(b"log")
    copied(rsm, files, metadata)
    (manifest,) = tmp_path.rglob("*.manifest")
    manifest.write_bytes(bytes(MAX_SMALL_OBJECT_BYTES + 1))
    with pytest.raises(CorruptSegmentError, match="over 4194304 bytes"):
        copied(rsm, files, metadata)
    assert len(files_in(tmp_path)) == 3


@pytest.mark.parametrize("left", [0, 500, 999])
def test_a_log_shorter_than_it_was_is_corrupt(
    rsm: ObjectRemoteStorageManager, tmp_path: Path, left: int
) -> None:
    metadata = copied(rsm, Files(some_bytes(1000)))
    (log,) = tmp_path.rglob("*.log")
    log.write_bytes(log.read_bytes()[:left])
    with pytest.raises(CorruptSegmentError):
        fetched(rsm, metadata, 500)


def test_after_a_copy_that_failed_the_id_may_be_deleted(rsm: ObjectRemoteStorageManager) -> None:
    metadata, files = a_segment(), Files(b"log")
    with pytest.raises(InvalidRequestError):
        rsm.copy_log_segment_data(metadata, LogSegmentData(files.headers(), []))
    rsm.delete_log_segment_data(metadata)


class KeepsManifests(FilesystemStorage):
    """Refuses to delete manifests."""

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        kept = [key for key in keys if key.endswith(".manifest")]
        super().delete([key for key in keys if key not in kept])
        return {key: RetriableRemoteStorageError(f"{key} is kept") for key in kept}


def test_a_manifest_that_cannot_be_deleted_is_an_error_of_its_segment(tmp_path: Path) -> None:
    with closing(manager_over(KeepsManifests(tmp_path))) as rsm:
        metadata = copied(rsm, Files(b"log"))
        with pytest.raises(RetriableRemoteStorageError, match="manifest is kept"):
            rsm.delete_log_segment_data(metadata)


def test_of_a_batch_no_bytes_go_before_their_manifest(tmp_path: Path) -> None:
    """Of 334 segments the last manifest fills the first request; bytes follow where it is gone."""
    with closing(manager_over(KeepsManifests(tmp_path))) as rsm:
        real = copied(rsm, Files(b"log"))
        fill = [
            replace(real, remote_log_segment_id=a_segment().remote_log_segment_id)
            for _ in range(333)
        ]
        outcomes = rsm.delete_log_segment_data_batch([*fill, real])
        assert all(isinstance(outcome, RetriableRemoteStorageError) for outcome in outcomes)
        assert fetched(rsm, real) == b"log"


class Away(FilesystemStorage):
    """Does not answer, and counts how often it was asked for a list."""

    listings = 0

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        self.listings += 1
        raise RetriableRemoteStorageError(f"away: {prefix}")


def test_a_location_that_is_away_is_asked_once_for_a_batch_and_holds_up_no_named_one(
    tmp_path: Path,
) -> None:
    away = Away(tmp_path / "old")
    buffers = PartBuffers(3, PART, wait_timeout_ms=10_000)
    here, there = FilesystemStorage(tmp_path), Location(1, away, "")
    with closing(
        ObjectRemoteStorageManager(Locations(Location(2, here, "tier/"), [there]), buffers, 2)
    ) as rsm:
        named = copied(rsm, Files(b"log"))
        outcomes = rsm.delete_log_segment_data_batch([a_segment(), named, *[a_segment()] * 3])
    first, gone, *others = outcomes
    assert isinstance(first, RetriableRemoteStorageError)
    assert gone is None
    assert others == [first] * 3
    assert away.listings == 1
    assert not files_in(tmp_path)


def test_named_objects_are_deleted_before_any_listing(tmp_path: Path) -> None:
    class Watched(FilesystemStorage):
        def list_uploads(self, prefix: str) -> Iterator[Upload]:
            left_when_listed.append(files_in(tmp_path))
            return super().list_uploads(prefix)

    left_when_listed: list[list[Path]] = []
    with closing(manager_over(Watched(tmp_path))) as rsm:
        named = copied(rsm, Files(b"log"))
        assert rsm.delete_log_segment_data_batch([a_segment(), named]) == [None, None]
    assert left_when_listed == [[]]


def test_nothing_is_listed_for_a_cancelled_call(tmp_path: Path) -> None:
    backend = Away(tmp_path)
    with (
        closing(manager_over(backend)) as rsm,
        serving(Call("somebody", "id", is_active=lambda: False)),
    ):
        outcomes = rsm.delete_log_segment_data_batch([a_segment(), a_segment()])
    assert [type(outcome) for outcome in outcomes] == [RetriableRemoteStorageError] * 2
    assert backend.listings == 0


def test_a_missing_directory_is_named_by_check(tmp_path: Path) -> None:
    with pytest.raises(RemoteStorageError, match="nowhere"):
        FilesystemStorage(tmp_path / "nowhere").check_and_get("key")


def test_a_missing_directory_is_never_a_missing_segment(tmp_path: Path) -> None:
    with closing(manager_over(FilesystemStorage(tmp_path / "nowhere"))) as rsm:
        for metadata in (a_segment(), replace(a_segment(), custom_metadata=CUSTOM_METADATA)):
            with pytest.raises(StoreNotFoundError, match="/nowhere"):
                fetched(rsm, metadata)
            with pytest.raises(StoreNotFoundError, match="/nowhere"):
                rsm.delete_log_segment_data(metadata)


CUSTOM_METADATA = bytes.fromhex(
    "010001" + "00c0ffee00c0ffee" + "00000003" + "00000001" * 5 + "00" * 16
)


def test_unreadable_folder_does_not_count_as_deleted(tmp_path: Path) -> None:
    metadata = a_segment()
    with closing(manager_over(FilesystemStorage(tmp_path))) as rsm:
        rsm.delete_log_segment_data(metadata)  # no folder at all: nothing is there
        partition = metadata.topic_id_partition
        folder = tmp_path / "tier" / partition.topic_id.hex / str(partition.partition)
        folder.parent.mkdir(parents=True)
        folder.symlink_to(folder)  # even root cannot read it
        with pytest.raises(RemoteStorageError, match="ELOOP"):
            rsm.delete_log_segment_data(metadata)


def test_a_manager_that_is_closed_has_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with closing(manager_over(FilesystemStorage(tmp_path))) as manager:
        segment = copied(manager, Files(b"log"))
        assert fetched(manager, segment) == b"log"
        started = set(threading.enumerate()) - before
        assert started
    eventually(lambda: not any(thread.is_alive() for thread in started))

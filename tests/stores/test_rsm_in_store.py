"""Run the suites of RSM over the store that TEST_STORE names."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from services.api.errors import RetriableRemoteStorageError, StoreNotFoundError
from services.api.segment_objects import SegmentObjects, all_multipart_uploads
from services.local.emulators import StoreEmulator
from services.local.process import LOOPBACK
from services.rsm.backends.protocol import Part, Upload, had_no_answer
from services.rsm.factory import build_backend, build_locations, build_manager, build_start_up
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    RemoteStorageManagerContract,
    StoredKeys,
    a_segment,
)
from tests.contract.rsm_over_s3 import everything_in
from tests.contract.segment_objects_contract import LOCATION_ID, SegmentObjectsContract, Store
from tests.harness.local_servers import free_ports
from tests.stores.conftest import LISTS_UPLOADS, StoreSettings

# A budget of CPU time is for the quick tests; these have targets of their own.
pytestmark = pytest.mark.deep


@pytest.fixture
def manager(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(settings)) as manager:
        yield manager


class TestInStore(RemoteStorageManagerContract):
    @pytest.fixture
    def keys(self, settings: RsmSettings) -> StoredKeys:
        return everything_in(build_backend(settings), settings.prefix)


class TestObjectsInStore(SegmentObjectsContract):
    __test__ = LISTS_UPLOADS

    @pytest.fixture
    def segment_objects(self, manager: ObjectRemoteStorageManager) -> SegmentObjects:
        return manager.objects

    @pytest.fixture
    def own_store(self, settings: RsmSettings) -> Store:
        assert settings.location_id == LOCATION_ID
        return Store(build_backend(settings), settings.prefix)


class TestObjectsInCloud(TestObjectsInStore):
    __test__ = not LISTS_UPLOADS

    def test_incomplete_uploads_are_listed_and_aborted(self) -> None:
        """The libraries of these stores list none: the store's lifecycle ends them."""
        key = self.store.log_of(a_segment(), "0" * 16).key
        begun = self.store.backend.begin_upload(key)
        assert list(all_multipart_uploads(self.objects)) == []
        self.store.backend.abort_upload(begun)
        self.store.backend.abort_upload(begun)
        assert self.store.backend.describe(key) is None

    @pytest.mark.parametrize("upload_id", ["x" * 1_024, ".."])
    def test_an_id_of_no_upload_ends_nothing(self, upload_id: str) -> None:
        key = self.store.log_of(a_segment(), "0" * 16).key
        upload = self.store.backend.begin_upload(key)
        self.store.backend.abort_upload(Upload(key, upload_id))
        part = self.store.backend.upload_part(upload, Part(1, 0, memoryview(b"part")))
        self.store.backend.complete_upload(upload, [part])
        assert self.store.backend.get(key) == b"part"


def test_an_object_is_replaced_only_if_it_is_as_seen(settings: RsmSettings) -> None:
    backend, key = build_backend(settings), f"{settings.prefix}object"
    assert not backend.put_if_match(key, b"none", "etag")
    assert backend.put_if_absent(key, b"first")
    assert not backend.put_if_absent(key, b"second")
    assert list(backend.list_uploads(settings.prefix)) == []
    seen = backend.describe(key)
    assert seen is not None
    assert backend.put_if_match(key, b"second", seen.etag)
    assert not backend.put_if_match(key, b"third", seen.etag)
    assert backend.get(key) == b"second"


def test_a_missing_bucket_is_never_a_missing_object(store_settings: StoreSettings) -> None:
    backend = build_backend(store_settings(bucket="no-such-bucket"))
    for call in (
        lambda: backend.check_and_get("key"),
        lambda: backend.describe("key"),
        lambda: backend.put("key", b""),
        lambda: backend.put_if_absent("key", b""),
        lambda: list(backend.list_objects("folder/")),
        lambda: list(backend.fetch("key", 0, 1)),
    ):
        with pytest.raises(StoreNotFoundError):
            call()
    assert isinstance(backend.delete(["key"])["key"], StoreNotFoundError)


def test_a_store_that_is_away_is_retriable(store_settings: StoreSettings) -> None:
    (port,) = free_ports(1)
    backend = build_backend(store_settings(f"{LOOPBACK}:{port}"))
    with pytest.raises(RetriableRemoteStorageError) as error:
        backend.put_if_absent("key", b"")
    assert had_no_answer(error.value)
    with pytest.raises(RetriableRemoteStorageError):
        backend.get("key")


def test_a_store_that_hangs_is_retriable(
    emulator: StoreEmulator, store_settings: StoreSettings
) -> None:
    backend = build_backend(store_settings(read_timeout_ms=1_000))
    assert backend.describe("key") is None
    os.kill(emulator.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RetriableRemoteStorageError) as error:
            backend.put_if_absent("key", b"")
    finally:
        os.kill(emulator.pid, signal.SIGCONT)
    assert had_no_answer(error.value)


class TestUploadsOfSeveralProcesses:
    __test__ = LISTS_UPLOADS
    """Else only the process that began an upload ends it."""

    def test_an_upload_that_another_has_ended_is_retriable(self, settings: RsmSettings) -> None:
        backend, key = build_backend(settings), f"{settings.prefix}object"
        upload = backend.begin_upload(key)
        part = backend.upload_part(upload, Part(1, 0, memoryview(b"part")))
        build_backend(settings).abort_upload(upload)
        with pytest.raises(RetriableRemoteStorageError):
            backend.complete_upload(upload, [part])
        assert backend.describe(key) is None


def test_the_probe_finds_what_rsm_needs(settings: RsmSettings) -> None:
    locations = build_locations(settings)
    report = build_start_up(settings, locations).inspect()
    assert report.refused == []
    assert report.degraded == []

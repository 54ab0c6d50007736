"""Run the suites of RSM over the store that TEST_STORE names."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.api.segment_objects import SegmentObjects, all_multipart_uploads
from services.local.emulators import StoreEmulator
from services.local.process import LOOPBACK
from services.rsm.backends.protocol import StorageBackend, had_no_answer
from services.rsm.factory import build_backend, build_locations, build_manager, build_start_up
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    RemoteStorageManagerContract,
    StoredKeys,
    a_segment,
)
from tests.contract.rsm_over_s3 import BackendOfSettings, everything_in
from tests.contract.segment_objects_contract import LOCATION_ID, SegmentObjectsContract, Store
from tests.harness.local_servers import free_ports
from tests.stores.conftest import KIND, LISTS_UPLOADS, StoreSettings

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
    lists_uploads = False

    def test_incomplete_uploads_are_listed_and_aborted(self) -> None:
        """The libraries of these stores list none: the store's lifecycle ends them."""
        begun = self.store.backend.begin_upload(self.store.log_of(a_segment(), "0" * 16).key)
        assert list(all_multipart_uploads(self.objects)) == []
        self.store.backend.abort_upload(begun)


class TestBackend(BackendOfSettings):
    lists_uploads = LISTS_UPLOADS
    # A write to HDFS takes half a second.
    listed_objects = 50 if KIND == "hdfs" else BackendOfSettings.listed_objects

    @pytest.fixture
    def without_bucket(self, store_settings: StoreSettings) -> StorageBackend:
        return build_backend(store_settings(bucket="no-such-bucket"))

    @pytest.fixture
    def unreachable(self, store_settings: StoreSettings) -> StorageBackend:
        (port,) = free_ports(1)
        return build_backend(store_settings(f"{LOOPBACK}:{port}"))


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


def test_the_probe_finds_what_rsm_needs(settings: RsmSettings) -> None:
    locations = build_locations(settings)
    report = build_start_up(settings, locations).inspect()
    assert report.refused == []
    assert report.degraded == []

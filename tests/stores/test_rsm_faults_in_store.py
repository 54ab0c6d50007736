"""RSM over a cloud's store that is slow, overloaded or cut off now and then: nobody notices."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import urllib3

from services.api.errors import (
    CorruptSegmentError,
    RetriableRemoteStorageError,
)
from services.local.emulators import StoreEmulator
from services.rsm.backends.protocol import Part
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from tests.contract.remote_storage_manager_contract import (
    LARGE,
    MIB,
    Files,
    copied,
    fetched,
    some_bytes,
)
from tests.contract.rsm_over_s3 import everything_in
from tests.contract.rsm_through_faults import Weather, assert_survives, weather_of
from tests.harness.eventually import eventually
from tests.harness.faults import (
    Answer,
    BlackHole,
    Corrupt,
    Direction,
    Reset,
    Stall,
)
from tests.harness.http_proxy import HttpProxy
from tests.stores.conftest import KIND, StoreSettings

pytestmark = pytest.mark.deep

# With three tenths of requests failing, one of 500,000 fails eleven times.
RETRIES = 10
SILENCE_MS = 3_000
# What the library repeats though the store may have carried it out.
REPEATED = frozenset({"GET", "PUT", "HEAD", "DELETE"})
COMPLETING = "complete an upload"
MANIFEST = "write a manifest"
ID = "uploadId="


def operation_of(method: str, target: str) -> str:
    if method == "PUT" and "manifest" in target:
        return MANIFEST
    completes = {("POST", ID), ("PUT", "comp=blocklist")}
    is_one = any(method == of and query in target for of, query in completes)
    return COMPLETING if is_one else method


WEATHER: dict[str, Weather] = weather_of(REPEATED, "PUT") | {
    "many 500": lambda faults: faults.storm(Answer(500), 0.3),
    "a body answered by silence": lambda faults: faults.add(BlackHole(), operation="PUT"),
    "a fetch reset in the middle": lambda faults: faults.add(
        Reset(MIB, Direction.RESPONSE), operation="GET"
    ),
    "a fetch that falls silent": lambda faults: faults.add(
        Stall(MIB, Direction.RESPONSE), operation="GET"
    ),
}


@pytest.fixture(scope="module")
def proxy(emulator: StoreEmulator) -> Iterator[HttpProxy]:
    with HttpProxy(emulator.address, operation_of, seed=9) as running:
        yield running


@pytest.fixture(autouse=True)
def end_faults(proxy: HttpProxy) -> Iterator[None]:
    yield
    proxy.faults.clear()


@pytest.fixture
def rsm(proxy: HttpProxy, store_settings: StoreSettings) -> Iterator[ObjectRemoteStorageManager]:
    settings = store_settings(proxy.address, retries=RETRIES, read_timeout_ms=SILENCE_MS)
    with closing(build_manager(settings)) as manager:
        manager.check()
        yield manager


@pytest.mark.parametrize("weather", WEATHER.values(), ids=list(WEATHER))
def test_a_segment_is_copied_read_and_deleted(
    rsm: ObjectRemoteStorageManager, proxy: HttpProxy, weather: Weather
) -> None:
    assert_survives(rsm, proxy, weather)


@pytest.mark.parametrize("direction", Direction)
def test_a_copy_of_which_the_end_is_uncertain_is_retriable_and_leaves_nothing(
    proxy: HttpProxy, store_settings: StoreSettings, direction: Direction
) -> None:
    """A second try of what was carried out is refused: the parts are no more."""
    settings = store_settings(proxy.address, retries=2)
    everything = everything_in(build_backend(store_settings()), settings.prefix)
    files = Files(some_bytes(LARGE))
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        before = everything()
        proxy.faults.add(Reset(None, direction), operation=COMPLETING, times=None)
        with pytest.raises(RetriableRemoteStorageError):
            copied(rsm, files)
        proxy.faults.clear()
        assert everything() == before
        assert fetched(rsm, copied(rsm, files)) == files.log


def test_an_upload_that_the_store_has_ended_may_be_ended(
    proxy: HttpProxy, store_settings: StoreSettings
) -> None:
    """As a lifecycle ends uploads in GCS; in Azure an upload has nothing to end."""
    settings = store_settings(proxy.address)
    backend, key = build_backend(settings), f"{settings.prefix}object"
    proxy.forget_requests()
    upload = backend.begin_upload(key)
    data = memoryview(some_bytes(2 * settings.part_size_bytes))
    backend.upload_part(upload, Part(1, 0, data))
    if KIND == "gcs":
        ids = eventually(lambda: [each.target for each in proxy.requests if ID in each.target])
        assert urllib3.request("DELETE", f"http://{proxy.address}{ids[-1]}").status == 204
    backend.abort_upload(upload)
    assert backend.describe(key) is None


def test_a_manifest_that_was_written_but_unanswered_counts(
    rsm: ObjectRemoteStorageManager, proxy: HttpProxy
) -> None:
    proxy.faults.add(Reset(None, Direction.RESPONSE), operation=MANIFEST, times=None)
    files = Files(some_bytes(MIB))
    assert fetched(rsm, copied(rsm, files)) == files.log


def test_a_copy_with_an_uncertain_manifest_is_retriable_and_keeps_its_objects(
    proxy: HttpProxy, store_settings: StoreSettings
) -> None:
    settings = store_settings(proxy.address, retries=0)
    everything = everything_in(build_backend(store_settings()), settings.prefix)
    files = Files(some_bytes(MIB))
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        before = everything()
        proxy.faults.add(Reset(None, Direction.REQUEST), operation=MANIFEST, times=None)
        with pytest.raises(RetriableRemoteStorageError):
            copied(rsm, files)
        proxy.faults.clear()
        assert len(everything()) == len(before) + 2
        assert fetched(rsm, copied(rsm, files)) == files.log


def test_a_copy_into_a_store_that_only_fails_leaves_nothing(
    proxy: HttpProxy, store_settings: StoreSettings
) -> None:
    settings = store_settings(proxy.address, retries=0)
    everything = everything_in(build_backend(store_settings()), settings.prefix)
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        before = everything()
        proxy.faults.add(Answer(503), operation="PUT", times=None)
        with pytest.raises(RetriableRemoteStorageError):
            copied(rsm, Files(some_bytes(LARGE)))
        proxy.faults.clear()
        assert everything() == before
        segment = copied(rsm, Files(some_bytes(LARGE)))
        assert fetched(rsm, segment) == some_bytes(LARGE)


def test_a_read_of_a_wrong_byte_is_corrupt_and_may_be_repeated(
    rsm: ObjectRemoteStorageManager, proxy: HttpProxy
) -> None:
    files = Files(some_bytes(LARGE))
    metadata = copied(rsm, files)
    fetched(rsm, metadata, 0, 0)  # The manifest, too.
    proxy.faults.add(Corrupt(3 * MIB, Direction.RESPONSE), operation="GET")
    with pytest.raises(CorruptSegmentError):
        fetched(rsm, metadata)
    assert fetched(rsm, metadata) == files.log

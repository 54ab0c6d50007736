"""RSM over a store that takes requests and is silent: how often it is asked, and for how long."""

import time
from collections.abc import Callable, Iterator

import pytest

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import S3Endpoint
from services.rsm import deadline
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, fetched, index, some_bytes
from tests.contract.rsm_over_s3 import PART, settings_for
from tests.contract.rsm_through_faults import SILENCE_MS, rsm_behind
from tests.harness.faults import Answer, BlackHole
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

RETRIES = 3
SMALL = Files(b"log")
LARGE = Files(some_bytes(3 * PART + 1))


@pytest.fixture(scope="module")
def settings(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3, {"verify_reads": "off"})


@pytest.fixture(scope="module")
def through(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as running:
        yield running


@pytest.fixture(scope="module")
def rsm(through: HttpProxy, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    behind = rsm_behind(through, settings, retries=RETRIES, read_timeout_ms=SILENCE_MS)
    with behind as manager:
        yield manager


@pytest.fixture
def proxy(through: HttpProxy) -> Iterator[HttpProxy]:
    yield through
    through.faults.clear()


@pytest.fixture(scope="module")
def segment(rsm: ObjectRemoteStorageManager) -> RemoteLogSegmentMetadata:
    return copied(rsm, SMALL)


Work = Callable[[ObjectRemoteStorageManager, RemoteLogSegmentMetadata], object]


def fetch(rsm: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> object:
    return fetched(rsm, segment)


def fetch_index(rsm: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> object:
    return index(rsm, segment, IndexType.OFFSET)


def delete(rsm: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> object:
    rsm.delete_log_segment_data(segment)
    return None


def list_objects(rsm: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> object:
    del segment
    return rsm.objects.list_multipart_uploads()


@pytest.mark.parametrize(
    ("work", "operation"),
    [
        (fetch, "GetObject"),
        (fetch_index, "GetObject"),
        (delete, "DeleteObjects"),
        (list_objects, "ListMultipartUploads"),
    ],
)
def test_silent_store_gets_no_retry_for_a_cancelled_call(
    rsm: ObjectRemoteStorageManager,
    proxy: HttpProxy,
    segment: RemoteLogSegmentMetadata,
    work: Work,
    operation: str,
) -> None:
    """The caller leaves as soon as the store has the request."""
    proxy.faults.add(BlackHole(), times=None)
    proxy.forget_requests()
    with (
        serving(Call("somebody", "1", is_active=lambda: not proxy.asked)),
        pytest.raises(RetriableRemoteStorageError),
    ):
        work(rsm, segment)
    assert proxy.asked == [operation]


def test_silent_store_gets_a_retry_for_a_waiting_call(
    rsm: ObjectRemoteStorageManager, proxy: HttpProxy, segment: RemoteLogSegmentMetadata
) -> None:
    proxy.faults.add(BlackHole(), operation="GetObject")
    proxy.forget_requests()
    assert fetched(rsm, segment) == SMALL.log
    assert proxy.asked == ["GetObject", "GetObject"]


def test_call_cancelled_in_a_pause_gets_the_last_response(
    rsm: ObjectRemoteStorageManager, proxy: HttpProxy, segment: RemoteLogSegmentMetadata
) -> None:
    """The pause before the fourth request takes a second and more."""
    proxy.faults.add(Answer(503), operation="GetObject", times=None)
    proxy.forget_requests()
    with (
        serving(Call("somebody", "1", is_active=lambda: len(proxy.asked) < 3)),
        pytest.raises(RetriableRemoteStorageError, match="answered 503 SlowDown"),
    ):
        fetched(rsm, segment)
    assert len(proxy.asked) == 3


@pytest.mark.parametrize(
    ("files", "operation", "clean_up_asks"),
    [
        (SMALL, "PutObject", {"DeleteObjects"}),
        (LARGE, "CreateMultipartUpload", {"ListMultipartUploads", "DeleteObjects"}),
        (LARGE, "UploadPart", {"AbortMultipartUpload", "DeleteObjects"}),
        (LARGE, "CompleteMultipartUpload", {"AbortMultipartUpload", "DeleteObjects"}),
    ],
    ids=["put", "begin", "part", "complete"],
)
def test_cancelled_copy_sends_a_silent_store_only_its_clean_up(
    rsm: ObjectRemoteStorageManager,
    proxy: HttpProxy,
    monkeypatch: pytest.MonkeyPatch,
    files: Files,
    operation: str,
    clean_up_asks: set[str],
) -> None:
    """Parts that are under way in other threads may be asked for as well, each once."""
    monkeypatch.setattr(deadline, "CLEAN_UP_S", 3.0)
    for silent in {operation, *clean_up_asks}:
        proxy.faults.add(BlackHole(), operation=silent, times=None)
    proxy.forget_requests()
    with (
        serving(Call("somebody", "1", is_active=lambda: operation not in proxy.asked)),
        pytest.raises(RetriableRemoteStorageError),
    ):
        copied(rsm, files)
    after = proxy.asked[proxy.asked.index(operation) + 1 :]
    assert set(after) - {"UploadPart"} == clean_up_asks
    targets = [request.target for request in proxy.requests if request.operation == operation]
    assert sorted(targets) == sorted(set(targets))


def test_a_clean_up_does_not_wait_for_a_silent_store(
    through: HttpProxy, settings: RsmSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the store may be silent otherwise."""
    monkeypatch.setattr(deadline, "CLEAN_UP_S", 1.0)
    with rsm_behind(through, settings, retries=0, read_timeout_ms=60_000) as patient:
        through.faults.add(Answer(503), operation="UploadPart", times=None)
        through.faults.add(BlackHole(), operation="AbortMultipartUpload", times=None)
        through.faults.add(BlackHole(), operation="DeleteObjects", times=None)
        began_s = time.monotonic()
        try:
            with pytest.raises(RetriableRemoteStorageError, match="503"):
                copied(patient, LARGE)
        finally:
            through.faults.clear()
        assert time.monotonic() - began_s < 55


def test_the_end_of_the_service_ends_the_repeats(through: HttpProxy, settings: RsmSettings) -> None:
    """Also those of a check, which no caller waits for."""
    changes = {"endpoint": through.address, "retries": RETRIES, "read_timeout_ms": SILENCE_MS}
    manager = build_manager(settings.model_copy(update=changes))
    manager.close()
    through.faults.add(BlackHole(), times=None)
    through.forget_requests()
    try:
        with pytest.raises(RetriableRemoteStorageError, match="the service is stopping"):
            manager.check()
    finally:
        through.faults.clear()
    assert through.asked == ["GetObject"]

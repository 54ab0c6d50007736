"""Test that a store that lost its marker takes no copy: one that is unmounted, or another one."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.remote_storage_manager import LogSegmentData, SegmentChunk
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.contract.rsm_over_s3 import settings_for
from tests.harness.faults import Answer
from tests.harness.http_proxy import HttpProxy
from tests.harness.stores import keys_in

pytestmark = pytest.mark.deep

FILES = Files(b"log")
CHUNKS = len(list(FILES.chunks()))


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    made = tmp_path / "volume"
    made.mkdir()
    return made


@pytest.fixture(params=["s3", "filesystem"])
def settings(request: pytest.FixtureRequest, volume: Path) -> RsmSettings:
    """Return settings of deployment "ours" and location 1, on an empty prefix."""
    if request.param == "filesystem":
        return RsmSettings(
            backend="filesystem", directory=volume, prefix="tier/", deployment_id="ours"
        )
    return settings_for(request.getfixturevalue("s3"), {"deployment_id": "ours"})


@pytest.fixture
def backend(settings: RsmSettings) -> StorageBackend:
    return build_backend(settings)


@pytest.fixture
def rsm(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(settings)) as manager:
        yield manager


def assert_refused(rsm: ObjectRemoteStorageManager, match: str) -> None:
    with pytest.raises(RemoteStorageError, match=match) as refused:
        rsm.check()
    assert not isinstance(refused.value, RetriableRemoteStorageError)
    with pytest.raises(RetriableRemoteStorageError, match=rf"not ready: .*{match}"):
        copied(rsm, FILES)


def test_an_empty_mount_point_takes_no_copy_until_its_volume_is_back(
    volume: Path, tmp_path: Path
) -> None:
    """After an unmount the directory exists and is empty."""
    settings = RsmSettings(backend="filesystem", directory=volume, deployment_id="ours")
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        metadata = copied(rsm, FILES)
        elsewhere = volume.rename(tmp_path / "unmounted")
        volume.mkdir()
        for _ in range(2):
            assert_refused(rsm, r"has no \.sediment: mount its volume")
        assert not list(volume.iterdir())
        volume.rmdir()
        elsewhere.rename(volume)
        rsm.check()
        assert fetched(rsm, metadata) == FILES.log
        assert fetched(rsm, copied(rsm, FILES)) == FILES.log


def test_a_marker_that_is_gone_is_waited_for_and_not_written_again(
    rsm: ObjectRemoteStorageManager, settings: RsmSettings, backend: StorageBackend
) -> None:
    rsm.check()
    key = f"{settings.prefix}.sediment"
    marker = backend.get(key)
    backend.delete([key])
    for _ in range(2):
        assert_refused(rsm, "has no .*sediment")
    assert not list(keys_in(backend, settings.prefix))
    backend.put(key, marker)
    rsm.check()
    assert fetched(rsm, copied(rsm, FILES)) == FILES.log


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (b'{"format_version": 1, "deployment_id": "theirs", "location_id": 1}', "'theirs'"),
        (b"<html>", "not a marker"),
    ],
)
def test_a_store_that_becomes_anothers_is_refused(
    rsm: ObjectRemoteStorageManager,
    settings: RsmSettings,
    backend: StorageBackend,
    theirs: bytes,
    named: str,
) -> None:
    rsm.check()
    backend.put(f"{settings.prefix}.sediment", theirs)
    assert_refused(rsm, named)


def test_a_marker_that_another_one_wrote_counts_without_a_deployment_id_too(
    rsm: ObjectRemoteStorageManager, settings: RsmSettings, backend: StorageBackend
) -> None:
    rsm.check()
    unnamed = settings.model_copy(update={"deployment_id": ""})
    with closing(build_manager(unnamed)) as other:
        other.check()
        backend.delete([f"{settings.prefix}.sediment"])
        assert_refused(other, "has no .*sediment")


def test_a_store_that_is_away_for_a_moment_is_not_refused(s3: S3Endpoint, proxy: HttpProxy) -> None:
    settings = settings_for(s3, {"deployment_id": "ours", "endpoint": proxy.address})
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        proxy.faults.add(Answer(503), operation="GetObject")
        with pytest.raises(RetriableRemoteStorageError, match=f"bucket .* at {proxy.address}"):
            rsm.check()
        assert fetched(rsm, copied(rsm, FILES)) == FILES.log
        proxy.forget_requests()
        rsm.check()
        assert proxy.counts() == {"GetObject": 1}


@pytest.mark.parametrize("deployment_id", ["ours", ""])
def test_if_a_marker_is_required_none_is_written_and_nothing_served_without_it(
    settings: RsmSettings, backend: StorageBackend, deployment_id: str
) -> None:
    required = settings.model_copy(update={"marker_required": True, "deployment_id": deployment_id})
    with closing(build_manager(required)) as rsm:
        with pytest.raises(RetriableRemoteStorageError, match="not checked yet"):
            copied(rsm, FILES)
        assert_refused(rsm, "has no .*sediment.* without RSM_MARKER_REQUIRED")
        assert not list(keys_in(backend, settings.prefix))
        with closing(build_manager(settings)) as first:
            first.check()
        rsm.check()
        assert fetched(rsm, copied(rsm, FILES)) == FILES.log


@pytest.mark.parametrize("gone_at", [0, CHUNKS], ids=["first-chunk", "after-the-last-chunk"])
def test_a_copy_in_progress_when_the_marker_goes_is_refused_and_taken_back(
    rsm: ObjectRemoteStorageManager, settings: RsmSettings, backend: StorageBackend, gone_at: int
) -> None:
    rsm.check()

    def chunks() -> Iterator[SegmentChunk]:
        for number, chunk in enumerate([*FILES.chunks(), None]):
            if number == gone_at:
                backend.delete([f"{settings.prefix}.sediment"])
                with pytest.raises(RemoteStorageError, match="has no"):
                    rsm.check()
            if chunk is not None:
                yield chunk

    data = LogSegmentData(FILES.headers(), chunks())
    with pytest.raises(RetriableRemoteStorageError, match=r"not ready: .*has no"):
        rsm.copy_log_segment_data(a_segment(len(FILES.log)), data)
    assert not list(keys_in(backend, settings.prefix))

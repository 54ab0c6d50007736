"""The MinIO that tests start, and what tells it from other stores."""

from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest
from minio.error import S3Error

from services.api.errors import RetriableRemoteStorageError
from services.api.remote_storage_manager import LogSegmentData, SegmentChunk
from services.api.segment_objects import all_multipart_uploads
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import StorageBackend, Upload
from services.rsm.factory import build_backend, build_manager
from services.rsm.layout import segment_keys
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, a_segment, some_bytes
from tests.contract.rsm_over_s3 import PART, everything_in, settings_for
from tests.harness.eventually import eventually
from tests.harness.minio import MinioServer
from tests.harness.stores import keys_in


@pytest.fixture
def own(tmp_path: Path) -> Iterator[MinioServer]:
    """One of our own, to stop and kill."""
    with MinioServer(tmp_path) as server:
        server.endpoint.ensure_bucket("orders")
        yield server


def unfinished(backend: StorageBackend, *keys: str) -> set[Upload]:
    return {backend.begin_upload(key) for key in keys}


def test_a_wrong_key_is_refused(minio: MinioServer) -> None:
    right = minio.endpoint
    wrong = S3Endpoint(right.endpoint, right.access_key, "not-the-secret-key")
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        wrong.client().list_buckets()


def test_acknowledged_object_survives_a_stop_and_a_kill(own: MinioServer) -> None:
    before = own.endpoint
    before.client().put_object("orders", "key", BytesIO(b"1"), 1)
    own.stop()
    own.start()
    own.kill()
    assert not own.is_running()
    own.start()
    assert own.endpoint == before
    with before.client().get_object("orders", "key") as response:
        assert response.read() == b"1"


def test_uploads_are_listed_by_the_beginning_of_their_keys(
    backend: StorageBackend, settings: RsmSettings
) -> None:
    stem = f"{settings.prefix}topic/0/segment"
    ours = unfinished(backend, f"{stem}.a.log", f"{stem}.b.log", f"{stem}.b.log")
    others = unfinished(backend, f"{settings.prefix}topic/0/other.a.log")
    assert set(backend.list_uploads(f"{stem}.")) == ours
    assert set(backend.list_uploads(settings.prefix)) == ours | others


def test_an_upload_of_before_a_restart_is_found_by_its_whole_key_only(
    own: MinioServer,
) -> None:
    """MinIO forgets it in listings, and ends it itself a day after it was begun."""
    settings = settings_for(own.endpoint)
    backend = build_backend(settings)
    (upload,) = unfinished(backend, f"{settings.prefix}segment.a.log")
    assert list(backend.list_uploads(f"{settings.prefix}segment.")) == [upload]
    own.stop()
    own.start()
    assert list(backend.list_uploads(f"{settings.prefix}segment.")) == []
    assert list(backend.list_uploads(upload.key)) == [upload]


def test_after_a_restart_the_delete_of_a_copy_that_never_finished_misses_its_uploads_alone(
    own: MinioServer,
) -> None:
    """docs/run/repair.md says what becomes of them."""
    settings, metadata, attempt = settings_for(own.endpoint), a_segment(), "00c0ffee00c0ffee"
    backend, keys = build_backend(settings), segment_keys(settings.prefix, metadata)
    (upload,) = unfinished(backend, keys.log(attempt))
    backend.put(keys.indexes(attempt), b"left behind")
    own.stop()
    own.start()
    with closing(build_manager(settings)) as rsm:
        rsm.delete_log_segment_data(metadata)
        assert list(all_multipart_uploads(rsm.objects)) == []
    assert list(keys_in(backend, settings.prefix)) == []
    assert list(backend.list_uploads(upload.key)) == [upload]


def test_a_copy_that_breaks_off_after_a_restart_ends_its_own_upload(own: MinioServer) -> None:
    settings, files = settings_for(own.endpoint), Files(some_bytes(3 * PART))
    backend, begun = build_backend(settings), list[str]()

    def is_begun() -> bool:
        begun.extend(upload.key for upload in backend.list_uploads(settings.prefix))
        return bool(begun)

    def chunks() -> Iterator[SegmentChunk]:
        yield from list(files.chunks(PART))[:2]
        eventually(is_begun)
        own.stop()
        own.start()
        raise RetriableRemoteStorageError("the rest of the log cannot be read")

    data = LogSegmentData(files.headers(), chunks())
    with (
        closing(build_manager(settings)) as rsm,
        pytest.raises(RetriableRemoteStorageError, match="the rest of the log"),
    ):
        rsm.copy_log_segment_data(a_segment(3 * PART), data)
    assert [upload for key in begun for upload in backend.list_uploads(key)] == []


def test_a_delete_without_custom_metadata_ends_the_uploads_of_its_id_alone(
    backend: StorageBackend, settings: RsmSettings
) -> None:
    metadata, other = a_segment(), a_segment()
    for one in (metadata, other):
        unfinished(backend, segment_keys(settings.prefix, one).log("00c0ffee00c0ffee"))
    with closing(build_manager(settings)) as rsm:
        rsm.delete_log_segment_data(metadata)
    (left,) = everything_in(backend, settings.prefix)()
    assert left.startswith(segment_keys(settings.prefix, other).prefix)

"""Test that segments stay in place when RSM's settings name another location for new ones."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import Part
from services.rsm.factory import build_backend, build_manager
from services.rsm.layout import CustomMetadata, segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    Files,
    StoredKeys,
    a_segment,
    copied,
    fetched,
    index,
    some_bytes,
)
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.harness.faults import Answer
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

pytestmark = pytest.mark.deep

FILES = Files(some_bytes(100_000))


@pytest.fixture
def before(s3: S3Endpoint) -> RsmSettings:
    return settings_for(s3)


@pytest.fixture(params=["prefix", "bucket", "backend"])
def after(
    request: pytest.FixtureRequest, s3: S3Endpoint, before: RsmSettings, tmp_path: Path
) -> RsmSettings:
    """Return settings that name another place as location 2, and `before` in the file."""
    keys = tmp_path / "access-key", tmp_path / "secret-key"
    keys[0].write_text(f"{s3.access_key}\n")
    keys[1].write_text(f"{s3.secret_key}\n")
    registry = tmp_path / "locations.toml"
    registry.write_text(
        f"""
        [[location]]
        id = 1
        backend = "s3"
        endpoint = "{s3.endpoint}"
        region = "{s3.region}"
        bucket = "{before.bucket}"
        prefix = "{before.prefix}"
        secure = {str(s3.secure).lower()}
        access_key_file = "{keys[0]}"
        secret_key_file = "{keys[1]}"
        """
    )
    registered = {"location_id": 2, "locations_file": registry}
    if request.param == "backend":
        objects = tmp_path / "objects"
        objects.mkdir()
        return RsmSettings.model_validate(
            {"backend": "filesystem", "directory": objects, **registered}
        )
    if request.param == "bucket":
        s3.ensure_bucket("rsm-another-bucket")
        registered["bucket"] = "rsm-another-bucket"
    return settings_for(s3, registered)


@contextmanager
def ready(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(settings)) as manager:
        manager.check()
        yield manager


@pytest.fixture
def old_keys(before: RsmSettings) -> StoredKeys:
    return everything_in(build_backend(before), before.prefix)


@pytest.fixture
def new_keys(after: RsmSettings) -> StoredKeys:
    return everything_in(build_backend(after), after.prefix)


@pytest.fixture
def old_segment(before: RsmSettings) -> RemoteLogSegmentMetadata:
    with ready(before) as rsm:
        return copied(rsm, FILES)


@pytest.fixture
def rsm(
    old_segment: RemoteLogSegmentMetadata, after: RsmSettings
) -> Iterator[ObjectRemoteStorageManager]:
    """Provide an RSM that began after the change of location; there is an old segment."""
    with ready(after) as manager:
        yield manager


def test_an_old_segment_is_read(
    rsm: RemoteStorageManager, old_segment: RemoteLogSegmentMetadata
) -> None:
    assert fetched(rsm, old_segment) == FILES.log
    assert index(rsm, old_segment, IndexType.OFFSET) == FILES.indexes[IndexType.OFFSET]


def test_an_old_segment_is_found_without_its_custom_metadata(
    rsm: RemoteStorageManager, old_segment: RemoteLogSegmentMetadata
) -> None:
    assert fetched(rsm, replace(old_segment, custom_metadata=None)) == FILES.log
    with pytest.raises(RemoteResourceNotFoundError):
        fetched(rsm, a_segment())


def test_a_new_segment_goes_to_the_new_place(
    rsm: RemoteStorageManager, old_keys: StoredKeys, new_keys: StoredKeys
) -> None:
    before = set(old_keys())
    metadata = copied(rsm, FILES)
    assert fetched(rsm, metadata) == FILES.log
    assert len(new_keys()) == 3
    assert set(old_keys()) == before


def test_old_and_new_segments_are_deleted_in_one_batch(
    rsm: RemoteStorageManager,
    old_segment: RemoteLogSegmentMetadata,
    old_keys: StoredKeys,
    new_keys: StoredKeys,
) -> None:
    outcomes = rsm.delete_log_segment_data_batch([copied(rsm, FILES), old_segment, a_segment()])
    assert outcomes == [None, None, None]
    assert not old_keys()
    assert not new_keys()


def test_an_object_of_a_partition_is_found_in_every_location(
    rsm: RemoteStorageManager, old_segment: RemoteLogSegmentMetadata
) -> None:
    tp = old_segment.topic_id_partition
    new = copied(rsm, FILES, a_segment(topic_id=tp.topic_id))
    assert (rsm.find_partition_object(tp) or "").startswith("2:")
    rsm.delete_log_segment_data(new)
    assert (rsm.find_partition_object(tp) or "").startswith("1:")
    rsm.delete_log_segment_data(old_segment)
    assert rsm.find_partition_object(tp) is None


def test_a_copy_that_never_finished_goes_from_every_location(
    rsm: RemoteStorageManager,
    before: RsmSettings,
    after: RsmSettings,
    old_segment: RemoteLogSegmentMetadata,
    old_keys: StoredKeys,
    new_keys: StoredKeys,
) -> None:
    kept, metadata = set(old_keys()), a_segment()
    for settings in (before, after):
        backend, keys = build_backend(settings), segment_keys(settings.prefix, metadata)
        backend.put(keys.indexes("00c0ffee00c0ffee"), b"indexes")
        upload = backend.begin_upload(keys.log("00c0ffee00c0ffee"))
        backend.upload_part(upload, Part(1, 0, memoryview(b"part")))
    assert (len(old_keys()), len(new_keys())) == (len(kept) + 2, 2)
    rsm.delete_log_segment_data(metadata)
    assert set(old_keys()) == kept
    assert not new_keys()


def test_of_a_place_that_takes_no_writes_a_copy_that_never_finished_goes(
    s3: S3Endpoint, before: RsmSettings, tmp_path: Path, old_keys: StoredKeys
) -> None:
    metadata, backend = a_segment(), build_backend(before)
    keys = segment_keys(before.prefix, metadata)
    backend.put(keys.indexes("00c0ffee00c0ffee"), b"indexes")
    backend.begin_upload(keys.log("00c0ffee00c0ffee"))
    with HttpProxy(s3.endpoint, s3_operation) as proxy:
        for operation in ("PutObject", "CreateMultipartUpload", "UploadPart"):
            proxy.faults.add(Answer(403), operation=operation, times=None)
        registry = tmp_path / "locations.toml"
        registry.write_text(
            f'[[location]]\nid = 1\nbackend = "s3"\nendpoint = "{proxy.address}"\n'
            f'region = "{s3.region}"\nbucket = "{before.bucket}"\nprefix = "{before.prefix}"\n'
            "secure = false\n"
        )
        moved = settings_for(s3, {"location_id": 2, "locations_file": registry})
        with ready(moved) as rsm:
            rsm.delete_log_segment_data(metadata)
    assert not old_keys()


def test_without_the_registry_the_old_segment_is_refused_by_its_location(
    after: RsmSettings, old_segment: RemoteLogSegmentMetadata, old_keys: StoredKeys
) -> None:
    alone = after.model_copy(update={"locations_file": None})
    with (
        ready(alone) as rsm,
        pytest.raises(
            InvalidRequestError, match="location 1 is not registered; add it to RSM_LOCATIONS_FILE"
        ),
    ):
        rsm.delete_log_segment_data(old_segment)
    assert len(old_keys()) == 3


@pytest.mark.parametrize("location_id", [2, 3, 65535])
def test_of_an_unknown_location_no_store_is_asked_anything(
    s3: S3Endpoint, before: RsmSettings, location_id: int
) -> None:
    with HttpProxy(s3.endpoint, s3_operation) as proxy:
        behind = before.model_copy(update={"endpoint": proxy.address})
        with ready(behind) as rsm:
            metadata = copied(rsm, FILES)
            assert metadata.custom_metadata is not None
            found = CustomMetadata.from_bytes(metadata.custom_metadata)
            forged = replace(
                metadata, custom_metadata=replace(found, location_id=location_id).to_bytes()
            )
            proxy.forget_requests()
            calls: list[Callable[[], object]] = [
                lambda: fetched(rsm, forged),
                lambda: index(rsm, forged, IndexType.OFFSET),
                lambda: rsm.delete_log_segment_data(forged),
            ]
            named = f"location {location_id} is not registered"
            for call in calls:
                with pytest.raises(InvalidRequestError, match=named):
                    call()
            (outcome,) = rsm.delete_log_segment_data_batch([forged])
            assert isinstance(outcome, InvalidRequestError)
            assert proxy.requests == []
            assert fetched(rsm, metadata) == FILES.log

"""Ask a real store for what a location's properties say."""

from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import RemoteStorageError
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_manager
from tests.contract.remote_storage_manager_contract import Files, copied, fetched, some_bytes
from tests.contract.rsm_over_s3 import PART, settings_for, with_properties


@pytest.mark.parametrize("size_bytes", [1000, PART + 7], ids=["one PUT", "in parts"])
def test_a_class_of_storage_reaches_the_store(
    s3: S3Endpoint, tmp_path: Path, size_bytes: int
) -> None:
    """Use the one class besides STANDARD that MinIO knows too."""
    settings = with_properties(settings_for(s3), tmp_path, 'storage_class = "REDUCED_REDUNDANCY"')
    log = some_bytes(size_bytes)
    with closing(build_manager(settings)) as manager:
        manager.check()
        segment = copied(manager, Files(log))
        assert fetched(manager, segment) == log
    listed = s3.client().list_objects(settings.bucket, settings.prefix, recursive=True)
    of_segment = [each for each in listed if "/" in str(each.object_name)[len(settings.prefix) :]]
    assert {each.storage_class for each in of_segment} == {"REDUCED_REDUNDANCY"}


def test_a_store_that_does_not_encrypt_is_named_at_the_start(
    s3: S3Endpoint, tmp_path: Path
) -> None:
    settings = with_properties(settings_for(s3), tmp_path, 'sse = "AES256"')
    with (
        closing(build_manager(settings)) as manager,
        pytest.raises(RemoteStorageError, match="with x-amz-server-side-encryption: the object"),
    ):
        manager.check()

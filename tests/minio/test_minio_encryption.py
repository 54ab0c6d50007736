"""Let MinIO encrypt what a location's properties demand."""

from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import RemoteStorageError
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, fetched, some_bytes
from tests.contract.rsm_over_s3 import PART, with_properties
from tests.harness.minio import KMS_KEY_ID, MinioServer

KMS = f'''sse = "aws:kms"
sse_kms_key_id = "{KMS_KEY_ID}"
sse_kms_context = {{ topic = "orders" }}'''


@pytest.mark.parametrize("size_bytes", [1000, PART + 7], ids=["one PUT", "in parts"])
@pytest.mark.parametrize(
    ("properties", "answer"), [('sse = "AES256"', "AES256"), (KMS, "aws:kms")], ids=["S3", "KMS"]
)
def test_objects_are_encrypted_by_the_store(
    minio: MinioServer,
    settings: RsmSettings,
    tmp_path: Path,
    properties: str,
    answer: str,
    size_bytes: int,
) -> None:
    log = some_bytes(size_bytes)
    with closing(build_manager(with_properties(settings, tmp_path, properties))) as manager:
        manager.check()
        assert fetched(manager, copied(manager, Files(log))) == log
    client = minio.endpoint.client()
    listed = client.list_objects(settings.bucket, settings.prefix, recursive=True)
    names = [str(each.object_name) for each in listed if str(each.object_name).endswith(".log")]
    found = client.stat_object(settings.bucket, names[0]).metadata or {}
    assert found["x-amz-server-side-encryption"] == answer


def test_an_unknown_key_of_kms_is_named_at_the_start(settings: RsmSettings, tmp_path: Path) -> None:
    other = KMS.replace(KMS_KEY_ID, "no-such-key")
    with (
        closing(build_manager(with_properties(settings, tmp_path, other))) as manager,
        pytest.raises(
            RemoteStorageError,
            match="with x-amz-server-side-encryption",
        ),
    ):
        manager.check()

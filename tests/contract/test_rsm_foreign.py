"""Read and delete segments that other tiered storages wrote, through RSM over gRPC."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.api.errors import (
    CorruptSegmentError,
    DirectReadRefusedError,
    InvalidRangeError,
    InvalidRequestError,
    NotServedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    StoreNotFoundError,
)
from services.api.imported_segments import imported_custom_metadata
from services.api.remote_storage_manager import IndexType
from services.api.segment_objects import ObjectQuery
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from tests.contract.remote_storage_manager_contract import (
    Files,
    copied,
    fetched,
    index,
    some_bytes,
    without,
)
from tests.harness.foreign_tiers import (
    ForeignTier,
    aiven_manifest,
    aiven_tier,
    imported,
    local_tier,
)
from tests.harness.served import serving

FILES = Files(some_bytes(3 * 1024 * 1024 + 17))
LAYOUTS = ("local-tiered-storage", "aiven")
Made = Callable[..., ForeignTier]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    def tier(layout: str, extra: str = "") -> ForeignTier:
        if layout == "aiven":
            s3: S3Endpoint = request.getfixturevalue("s3")
            return aiven_tier(tmp_path, s3, extra)
        return local_tier(tmp_path, extra)

    return tier


@pytest.fixture(params=LAYOUTS)
def tier(request: pytest.FixtureRequest, make: Made) -> ForeignTier:
    return make(request.param)


@pytest.fixture
def rsm(tier: ForeignTier) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(tier.settings)) as manager:
        manager.check()
        yield manager


def test_every_file_is_read_over_grpc(tier: ForeignTier) -> None:
    row = imported(FILES)
    tier.store(row, FILES)
    with serving(tier.settings) as served:
        rsm, size = served.client, len(FILES.log)
        assert fetched(rsm, row) == FILES.log
        assert fetched(rsm, row, 1000, 2_000_000) == FILES.log[1000:2_000_001]
        assert fetched(rsm, row, size - 1, size + 10) == FILES.log[-1:]
        assert {kind: index(rsm, row, kind) for kind in IndexType} == FILES.indexes
        assert {k: b"".join(rsm.fetch_index(row, k, as_stored=True)) for k in IndexType} == {
            **FILES.indexes
        }
        with pytest.raises(InvalidRangeError, match="has 3145745 bytes, none at 3145745"):
            fetched(rsm, row, size)
        with pytest.raises(InvalidRequestError, match="end_position: 4 is below 5"):
            fetched(rsm, row, 5, 4)
        with pytest.raises((DirectReadRefusedError, NotServedError)):
            rsm.open_log_segment(row)


def test_original_bytes_do_not_matter_for_reads(
    tier: ForeignTier, rsm: ObjectRemoteStorageManager
) -> None:
    row = imported(FILES, None)
    tier.store(row, FILES)
    assert fetched(rsm, row) == FILES.log


def test_index_that_was_not_copied_is_missing(
    tier: ForeignTier, rsm: ObjectRemoteStorageManager
) -> None:
    files = Files(FILES.log, without(IndexType.TRANSACTION))
    row = imported(files)
    tier.store(row, files)
    with pytest.raises(RemoteResourceNotFoundError, match="imported"):
        index(rsm, row, IndexType.TRANSACTION)
    assert index(rsm, row, IndexType.OFFSET) == b"index"


def test_empty_files_are_read(tier: ForeignTier, rsm: ObjectRemoteStorageManager) -> None:
    files = Files(b"", dict.fromkeys(IndexType, b""))
    row = imported(files)
    keys = tier.store(row, files)
    assert fetched(rsm, row) == b""
    assert index(rsm, row, IndexType.TRANSACTION) == b""
    assert tier.backend.delete(keys) == {}


def test_missing_object_is_named(tier: ForeignTier, rsm: ObjectRemoteStorageManager) -> None:
    row = imported(FILES)
    with pytest.raises(RemoteResourceNotFoundError, match=r"imported: .*in location 7"):
        fetched(rsm, row)
    with pytest.raises(RemoteResourceNotFoundError, match=r"imported: .*in location 7"):
        index(rsm, row, IndexType.OFFSET)


def test_log_shorter_than_its_metadata_says_is_named(
    tier: ForeignTier, rsm: ObjectRemoteStorageManager
) -> None:
    row = imported(FILES)
    tier.store(row, FILES)
    tier.backend.put(f"{tier.stem(row)}.log", FILES.log[:-1])
    with pytest.raises(CorruptSegmentError, match=r"imported: .*only 3145744 bytes"):
        fetched(rsm, row)


def test_location_that_is_not_registered_is_named(rsm: ObjectRemoteStorageManager) -> None:
    row = imported(FILES)
    elsewhere = replace(row, custom_metadata=imported_custom_metadata(8, b"x"))
    with pytest.raises(StoreNotFoundError, match="imported from location 8, which RSM_LOCATIONS"):
        fetched(rsm, elsewhere)
    with pytest.raises(StoreNotFoundError, match="imported from location 1, which RSM_LOCATIONS"):
        fetched(rsm, replace(row, custom_metadata=imported_custom_metadata(1, b"x")))
    with pytest.raises(InvalidRequestError, match=r"metadata\.custom_metadata: is malformed"):
        fetched(rsm, replace(row, custom_metadata=b"\x80\x00\x07\x02"))


def test_read_only_location_keeps_its_objects(
    tier: ForeignTier, rsm: ObjectRemoteStorageManager
) -> None:
    row = imported(FILES)
    keys = tier.store(row, FILES)
    rsm.delete_log_segment_data(row)
    assert rsm.delete_log_segment_data_batch([row, row]) == [None, None]
    assert tier.left() == sorted(keys)
    assert fetched(rsm, row) == FILES.log


@pytest.mark.parametrize("layout", LAYOUTS)
def test_deletes_take_one_segment_if_the_location_permits_them(make: Made, layout: str) -> None:
    tier = make(layout, "read_only = false")
    row, other = imported(FILES), imported(FILES)
    tier.store(row, FILES)
    keys = tier.store(other, FILES)
    with closing(build_manager(tier.settings)) as rsm:
        own = copied(rsm, FILES)
        rsm.delete_log_segment_data(row)
        rsm.delete_log_segment_data(row)
        assert tier.left() == sorted(keys)
        assert fetched(rsm, own) == FILES.log


def test_objects_of_others_are_none_of_ours(
    tier: ForeignTier, rsm: ObjectRemoteStorageManager
) -> None:
    row = imported(FILES)
    tier.store(row, FILES)
    assert rsm.find_partition_object(row.topic_id_partition) is None
    for location_id in (0, 7):
        assert rsm.objects.list_segment_objects(ObjectQuery(location_id)).objects == ()


def test_own_copy_beside_an_imported_row_is_read_and_deleted_as_such(
    tier: ForeignTier, rsm: ObjectRemoteStorageManager
) -> None:
    """The same id in both places, as an adoption leaves it."""
    row = imported(FILES)
    keys = tier.store(row, FILES)
    own = copied(rsm, FILES, replace(row, custom_metadata=None))
    rsm.delete_log_segment_data(row)
    assert fetched(rsm, own) == FILES.log
    rsm.delete_log_segment_data(own)
    assert tier.left() == sorted(keys)
    with pytest.raises(RemoteStorageError):
        fetched(rsm, own)


def test_vanished_directory_ends_reads_of_its_segments_alone(tmp_path: Path) -> None:
    tier = local_tier(tmp_path)
    row = imported(FILES)
    tier.store(row, FILES)
    shutil.rmtree(tmp_path / "theirs")
    with closing(build_manager(tier.settings)) as rsm:
        rsm.check()
        own = copied(rsm, FILES)
        with pytest.raises(StoreNotFoundError, match="no such directory"):
            fetched(rsm, row)
        with pytest.raises(StoreNotFoundError, match="no such directory"):
            index(rsm, row, IndexType.OFFSET)
        assert fetched(rsm, own) == FILES.log
        rsm.delete_log_segment_data(own)


def test_vanished_bucket_ends_reads_of_its_segments_alone(tmp_path: Path, s3: S3Endpoint) -> None:
    tier = aiven_tier(tmp_path, s3)
    registry = tier.settings.locations_file
    assert registry is not None
    text = registry.read_text().replace(f'"{tier.settings.bucket}"', '"rsm-no-such-bucket"')
    registry.write_text(text)
    with closing(build_manager(tier.settings)) as rsm:
        rsm.check()
        own = copied(rsm, FILES)
        with pytest.raises(StoreNotFoundError, match="rsm-no-such-bucket"):
            fetched(rsm, imported(FILES))
        assert fetched(rsm, own) == FILES.log


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"compression": True}, CorruptSegmentError, "fixed, compressed or not"),
        ({"chunkIndex": {"type": "variable"}}, CorruptSegmentError, "variable, compressed or not"),
        ({"chunkIndex": {"type": "other"}}, CorruptSegmentError, "not a manifest of version 1"),
        ({"version": "2"}, CorruptSegmentError, "not a manifest of version 1"),
        ({"segmentIndexes": None}, CorruptSegmentError, "not a manifest of version 1"),
        ({"chunkIndex": {"originalFileSize": 9}}, CorruptSegmentError, "has 9 bytes by its"),
        ({"chunkIndex": {"transformedChunkSize": 9}}, CorruptSegmentError, "another size"),
    ],
)
def test_manifest_that_cannot_be_read_is_named(
    tmp_path: Path, s3: S3Endpoint, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    tier, row, whole = aiven_tier(tmp_path, s3), imported(FILES), aiven_manifest(FILES)
    if "chunkIndex" in changes:
        changes = {"chunkIndex": {**whole["chunkIndex"], **changes["chunkIndex"]}}
    tier.store(row, FILES, {**whole, **changes})
    with closing(build_manager(tier.settings)) as rsm, pytest.raises(error, match=said):
        fetched(rsm, row)


def test_template_and_suffixes_name_the_objects(tmp_path: Path, s3: S3Endpoint) -> None:
    tier = aiven_tier(
        tmp_path,
        s3,
        'key_template = "masked-{topic_id}/{topic}.{partition}/{segment_id}.{offset}"\n'
        'suffixes = {log = ".seg", manifest = ".json"}',
    )
    row = imported(FILES)
    moved = {".log": ".seg", ".rsm-manifest": ".json", ".indexes": ".indexes"}
    topic_id, segment_id = tier.stem(row).split("/")[-3][-22:], tier.stem(row)[-22:]
    stem = f"{tier.prefix}masked-{topic_id}/orders.eu-1.3/{segment_id}.00000000000000004711"
    for key in tier.store(row, FILES):
        suffix = next(each for each in moved if key.endswith(each))
        size = tier.backend.describe(key)
        assert size is not None
        data = b"".join(tier.backend.fetch(key, 0, size.size_bytes - 1))
        tier.backend.put(f"{stem}{moved[suffix]}", data)
        tier.backend.delete([key])
    with closing(build_manager(tier.settings)) as rsm:
        assert fetched(rsm, row) == FILES.log
        assert index(rsm, row, IndexType.LEADER_EPOCH) == FILES.indexes[IndexType.LEADER_EPOCH]

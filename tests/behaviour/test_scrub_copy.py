"""Test the scrub's findings for a copy whose objects have changed in the store."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import CopyDigests, IndexType
from services.api.segment_objects import ObjectLocation, SegmentObjectKind
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend, build_manager
from services.rsm.layout import SegmentKeys, segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.workflows.scrub_copy import CopyScrub, Damage, UnverifiedError
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    copied,
    of_manifest,
    some_bytes,
    without,
)
from tests.contract.rsm_over_s3 import PART, settings_for
from tests.contract.rsm_through_faults import rsm_behind
from tests.harness.faults import Answer, Corrupt, Direction
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

pytestmark = pytest.mark.deep

LOG, INDEXES = SegmentObjectKind.LOG, SegmentObjectKind.INDEXES
MANIFEST = SegmentObjectKind.MANIFEST
# Two reads; the last chunk is a short one.
SIZE = 9 * MIB + 1000
LAST_CHUNK = f"bytes {9 * MIB} to {SIZE - 1}"


@dataclass(frozen=True)
class Copy:
    """A copy in a store, and ways to damage it."""

    rsm: ObjectRemoteStorageManager
    backend: StorageBackend
    metadata: RemoteLogSegmentMetadata
    keys: SegmentKeys
    digests: CopyDigests
    attempt: str

    @property
    def log(self) -> str:
        return self.keys.log(self.attempt)

    @property
    def indexes(self) -> str:
        return self.keys.indexes(self.attempt)

    def change(self, key: str, *positions: int) -> None:
        content = bytearray(self.content(key))
        for position in positions:
            content[position] ^= 1
        self.backend.put(key, bytes(content))

    def truncate(self, key: str, size_bytes: int) -> None:
        self.backend.put(key, self.content(key)[:size_bytes])

    def with_manifest(self, document: object) -> "Copy":
        """Replace the manifest, and its digest in the metadata."""
        content = json.dumps(document).encode()
        self.backend.put(self.keys.manifest, content)
        return replace(self, metadata=of_manifest(self.metadata, content))

    def content(self, key: str) -> bytes:
        stored = self.backend.describe(key)
        assert stored is not None
        return b"".join(self.backend.fetch(key, 0, stored.size_bytes - 1))

    def reported(self) -> CopyDigests:
        where = ObjectLocation(1, self.keys.manifest)
        digests = self.rsm.objects.read_segment_manifest(where).digests
        assert digests is not None
        return digests

    def damages(self, rsm: ObjectRemoteStorageManager | None = None) -> list[Damage]:
        return list(self.scrub(rsm or self.rsm, at_once))

    def scrub(
        self, rsm: ObjectRemoteStorageManager, take: Callable[[int], None]
    ) -> Iterator[Damage]:
        return CopyScrub(rsm, self.metadata, self.reported(), take).damages()


def at_once(size_bytes: int) -> None:
    """No limit."""


def a_copy(rsm: ObjectRemoteStorageManager, settings: RsmSettings, files: Files) -> Copy:
    metadata = copied(rsm, files)
    keys = segment_keys(settings.prefix, metadata)
    reported = rsm.objects.read_segment_manifest(ObjectLocation(1, keys.manifest))
    assert reported.digests is not None
    return Copy(rsm, build_backend(settings), metadata, keys, reported.digests, reported.attempt)


# The findings do not depend on the store, and a copy over S3 takes ten times the CPU.
@pytest.fixture(params=["filesystem", pytest.param("s3", marks=pytest.mark.deep)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> RsmSettings:
    if request.param == "s3":
        return settings_for(request.getfixturevalue("s3"), {"verify_reads": "off"})
    return RsmSettings(
        backend="filesystem",
        directory=tmp_path,
        prefix="tier/",
        part_size_bytes=PART,
        verify_reads="off",
    )


@pytest.fixture
def rsm(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(settings)) as manager:
        yield manager


@pytest.fixture
def copy(rsm: ObjectRemoteStorageManager, settings: RsmSettings) -> Copy:
    indexes = {kind: some_bytes(1000, at) for at, kind in enumerate(IndexType)}
    return a_copy(rsm, settings, Files(some_bytes(SIZE), indexes))


def test_a_sound_copy_is_read_once_and_nothing_is_reported(copy: Copy) -> None:
    taken: list[int] = []
    assert list(copy.scrub(copy.rsm, taken.append)) == []
    assert taken == [8 * MIB, MIB + 1000, *[1000] * len(IndexType)]


@pytest.mark.parametrize("log", [b"", b"x", b"x" * MIB], ids=["empty", "one byte", "one chunk"])
def test_small_logs_and_empty_indexes_are_sound(
    rsm: ObjectRemoteStorageManager, settings: RsmSettings, log: bytes
) -> None:
    files = Files(log, dict.fromkeys(without(IndexType.TRANSACTION), b""))
    assert a_copy(rsm, settings, files).damages() == []


@pytest.mark.parametrize(
    ("position", "named"),
    [
        (0, f"chunk 0, bytes 0 to {MIB - 1}"),
        (MIB - 1, f"chunk 0, bytes 0 to {MIB - 1}"),
        (8 * MIB, f"chunk 8, bytes {8 * MIB} to {9 * MIB - 1}"),
        (SIZE - 1, f"chunk 9, {LAST_CHUNK}"),
    ],
)
def test_a_changed_byte_of_the_log_is_named_by_its_chunk(
    copy: Copy, position: int, named: str
) -> None:
    copy.change(copy.log, position)
    (damage,) = copy.damages()
    assert damage.kind is LOG
    assert damage.detail.startswith(f"1 of 10 chunks are not what was copied: {named}: crc32c of ")
    number = position // MIB
    assert f"of what was copied {copy.digests.log.chunk_crc32c[number]:08x}" in damage.detail


def test_all_damaged_chunks_are_counted_and_the_first_are_named(copy: Copy) -> None:
    copy.change(copy.log, *(number * MIB for number in (0, 2, 3, 5, 8, 9)))
    (damage,) = copy.damages()
    assert damage.detail.startswith("6 of 10 chunks are not what was copied: chunk 0, ")
    assert "chunk 5, " in damage.detail
    assert damage.detail.endswith("; and 2 more")


@pytest.mark.parametrize("at", range(len(IndexType)))
def test_a_changed_index_is_named_and_the_others_are_not(copy: Copy, at: int) -> None:
    copy.change(copy.indexes, at * 1000 + 999)
    (damage,) = copy.damages()
    assert damage.kind is INDEXES
    assert damage.detail.startswith(f"the {list(IndexType)[at].name} index: RSM answered DATA_LOSS")


@pytest.mark.parametrize("size", [SIZE - 1, 8 * MIB + 1, 1])
def test_whole_chunks_of_a_log_that_ends_early_are_distinguished(copy: Copy, size: int) -> None:
    copy.truncate(copy.log, size)
    (damage,) = copy.damages()
    lost = 10 - size // MIB
    assert damage.kind is LOG
    assert damage.detail.startswith(f"{lost} of 10 chunks are not what was copied")
    assert f"chunk {size // MIB}, " in damage.detail
    assert len(damage.detail) < 1_024


def test_all_damaged_indexes_are_named_together(copy: Copy) -> None:
    copy.truncate(copy.indexes, 3_500)
    copy.change(copy.indexes, 0)
    (damage,) = copy.damages()
    assert damage.kind is INDEXES
    first, *_, last = (f"the {kind.name} index: " for kind in IndexType)
    assert damage.detail.startswith(first)
    assert last in damage.detail
    assert damage.detail.count("; the ") == 2


@pytest.mark.parametrize("which", ["log", "indexes"])
def test_an_object_that_is_not_there_is_no_damage_but_missing(copy: Copy, which: str) -> None:
    assert not copy.backend.delete([getattr(copy, which)])
    with pytest.raises(RemoteResourceNotFoundError):
        copy.damages()


def test_damage_found_before_a_missing_object_is_reported_first(copy: Copy) -> None:
    copy.change(copy.log, 0)
    assert not copy.backend.delete([copy.indexes])
    damages = copy.scrub(copy.rsm, at_once)
    assert next(damages).kind is LOG
    with pytest.raises(RemoteResourceNotFoundError):
        next(damages)


def test_indexes_that_are_missed_while_they_are_read_are_missing(copy: Copy) -> None:
    copy.change(copy.indexes, 0)
    taken: list[int] = []

    def take(size_bytes: int) -> None:
        """Delete the indexes before the third read of an index."""
        taken.append(size_bytes)
        if taken.count(1000) == 3:
            assert not copy.backend.delete([copy.indexes])

    damages = copy.scrub(copy.rsm, take)
    assert next(damages).detail.startswith("the OFFSET index: ")
    with pytest.raises(RemoteResourceNotFoundError):
        next(damages)


def test_an_empty_log_must_be_there_too(
    rsm: ObjectRemoteStorageManager, settings: RsmSettings
) -> None:
    copy = a_copy(rsm, settings, Files(b""))
    assert not copy.backend.delete([copy.log])
    with pytest.raises(RemoteResourceNotFoundError):
        copy.damages()


def test_manifest_with_contradictory_digests_counts_as_damaged(copy: Copy) -> None:
    document = json.loads(copy.backend.get(copy.keys.manifest))
    document["log"]["chunk_crc32c"][4] ^= 1
    copy = copy.with_manifest(document)
    (damage,) = copy.damages()
    assert damage.kind is MANIFEST
    assert f"chunk 4, bytes {4 * MIB} to " in damage.detail
    document["log"]["chunk_crc32c"][4] ^= 1
    document["log"]["crc32c"] ^= 1
    copy = copy.with_manifest(document)
    (damage,) = copy.damages()
    assert damage.kind is MANIFEST
    assert "each chunk of the log is as it was copied" in damage.detail


def test_a_service_that_verifies_reads_itself_hides_no_other_damage(
    copy: Copy, settings: RsmSettings
) -> None:
    copy.change(copy.log, 0, 2 * MIB)
    copy.change(copy.indexes, 0)
    with closing(
        build_manager(settings.model_copy(update={"verify_reads": "always"}))
    ) as verifying:
        with pytest.raises(CorruptSegmentError):
            b"".join(verifying.fetch_log_segment(copy.metadata, 0))
        log, index = copy.damages(verifying)
    assert log.detail.startswith("2 of 10 chunks are not what was copied (the log, or ")
    assert ": chunk 0, " in log.detail
    assert f"chunk 2, bytes {2 * MIB} to " in log.detail
    assert index.detail.startswith("the OFFSET index: ")


def test_a_wrong_digest_is_not_blamed_on_the_log_alone_by_a_service_that_verifies(
    copy: Copy, settings: RsmSettings
) -> None:
    document = json.loads(copy.backend.get(copy.keys.manifest))
    document["log"]["chunk_crc32c"][4] ^= 1
    copy = copy.with_manifest(document)
    changes = {"verify_reads": "always"}
    with closing(build_manager(settings.model_copy(update=changes))) as verifying:
        (damage,) = copy.damages(verifying)
    assert "(the log, or the manifest's digests of it): chunk 4, " in damage.detail


class TestThroughABadConnection:
    @pytest.fixture
    def settings(self, s3: S3Endpoint) -> RsmSettings:
        return settings_for(s3, {"verify_reads": "off"})

    @pytest.fixture
    def proxy(self, s3: S3Endpoint) -> Iterator[HttpProxy]:
        with HttpProxy(s3.endpoint, s3_operation) as running:
            yield running

    @pytest.mark.parametrize("skip", [0, 1, 2])
    def test_a_byte_that_changed_on_its_way_is_not_held_against_the_store(
        self, copy: Copy, settings: RsmSettings, proxy: HttpProxy, skip: int
    ) -> None:
        with rsm_behind(proxy, settings, retries=0) as behind:
            proxy.faults.add(Corrupt(5, Direction.RESPONSE), operation="GetObject", skip=skip)
            with pytest.raises(UnverifiedError, match=r"second correct: (crc32c of|RSM answered)"):
                copy.damages(behind)
            assert copy.damages(behind) == []

    @pytest.mark.parametrize("skip", [0, 1, 2])
    def test_a_store_that_fails_is_no_damage(
        self, copy: Copy, settings: RsmSettings, proxy: HttpProxy, skip: int
    ) -> None:
        with rsm_behind(proxy, settings, retries=0) as behind:
            proxy.faults.add(Answer(503), operation="GetObject", skip=skip)
            with pytest.raises(RetriableRemoteStorageError):
                copy.damages(behind)

    @pytest.mark.parametrize(
        "skip",
        [
            pytest.param(2, id="the second chunk, read again"),
            pytest.param(9, id="the second read"),
        ],
    )
    def test_damage_before_a_failure_is_reported(
        self, copy: Copy, settings: RsmSettings, proxy: HttpProxy, skip: int
    ) -> None:
        copy.change(copy.log, 0)
        with rsm_behind(proxy, settings, retries=0) as behind:
            proxy.faults.add(Answer(503), operation="GetObject", skip=skip)
            damages = copy.scrub(behind, at_once)
            assert next(damages).detail.startswith("1 of 10 chunks")
            with pytest.raises(RetriableRemoteStorageError):
                next(damages)

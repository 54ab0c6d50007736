"""Define the tests that every SegmentObjects must pass: over each store, and over gRPC."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from crc32c import crc32c

from services.api.errors import (
    ConcurrentUpdateError,
    CorruptSegmentError,
    DeletionRefusedError,
    InvalidRequestError,
    NotServedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogDigest,
    RemoteStorageManager,
    SegmentChunk,
)
from services.api.segment_objects import (
    MAX_OBJECTS,
    MAX_STATE_BYTES,
    MultipartUpload,
    ObjectLocation,
    ObjectQuery,
    ObjectToDelete,
    SegmentKey,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjects,
    all_multipart_uploads,
    all_segment_objects,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.validation import seal
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES, StorageBackend
from services.rsm.layout import segment_keys
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    a_segment,
    copied,
    fetched,
    index,
    some_bytes,
)

LOCATION_ID = 1
COPY_SEGMENT_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
BEFORE_MS = 1_700_000_000_000
"""Earlier than any run of these tests."""


@dataclass(frozen=True)
class Store:
    """Accesses the store itself, without the service."""

    backend: StorageBackend
    prefix: str

    def manifest_of(self, metadata: RemoteLogSegmentMetadata) -> ObjectLocation:
        return ObjectLocation(LOCATION_ID, segment_keys(self.prefix, metadata).manifest)

    def log_of(self, metadata: RemoteLogSegmentMetadata, attempt: str) -> ObjectLocation:
        return ObjectLocation(LOCATION_ID, segment_keys(self.prefix, metadata).log(attempt))


class SegmentObjectsContract:
    """Tests one empty place; subclasses provide the fixtures of `use_implementation`."""

    objects: SegmentObjects
    rsm: RemoteStorageManager
    store: Store
    lists_uploads = True

    @pytest.fixture(autouse=True)
    def use_implementation(
        self, segment_objects: SegmentObjects, manager: RemoteStorageManager, own_store: Store
    ) -> None:
        self.objects, self.rsm, self.store = segment_objects, manager, own_store

    def copied(
        self, files: Files, metadata: RemoteLogSegmentMetadata | None = None
    ) -> RemoteLogSegmentMetadata:
        return copied(self.rsm, files, metadata)

    def test_nothing_is_listed_of_an_empty_store(self) -> None:
        assert list(all_segment_objects(self.objects, ObjectQuery())) == []
        assert list(all_multipart_uploads(self.objects)) == []

    def test_a_copy_is_three_objects_with_its_names_and_sizes(self) -> None:
        files = Files(some_bytes(MIB))
        metadata = self.copied(files)
        found = {each.name.kind: each for each in all_segment_objects(self.objects, ObjectQuery())}
        assert set(found) == set(SegmentObjectKind)
        segment_id, tp = metadata.remote_log_segment_id, metadata.topic_id_partition
        for each in found.values():
            assert each.location.location_id == LOCATION_ID
            assert (each.name.topic_id, each.name.partition) == (tp.topic_id, tp.partition)
            assert each.name.segment_id == segment_id.id
            assert each.name.start_offset == metadata.start_offset
            assert each.modified_ms > BEFORE_MS
            assert each.etag
        log, manifest = found[SegmentObjectKind.LOG], found[SegmentObjectKind.MANIFEST]
        indexes = found[SegmentObjectKind.INDEXES]
        assert manifest.location == self.store.manifest_of(metadata)
        assert manifest.name.attempt is None
        assert log.name.attempt == indexes.name.attempt is not None
        assert log.location == self.store.log_of(metadata, log.name.attempt or "")
        assert (log.size_bytes, indexes.size_bytes) == (
            MIB,
            sum(len(index) for index in files.indexes.values()),
        )

    @pytest.mark.parametrize("shards", [1, 3, 256])
    @pytest.mark.parametrize("page_size", [0, 1, 5])
    def test_shards_and_pages_have_each_object_once_and_partitions_whole(
        self, shards: int, page_size: int
    ) -> None:
        topics = [UUID(int=(first << 120) + 1) for first in (0x00, 0x55, 0x56, 0xAB, 0xFF)]
        for topic_id in topics:
            self.copied(Files(b"log"), a_segment(topic_id=topic_id))
        seen: list[SegmentObject] = []
        of_topics: dict[UUID, int] = {}
        for shard in range(shards):
            in_shard = list_by_pages(self.objects, ObjectQuery(0, shard, shards), page_size)
            assert [each.location.key for each in in_shard] == sorted(
                each.location.key for each in in_shard
            )
            for each in in_shard:
                assert of_topics.setdefault(each.name.topic_id, shard) == shard
            seen += in_shard
        assert len(seen) == len({each.location for each in seen}) == 3 * len(topics)
        assert set(of_topics) == set(topics)

    def test_foreign_objects_are_not_listed(self) -> None:
        self.copied(Files(b"log"))
        for key in ("readme.txt", "ff" * 16 + "/0/notes.log", f"{'ff' * 16}/x/y.manifest"):
            self.store.backend.put(f"{self.store.prefix}{key}", b"not ours")
        assert len(list_by_pages(self.objects, ObjectQuery(), 2)) == 3

    @pytest.mark.parametrize(
        "list_one",
        [
            pytest.param(lambda s: s.list_segment_objects(ObjectQuery(77)), id="objects"),
            pytest.param(lambda s: s.list_multipart_uploads(77), id="uploads"),
            pytest.param(lambda s: s.read_segment_manifest(ObjectLocation(77, "x")), id="manifest"),
            pytest.param(
                lambda s: s.delete_segment_objects([ObjectToDelete(ObjectLocation(77, "x"))]),
                id="delete",
            ),
            pytest.param(
                lambda s: s.abort_multipart_uploads([(ObjectLocation(77, "x"), "u")]), id="abort"
            ),
        ],
    )
    def test_a_location_that_is_not_registered_is_refused(
        self, list_one: Callable[[SegmentObjects], object]
    ) -> None:
        with pytest.raises(InvalidRequestError, match="location 77 is not registered; add it to"):
            list_one(self.objects)

    @pytest.mark.parametrize("token", ["x", "eA==", "\u00e9", "A" * 44])
    def test_a_forged_token_is_refused(self, token: str) -> None:
        with pytest.raises(InvalidRequestError, match="page_token"):
            self.objects.list_segment_objects(ObjectQuery(), page_token=token)
        with pytest.raises(InvalidRequestError, match="page_token"):
            self.objects.list_multipart_uploads(page_token=token)

    @pytest.mark.parametrize("size", [1_025, 1_000_000])
    def test_a_token_that_is_longer_than_any_key_is_refused(self, size: int) -> None:
        """Otherwise it would be sent to the store as the start of the list."""
        query, long = ObjectQuery(), "a" * size
        of_objects = seal(query, long.encode())
        of_uploads = seal(("uploads", 0), f"key\n{long}".encode())
        with pytest.raises(InvalidRequestError, match="page_token: not a page token"):
            self.objects.list_segment_objects(query, page_token=of_objects)
        with pytest.raises(InvalidRequestError, match="page_token: not a page token"):
            self.objects.list_multipart_uploads(page_token=of_uploads)

    def test_the_longest_key_and_the_longest_id_of_an_upload_fit_into_tokens(self) -> None:
        self.copied(Files(b"log"))
        query, longest = ObjectQuery(), "a" * 1_024
        token = seal(query, f"{longest}\n0".encode())
        assert self.objects.list_segment_objects(query, page_token=token).next_page_token == ""
        token = seal(("uploads", 0), f"{longest}\n{longest}".encode())
        assert self.objects.list_multipart_uploads(page_token=token).uploads == ()

    def test_a_token_of_another_query_and_a_negative_page_are_refused(self) -> None:
        self.copied(Files(b"log"))
        token = self.objects.list_segment_objects(ObjectQuery(), page_size=1).next_page_token
        with pytest.raises(InvalidRequestError, match="page_token: is of another query"):
            self.objects.list_segment_objects(ObjectQuery(0, 0, 2), page_token=token)
        with pytest.raises(InvalidRequestError, match="page_size"):
            self.objects.list_segment_objects(ObjectQuery(), page_size=-1)

    def test_manifest_has_the_metadata_and_sizes_of_the_copy(self) -> None:
        metadata = self.copied(Files(b"the log", {IndexType.OFFSET: b"12", **REST}))
        reported = self.objects.read_segment_manifest(self.store.manifest_of(metadata))
        assert reported.metadata == replace(metadata, state=COPY_SEGMENT_STARTED)
        assert (reported.log_size_bytes, reported.indexes_size_bytes) == (7, 2)
        assert reported.written_at_ms > BEFORE_MS
        assert (
            self.store.backend.describe(self.store.log_of(metadata, reported.attempt).key)
            is not None
        )

    @pytest.mark.parametrize("size", [0, 1, MIB, 2 * MIB + 5])
    def test_manifest_has_the_digests_of_the_copied_files(self, size: int) -> None:
        log = some_bytes(size)
        indexes = {IndexType.OFFSET: b"12", IndexType.TRANSACTION: b"an aborted one"}
        metadata = self.copied(Files(log, {**REST, **indexes}))
        reported = self.objects.read_segment_manifest(self.store.manifest_of(metadata)).digests
        chunks = tuple(crc32c(log[at : at + MIB]) for at in range(0, size, MIB))
        assert reported == CopyDigests(
            LogDigest(FileDigest(size, crc32c(log)), chunks, MIB),
            {
                kind: FileDigest(len(content), crc32c(content))
                for kind, content in {**REST, **indexes}.items()
            },
        )

    def test_of_a_copy_without_a_transaction_index_there_is_no_digest_of_one(self) -> None:
        metadata = self.copied(Files(b"log", {IndexType.OFFSET: b"12", **REST}))
        reported = self.objects.read_segment_manifest(self.store.manifest_of(metadata)).digests
        assert reported is not None
        assert IndexType.TRANSACTION not in reported.indexes

    @pytest.mark.parametrize(
        "content", [b"{}", bytes(MAX_SMALL_OBJECT_BYTES + 1)], ids=["not one", "too large"]
    )
    def test_of_a_manifest_that_is_none(self, content: bytes) -> None:
        metadata = a_segment()
        with pytest.raises(RemoteResourceNotFoundError):
            self.objects.read_segment_manifest(self.store.manifest_of(metadata))
        self.store.backend.put(self.store.manifest_of(metadata).key, content)
        with pytest.raises(CorruptSegmentError):
            self.objects.read_segment_manifest(self.store.manifest_of(metadata))
        with pytest.raises(InvalidRequestError, match="not a manifest"):
            self.objects.read_segment_manifest(self.store.log_of(metadata, "0" * 16))

    def test_objects_are_deleted_and_those_that_are_gone_too(self) -> None:
        kept, gone = self.copied(Files(b"kept")), self.copied(Files(b"gone"))
        doomed = [
            ObjectToDelete(each.location, each.etag)
            for each in all_segment_objects(self.objects, ObjectQuery())
            if each.name.segment_id == gone.remote_log_segment_id.id
        ]
        twice = [*doomed, doomed[0]]
        assert self.objects.delete_segment_objects(twice, committed_copies=True) == [None] * 4
        assert self.objects.delete_segment_objects(doomed, committed_copies=True) == [None] * 3
        assert self.objects.delete_segment_objects(doomed) == [None] * 3
        left = {each.name.segment_id for each in all_segment_objects(self.objects, ObjectQuery())}
        assert left == {kept.remote_log_segment_id.id}
        assert fetched(self.rsm, kept) == b"kept"

    def test_an_index_that_was_read_is_not_found_once_its_object_is_deleted(self) -> None:
        metadata = self.copied(Files(b"log"))
        assert index(self.rsm, metadata, IndexType.OFFSET)
        doomed = [
            ObjectToDelete(e.location) for e in all_segment_objects(self.objects, ObjectQuery())
        ]
        assert self.objects.delete_segment_objects(doomed, committed_copies=True) == [None] * 3
        with pytest.raises(RemoteResourceNotFoundError):
            index(self.rsm, metadata, IndexType.TIMESTAMP)

    def test_an_object_that_is_another_one_now_stays(self) -> None:
        metadata = self.copied(Files(b"log"))
        seen = list(all_segment_objects(self.objects, ObjectQuery()))
        manifest = self.store.manifest_of(metadata)
        self.store.backend.put(manifest.key, self.store.backend.get(manifest.key) + b" ")
        outcomes = self.objects.delete_segment_objects(
            [ObjectToDelete(each.location, each.etag) for each in seen], committed_copies=True
        )
        by_key = dict(zip((each.location.key for each in seen), outcomes, strict=True))
        assert isinstance(by_key.pop(manifest.key), ConcurrentUpdateError)
        assert set(by_key.values()) == {None}
        assert [each.location for each in all_segment_objects(self.objects, ObjectQuery())] == [
            manifest
        ]

    def test_a_committed_copy_is_refused_by_name_and_leftovers_beside_it_go(self) -> None:
        metadata = self.copied(Files(b"log"))
        never_copied = a_segment()
        left = [self.store.log_of(each, "0" * 16) for each in (metadata, never_copied)]
        for each in left:
            self.store.backend.put(each.key, b"left by a copy that failed")
        kept = [each.location for each in all_segment_objects(self.objects, ObjectQuery())]
        kept = [each for each in kept if each not in left]
        assert len(kept) == 3
        outcomes = self.objects.delete_segment_objects(
            [ObjectToDelete(each) for each in (*left, self.store.manifest_of(never_copied), *kept)]
        )
        assert outcomes[:3] == [None] * 3
        for refused, location in zip(outcomes[3:], kept, strict=True):
            assert isinstance(refused, DeletionRefusedError)
            assert str(refused).startswith(location.key)
            assert "committed_copies" in str(refused)
        assert [each.location for each in all_segment_objects(self.objects, ObjectQuery())] == kept
        assert fetched(self.rsm, metadata) == b"log"

    def test_objects_beside_a_damaged_manifest_stay(self) -> None:
        metadata = self.copied(Files(b"log"))
        self.store.backend.put(self.store.manifest_of(metadata).key, b"damaged")
        found = [each.location for each in all_segment_objects(self.objects, ObjectQuery())]
        outcomes = self.objects.delete_segment_objects([ObjectToDelete(each) for each in found])
        assert all(isinstance(each, CorruptSegmentError) for each in outcomes)
        assert len(list(all_segment_objects(self.objects, ObjectQuery()))) == 3

    @pytest.mark.parametrize(
        "key",
        ["", "other/prefix", ".sediment", "../../etc/passwd", "{prefix}readme.txt", "{log}/x"],
    )
    def test_only_objects_of_segments_can_be_named(self, key: str) -> None:
        metadata = self.copied(Files(b"log"))
        self.store.backend.put(f"{self.store.prefix}readme.txt", b"not ours")
        log = self.store.log_of(metadata, "0" * 16).key
        location = ObjectLocation(LOCATION_ID, key.format(prefix=self.store.prefix, log=log))
        good = ObjectToDelete(self.store.manifest_of(metadata))
        with pytest.raises(
            InvalidRequestError, match=r"objects\[1\].location.key: names no object"
        ):
            self.objects.delete_segment_objects([good, ObjectToDelete(location)])
        with pytest.raises(
            InvalidRequestError, match=r"uploads\[0\].location.key: names no object"
        ):
            self.objects.abort_multipart_uploads([(location, "upload")])
        assert len(list(all_segment_objects(self.objects, ObjectQuery()))) == 3
        assert self.store.backend.get(f"{self.store.prefix}readme.txt") == b"not ours"

    @pytest.mark.parametrize("count", [0, MAX_OBJECTS + 1])
    def test_none_and_too_many_are_refused(self, count: int) -> None:
        location = self.store.manifest_of(a_segment())
        with pytest.raises(InvalidRequestError, match="objects: must be 1 to 1000"):
            self.objects.delete_segment_objects([ObjectToDelete(location)] * count)
        with pytest.raises(InvalidRequestError, match="uploads: must be 1 to 1000"):
            self.objects.abort_multipart_uploads([(location, "upload")] * count)

    def test_incomplete_uploads_are_listed_and_aborted(self) -> None:
        keys = [self.store.log_of(a_segment(topic_id=UUID(int=n)), "0" * 16).key for n in (1, 2, 3)]
        begun = [self.store.backend.begin_upload(key) for key in keys]
        listed: list[MultipartUpload] = []
        token = ""
        while True:
            page = self.objects.list_multipart_uploads(page_size=1, page_token=token)
            listed += page.uploads
            token = page.next_page_token
            if not token:
                break
        assert [(each.location.key, each.upload_id) for each in listed] == [
            (upload.key, upload.upload_id) for upload in begun
        ]
        assert all(each.begun_ms > BEFORE_MS for each in listed)
        assert [each.name.topic_id for each in listed] == [UUID(int=n) for n in (1, 2, 3)]
        ended = [(each.location, each.upload_id) for each in listed[:2]]
        assert self.objects.abort_multipart_uploads(ended) == [None, None]
        assert self.objects.abort_multipart_uploads(ended) == [None, None]
        assert list(all_multipart_uploads(self.objects)) == listed[2:]

    @pytest.mark.parametrize(
        "upload_id",
        ["", "\0", "a\nb", "x" * 1_025],
        ids=["none", "a null", "two lines", "too long"],
    )
    def test_an_upload_must_have_an_id(self, upload_id: str) -> None:
        metadata = self.copied(Files(b"log"))
        attempt = self.objects.read_segment_manifest(self.store.manifest_of(metadata)).attempt
        doomed = (self.store.log_of(metadata, attempt), upload_id)
        with pytest.raises(InvalidRequestError, match=r"uploads\[0\].upload_id: names no upload"):
            self.objects.abort_multipart_uploads([doomed])
        assert fetched(self.rsm, metadata) == b"log"

    @pytest.mark.parametrize("upload_id", ["x" * 1_024, "\N{GRINNING FACE}" * 256, "..", "../.."])
    def test_an_id_of_no_upload_ends_nothing(self, upload_id: str) -> None:
        metadata = self.copied(Files(b"log"))
        begun = self.store.backend.begin_upload(self.store.log_of(a_segment(), "0" * 16).key)
        ids = [upload_id, f"{begun.upload_id}/{upload_id}", f"{upload_id}/{begun.upload_id}"]
        place = ObjectLocation(LOCATION_ID, begun.key)
        outcomes = self.objects.abort_multipart_uploads([(place, each[:1_024]) for each in ids])
        # A store may refuse an id that it would never give.
        assert all(each is None or "answered 400" in str(each) for each in outcomes)
        listed = [each.upload_id for each in all_multipart_uploads(self.objects)]
        assert listed == ([begun.upload_id] if self.lists_uploads else [])
        assert fetched(self.rsm, metadata) == b"log"

    def test_the_latest_state_under_a_name_is_kept_beside_the_segments(self) -> None:
        self.copied(Files(b"log"))
        with pytest.raises(RemoteResourceNotFoundError):
            self.objects.deployment_state("topics")
        largest = some_bytes(MAX_STATE_BYTES)
        for data in (b"", b"first", largest):
            self.objects.put_deployment_state("topics", data)
            assert self.objects.deployment_state("topics") == data
        self.objects.put_deployment_state("topics-a-0", b"another")
        assert self.objects.deployment_state("topics") == largest
        assert len(list(all_segment_objects(self.objects, ObjectQuery()))) == 3

    @pytest.mark.parametrize("name", ["", "../topics", "Topics", "a/b", "x" * 65])
    def test_a_state_has_a_name_of_its_form_and_a_bound(self, name: str) -> None:
        for call in (
            lambda: self.objects.put_deployment_state(name, b""),
            lambda: self.objects.deployment_state(name),
        ):
            with pytest.raises(InvalidRequestError, match=r"^name: must be 1 to 64"):
                call()
        with pytest.raises(InvalidRequestError, match=r"^data: at most"):
            self.objects.put_deployment_state("topics", bytes(MAX_STATE_BYTES + 1))

    def test_without_a_ring_no_segment_has_a_key(self) -> None:
        copied = self.copied(Files(b"log"))
        never_copied = replace(a_segment(), custom_metadata=None)
        answer = self.objects.rewrap_keys([copied, never_copied], dry_run=True)
        key, error = answer.outcomes
        assert key == SegmentKey(LOCATION_ID, "")
        assert isinstance(error, InvalidRequestError)
        assert (answer.current, answer.key_ids, answer.problem) == ("", (), "")
        with pytest.raises(NotServedError, match="RSM has no ring of keys"):
            self.objects.rewrap_keys([copied])
        with pytest.raises(InvalidRequestError, match=r"^metadatas: at most 1000"):
            self.objects.rewrap_keys([copied] * 1001, dry_run=True)

    def test_objects_of_a_copy_in_progress_are_neither_deleted_nor_aborted(self) -> None:
        metadata, files = a_segment(), Files(b"log")
        outcomes: list[object] = []
        location = self.store.log_of(metadata, "0" * 16)

        def chunks_with_a_deletion() -> Iterator[SegmentChunk]:
            outcomes.extend(self.objects.delete_segment_objects([ObjectToDelete(location)]))
            outcomes.extend(self.objects.abort_multipart_uploads([(location, "upload")]))
            yield from files.chunks()

        data = replace(files.data(), chunks=chunks_with_a_deletion())
        self.rsm.copy_log_segment_data(metadata, data)
        assert [type(each) for each in outcomes] == [RetriableRemoteStorageError] * 2


REST = dict.fromkeys(
    (IndexType.TIMESTAMP, IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH), b""
)


def list_by_pages(
    objects: SegmentObjects, query: ObjectQuery, page_size: int
) -> list[SegmentObject]:
    found: list[SegmentObject] = []
    token = ""
    while True:
        page = objects.list_segment_objects(query, page_size=page_size, page_token=token)
        assert len(page.objects) <= (page_size or MAX_OBJECTS)
        found += page.objects
        token = page.next_page_token
        if not token:
            return found

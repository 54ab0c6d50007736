"""Define the tests that every RemoteStorageManager must pass: over each store, and over gRPC."""

import random
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Barrier
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c

from services.api.errors import (
    CorruptSegmentError,
    InvalidRangeError,
    InvalidRequestError,
    NotServedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    SegmentAlreadyExistsError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import (
    MAX_DELETE_BATCH,
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rsm.layout import CustomMetadata, Manifest
from tests.harness.eventually import eventually

MIB = 1024 * 1024
# More than one part and less than three, of parts of 5 to 8 MiB.
LARGE = 12 * MIB + 123
StoredKeys = Callable[[], Collection[str]]


class SourceFailedError(Exception):
    """The source of the bytes failed in the middle of a copy."""


@dataclass(frozen=True)
class Files:
    """The files of one segment, in memory."""

    log: bytes
    indexes: Mapping[IndexType, bytes] = field(
        default_factory=lambda: {kind: kind.name.encode() * 40 for kind in IndexType}
    )

    def headers(self) -> list[SegmentFileHeader]:
        contents = {"LOG": self.log} | {kind.name: self.indexes[kind] for kind in self.indexes}
        return [
            SegmentFileHeader(file, len(contents[file.name]), crc32c(contents[file.name]))
            for file in SegmentFile
            if file.name in contents
        ]

    def chunks(self, size: int = MIB) -> Iterator[SegmentChunk]:
        yield from cut(SegmentFile.LOG, self.log, size)
        for kind in IndexType:
            yield from cut(SegmentFile[kind.name], self.indexes.get(kind, b""), size)

    def data(self, chunk_size: int = MIB) -> LogSegmentData:
        return LogSegmentData(self.headers(), self.chunks(chunk_size))


def replaced(
    rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata, files: Files
) -> RemoteLogSegmentMetadata:
    """Replace the copy of a segment; return the segment with the new custom metadata."""
    data = replace(files.data(), replaces=True)
    return replace(segment, custom_metadata=rsm.copy_log_segment_data(segment, data))


def cut(file: SegmentFile, content: bytes, size: int) -> Iterator[SegmentChunk]:
    for start in range(0, len(content), size):
        yield SegmentChunk(file, content[start : start + size])


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def without(kind: IndexType) -> dict[IndexType, bytes]:
    return {other: b"index" for other in IndexType if other is not kind}


def a_segment(
    size: int = -1, start_offset: int = 100, topic_id: UUID | None = None
) -> RemoteLogSegmentMetadata:
    """Return metadata for a log of `size` bytes; -1 if the size is unknown."""
    partition = TopicIdPartition(topic_id or uuid4(), "orders.eu-1", 3)
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(partition, uuid4()),
        start_offset=start_offset,
        end_offset=start_offset + 99,
        max_timestamp_ms=1_700_000_000_000,
        broker_id=1,
        event_timestamp_ms=1_700_000_000_001,
        segment_leader_epochs=segment_leader_epochs([(0, start_offset), (2, start_offset + 50)]),
        segment_size_in_bytes=size,
        broker_leader_epoch=2,
    )


def copied(
    rsm: RemoteStorageManager, files: Files, metadata: RemoteLogSegmentMetadata | None = None
) -> RemoteLogSegmentMetadata:
    """Copy `files` and return the metadata as a client has it afterwards."""
    metadata = metadata or a_segment(len(files.log))
    custom_metadata = rsm.copy_log_segment_data(metadata, files.data())
    return replace(
        metadata,
        custom_metadata=custom_metadata,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )


def of_manifest(metadata: RemoteLogSegmentMetadata, content: bytes) -> RemoteLogSegmentMetadata:
    """Return the metadata of the same copy with the digest of other bytes of its manifest."""
    found = CustomMetadata.from_bytes(metadata.custom_metadata or b"")
    digest = Manifest.from_bytes(content, "").custom_metadata(1).manifest_digest
    return replace(metadata, custom_metadata=replace(found, manifest_digest=digest).to_bytes())


def fetched(
    rsm: RemoteStorageManager,
    metadata: RemoteLogSegmentMetadata,
    start: int = 0,
    end: int | None = None,
) -> bytes:
    return b"".join(rsm.fetch_log_segment(metadata, start, end))


def index(rsm: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
    return b"".join(rsm.fetch_index(metadata, kind))


def assert_names_segment_and_next_step(
    error: RemoteStorageError, metadata: RemoteLogSegmentMetadata
) -> None:
    offsets = f"offsets {metadata.start_offset} to {metadata.end_offset}"
    for part in (str(metadata.remote_log_segment_id), offsets, "retry the copy"):
        assert part in str(error)


def assert_becomes_empty(stored_keys: StoredKeys) -> None:
    """Wait until the store is empty: over gRPC a failure may arrive before the service has cleaned
    up.
    """
    eventually(lambda: not stored_keys())


class RemoteStorageManagerContract:
    """Tests a store that is empty at first; subclasses provide the fixtures `manager` and `keys`.

    `keys` lists the store's present objects and unfinished uploads.
    """

    rsm: RemoteStorageManager
    stored_keys: StoredKeys

    @pytest.fixture(autouse=True)
    def use_implementation(self, manager: RemoteStorageManager, keys: StoredKeys) -> None:
        self.rsm, self.stored_keys = manager, keys

    def copied(
        self, files: Files, metadata: RemoteLogSegmentMetadata | None = None
    ) -> RemoteLogSegmentMetadata:
        return copied(self.rsm, files, metadata)

    def fetched(
        self, metadata: RemoteLogSegmentMetadata, start: int = 0, end: int | None = None
    ) -> bytes:
        return fetched(self.rsm, metadata, start, end)

    def index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        return index(self.rsm, metadata, kind)

    # Copy and fetch

    def test_log_is_fetched_byte_for_byte(self) -> None:
        files = Files(some_bytes(100_001))
        assert self.fetched(self.copied(files)) == files.log

    def test_log_of_several_parts_is_fetched_byte_for_byte(self) -> None:
        files = Files(some_bytes(LARGE))
        assert self.fetched(self.copied(files)) == files.log

    def test_how_a_log_is_cut_into_chunks_does_not_matter(self) -> None:
        files, metadata = Files(some_bytes(100_000)), a_segment()
        custom_metadata = self.rsm.copy_log_segment_data(metadata, files.data(chunk_size=777))
        assert self.fetched(replace(metadata, custom_metadata=custom_metadata)) == files.log

    def test_direct_reads_are_off_unless_they_are_set(self) -> None:
        segment = self.copied(Files(some_bytes(10)))
        with pytest.raises(NotServedError, match="RSM_DIRECT_READS"):
            self.rsm.open_log_segment(segment)

    def test_custom_metadata_has_less_than_64_bytes(self) -> None:
        custom_metadata = self.copied(Files(some_bytes(10))).custom_metadata
        assert custom_metadata is not None
        assert 0 < len(custom_metadata) < 64

    def test_a_copy_is_three_objects_named_by_ids(self) -> None:
        metadata = self.copied(Files(some_bytes(10)))
        segment_id = metadata.remote_log_segment_id
        topic_id = segment_id.topic_id_partition.topic_id.hex
        stem = f"{topic_id}/3/{'100'.zfill(20)}-{segment_id.id.hex}."
        keys = sorted(self.stored_keys())
        assert all(stem in key for key in keys)
        assert sorted(key.rsplit(".", 1)[1] for key in keys) == ["indexes", "log", "manifest"]

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, 0), (0, 9), (7, 7), (16_383, 16_384), (1, 99_998), (99_999, 99_999), (50_000, None)],
    )
    def test_both_ends_of_a_range_are_inclusive(self, start: int, end: int | None) -> None:
        files = Files(some_bytes(100_000))
        expected = files.log[start:] if end is None else files.log[start : end + 1]
        assert self.fetched(self.copied(files), start, end) == expected

    def test_a_range_across_parts_is_whole(self) -> None:
        files = Files(some_bytes(LARGE))
        start, end = 4 * MIB, 9 * MIB
        assert self.fetched(self.copied(files), start, end) == files.log[start : end + 1]

    def test_a_range_ends_at_the_end_of_the_file(self) -> None:
        metadata = self.copied(Files(b"0123456789"))
        assert self.fetched(metadata, 8, 2**31 - 1) == b"89"

    @pytest.mark.parametrize("start", [10, 11, 2**31 - 1])
    def test_a_range_that_starts_beyond_the_file_is_refused(self, start: int) -> None:
        metadata = self.copied(Files(b"0123456789"))
        with pytest.raises(InvalidRangeError):
            self.fetched(metadata, start)

    @pytest.mark.parametrize(("start", "end"), [(-1, None), (1, -1), (2, 1)])
    def test_a_range_that_is_none_is_refused(self, start: int, end: int | None) -> None:
        metadata = self.copied(Files(b"0123456789"))
        with pytest.raises(InvalidRequestError):
            self.fetched(metadata, start, end)

    def test_no_chunk_is_larger_than_a_mebibyte(self) -> None:
        metadata = self.copied(Files(some_bytes(3 * MIB)))
        assert max(len(chunk) for chunk in self.rsm.fetch_log_segment(metadata, 0)) <= MIB

    def test_a_read_may_be_closed_early(self) -> None:
        files = Files(some_bytes(LARGE))
        metadata = self.copied(files)
        for _ in range(20):
            stream = self.rsm.fetch_log_segment(metadata, 0)
            assert files.log.startswith(next(stream))
            assert isinstance(stream, Generator)
            stream.close()
        assert self.fetched(metadata, LARGE - 5) == files.log[-5:]

    def test_the_state_in_the_metadata_is_not_trusted(self) -> None:
        metadata = self.copied(Files(b"0123456789"))
        deleting = replace(metadata, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        assert self.fetched(deleting) == b"0123456789"

    # Empty and absent files

    def test_an_empty_log_is_an_empty_stream(self) -> None:
        assert self.fetched(self.copied(Files(b""))) == b""

    def test_an_empty_log_has_no_byte_at_1(self) -> None:
        metadata = self.copied(Files(b""))
        with pytest.raises(InvalidRangeError):
            self.fetched(metadata, 1)

    @pytest.mark.parametrize("kind", IndexType)
    def test_each_index_is_fetched_byte_for_byte(self, kind: IndexType) -> None:
        sizes = {IndexType.OFFSET: 2 * MIB + 1, IndexType.TRANSACTION: 34}
        indexes = {k: some_bytes(sizes.get(k, 1000), seed=at) for at, k in enumerate(IndexType)}
        metadata = self.copied(Files(b"log", indexes))
        assert self.index(metadata, kind) == indexes[kind]

    @pytest.mark.parametrize("kind", IndexType)
    def test_an_empty_index_is_an_empty_stream(self, kind: IndexType) -> None:
        metadata = self.copied(Files(b"log", {**without(kind), kind: b""}))
        assert self.index(metadata, kind) == b""

    def test_all_indexes_may_be_empty(self) -> None:
        metadata = self.copied(Files(b"log", dict.fromkeys(IndexType, b"")))
        assert [self.index(metadata, kind) for kind in IndexType] == [b""] * 5

    def test_an_absent_transaction_index_is_not_found(self) -> None:
        metadata = self.copied(Files(b"log", without(IndexType.TRANSACTION)))
        with pytest.raises(RemoteResourceNotFoundError):
            self.index(metadata, IndexType.TRANSACTION)

    def test_index_after_an_absent_one_is_fetched(self) -> None:
        indexes = {**without(IndexType.TRANSACTION), IndexType.LEADER_EPOCH: b"0\n1\n0 0\n"}
        metadata = self.copied(Files(b"log", indexes))
        assert self.index(metadata, IndexType.LEADER_EPOCH) == b"0\n1\n0 0\n"

    # What is not there

    def test_the_log_of_a_segment_never_copied_is_not_found(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.fetched(a_segment())

    @pytest.mark.parametrize("kind", IndexType)
    def test_an_index_of_a_segment_never_copied_is_not_found(self, kind: IndexType) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.index(a_segment(), kind)

    @pytest.mark.parametrize("log", [b"log", b""])
    def test_a_deleted_log_is_not_found(self, log: bytes) -> None:
        metadata = self.copied(Files(log))
        self.rsm.delete_log_segment_data(metadata)
        with pytest.raises(RemoteResourceNotFoundError):
            self.fetched(metadata)

    @pytest.mark.parametrize("kind", IndexType)
    def test_a_deleted_index_is_not_found(self, kind: IndexType) -> None:
        metadata = self.copied(Files(b"log"))
        assert self.index(metadata, kind)
        self.rsm.delete_log_segment_data(metadata)
        with pytest.raises(RemoteResourceNotFoundError):
            self.index(metadata, kind)

    @pytest.mark.parametrize("others", [b"index", b""])
    @pytest.mark.parametrize("kind", IndexType)
    def test_a_deleted_index_that_was_empty_is_not_found(
        self, kind: IndexType, others: bytes
    ) -> None:
        indexes = {**dict.fromkeys(IndexType, others), kind: b""}
        metadata = self.copied(Files(b"log", indexes))
        self.rsm.delete_log_segment_data(metadata)
        with pytest.raises(RemoteResourceNotFoundError):
            self.index(metadata, kind)

    # Without and with foreign custom metadata

    def test_a_complete_copy_is_read_without_custom_metadata(self) -> None:
        files = Files(some_bytes(1000))
        metadata = replace(self.copied(files), custom_metadata=None)
        assert self.fetched(metadata, 10, 20) == files.log[10:21]
        assert self.index(metadata, IndexType.TIMESTAMP) == files.indexes[IndexType.TIMESTAMP]

    @pytest.mark.parametrize(
        "damage",
        [
            pytest.param(lambda good: b"", id="empty"),
            pytest.param(lambda good: b"\xff" + good[1:], id="other version"),
            pytest.param(lambda good: good[:1] + b"\x7f\x7f" + good[3:], id="other location"),
            pytest.param(lambda good: good[:-1], id="cut off"),
            pytest.param(lambda good: good + b"x", id="too long"),
            pytest.param(
                lambda good: good[:31] + b"\xff" * 4 + good[35:], id="absent leader epochs"
            ),
        ],
    )
    def test_unknown_custom_metadata_is_refused_and_touches_nothing(
        self, damage: Callable[[bytes], bytes]
    ) -> None:
        metadata = self.copied(Files(b"log"))
        before = sorted(self.stored_keys())
        foreign = replace(metadata, custom_metadata=damage(metadata.custom_metadata or b""))
        with pytest.raises(InvalidRequestError, match="custom_metadata"):
            self.rsm.delete_log_segment_data(foreign)
        with pytest.raises(InvalidRequestError, match="custom_metadata"):
            self.fetched(foreign)
        with pytest.raises(InvalidRequestError, match="custom_metadata"):
            self.index(foreign, IndexType.OFFSET)
        assert sorted(self.stored_keys()) == before

    # One id, several copies

    def test_the_same_bytes_again_answer_the_first_custom_metadata(self) -> None:
        files, metadata = Files(some_bytes(1000)), a_segment()
        first = self.rsm.copy_log_segment_data(metadata, files.data())
        before = sorted(self.stored_keys())
        assert self.rsm.copy_log_segment_data(metadata, files.data()) == first
        assert sorted(self.stored_keys()) == before

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(Files(b"other bytes of one size"), id="log"),
            pytest.param(Files(b"longer bytes than those of the first"), id="size"),
            pytest.param(
                Files(b"bytes of the first copy", dict.fromkeys(IndexType, b"")), id="indexes"
            ),
        ],
    )
    def test_other_content_under_one_id_is_refused(self, other: Files) -> None:
        metadata = a_segment()
        first = self.copied(Files(b"bytes of the first copy"), metadata)
        before = sorted(self.stored_keys())
        with pytest.raises(SegmentAlreadyExistsError):
            self.rsm.copy_log_segment_data(metadata, other.data())
        assert self.fetched(first) == b"bytes of the first copy"
        assert sorted(self.stored_keys()) == before

    def test_a_copy_that_replaces_another_is_read_beside_it(self) -> None:
        before = self.copied(Files(some_bytes(2 * MIB + 5)))
        whole = Files(some_bytes(2 * MIB + 5), dict.fromkeys(IndexType, b"made anew"))
        after = replaced(self.rsm, before, whole)
        assert after.custom_metadata != before.custom_metadata
        for each in (before, after):
            assert self.fetched(each) == whole.log
        for kind in IndexType:
            assert self.index(before, kind) == kind.name.encode() * 40
            assert self.index(after, kind) == b"made anew"

    def test_a_copy_may_be_replaced_again(self) -> None:
        """By whoever knows the present copy, or the one before, if a repair was broken off."""
        first = self.copied(Files(some_bytes(1_000)))
        files = Files(some_bytes(1_000), dict.fromkeys(IndexType, b"made anew"))
        replaced(self.rsm, first, files)
        second = replaced(self.rsm, first, files)
        assert self.fetched(first) == files.log
        third = replaced(self.rsm, second, files)
        for each in (second, third):
            assert self.index(each, IndexType.OFFSET) == b"made anew"

    def test_delete_of_a_copy_that_replaced_another_removes_every_object(self) -> None:
        before = self.copied(Files(some_bytes(1_000)))
        after = replaced(self.rsm, before, Files(some_bytes(1_000), dict.fromkeys(IndexType, b"")))
        self.rsm.delete_log_segment_data(after)
        assert sorted(self.stored_keys()) == []

    def test_a_copy_replaces_only_one_that_is_named(self) -> None:
        before = self.copied(Files(some_bytes(1_000)))
        keys = sorted(self.stored_keys())
        with pytest.raises(InvalidRequestError, match="must name the copy to be replaced"):
            replaced(self.rsm, replace(before, custom_metadata=None), Files(some_bytes(1_000)))
        elsewhere = CustomMetadata.from_bytes(before.custom_metadata or b"")
        elsewhere = replace(elsewhere, location_id=2)
        with pytest.raises(InvalidRequestError, match="location 2"):
            replaced(
                self.rsm,
                replace(before, custom_metadata=elsewhere.to_bytes()),
                Files(some_bytes(1_000)),
            )
        assert sorted(self.stored_keys()) == keys

    def test_an_absent_and_an_empty_transaction_index_are_other_content(self) -> None:
        metadata, absent = a_segment(), without(IndexType.TRANSACTION)
        self.rsm.copy_log_segment_data(metadata, Files(b"log", absent).data())
        empty = Files(b"log", {**absent, IndexType.TRANSACTION: b""})
        with pytest.raises(SegmentAlreadyExistsError):
            self.rsm.copy_log_segment_data(metadata, empty.data())

    def test_of_two_copies_at_once_one_wins_and_stays_readable(self) -> None:
        metadata, both = a_segment(), [Files(some_bytes(50_000, seed)) for seed in (1, 2)]
        outcomes = copied_at_once(self.rsm, metadata, both)
        won = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
        lost = [o for o in outcomes if isinstance(o, SegmentAlreadyExistsError)]
        assert (len(won), len(lost)) == (1, 1)
        assert self.fetched(replace(metadata, custom_metadata=won[0])) in [b.log for b in both]
        assert len(self.stored_keys()) == 3

    def test_two_copies_of_equal_bytes_at_once_both_succeed(self) -> None:
        metadata, files = a_segment(), Files(some_bytes(50_000))
        first, second = copied_at_once(self.rsm, metadata, [files, files])
        assert isinstance(first, bytes)
        assert first == second
        assert self.fetched(replace(metadata, custom_metadata=first)) == files.log
        assert len(self.stored_keys()) == 3

    def test_one_range_of_offsets_under_two_ids_is_two_segments(self) -> None:
        topic_id = uuid4()
        first = self.copied(Files(b"first"), a_segment(topic_id=topic_id))
        second = self.copied(Files(b"second"), a_segment(topic_id=topic_id))
        assert (self.fetched(first), self.fetched(second)) == (b"first", b"second")

    # Copies that fail

    @pytest.mark.parametrize("log_size", [100, LARGE], ids=["one part", "several parts"])
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            pytest.param(lambda chunks: chunks[1:], "LOG", id="a chunk of the log is missing"),
            pytest.param(lambda chunks: chunks[:-1], "LEADER_EPOCH", id="the end is missing"),
            pytest.param(lambda chunks: [], "LOG", id="no chunk at all"),
            pytest.param(lambda chunks: [*chunks, chunks[-1]], "LEADER_EPOCH", id="one too many"),
            pytest.param(lambda chunks: chunks[::-1], "LEADER_EPOCH", id="in reverse order"),
            pytest.param(lambda chunks: [chunks[0], *chunks], "LOG", id="a chunk of the log twice"),
        ],
    )
    def test_chunks_that_differ_from_their_header_are_refused_and_leave_nothing(
        self, log_size: int, change: Callable[[list[SegmentChunk]], list[SegmentChunk]], named: str
    ) -> None:
        files = Files(some_bytes(log_size))
        data = LogSegmentData(files.headers(), iter(change(list(files.chunks()))))
        metadata = a_segment()
        with pytest.raises(InvalidRequestError, match=named) as caught:
            self.rsm.copy_log_segment_data(metadata, data)
        assert_names_segment_and_next_step(caught.value, metadata)
        assert_becomes_empty(self.stored_keys)

    @pytest.mark.parametrize("file", SegmentFile)
    def test_a_file_with_another_crc_is_refused_and_leaves_nothing(self, file: SegmentFile) -> None:
        files = Files(some_bytes(LARGE))
        headers = [
            replace(header, crc32c=(header.crc32c or 0) ^ 1) if header.file is file else header
            for header in files.headers()
        ]
        metadata = a_segment()
        with pytest.raises(CorruptSegmentError, match=file.name) as caught:
            self.rsm.copy_log_segment_data(metadata, LogSegmentData(headers, files.chunks()))
        assert_names_segment_and_next_step(caught.value, metadata)
        assert_becomes_empty(self.stored_keys)

    @pytest.mark.parametrize(("size", "log"), [(0, b"log"), (2, b"log"), (4, b"log"), (1, b"")])
    def test_a_log_of_another_size_than_the_metadata_knows_is_refused_and_leaves_nothing(
        self, size: int, log: bytes
    ) -> None:
        with pytest.raises(InvalidRequestError, match=f"segment_size_in_bytes: is {size}, LOG has"):
            self.copied(Files(log), a_segment(size))
        assert_becomes_empty(self.stored_keys)

    @pytest.mark.parametrize("size", [-1, 3])
    def test_a_log_of_the_size_in_the_metadata_or_of_any_size_without_one_is_accepted(
        self, size: int
    ) -> None:
        assert self.fetched(self.copied(Files(b"log"), a_segment(size))) == b"log"

    def test_a_file_without_an_announced_crc_is_taken(self) -> None:
        files, metadata = Files(b"log"), a_segment()
        headers = [replace(header, crc32c=None) for header in files.headers()]
        data = LogSegmentData(headers, files.chunks())
        custom_metadata = self.rsm.copy_log_segment_data(metadata, data)
        assert self.fetched(replace(metadata, custom_metadata=custom_metadata)) == b"log"

    @pytest.mark.parametrize("taken", [0, 1, 7, 11, 13], ids=lambda taken: f"after {taken} chunks")
    def test_a_source_that_fails_leaves_nothing(self, taken: int) -> None:
        files = Files(some_bytes(LARGE))
        chunks = list(files.chunks())[:taken]
        data = LogSegmentData(files.headers(), chain(chunks, failing_source()))
        with pytest.raises(SourceFailedError):
            self.rsm.copy_log_segment_data(a_segment(), data)
        assert_becomes_empty(self.stored_keys)

    def test_a_copy_that_failed_is_not_readable(self) -> None:
        metadata, files = a_segment(), Files(b"log")
        data = LogSegmentData(files.headers(), chain(list(files.chunks())[:2], failing_source()))
        with pytest.raises(SourceFailedError):
            self.rsm.copy_log_segment_data(metadata, data)
        assert_becomes_empty(self.stored_keys)
        with pytest.raises(RemoteResourceNotFoundError):
            self.fetched(metadata)

    def test_a_copy_that_failed_may_be_repeated_under_its_id(self) -> None:
        metadata, files = a_segment(), Files(some_bytes(1000))
        data = LogSegmentData(files.headers(), failing_source())
        with pytest.raises(SourceFailedError):
            self.rsm.copy_log_segment_data(metadata, data)
        assert_becomes_empty(self.stored_keys)
        assert self.fetched(self.copied(files, metadata)) == files.log

    def test_a_copy_that_failed_leaves_the_earlier_one_readable(self) -> None:
        files = Files(some_bytes(1000))
        metadata = self.copied(files)
        data = LogSegmentData(files.headers(), failing_source())
        with pytest.raises(SourceFailedError):
            self.rsm.copy_log_segment_data(replace(metadata, custom_metadata=None), data)
        assert self.fetched(metadata) == files.log

    # Delete

    def test_delete_removes_every_object(self) -> None:
        self.rsm.delete_log_segment_data(self.copied(Files(b"log")))
        assert not self.stored_keys()

    def test_delete_of_a_segment_without_a_transaction_index_removes_every_object(self) -> None:
        files = Files(b"log", without(IndexType.TRANSACTION))
        self.rsm.delete_log_segment_data(self.copied(files))
        assert not self.stored_keys()

    def test_an_object_of_a_partition_is_found_until_none_is_left(self) -> None:
        first = self.copied(Files(b"first"))
        tp = first.topic_id_partition
        second = self.copied(Files(b"second"), a_segment(start_offset=200, topic_id=tp.topic_id))
        self.copied(Files(b"of another topic"))
        # Partition 30 has none, though its keys would begin as those of partition 3 do.
        assert self.rsm.find_partition_object(replace(tp, partition=30)) is None
        for each in (first, second):
            found = self.rsm.find_partition_object(tp)
            assert found is not None
            assert found.partition(":")[2] in self.stored_keys()
            assert f"/3/{each.start_offset:020d}-" in found
            self.rsm.delete_log_segment_data(each)
        assert self.rsm.find_partition_object(tp) is None

    def test_delete_leaves_the_other_segments_of_the_partition(self) -> None:
        topic_id = uuid4()
        gone = self.copied(Files(b"gone"), a_segment(topic_id=topic_id))
        kept = self.copied(Files(b"kept"), a_segment(topic_id=topic_id))
        self.rsm.delete_log_segment_data(gone)
        assert self.fetched(kept) == b"kept"

    def test_delete_again_is_a_success(self) -> None:
        metadata = self.copied(Files(b"log"))
        self.rsm.delete_log_segment_data(metadata)
        self.rsm.delete_log_segment_data(metadata)

    def test_delete_of_a_segment_never_copied_is_a_success(self) -> None:
        self.rsm.delete_log_segment_data(a_segment())

    def test_delete_without_custom_metadata_removes_every_object(self) -> None:
        metadata = self.copied(Files(some_bytes(1000)))
        self.rsm.delete_log_segment_data(replace(metadata, custom_metadata=None))
        assert not self.stored_keys()

    def test_delete_without_custom_metadata_leaves_the_other_segments(self) -> None:
        topic_id = uuid4()
        gone = self.copied(Files(b"gone"), a_segment(topic_id=topic_id))
        kept = self.copied(Files(b"kept"), a_segment(topic_id=topic_id))
        self.rsm.delete_log_segment_data(replace(gone, custom_metadata=None))
        assert self.fetched(kept) == b"kept"

    def test_after_a_delete_the_id_is_free_again(self) -> None:
        metadata = a_segment()
        self.rsm.delete_log_segment_data(self.copied(Files(b"first"), metadata))
        again = self.copied(Files(b"second"), metadata)
        assert self.fetched(again) == b"second"

    def test_delete_during_a_copy_is_retriable_until_the_copy_ends(self) -> None:
        metadata, files = a_segment(), Files(b"log")
        outcomes: list[RemoteStorageError | None] = []

        def chunks() -> Iterator[SegmentChunk]:
            *most, last = files.chunks()
            yield from most
            # Across the wire the service may not have begun with what is sent to it.
            eventually(lambda: any(".log" in key for key in self.stored_keys()))
            outcomes.extend(self.rsm.delete_log_segment_data_batch([metadata, a_segment()]))
            with pytest.raises(RetriableRemoteStorageError, match="is being copied; retry"):
                self.rsm.delete_log_segment_data(metadata)
            yield last

        self.rsm.copy_log_segment_data(metadata, LogSegmentData(files.headers(), chunks()))
        assert [type(outcome) for outcome in outcomes] == [
            RetriableRemoteStorageError,
            type(None),
        ]
        self.rsm.delete_log_segment_data(metadata)
        assert not self.stored_keys()

    # Batch delete

    def test_a_batch_deletes_every_segment(self) -> None:
        batch = [self.copied(Files(b"log")) for _ in range(5)]
        assert self.rsm.delete_log_segment_data_batch(batch) == [None] * 5
        assert not self.stored_keys()

    def test_batch_delete_leaves_other_segments(self) -> None:
        kept, gone = self.copied(Files(b"kept")), self.copied(Files(b"gone"))
        self.rsm.delete_log_segment_data_batch([gone])
        assert self.fetched(kept) == b"kept"

    def test_a_segment_at_fault_does_not_stop_the_others_of_its_batch(self) -> None:
        first, faulty, last = (self.copied(Files(b"log")) for _ in range(3))
        batch = [first, replace(faulty, custom_metadata=b"?"), last]
        outcomes = self.rsm.delete_log_segment_data_batch(batch)
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            InvalidRequestError,
            type(None),
        ]
        assert self.fetched(faulty) == b"log"
        with pytest.raises(RemoteResourceNotFoundError):
            self.fetched(last)

    def test_a_batch_may_name_a_segment_twice(self) -> None:
        metadata = self.copied(Files(b"log"))
        assert self.rsm.delete_log_segment_data_batch([metadata, metadata]) == [None, None]
        assert not self.stored_keys()

    def test_a_full_batch_is_deleted(self) -> None:
        real = [self.copied(Files(b"log")) for _ in range(3)]
        fill = [
            replace(real[0], remote_log_segment_id=a_segment().remote_log_segment_id)
            for _ in range(MAX_DELETE_BATCH - 3)
        ]
        batch = [real[0], *fill, *real[1:]]
        assert self.rsm.delete_log_segment_data_batch(batch) == [None] * MAX_DELETE_BATCH
        assert not self.stored_keys()

    @pytest.mark.parametrize("size", [0, MAX_DELETE_BATCH + 1])
    def test_a_batch_of_no_or_too_many_segments_is_refused(self, size: int) -> None:
        with pytest.raises(InvalidRequestError):
            self.rsm.delete_log_segment_data_batch([a_segment()] * size)


def failing_source() -> Iterator[SegmentChunk]:
    """Raise when the first chunk is read."""
    yield from ()
    raise SourceFailedError


def copied_at_once(
    rsm: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, contents: Sequence[Files]
) -> list[bytes | RemoteStorageError | None]:
    """Run copies of one id that send their last bytes together; return each result or error."""
    together = Barrier(len(contents))

    def chunks(files: Files) -> Iterator[SegmentChunk]:
        *most, last = files.chunks()
        yield from most
        together.wait(timeout=30)
        yield last

    def copy(files: Files) -> bytes | RemoteStorageError | None:
        data = LogSegmentData(files.headers(), chunks(files))
        try:
            return rsm.copy_log_segment_data(metadata, data)
        except RemoteStorageError as e:
            return e

    with ThreadPoolExecutor(len(contents)) as pool:
        return list(pool.map(copy, contents))

"""Test fetches from a real S3 store whose bytes have changed: `verify_reads`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import IndexType
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES
from services.rsm.digests import RunningDigest
from services.rsm.layout import Manifest
from services.rsm.settings import RsmSettings
from services.rsm.verification import SAMPLE_EVERY
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    fetched,
    index,
    some_bytes,
)
from tests.harness.eventually import eventually
from tests.harness.faults import Answer
from tests.harness.http_proxy import HttpProxy
from tests.harness.stores import StoredCopy, keys_in, stored_copy

# The last chunk is a short one.
SIZE = 3 * MIB + 1000
INDEX_SIZE = 2 * MIB + 1


Copy = StoredCopy[HttpProxy]


@pytest.fixture
def copy(settings: RsmSettings, proxy: HttpProxy) -> Iterator[Copy]:
    indexes = {kind: some_bytes(1000, at) for at, kind in enumerate(IndexType)}
    files = Files(some_bytes(SIZE), {**indexes, IndexType.OFFSET: some_bytes(INDEX_SIZE)})
    with stored_copy(settings, proxy, files) as made:
        yield made


@pytest.mark.parametrize(
    ("position", "named"),
    [
        (0, "chunk 0 of the log, bytes 0 to 1048575"),
        (MIB - 1, "chunk 0 of the log, bytes 0 to 1048575"),
        (MIB, "chunk 1 of the log, bytes 1048576 to 2097151"),
        (SIZE - 1, f"chunk 3 of the log, bytes 3145728 to {SIZE - 1}"),
    ],
)
def test_a_changed_byte_is_named_by_its_chunk_before_the_chunk_is_given_out(
    copy: Copy, position: int, named: str
) -> None:
    copy.change("log", position)
    given = bytearray()
    with pytest.raises(CorruptSegmentError, match=named) as caught:
        take(copy.reader(verify_reads="always").fetch_log_segment(copy.segment, 0), given)
    assert str(copy.segment.remote_log_segment_id) in str(caught.value)
    assert len(given) <= position // MIB * MIB
    assert copy.files.log.startswith(given)


def test_chunks_beside_a_changed_one_are_read(copy: Copy) -> None:
    copy.change("log", MIB + 5)
    manager = copy.reader(verify_reads="always")
    assert fetched(manager, copy.segment, 0, MIB - 1) == copy.files.log[:MIB]
    assert fetched(manager, copy.segment, 2 * MIB) == copy.files.log[2 * MIB :]
    with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
        fetched(manager, copy.segment, MIB, 2 * MIB - 1)


@pytest.mark.parametrize(
    ("first", "last"),
    [(MIB + 1, 2 * MIB - 1), (MIB, 2 * MIB - 2), (MIB + 6, MIB + 6), (2 * MIB - 9, 3 * MIB)],
)
def test_a_part_of_a_chunk_is_verified_with_the_chunk(copy: Copy, first: int, last: int) -> None:
    assert (
        fetched(copy.reader(verify_reads="always"), copy.segment, first, last)
        == copy.files.log[first : last + 1]
    )
    copy.change("log", MIB + 5)
    given = bytearray()
    with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
        take(copy.reader(verify_reads="always").fetch_log_segment(copy.segment, first, last), given)
    assert not given


@pytest.mark.parametrize("position", [0, INDEX_SIZE - 1])
def test_a_changed_index_is_named_before_its_last_bytes_are_given_out(
    copy: Copy, position: int
) -> None:
    copy.change("indexes", position)
    manager, given = copy.reader(verify_reads="always"), bytearray()
    with pytest.raises(CorruptSegmentError, match=f"OFFSET index, bytes 0 to {INDEX_SIZE - 1}"):
        take(manager.fetch_index(copy.segment, IndexType.OFFSET), given)
    assert len(given) < INDEX_SIZE
    for kind in (kind for kind in IndexType if kind is not IndexType.OFFSET):
        assert index(manager, copy.segment, kind) == copy.files.indexes[kind]


def test_the_manifest_is_asked_for_once(copy: Copy) -> None:
    manager = copy.reader(verify_reads="always")
    for _ in range(3):
        assert fetched(manager, copy.segment) == copy.files.log
        for kind in IndexType:
            assert index(manager, copy.segment, kind) == copy.files.indexes[kind]
    assert_gets(copy.proxy, log=3, manifest=1)


def test_of_sampled_reads_one_of_many_is_verified(copy: Copy) -> None:
    manager = copy.reader(verify_reads="sampled")
    copy.change("log", SIZE - 1)
    reads = SAMPLE_EVERY - 1
    for _ in range(reads):
        fetched(manager, copy.segment, MIB)
    copy.assert_requests(GetObject=reads)
    with pytest.raises(CorruptSegmentError, match="chunk 3"):
        fetched(manager, copy.segment, MIB)
    copy.assert_requests(GetObject=reads + 2)


@pytest.mark.parametrize("verify_reads", ["off", "sampled"])
def test_index_is_verified_with_any_setting(copy: Copy, verify_reads: str) -> None:
    copy.change("indexes", 5)
    manager = copy.reader(verify_reads=verify_reads)
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="OFFSET index"):
            index(manager, copy.segment, IndexType.OFFSET)


def test_the_default_verifies_each_read_of_a_log(copy: Copy) -> None:
    copy.change("log", MIB)
    manager = copy.reader()
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
            fetched(manager, copy.segment)


def test_off_verifies_no_log(copy: Copy) -> None:
    manager = copy.reader(verify_reads="off")
    copy.change("log", MIB)
    for _ in range(SAMPLE_EVERY):
        fetched(manager, copy.segment)
    copy.assert_requests(GetObject=SAMPLE_EVERY)


def test_a_manifest_that_cannot_be_read_now_is_retriable(copy: Copy) -> None:
    manager = copy.reader(verify_reads="always")
    copy.proxy.faults.add(Answer(503), operation="GetObject", skip=1)
    with pytest.raises(RetriableRemoteStorageError):
        fetched(manager, copy.segment)
    assert fetched(manager, copy.segment) == copy.files.log


def test_another_attempts_manifest_is_data_loss(copy: Copy) -> None:
    """The segment may have been deleted and copied again while an old client continues to read."""
    key = copy.key("manifest")
    attempt = (copy.segment.custom_metadata or b"")[3:11].hex()
    other = copy.backend.get(key).replace(attempt.encode(), b"00c0ffee00c0ffee")
    copy.backend.put(key, other)
    manager = copy.reader(verify_reads="always")
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="describes attempt 00c0ffee00c0ffee"):
            fetched(manager, copy.segment)
    copy.assert_requests(GetObject=4)


def test_another_segments_objects_under_this_segments_keys_are_data_loss(copy: Copy) -> None:
    mine = {key.rpartition(".")[2]: key for key in keys_in(copy.backend, copy.settings.prefix)}
    copy.copied(Files(some_bytes(SIZE, 99), copy.files.indexes))
    for key in set(keys_in(copy.backend, copy.settings.prefix)) - set(mine.values()):
        copy.backend.put(mine[key.rpartition(".")[2]], copy.content(key))
    with pytest.raises(CorruptSegmentError, match="manifest of another segment"):
        fetched(copy.reader(verify_reads="always"), copy.segment)


def test_a_manifest_with_the_digests_of_other_bytes_is_data_loss(copy: Copy) -> None:
    """Bytes and their digests changed together: only the client's metadata reveals it."""
    key = copy.key("manifest")
    copy.change("log", 5)
    changed = bytearray(copy.files.log)
    changed[5] ^= 1
    digest = RunningDigest()
    digest.update(bytes(changed))
    manifest = Manifest.from_bytes(copy.backend.get(key), key)
    copy.backend.put(key, replace(manifest, log=digest.log).to_bytes())
    with pytest.raises(CorruptSegmentError, match="not the manifest that the metadata"):
        fetched(copy.reader(verify_reads="always"), copy.segment)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"<html><body>Sign in</body></html>",
        bytes(MAX_SMALL_OBJECT_BYTES + 1),
    ],
    ids=["missing", "empty", "truncated", "a page", "too large"],
)
def test_bytes_without_their_manifest_are_data_loss(copy: Copy, content: bytes | None) -> None:
    """All reads together request the manifest once."""
    key = copy.key("manifest")
    if content is None:
        assert not copy.backend.delete([key])
    else:
        copy.backend.put(key, content)
    manager = copy.reader(verify_reads="always")
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="cannot be verified"):
            fetched(manager, copy.segment, MIB)
        with pytest.raises(CorruptSegmentError, match="cannot be verified"):
            index(manager, copy.segment, IndexType.OFFSET)
    assert_gets(copy.proxy, log=3, manifest=1)


def test_a_damaged_byte_names_segment_object_range_and_the_next_command(copy: Copy) -> None:
    copy.change("log", MIB)
    key = copy.key("log")
    with pytest.raises(CorruptSegmentError) as caught:
        fetched(copy.reader(verify_reads="always"), copy.segment, 5)
    topic = copy.segment.topic_id_partition.topic
    for part in (
        str(copy.segment.remote_log_segment_id),
        f"offsets {copy.segment.start_offset} to {copy.segment.end_offset}",
        f"bytes 5 to {SIZE - 1} of {key}",
        f"location {copy.settings.location_id} ",
        f"bucket {copy.settings.bucket!r}",
        f"`sediment scrub --topic {topic}`",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["log", "indexes"])
def test_a_missing_object_names_segment_key_and_the_next_command(copy: Copy, kind: str) -> None:
    key = copy.key(kind)
    assert not copy.backend.delete([key])
    manager = copy.reader(verify_reads="always")
    read = {
        "log": lambda: manager.fetch_log_segment(copy.segment, 0),
        "indexes": lambda: manager.fetch_index(copy.segment, IndexType.TRANSACTION, as_stored=True),
    }
    with pytest.raises(RemoteResourceNotFoundError) as caught:
        list(read[kind]())
    for part in (str(copy.segment.remote_log_segment_id), key, "location 1 ", "`sediment scrub"):
        assert part in str(caught.value)


def test_a_segment_found_by_its_manifest_is_verified(copy: Copy) -> None:
    copy.change("log", SIZE - 1)
    with pytest.raises(CorruptSegmentError, match="chunk 3"):
        fetched(copy.reader(verify_reads="always"), replace(copy.segment, custom_metadata=None))


def take(pieces: Iterator[bytes], given: bytearray) -> None:
    for piece in pieces:
        given += piece


def assert_gets(proxy: HttpProxy, **counts: int) -> None:
    """Wait for so many GETs of each kind of object; those of indexes depend on the time."""
    eventually(lambda: _gets(proxy) == Counter(counts))


def _gets(proxy: HttpProxy) -> Counter[str]:
    kinds = (request.target.partition("?")[0].rpartition(".")[2] for request in proxy.requests)
    return Counter(kind for kind in kinds if kind != "indexes")

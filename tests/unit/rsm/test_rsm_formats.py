"""Test the formats that RSM writes: keys, custom metadata, manifests, digests."""

import json
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import DIGEST_CHUNK_BYTES, FileDigest, IndexType, LogDigest
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentLeaderEpoch,
    in_location,
    location_id_of,
    saved_bytes_of,
)
from services.api.validation import INT32_MAX, INT64_MAX
from services.rpc.converters.shared import metadata_to_proto
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES
from services.rsm.digests import RunningDigest, joined_crc32c
from services.rsm.factory import build_manager
from services.rsm.layout import (
    MAX_COPIED_CUSTOM_METADATA_BYTES,
    MAX_LEADER_EPOCHS,
    CustomMetadata,
    Manifest,
    require_fits,
    segment_keys,
)
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes

ids = st.uuids(allow_nil=False)
int32s = st.integers(0, INT32_MAX)
int64s = st.integers(0, INT64_MAX)
crcs = st.integers(0, 2**32 - 1)
attempts = st.binary(min_size=8, max_size=8).map(bytes.hex)
topics = st.text("az09._-", min_size=3, max_size=9)
REQUIRED: list[IndexType] = [kind for kind in IndexType if kind is not IndexType.TRANSACTION]


@st.composite
def log_digests(draw: st.DrawFn) -> LogDigest:
    """As many chunks as the size has, the last of them of any length."""
    chunks = draw(st.lists(crcs, max_size=4))
    short = draw(st.integers(0, DIGEST_CHUNK_BYTES - 1)) if chunks else 0
    size = len(chunks) * DIGEST_CHUNK_BYTES - short
    return LogDigest(FileDigest(size, draw(crcs)), tuple(chunks))


@st.composite
def metadatas(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start, end = sorted((draw(int64s), draw(int64s)))
    epochs = sorted(draw(st.sets(int32s, min_size=1, max_size=5)))
    starts = sorted(draw(st.integers(start, end)) for _ in epochs)
    partition = TopicIdPartition(draw(ids), draw(topics), draw(int32s))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(partition, draw(ids)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=draw(st.integers(-1, INT64_MAX)),
        broker_id=draw(st.integers(-1, INT32_MAX)),
        event_timestamp_ms=draw(int64s),
        segment_leader_epochs=tuple(map(SegmentLeaderEpoch, epochs, starts)),
        segment_size_in_bytes=draw(st.integers(-1, INT32_MAX)),
        custom_metadata=draw(st.none() | st.binary(max_size=40)),
        state=draw(st.sampled_from(RemoteLogSegmentState)),
        txn_idx_empty=draw(st.booleans()),
        broker_leader_epoch=draw(st.none() | int32s),
    )


def of_each_index(values: st.SearchStrategy[int]) -> st.SearchStrategy[dict[IndexType, int]]:
    """For each index; that of TRANSACTION may be missing."""
    return st.fixed_dictionaries(
        dict.fromkeys(REQUIRED, values), optional={IndexType.TRANSACTION: values}
    )


custom_metadatas = st.builds(
    CustomMetadata,
    st.integers(1, 65535),
    attempts,
    int32s,
    of_each_index(int32s),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
    st.none() | st.integers(0, 2**32 - 1),
)
manifests = st.builds(
    Manifest,
    metadata=metadatas(),
    attempt=attempts,
    written_at_ms=int64s,
    log=log_digests(),
    indexes=of_each_index(int32s).map(
        lambda sizes: {kind: FileDigest(sizes[kind], 7) for kind in IndexType if kind in sizes}
    ),
    deployment_id=st.sampled_from(["", "a-deployment"]),
)


@given(metadatas(), attempts)
def test_keys_have_a_closed_alphabet(metadata: RemoteLogSegmentMetadata, attempt: str) -> None:
    keys = segment_keys("", metadata)
    allowed = set("0123456789abcdefghijklmnopqrstuvwxyz/-.")
    for key in (keys.manifest, keys.log(attempt), keys.indexes(attempt)):
        assert set(key) <= allowed
        assert key.startswith(keys.prefix)


@given(metadatas(), metadatas())
def test_no_key_begins_with_the_prefix_of_another_segment(
    one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata
) -> None:
    assume(one.remote_log_segment_id.id != other.remote_log_segment_id.id)
    assert not segment_keys("", one).manifest.startswith(segment_keys("", other).prefix)


@given(metadatas())
def test_keys_are_made_as_the_layout_says(metadata: RemoteLogSegmentMetadata) -> None:
    partition = TopicIdPartition(UUID(int=0xA0), "t", 3)
    segment_id = RemoteLogSegmentId(partition, UUID(int=0xB0))
    named = replace(
        metadata,
        remote_log_segment_id=segment_id,
        start_offset=4711,
        end_offset=4712,
        segment_leader_epochs=(SegmentLeaderEpoch(0, 4711),),
    )
    stem = f"tier/{'a0'.zfill(32)}/3/00000000000000004711-{'b0'.zfill(32)}"
    keys = segment_keys("tier/", named)
    assert keys.manifest == f"{stem}.manifest"
    assert keys.log("00c0ffee00c0ffee") == f"{stem}.00c0ffee00c0ffee.log"
    assert keys.indexes("00c0ffee00c0ffee") == f"{stem}.00c0ffee00c0ffee.indexes"


@given(custom_metadatas)
def test_custom_metadata_is_equal_after_parsing(custom_metadata: CustomMetadata) -> None:
    assert CustomMetadata.from_bytes(custom_metadata.to_bytes()) == custom_metadata


def test_custom_metadata_is_written_as_it_always_was() -> None:
    """These 51 bytes are in databases: a change of them needs a new version."""
    sizes = {kind: list(IndexType).index(kind) for kind in REQUIRED}
    custom_metadata = CustomMetadata(258, "00c0ffee00c0ffee", 1000, sizes, bytes(range(16)))
    assert custom_metadata.to_bytes().hex() == (
        "01" "0102" "00c0ffee00c0ffee" "000003e8"
        "00000000" "00000001" "00000002" "ffffffff" "00000004"
        "000102030405060708090a0b0c0d0e0f"
    )  # fmt: skip


def test_custom_metadata_of_a_transformed_copy_ends_with_the_size_of_its_log_object() -> None:
    plain = CustomMetadata(7, "00c0ffee00c0ffee", 1000, dict.fromkeys(REQUIRED, 0), bytes(16))
    transformed = replace(plain, replaces=True, stored_log_bytes=258)
    form = f"04{plain.to_bytes().hex()[2:]}00000102"
    assert transformed.to_bytes().hex() == form
    assert saved_bytes_of(transformed.to_bytes()) == 742
    assert saved_bytes_of(plain.to_bytes()) == saved_bytes_of(b"\3 of another") == 0
    assert location_id_of(transformed.to_bytes()) == location_id_of(plain.to_bytes()) == 7


def test_a_segment_is_read_from_another_location_in_each_form() -> None:
    plain = CustomMetadata(7, "00c0ffee00c0ffee", 1000, dict.fromkeys(REQUIRED, 0), bytes(16))
    for custom in (plain, replace(plain, replaces=True, stored_log_bytes=258)):
        there = in_location(a_segment_of(1, custom.to_bytes()), 9)
        assert there.custom_metadata == replace(custom, location_id=9).to_bytes()
    of_another = a_segment_of(1, b"of another")
    assert in_location(of_another, 9) == of_another


@given(st.binary(max_size=64))
def test_custom_metadata_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    try:
        read = CustomMetadata.from_bytes(data)
    except InvalidRequestError:
        return
    assert read.to_bytes() == data


@given(custom_metadatas)
def test_indexes_stand_one_after_another(custom_metadata: CustomMetadata) -> None:
    sizes, position = custom_metadata.index_sizes_bytes, 0
    for kind in IndexType:
        assert custom_metadata.index_position(kind) == position
        position += sizes.get(kind, 0)


@given(manifests)
def test_manifest_is_equal_after_parsing(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes(), "key") == manifest


@given(manifests)
def test_custom_metadata_has_the_digest_of_the_stored_manifest_bytes(manifest: Manifest) -> None:
    written = manifest.to_bytes()
    assert manifest.custom_metadata(1).manifest_digest == sha256(written).digest()[:16]
    # Another release may write the same manifest in other words.
    in_other_words = json.dumps(json.loads(written), indent=1).encode()
    read = Manifest.from_bytes(in_other_words, "key")
    assert read.custom_metadata(1).manifest_digest == sha256(in_other_words).digest()[:16]


@given(manifests)
def test_a_manifest_and_its_custom_metadata_agree(manifest: Manifest) -> None:
    custom_metadata = manifest.custom_metadata(1)
    assert custom_metadata.attempt == manifest.attempt
    assert custom_metadata.log_size_bytes == manifest.log.size_bytes
    positions = json.loads(manifest.to_bytes())["indexes"]
    for kind in manifest.indexes:
        assert positions[kind.name]["position"] == custom_metadata.index_position(kind)


@given(manifests)
def test_a_manifest_of_another_version_is_refused(manifest: Manifest) -> None:
    document = {**json.loads(manifest.to_bytes()), "version": 2}
    with pytest.raises(CorruptSegmentError, match="key"):
        Manifest.from_bytes(json.dumps(document).encode(), "key")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"version": 1}'])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptSegmentError):
        Manifest.from_bytes(data, "key")


def require_usable_or_refused(data: bytes) -> bool:
    """Whether it is usable."""
    try:
        read = Manifest.from_bytes(data, "key")
    except CorruptSegmentError:
        return False
    described = read.custom_metadata(1)
    assert CustomMetadata.from_bytes(described.to_bytes()) == described
    metadata_to_proto(read.metadata)
    assert Manifest.from_bytes(read.to_bytes(), "key") == read
    return True


@pytest.mark.deep
@settings(max_examples=3, deadline=None)
@given(manifests)
def test_a_manifest_with_any_bit_changed_is_refused_or_can_be_used(manifest: Manifest) -> None:
    good = manifest.to_bytes()
    assert require_usable_or_refused(good)
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            require_usable_or_refused(bytes(bad))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)


@pytest.mark.deep
@given(manifests, anything, st.data())
def test_a_manifest_with_anything_in_a_place_is_refused_or_can_be_used(
    manifest: Manifest, value: object, data: st.DataObject
) -> None:
    document = json.loads(manifest.to_bytes())
    part = document
    while True:
        name = data.draw(st.sampled_from(sorted(part)))
        if not isinstance(part[name], dict) or data.draw(st.booleans()):
            part[name] = value
            break
        part = part[name]
    require_usable_or_refused(json.dumps(document).encode())


def a_segment_of(epochs: int, custom_metadata: bytes = b"") -> RemoteLogSegmentMetadata:
    """With as many digits as there can be."""
    end = INT64_MAX
    first = INT32_MAX - epochs + 1
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(
            TopicIdPartition(UUID(int=1), "t" * 249, INT32_MAX), UUID(int=2)
        ),
        start_offset=end,
        end_offset=end,
        max_timestamp_ms=end,
        broker_id=INT32_MAX,
        event_timestamp_ms=end,
        segment_leader_epochs=tuple(SegmentLeaderEpoch(first + i, end) for i in range(epochs)),
        segment_size_in_bytes=INT32_MAX,
        custom_metadata=custom_metadata,
        broker_leader_epoch=INT32_MAX,
    )


@pytest.mark.deep
def test_the_longest_manifest_that_is_written_is_read_back() -> None:
    metadata = a_segment_of(MAX_LEADER_EPOCHS, bytes(MAX_COPIED_CUSTOM_METADATA_BYTES))
    require_fits(metadata, INT32_MAX)
    crc = 2**32 - 1
    log = LogDigest(FileDigest(INT32_MAX, crc), (crc,) * -(-INT32_MAX // DIGEST_CHUNK_BYTES))
    indexes = dict.fromkeys(IndexType, FileDigest(INT32_MAX, crc))
    manifest = Manifest(metadata, "f" * 16, INT64_MAX, log, indexes)
    assert len(manifest.to_bytes()) < MAX_SMALL_OBJECT_BYTES
    assert Manifest.from_bytes(manifest.to_bytes(), "key") == manifest


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        (a_segment_of(MAX_LEADER_EPOCHS + 1), "metadata.segment_leader_epochs: at most 100000"),
        (
            a_segment_of(1, bytes(MAX_COPIED_CUSTOM_METADATA_BYTES + 1)),
            "metadata.custom_metadata: at most 1024 bytes",
        ),
    ],
)
def test_segment_with_too_long_a_manifest_is_not_copied(
    metadata: RemoteLogSegmentMetadata, field: str, tmp_path: Path
) -> None:
    manager = build_manager(RsmSettings(backend="filesystem", directory=tmp_path))
    with closing(manager):
        manager.check()
        present = sorted(tmp_path.rglob("*"))
        with pytest.raises(InvalidRequestError, match=field):
            copied(manager, Files(b"log"), metadata)
        assert sorted(tmp_path.rglob("*")) == present


def test_too_deeply_nested_manifest_is_refused() -> None:
    assert not require_usable_or_refused(b"[" * 100_000)


def test_a_digest_has_a_crc32c_of_each_mebibyte_and_of_the_whole() -> None:
    data = bytes(range(256)) * 4096 * 2 + b"tail"
    digest = RunningDigest()
    digest.update(data)
    assert digest.log.whole == FileDigest(len(data), crc32c(data))
    assert digest.log.chunk_crc32c == tuple(
        crc32c(data[at : at + DIGEST_CHUNK_BYTES]) for at in range(0, len(data), DIGEST_CHUNK_BYTES)
    )


@settings(max_examples=20)
@given(st.lists(st.integers(1, 3 * DIGEST_CHUNK_BYTES // 2), max_size=4))
def test_a_digest_does_not_depend_on_how_the_bytes_are_cut(sizes: list[int]) -> None:
    data = memoryview(bytes(range(251)) * (sum(sizes) // 251 + 1))[: sum(sizes)]
    at_once, cut = RunningDigest(), RunningDigest()
    at_once.update(bytes(data))
    for size in sizes:
        cut.update(bytes(data[:size]))
        data = data[size:]
    assert cut.log == at_once.log


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=600), max_size=5))
def test_the_crc32c_of_pieces_is_that_of_their_bytes(pieces: list[bytes]) -> None:
    known = [(crc32c(piece), len(piece)) for piece in pieces]
    assert joined_crc32c(known) == crc32c(b"".join(pieces))


@pytest.mark.parametrize(
    ("offset", "size", "is_known"),
    [
        (0, 0, True),
        (0, DIGEST_CHUNK_BYTES, True),
        (DIGEST_CHUNK_BYTES, 2 * DIGEST_CHUNK_BYTES, True),
        (2 * DIGEST_CHUNK_BYTES, DIGEST_CHUNK_BYTES + 7, True),
        (0, 3 * DIGEST_CHUNK_BYTES + 7, True),
        (0, 3 * DIGEST_CHUNK_BYTES + 6, False),
        (0, DIGEST_CHUNK_BYTES - 1, False),
        (1, DIGEST_CHUNK_BYTES - 1, False),
        (3 * DIGEST_CHUNK_BYTES, DIGEST_CHUNK_BYTES, False),
    ],
)
def test_a_digest_knows_the_crc32c_of_whole_chunks(offset: int, size: int, is_known: bool) -> None:
    data = some_bytes(3 * DIGEST_CHUNK_BYTES + 7)
    digest = RunningDigest()
    digest.update(data)
    expected = crc32c(data[offset : offset + size]) if is_known else None
    assert digest.crc32c_of(offset, size) == expected


def test_the_digest_of_nothing_has_no_chunk() -> None:
    assert RunningDigest().log == LogDigest(FileDigest(0, 0), ())

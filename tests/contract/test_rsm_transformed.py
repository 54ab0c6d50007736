"""Run the RSM suite over stores whose location compresses, and test what only that changes."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from services.api.errors import CorruptSegmentError, DirectReadRefusedError
from services.api.remote_storage_manager import IndexType
from services.api.segment_objects import ObjectLocation
from services.api.segments import RemoteLogSegmentMetadata
from services.local.seaweedfs import S3Endpoint
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_backend, build_manager
from services.rsm.layout import CustomMetadata, Manifest, segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    RemoteStorageManagerContract,
    StoredKeys,
    copied,
    fetched,
    index,
    some_bytes,
)
from tests.contract.rsm_over_s3 import PART, everything_in, settings_for, with_properties

ZSTD = 'compression = "zstd"'


class _Transformed(RemoteStorageManagerContract):
    @pytest.fixture
    def manager(self, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
        with closing(build_manager(settings)) as manager:
            manager.check()
            yield manager

    @pytest.fixture
    def keys(self, settings: RsmSettings) -> StoredKeys:
        stored = everything_in(build_backend(settings), settings.prefix)
        return lambda: [key for key in stored() if not key.endswith(".sediment")]


@pytest.mark.deep
class TestCompressedOverFilesystem(_Transformed):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> RsmSettings:
        (tmp_path / "objects").mkdir()
        values = {"backend": "filesystem", "directory": tmp_path / "objects"}
        plain = RsmSettings(**values, part_size_bytes=PART)  # type: ignore[arg-type]
        return with_properties(plain, tmp_path, ZSTD)


@pytest.mark.deep
class TestCompressedOverS3(_Transformed):
    @pytest.fixture
    def settings(self, s3: S3Endpoint, tmp_path: Path) -> RsmSettings:
        return with_properties(settings_for(s3), tmp_path, ZSTD)


def encrypting(plain: RsmSettings, folder: Path, properties: str = "") -> RsmSettings:
    """Return settings whose location encrypts, with a ring of one key."""
    ring = folder / "keys"
    ring.mkdir(mode=0o750)
    for name, content in (("first", os.urandom(32)), ("current", b"first")):
        (ring / name).write_bytes(content)
        (ring / name).chmod(0o640)
    keys = f'[keys]\ndirectory = "{ring}"'
    found = with_properties(plain, folder, f"encryption = true\n{properties}\n{keys}")
    return found.model_copy(update={"deployment_id": "shop"})


@pytest.mark.deep
class TestEncryptedOverFilesystem(_Transformed):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> RsmSettings:
        (tmp_path / "objects").mkdir()
        values = {"backend": "filesystem", "directory": tmp_path / "objects"}
        return encrypting(RsmSettings(**values, part_size_bytes=PART), tmp_path)  # type: ignore[arg-type]


@pytest.mark.deep
class TestCompressedAndEncryptedOverS3(_Transformed):
    @pytest.fixture
    def settings(self, s3: S3Endpoint, tmp_path: Path) -> RsmSettings:
        return encrypting(settings_for(s3), tmp_path, ZSTD)


def test_records_are_not_in_an_encrypted_store(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    plain = RsmSettings(backend="filesystem", directory=tmp_path / "objects")
    log = json_log(2 * MIB + 5)
    with closing(build_manager(encrypting(plain, tmp_path))) as manager:
        manager.check()
        # The manifest has the leader epochs as they are.
        indexes = {**dict.fromkeys(IndexType, log[:500]), IndexType.LEADER_EPOCH: b"0\n0\n"}
        segment = copied(manager, Files(log, indexes))
        assert fetched(manager, segment, MIB - 3, MIB + 3) == log[MIB - 3 : MIB + 4]
    for file in (tmp_path / "objects").rglob("*"):
        assert file.is_dir() or b"front door" not in file.read_bytes()


def test_encryption_without_keys_is_refused(tmp_path: Path) -> None:
    plain = RsmSettings(backend="filesystem", directory=tmp_path)
    with pytest.raises(SystemExit, match=r"encryption of location 1 needs \[keys\]"):
        build_manager(with_properties(plain, tmp_path, "encryption = true"))


def json_log(size: int) -> bytes:
    """Return bytes that shrink by about four, as JSON does."""
    lines = (
        f'{{"order": "{some_bytes(6, at).hex()}", "status": "paid", "note": "to the front door"}}\n'
        for at in range(size // 70)
    )
    return "".join(lines).encode()[:size]


@pytest.fixture(scope="module")
def log() -> bytes:
    """Provide a log of three parts whose last chunk is short, and whose fourth does not shrink."""
    text = json_log(2 * PART + MIB + 77)
    return text[: 3 * MIB] + some_bytes(MIB) + text[4 * MIB :]


@pytest.fixture(params=["s3", "filesystem"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> RsmSettings:
    if request.param == "s3":
        return settings_for(request.getfixturevalue("s3"))
    (tmp_path / "objects").mkdir()
    return RsmSettings(backend="filesystem", directory=tmp_path / "objects")


@pytest.fixture
def compressing(plain: RsmSettings, tmp_path: Path) -> RsmSettings:
    return with_properties(plain, tmp_path, ZSTD)


@pytest.fixture
def rsm(compressing: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(compressing)) as manager:
        yield manager


def sizes_in(store: StorageBackend, prefix: str) -> dict[str, int]:
    listed = store.list_objects(prefix)
    return {each.key.rpartition(".")[2]: each.size_bytes for each in listed}


@pytest.mark.deep
@pytest.mark.parametrize("verify_reads", ["always", "off"])
def test_ranges_of_a_compressed_log_are_kafkas_bytes(
    compressing: RsmSettings, rsm: ObjectRemoteStorageManager, log: bytes, verify_reads: str
) -> None:
    segment = copied(rsm, Files(log))
    reading = compressing.model_copy(update={"verify_reads": verify_reads})
    borders = st.sampled_from([at * MIB + by for at in range(11) for by in (-1, 0, 1)])
    ends = st.tuples(*[borders | st.integers(0, len(log) - 1)] * 2)
    with closing(build_manager(reading)) as reader:

        @hypothesis_settings(max_examples=25, deadline=None)
        @given(ends)
        def ranges_are_read(ends: tuple[int, int]) -> None:
            start, last = sorted(min(max(each, 0), len(log) - 1) for each in ends)
            assert fetched(reader, segment, start, last) == log[start : last + 1]

        ranges_are_read()
        assert fetched(reader, segment) == log


def test_a_compressed_copy_is_smaller_and_says_so(
    plain: RsmSettings, rsm: ObjectRemoteStorageManager, log: bytes
) -> None:
    segment = copied(rsm, Files(log))
    store = build_backend(plain)
    sizes = sizes_in(store, plain.prefix)
    assert sizes["log"] < len(log) * 0.5
    (key,) = (each.key for each in store.list_objects(plain.prefix) if each.key.endswith("fest"))
    reported = rsm.objects.read_segment_manifest(ObjectLocation(1, key))
    assert (reported.log_size_bytes, reported.indexes_size_bytes) == (
        sizes["log"],
        sizes["indexes"],
    )
    assert reported.digests is not None
    assert reported.digests.log.size_bytes == len(log)
    custom = CustomMetadata.from_bytes(segment.custom_metadata or b"")
    assert custom.transformed
    assert custom.log_size_bytes == len(log)


def test_each_copy_is_read_as_it_was_written_whatever_its_location_does_now(
    plain: RsmSettings, rsm: ObjectRemoteStorageManager, log: bytes
) -> None:
    with closing(build_manager(plain)) as without:
        before, after = copied(without, Files(log)), copied(rsm, Files(log))
        assert not CustomMetadata.from_bytes(before.custom_metadata or b"").transformed
        for manager in (without, rsm):
            for segment in (before, after):
                assert fetched(manager, segment, MIB - 5, 5 * MIB) == log[MIB - 5 : 5 * MIB + 1]
                assert index(manager, segment, IndexType.OFFSET) == b"OFFSET" * 40
        again = without.copy_log_segment_data(after, Files(log).data())
        assert again == after.custom_metadata


def test_a_compressed_log_is_not_read_from_the_store_itself(s3: S3Endpoint, tmp_path: Path) -> None:
    plain = settings_for(s3, {"direct_reads": True})
    with closing(build_manager(with_properties(plain, tmp_path, ZSTD))) as manager:
        segment = copied(manager, Files(json_log(MIB)))
        with pytest.raises(DirectReadRefusedError, match="compressed or encrypted; stream"):
            manager.open_log_segment(segment)


def taken(manager: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata) -> None:
    """Read all files of a copy as they are stored."""
    fetched(manager, segment)
    for kind in IndexType:
        b"".join(manager.fetch_index(segment, kind, as_stored=True))


@pytest.mark.deep
@pytest.mark.parametrize("verify_reads", ["always", "off"])
@pytest.mark.parametrize("kind", ["log", "indexes"])
@pytest.mark.parametrize("way", ["flip", "truncate", "swap", "splice"])
def test_damage_of_a_compressed_copy_is_named(
    compressing: RsmSettings, kind: str, way: str, verify_reads: str
) -> None:
    settings = compressing.model_copy(update={"verify_reads": verify_reads})
    store = build_backend(settings)
    with closing(build_manager(settings)) as manager:
        segments = [
            copied(manager, Files(json_log(MIB + size), dict.fromkeys(IndexType, json_log(size))))
            for size in (5000, 6000)
        ]
        contents = list[bytes]()
        for segment in segments:
            keys = segment_keys(settings.prefix, segment)
            attempt = CustomMetadata.from_bytes(segment.custom_metadata or b"").attempt
            key = keys.log(attempt) if kind == "log" else keys.indexes(attempt)
            stored = store.describe(key)
            assert stored is not None
            contents.append(b"".join(store.fetch(key, 0, stored.size_bytes - 1)))
        theirs, content = contents
        changed = {
            "flip": content[:100] + bytes([content[100] ^ 4]) + content[101:],
            "truncate": content[: len(content) - 3],
            "swap": content[len(content) // 2 :] + content[: len(content) // 2],
            "splice": theirs + content[len(theirs) :],
        }[way]
        store.put(key, changed)
        with pytest.raises(CorruptSegmentError) as caught:
            taken(manager, segment)
        for part in (str(segment.remote_log_segment_id), "location 1", key):
            assert part in str(caught.value)
        taken(manager, segments[0])


def test_an_index_of_a_compressed_copy_is_rebuilt(
    compressing: RsmSettings, rsm: ObjectRemoteStorageManager
) -> None:
    """The leader epochs are in the manifest."""
    epochs = b"0\n1\n0 100\n"
    names = {each: each.name.encode() for each in IndexType}
    segment = copied(rsm, Files(json_log(MIB), {**names, IndexType.LEADER_EPOCH: epochs}))
    store = build_backend(compressing)
    (key,) = (k.key for k in store.list_objects(compressing.prefix) if k.key.endswith(".indexes"))
    store.delete([key])
    assert index(rsm, segment, IndexType.LEADER_EPOCH) == epochs


def test_a_release_without_transforms_refuses_the_manifest(
    plain: RsmSettings, rsm: ObjectRemoteStorageManager
) -> None:
    """It knows version 1 only, and would hand out what is stored."""
    copied(rsm, Files(json_log(MIB)))
    store = build_backend(plain)
    (key,) = (k.key for k in store.list_objects(plain.prefix) if k.key.endswith(".manifest"))
    document = json.loads(store.get(key))
    assert document["version"] == 2
    for changed in ({"version": 1}, {"stored": None}):
        with pytest.raises(CorruptSegmentError, match="not a manifest"):
            Manifest.from_bytes(json.dumps(document | changed).encode(), key)

"""Test the ring of keys, and what a store that was tampered with can make RSM believe."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.remote_storage_manager import IndexType
from services.api.segment_objects import ObjectLocation, SegmentKey, StoredManifest
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.directory_keys import DirectoryKeys, KeysError
from services.rsm.factory import build_manager
from services.rsm.keys import KeyRing, KeyUse, RingStatus
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes

USE = KeyUse("here", uuid4(), 0, uuid4(), "00" * 8)


def write_key(directory: Path, id: str, *, current: bool = False) -> None:
    directory.mkdir(exist_ok=True)
    for name, content in ((id, os.urandom(32)), ("current", id.encode())):
        if name == id or current:
            file = directory / f".{name}"
            file.write_bytes(content)
            file.chmod(0o640)
            file.rename(directory / name)


@dataclass
class Tier:
    """A tier in a directory, and RSMs that use it with a ring or without."""

    root: Path
    cleanup: ExitStack

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    def rsm(
        self, *, ring: bool = True, deployment: str = "here", keys: str = ""
    ) -> ObjectRemoteStorageManager:
        file = self.root / "locations.toml"
        file.write_text(keys or f'[keys]\ndirectory = "{self.keys}"\n')
        store = self.root / "store"
        store.mkdir(exist_ok=True)
        settings = RsmSettings.model_validate(
            {
                "backend": "filesystem",
                "directory": store,
                "prefix": f"{deployment or 'none'}/",
                "location_id": 1,
                "deployment_id": deployment,
                "locations_file": file if ring else None,
                "verify_reads": "always",
            }
        )
        rsm = self.cleanup.enter_context(closing(build_manager(settings)))
        rsm.check()
        return rsm

    def manifest(self, segment: RemoteLogSegmentMetadata, deployment: str = "here") -> Path:
        id, tp = segment.remote_log_segment_id.id, segment.topic_id_partition
        folder = self.root / "store" / deployment / tp.topic_id.hex / str(tp.partition)
        (path,) = folder.glob(f"*-{id.hex}.manifest")
        return path

    def read(
        self, segment: RemoteLogSegmentMetadata, rsm: ObjectRemoteStorageManager | None = None
    ) -> bytes:
        """Read a log, verified, by an RSM that has cached nothing."""
        return b"".join((rsm or self.rsm()).fetch_log_segment(segment, 0))

    def stored(self, segment: RemoteLogSegmentMetadata) -> StoredManifest:
        """Read a manifest by its place, as a reconciliation does."""
        key = self.manifest(segment).relative_to(self.root / "store")
        return self.rsm().objects.read_segment_manifest(ObjectLocation(1, str(key)))

    def rebuilt(self, segment: RemoteLogSegmentMetadata) -> bytes | None:
        """Read a manifest as a rebuild from the bucket does, which relies on no unsealed one."""
        stored = self.stored(segment)
        if stored.is_unsealed:
            raise CorruptSegmentError("it has no seal")
        return stored.metadata.custom_metadata


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    write_key(tmp_path / "keys", "first", current=True)
    with ExitStack() as cleanup:
        yield Tier(tmp_path, cleanup)


def test_a_sealed_manifest_is_read_with_and_without_custom_metadata(tier: Tier) -> None:
    files = Files(some_bytes(100_000))
    segment = copied(tier.rsm(), files)
    assert tier.read(segment) == files.log
    assert tier.read(replace(segment, custom_metadata=None)) == files.log
    assert tier.rebuilt(segment) == segment.custom_metadata


def test_a_sealed_manifest_of_a_plain_copy_is_read_without_a_ring(tier: Tier) -> None:
    files = Files(some_bytes(1_000))
    segment = copied(tier.rsm(), files)
    assert tier.read(segment, tier.rsm(ring=False)) == files.log


def test_a_manifest_from_before_the_ring_is_read_only_if_metadata_vouches_for_it(
    tier: Tier,
) -> None:
    files = Files(some_bytes(1_000))
    segment = copied(tier.rsm(ring=False), files)
    assert tier.read(segment) == files.log
    with pytest.raises(CorruptSegmentError, match=r"has no seal.*sediment keys rewrap"):
        tier.read(replace(segment, custom_metadata=None))
    assert tier.stored(segment).is_unsealed


def test_the_replaced_copy_keeps_its_data_key(tier: Tier) -> None:
    files = Files(some_bytes(1_000))
    rsm = tier.rsm()
    before = copied(rsm, files)
    data = replace(files.data(), replaces=True)
    after = replace(before, custom_metadata=rsm.copy_log_segment_data(before, data))
    assert after.custom_metadata != before.custom_metadata
    indexes = {
        b"".join(tier.rsm().fetch_index(segment, IndexType.OFFSET)) for segment in (before, after)
    }
    assert len(indexes) == 1
    assert tier.manifest(before).read_bytes().count(b'"key_id"') == 2


# --- tampering ------------------------------------------------------------------------------------


def document_of(stored: bytes) -> bytes:
    return stored.partition(b"\n")[0]


def seal_of(stored: bytes) -> bytes:
    return stored.partition(b"\n")[2]


def flipped(part: Callable[[bytes], bytes]) -> Callable[[bytes, bytes], bytes]:
    def flip(mine: bytes, _: bytes) -> bytes:
        at = mine.index(part(mine)) + len(part(mine)) // 2
        return mine[:at] + bytes([mine[at] ^ 1]) + mine[at + 1 :]

    return flip


def wrapped_of(stored: bytes) -> bytes:
    begin = stored.index(b'"data":"') + 8
    return stored[begin : stored.index(b'"', begin)]


def mac_of(stored: bytes) -> bytes:
    begin = stored.index(b'"mac":"') + 7
    return stored[begin : stored.index(b'"', begin)]


def with_wrapped_of(mine: bytes, other: bytes) -> bytes:
    return mine.replace(wrapped_of(mine), wrapped_of(other))


def of_another(mine: bytes, other: bytes) -> bytes:
    return other


def with_seal_of(mine: bytes, other: bytes) -> bytes:
    return document_of(mine) + b"\n" + seal_of(other)


def with_document_of(mine: bytes, other: bytes) -> bytes:
    return document_of(other) + b"\n" + seal_of(mine)


def forged(mine: bytes, _: bytes) -> bytes:
    """Change the document so that only its authentication can notice it."""
    return mine.replace(b'"end_offset":', b'"end_offset":1', 1)


TAMPERINGS: dict[str, tuple[Callable[[bytes, bytes], bytes], str]] = {
    "flip the document": (flipped(document_of), "not a manifest|fails its authentication"),
    "forge the document": (forged, "fails its authentication"),
    "flip the MAC": (flipped(mac_of), "manifest fails its authentication|seal is damaged"),
    "flip the wrapped key": (flipped(wrapped_of), "wrapped key fails|seal is damaged"),
    "truncate": (lambda mine, _: mine[:-1], "seal is damaged"),
    "truncate in the document": (lambda mine, _: mine[:200], "not a manifest"),
    "strip the seal": (lambda mine, _: document_of(mine), "has no seal"),
    "add a line": (lambda mine, _: mine + b"\n{}", "seal is damaged"),
    "swap": (of_another, "manifest of another segment|fails its authentication"),
    "splice the wrapped key": (with_wrapped_of, "wrapped key fails its authentication"),
    "splice the seal": (with_seal_of, "fails its authentication"),
    "splice the document": (with_document_of, "another segment|fails its authentication"),
}


def others(tier: Tier, segment: RemoteLogSegmentMetadata) -> dict[str, bytes]:
    """Return the manifests of copies that differ from the segment in one thing each."""
    tp = segment.topic_id_partition
    id = segment.remote_log_segment_id

    def copy_of(id: RemoteLogSegmentId, deployment: str = "here") -> bytes:
        other = replace(segment, custom_metadata=None, remote_log_segment_id=id)
        rsm, data = tier.rsm(deployment=deployment), Files(some_bytes(1_000)).data()
        rsm.copy_log_segment_data(other, data)
        return tier.manifest(other, deployment).read_bytes()

    return {
        "segment": copy_of(replace(id, id=uuid4())),
        "partition": copy_of(replace(id, topic_id_partition=replace(tp, partition=7))),
        "topic": copy_of(replace(id, topic_id_partition=replace(tp, topic_id=uuid4()))),
        "deployment": copy_of(id, "there"),
    }


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_manifest_that_was_tampered_with_is_refused_by_name(tier: Tier, what: str) -> None:
    segment = copied(tier.rsm(), Files(some_bytes(1_000)))
    tamper, reason = TAMPERINGS[what]
    path, mine = tier.manifest(segment), tier.manifest(segment).read_bytes()
    for other in others(tier, segment).values():
        path.write_bytes(tamper(mine, other))
        with pytest.raises(CorruptSegmentError, match=reason):
            tier.rebuilt(segment)
        with pytest.raises(CorruptSegmentError, match=f"{reason}|not the manifest"):
            tier.read(replace(segment, custom_metadata=None))


def test_an_older_manifest_is_not_what_the_metadata_names(tier: Tier) -> None:
    files, rsm = Files(some_bytes(1_000)), tier.rsm()
    before = copied(rsm, files)
    path = tier.manifest(before)
    older = path.read_bytes()
    data = replace(files.data(), replaces=True)
    after = replace(before, custom_metadata=rsm.copy_log_segment_data(before, data))
    path.write_bytes(older)
    with pytest.raises(CorruptSegmentError, match="not the manifest that the metadata"):
        tier.read(after)


# --- the ring -------------------------------------------------------------------------------------


def test_a_new_key_is_used_at_once_and_an_old_one_still_reads(tier: Tier) -> None:
    rsm, files = tier.rsm(), Files(some_bytes(1_000))
    old = copied(rsm, files)
    write_key(tier.keys, "second", current=True)
    new = copied(rsm, files)
    assert b'"key_id":"first"' in tier.manifest(old).read_bytes()
    assert b'"key_id":"second"' in tier.manifest(new).read_bytes()
    assert tier.read(old) == tier.read(new) == files.log


def test_a_destroyed_key_makes_exactly_its_segments_unreadable(tier: Tier) -> None:
    files = Files(some_bytes(1_000))
    old = copied(tier.rsm(), files)
    write_key(tier.keys, "second", current=True)
    new = copied(tier.rsm(), files)
    (tier.keys / "first").unlink()
    assert tier.read(new) == files.log
    named = rf"{old.remote_log_segment_id}.*needs key 'first'.*has second.*restore that key"
    with pytest.raises(StoreAccessDeniedError, match=named):
        tier.read(old)


def test_cached_data_keys_are_used_for_a_bounded_time_without_the_provider(tmp_path: Path) -> None:
    write_key(tmp_path / "keys", "first", current=True)
    now_s = 0.0
    ring = KeyRing(DirectoryKeys(tmp_path / "keys"), "here", lambda: now_s, max_data_keys=2)
    keys = [ring.new_key(replace(USE, attempt=f"{n:016x}")).wrapped for n in range(3)]
    ring_dir = tmp_path / "keys"
    write_key(ring_dir, "second", current=True)
    (ring_dir / "first").unlink()
    for n in (1, 2):
        ring.data_key(keys[n], replace(USE, attempt=f"{n:016x}"), "it")
    with pytest.raises(StoreAccessDeniedError):
        ring.data_key(keys[0], replace(USE, attempt=f"{0:016x}"), "it")
    now_s = 601.0
    with pytest.raises(StoreAccessDeniedError):
        ring.data_key(keys[2], replace(USE, attempt=f"{2:016x}"), "it")


def test_a_data_key_is_shown_nowhere(tmp_path: Path) -> None:
    write_key(tmp_path / "keys", "first", current=True)
    key = KeyRing(DirectoryKeys(tmp_path / "keys"), "here").new_key(USE)
    assert repr(key.secret) not in repr(key)
    assert key.derived("manifest") != key.derived("chunks")


BAD_RINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "short": (lambda d: (d / "first").write_bytes(b"x" * 31), r"first: has 31 bytes.*32"),
    "long": (lambda d: (d / "first").write_bytes(b"x" * 33), r"first: has over 32 bytes"),
    "readable": (lambda d: (d / "first").chmod(0o644), r"first: mode 0644.*chmod o-rw"),
    "no current": (lambda d: (d / "current").unlink(), 'no file "current"'),
    "unknown current": (lambda d: (d / "current").write_text("x"), "names 'x'; there is first"),
    "odd id": (lambda d: shutil.copy(d / "first", d / "a b"), "a b: a key's id"),
    "no directory": (shutil.rmtree, "No such file or directory"),
    "a directory in it": (lambda d: (d / "second").mkdir(), "second: is not a regular file"),
}


@pytest.mark.parametrize("fault", BAD_RINGS)
def test_a_directory_without_a_ring_is_refused_by_name(tier: Tier, fault: str) -> None:
    spoil, reason = BAD_RINGS[fault]
    spoil(tier.keys)
    with pytest.raises(KeysError, match=reason):
        DirectoryKeys(tier.keys)
    with pytest.raises(SystemExit, match=reason):
        tier.rsm()


@pytest.mark.parametrize("fault", BAD_RINGS)
def test_a_ring_that_is_spoilt_later_stays_as_it_was(tier: Tier, fault: str) -> None:
    keys = DirectoryKeys(tier.keys)
    wrapped = keys.wrap(b"secret", b"use")
    spoil, reason = BAD_RINGS[fault]
    spoil(tier.keys)
    assert keys.unwrap(wrapped, b"use") == b"secret"
    status = keys.status()
    assert status.ids == ["first"]
    assert reason.partition(".*")[0].strip("'") in status.problem
    shutil.rmtree(tier.keys, ignore_errors=True)
    write_key(tier.keys, "second", current=True)
    assert keys.status() == RingStatus("second", ["second"])


def test_keys_need_a_deployment_id(tier: Tier) -> None:
    with pytest.raises(SystemExit, match=r"\[keys\] needs RSM_DEPLOYMENT_ID"):
        tier.rsm(deployment="")


def test_a_vault_that_is_away_fails_a_copy_before_its_first_byte(tier: Tier) -> None:
    token = tier.root / "token"
    token.write_text("token")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # Free, and refused, when it is closed.
    vault = f'address = "http://127.0.0.1:{port}"\nkey = "tier"\ntoken_file = "{token}"'
    rsm = tier.rsm(keys=f"[keys.vault]\n{vault}\n")
    with pytest.raises(RetriableRemoteStorageError, match="key 'tier' of 'transit' in the Vault"):
        copied(rsm, Files(some_bytes(10)))
    assert not [*(tier.root / "store").rglob("*.log")]


# --- rewrapping -----------------------------------------------------------------------------------


def test_after_a_rewrap_the_old_key_can_be_destroyed(tier: Tier) -> None:
    files, rsm = Files(some_bytes(1_000)), tier.rsm()
    first = copied(rsm, files)
    data = replace(files.data(), replaces=True)
    after = replace(first, custom_metadata=rsm.copy_log_segment_data(first, data))
    plain = copied(tier.rsm(ring=False), files)
    write_key(tier.keys, "second", current=True)
    new = copied(rsm, files)
    documents = [document_of(tier.manifest(each).read_bytes()) for each in (after, plain, new)]
    dry = rsm.objects.rewrap_keys([after, plain, new], dry_run=True)
    assert [each.key_id for each in dry.outcomes if isinstance(each, SegmentKey)] == [
        "first",
        "",
        "second",
    ]
    assert (dry.current, dry.key_ids, dry.problem) == ("second", ("first", "second"), "")
    done = rsm.objects.rewrap_keys([after, plain, new])
    assert done.outcomes == (
        SegmentKey(1, "second", is_changed=True),
        SegmentKey(1, "second", is_changed=True),
        SegmentKey(1, "second"),
    )
    again = rsm.objects.rewrap_keys([after, plain, new])
    assert again.outcomes == (SegmentKey(1, "second"),) * 3
    (tier.keys / "first").unlink()
    sealed = [document_of(tier.manifest(each).read_bytes()) for each in (after, plain, new)]
    assert sealed == documents
    for segment in (first, after, plain, new):
        assert tier.read(segment) == files.log
        assert b"".join(tier.rsm().fetch_index(segment, IndexType.OFFSET))
    assert tier.rebuilt(plain) == plain.custom_metadata
    assert b'"key_id":"first"' not in tier.manifest(after).read_bytes()


def test_a_rewrap_seals_only_what_the_metadata_names(tier: Tier) -> None:
    files = Files(some_bytes(1_000))
    plain = copied(tier.rsm(ring=False), files)
    path = tier.manifest(plain)
    path.write_bytes(forged(path.read_bytes(), b""))
    (outcome,) = tier.rsm().objects.rewrap_keys([plain]).outcomes
    assert isinstance(outcome, CorruptSegmentError)
    assert "is not the one that the segment's metadata names" in str(outcome)


def test_a_rewrap_seals_nothing_that_was_tampered_with(tier: Tier) -> None:
    segment = copied(tier.rsm(), Files(some_bytes(1_000)))
    path = tier.manifest(segment)
    path.write_bytes(forged(path.read_bytes(), b""))
    write_key(tier.keys, "second", current=True)
    (outcome,) = tier.rsm().objects.rewrap_keys([segment]).outcomes
    assert isinstance(outcome, CorruptSegmentError)
    (seen,) = tier.rsm().objects.rewrap_keys([segment], dry_run=True).outcomes
    assert isinstance(seen, SegmentKey)
    assert (seen.key_id, "fails its authentication" in seen.problem) == ("first", True)


def test_without_its_ring_a_tier_still_names_the_keys_that_it_needs(tier: Tier) -> None:
    segment = copied(tier.rsm(), Files(some_bytes(1_000)))
    (seen,) = tier.rsm(ring=False).objects.rewrap_keys([segment], dry_run=True).outcomes
    assert seen == SegmentKey(1, "first")


def test_a_copy_from_before_the_deployment_id_counts_as_ours(tier: Tier) -> None:
    files = Files(some_bytes(1_000))
    anonymous = copied(tier.rsm(ring=False, deployment=""), files)
    store = tier.root / "store"
    shutil.move(store / "none", store / "here")
    (outcome,) = tier.rsm().objects.rewrap_keys([anonymous]).outcomes
    assert outcome == SegmentKey(1, "first", is_changed=True)
    assert tier.read(replace(anonymous, custom_metadata=None)) == files.log
    (store / "there").mkdir()
    shutil.copytree(store / "here", store / "there", dirs_exist_ok=True)
    (store / "there" / ".sediment").unlink(missing_ok=True)
    with pytest.raises(CorruptSegmentError, match="wrapped key fails its authentication"):
        tier.read(replace(anonymous, custom_metadata=None), tier.rsm(deployment="there"))

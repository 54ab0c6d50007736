"""Test a location with a mirror: its copy, reads while the store is away, and deletions."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.api.errors import (
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StoreNotFoundError,
)
from services.api.remote_storage_manager import IndexType
from services.api.segment_objects import ObjectQuery, SegmentObjectKind, all_segment_objects
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_locations, build_manager, build_start_up
from services.rsm.locations import Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.mirror_copy import MirrorCopy, Mirrored, lag_of
from services.rsm.mirrored import FAILS_FOR_S, Failover, MirroredBackend
from services.rsm.probe import RuleLevel
from services.rsm.settings import RsmSettings
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import (
    Files,
    copied,
    fetched,
    index,
    replaced,
    some_bytes,
)

FILES = Files(some_bytes(10_000))
LARGE = Files(some_bytes(9 * 1024 * 1024, seed=1))
Registry = Callable[..., RsmSettings]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return settings of location 1 in directory "first", whose mirror, location 2, is "mirror"."""

    def make(first: str = "", mirror: str = "") -> RsmSettings:
        entries = [
            f'[[location]]\nid = {number}\nbackend = "filesystem"\nprefix = "tier/"\n'
            f'directory = "{tmp_path / name}"\n{more}\n'
            for number, name, more in ((1, "first", f"mirror = 2\n{first}"), (2, "mirror", mirror))
        ]
        file = tmp_path / "locations.toml"
        file.write_text("".join(entries))
        values = {"backend": "filesystem", "directory": tmp_path / "first", "prefix": "tier/"}
        more = {"deployment_id": "ours", "locations_file": file}
        return RsmSettings.model_validate({**values, **more})

    for name in ("first", "mirror"):
        (tmp_path / name).mkdir()
    return make


@pytest.fixture
def locations(registry: Registry) -> Locations:
    return build_locations(registry())


@pytest.fixture
def rsm(registry: Registry, locations: Locations) -> Iterator[ObjectRemoteStorageManager]:
    start_up = build_start_up(registry(), locations)
    buffers = PartBuffers(3, 1024 * 1024, 10_000)
    with closing(ObjectRemoteStorageManager(locations, buffers, 2, start_up=start_up)) as manager:
        manager.check()
        yield manager


def mirror(locations: Locations) -> Mirrored:
    return MirrorCopy(locations.current, lambda _: None, 2).run()


def go_away(locations: Locations, tmp_path: Path) -> None:
    """Take the first store away, and let the bound pass."""
    shutil.move(tmp_path / "first", tmp_path / "gone")
    mirrored = locations.current.mirrored
    assert mirrored is not None
    failover = mirrored.failover
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.rsm.mirrored.FAILS_FOR_S", 0.0)
        failover.failed(StoreNotFoundError("gone"))
        failover.failed(StoreNotFoundError("gone"))
    assert failover.is_away


def mirror_reads() -> float:
    return REGISTRY.get_sample_value("sediment_rsm_mirror_reads_total") or 0.0


def files_below(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_a_run_copies_what_the_mirror_lacks_and_the_next_nothing(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    copied(rsm, FILES)
    copied(rsm, LARGE)
    unfinished = tmp_path / "first/tier/0123/0/no-manifest.log"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"being copied")
    done = mirror(locations)
    assert (done.segments, done.copied, done.present, done.failed) == (2, 2, 0, 0)
    unfinished.unlink()
    there = files_below(tmp_path / "mirror")
    report = json.loads(there.pop("tier/.mirror"))
    assert report["segments_lacking"] == 0
    assert there == files_below(tmp_path / "first")
    again = mirror(locations)
    assert (again.copied, again.present, again.copied_bytes) == (0, 2, 0)


def test_a_replaced_manifest_is_copied_again(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    segment = copied(rsm, FILES)
    mirror(locations)
    again = replaced(rsm, segment, FILES)
    assert mirror(locations).copied == 1
    go_away(locations, tmp_path)
    assert fetched(rsm, again) == FILES.log


def test_while_the_store_is_away_all_is_read_from_the_mirror_and_it_comes_back(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    segment = copied(rsm, FILES)
    mirror(locations)
    late = copied(rsm, FILES)
    go_away(locations, tmp_path)
    before = mirror_reads()
    assert fetched(rsm, segment) == FILES.log
    assert index(rsm, segment, IndexType.OFFSET) == FILES.indexes[IndexType.OFFSET]
    assert mirror_reads() > before
    before = mirror_reads()
    rsm.check()
    assert mirror_reads() == before + 1  # So that an alert needs no reader.
    (note, *_) = rsm.store_rules
    assert note.level is RuleLevel.CRITICAL
    assert "location 1" in note.text
    assert "served by its mirror" in note.text
    with pytest.raises(StoreNotFoundError, match="mirror does not have the object yet"):
        fetched(rsm, late)
    with pytest.raises(StoreNotFoundError):
        copied(rsm, FILES)
    shutil.move(tmp_path / "gone", tmp_path / "first")
    rsm.check()
    assert all(rule.level is not RuleLevel.CRITICAL for rule in rsm.store_rules)
    assert fetched(rsm, late) == FILES.log
    copied(rsm, FILES)


def test_an_rsm_that_starts_while_the_store_is_away_serves_reads(
    rsm: ObjectRemoteStorageManager, registry: Registry, locations: Locations, tmp_path: Path
) -> None:
    segment = copied(rsm, FILES)
    mirror(locations)
    fresh = build_locations(registry())
    start_up = build_start_up(registry(), fresh, checked_first=True)
    go_away(fresh, tmp_path)
    buffers = PartBuffers(3, 1024 * 1024, 10_000)
    with closing(ObjectRemoteStorageManager(fresh, buffers, 2, start_up=start_up)) as restarted:
        restarted.check()
        assert fetched(restarted, segment) == FILES.log


def test_what_only_the_mirror_has_is_not_served_while_the_store_answers(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    segment = copied(rsm, FILES)
    mirror(locations)
    for path in [*(tmp_path / "first").rglob("*")]:
        if path.is_file() and path.name != ".sediment":
            path.unlink()
    with pytest.raises(RemoteResourceNotFoundError):
        fetched(rsm, segment)


def test_a_deletion_deletes_both_and_waits_for_the_mirror(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    segment, other = copied(rsm, FILES), copied(rsm, FILES)
    mirror(locations)
    shutil.move(tmp_path / "mirror", tmp_path / "gone")
    with pytest.raises(StoreNotFoundError):
        rsm.delete_log_segment_data(segment)
    shutil.move(tmp_path / "gone", tmp_path / "mirror")
    rsm.delete_log_segment_data(segment)
    for name in ("first", "mirror"):
        (left,) = (tmp_path / name).rglob("*.log")
        assert other.remote_log_segment_id.id.hex in left.name


def test_a_read_only_mirror_is_not_deleted_from(registry: Registry, tmp_path: Path) -> None:
    settings = registry(mirror="read_only = true")
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        segment = copied(rsm, FILES)
        mirror(build_locations(settings))
        rsm.delete_log_segment_data(segment)
    assert not [*(tmp_path / "first").rglob("*.log")]
    assert [*(tmp_path / "mirror").rglob("*.log")]


def test_manifests_of_the_mirror_are_those_of_the_location(
    rsm: ObjectRemoteStorageManager, locations: Locations
) -> None:
    segment = copied(rsm, FILES)
    mirror(locations)
    listed = all_segment_objects(rsm.objects, ObjectQuery(2))
    (manifest,) = (each for each in listed if each.name.kind is SegmentObjectKind.MANIFEST)
    assert manifest.location.location_id == 2
    assert rsm.objects.read_segment_manifest(manifest.location).is_of(
        segment.custom_metadata or b""
    )


def test_a_segment_that_is_deleted_meanwhile_is_taken_back(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    segment = copied(rsm, FILES)
    first = MirrorCopy(locations.current, lambda _: rsm.delete_log_segment_data(segment), 1)
    done = first.run()
    assert (done.copied, done.gone) == (0, 1)
    assert not [*(tmp_path / "mirror").rglob("*.log"), *(tmp_path / "mirror").rglob("*.manifest")]


def test_the_lag_is_that_of_the_last_run(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    assert lag_of(locations.current, 0).level is RuleLevel.UNKNOWN
    copied(rsm, FILES)
    mirror(locations)
    ended_ms = json.loads((tmp_path / "mirror/tier/.mirror").read_text())["ended_at_ms"]
    sound = lag_of(locations.current, ended_ms + 3_600_000)
    assert sound.level is RuleLevel.OK
    assert "1.0 hours ago; it lacked then 0 segments" in sound.text
    assert lag_of(locations.current, ended_ms + 27 * 3_600_000).level is RuleLevel.WARNING


def test_a_store_is_away_after_errors_alone_for_the_bound(tmp_path: Path) -> None:
    now_s = 0.0
    failover = Failover("location 1", lambda: now_s)
    store = MirroredBackend(
        FilesystemStorage(tmp_path / "no"), FilesystemStorage(tmp_path), failover, deletes=True
    )
    FilesystemStorage(tmp_path).put("key", b"mirrored")
    for at_s in (0.0, FAILS_FOR_S - 1):
        now_s = at_s
        with pytest.raises(StoreNotFoundError):
            store.get("key")
    failover.succeeded()
    now_s = FAILS_FOR_S + 1
    with pytest.raises(StoreNotFoundError):
        store.get("key")
    now_s += FAILS_FOR_S
    assert store.get("key") == b"mirrored"
    assert b"".join(store.fetch("key", 2, 4)) == b"rro"
    failover.failed(RemoteResourceNotFoundError("the store answers"))
    assert not failover.is_away
    failover.failed(RetriableRemoteStorageError("busy"))
    assert not failover.is_away


def test_a_read_finds_a_store_that_is_back_if_nothing_else_asks_it(tmp_path: Path) -> None:
    now_s = 0.0
    failover = Failover("location 3", lambda: now_s)
    first, second = tmp_path / "first", tmp_path / "mirror"
    second.mkdir()
    store = MirroredBackend(
        FilesystemStorage(first), FilesystemStorage(second), failover, deletes=True
    )
    FilesystemStorage(second).put("key", b"mirrored")
    with pytest.raises(StoreNotFoundError):
        store.get("key")
    now_s = FAILS_FOR_S
    assert store.get("key") == b"mirrored"
    first.mkdir()
    FilesystemStorage(first).put("key", b"the first")
    now_s += 1
    assert store.get("key") == b"mirrored"
    now_s += 5
    assert b"".join(store.fetch("key", 0, 2)) == b"the"
    assert not failover.is_away


def test_an_upload_to_the_mirror_that_fails_is_ended(
    rsm: ObjectRemoteStorageManager, locations: Locations, tmp_path: Path
) -> None:
    copied(rsm, LARGE)
    (log,) = (tmp_path / "first").rglob("*.log")
    size_bytes = log.stat().st_size

    def cut_off(_: int) -> None:
        os.truncate(log, size_bytes - 1)

    done = MirrorCopy(locations.current, cut_off, 1).run()
    assert (done.failed, done.copied) == (1, 0)
    assert done.failed_bytes > size_bytes
    mirrored = locations.current.mirrored
    assert mirrored is not None
    assert not list(mirrored.mirror.list_uploads("tier/"))
    assert lag_of(locations.current, done.oldest_ms + 3_600_000).level is RuleLevel.WARNING

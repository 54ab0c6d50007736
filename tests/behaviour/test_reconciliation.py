"""Test the findings of reconciliation, and that it deletes nothing else."""

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition
from services.api.operations import AnomalyKind
from services.api.partitions import EventPage, EventQuery, PartitionEvent
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_anomalies,
    all_events,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES
from services.rsm.layout import segment_keys
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import PartBuffers
from services.workflows.deletion import Deleter
from services.workflows.reconcile import Reconciled, Reconciliation, ReconciliationPlan
from services.workflows.removal import remove_partition
from services.workflows.segment_views import MetadataView
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.databases import COUNT_SEGMENTS, OwnRlmm
from tests.harness.holds import hold, hold_of
from tests.harness.stores import keys_in
from tests.harness.tier import HOUR_MS, SIZE_BYTES, FileTier, a_topic, now_ms, segment
from tests.harness.wrapper import Counted, Wrapper

pytestmark = pytest.mark.deep

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
ORPHANS = AnomalyKind.ORPHAN_OBJECTS
COMPLETE = AnomalyKind.UNREFERENCED_COMPLETE
MISSING = AnomalyKind.MISSING_OBJECTS
UPLOAD = AnomalyKind.ABANDONED_UPLOAD


def reconciled(
    tier: FileTier, *, delete: bool = False, grace_ms: int = 0, locations: Sequence[int] = (0,)
) -> Reconciled:
    plan = ReconciliationPlan(uuid4().hex, now_ms() + 1_000, grace_ms, delete, locations)
    return Reconciliation(tier.rlmm, tier.rsm, tier.rsm.objects, plan).run()


def deleted_twice(tier: FileTier) -> tuple[Reconciled, Reconciled]:
    return reconciled(tier, delete=True), reconciled(tier, delete=True)


def keys_of(store: FilesystemStorage) -> list[str]:
    return sorted(keys_in(store, ""))


def found(done: Reconciled) -> dict[AnomalyKind, int]:
    return dict(done.anomalies)


def forget(engine: Engine, metadata: RemoteLogSegmentMetadata) -> None:
    """Delete the metadata, as if the database had been restored from before the copy."""
    with engine.begin() as connection:
        for table in ("segment_epochs", "segments", "events"):
            connection.execute(
                text(f"DELETE FROM {table} WHERE segment_id = :id"),
                {"id": metadata.remote_log_segment_id.id},
            )
        connection.execute(text(COUNT_SEGMENTS))


def test_a_sound_tier_has_no_findings_and_stays_untouched(tier: FileTier) -> None:
    tier.fill(tier.tp, 5)
    tier.rlmm.add_remote_log_segment_metadata(segment(tier.tp, 5))
    going = tier.fill(tier.tp, 1, first=6)[0]
    tier.move(going, DELETE_STARTED)
    before = tier.object_keys()
    for done in deleted_twice(tier):
        assert found(done) == {}
        assert (done.segments, done.objects) == (6, 18)
        assert (done.deletions.objects, done.deletions.failures) == (0, [])
    assert tier.object_keys() == before


@pytest.mark.parametrize("kept", [".log", ".indexes"])
def test_remains_of_an_unfinished_copy_are_deleted_when_seen_twice(
    tier: FileTier, kept: str
) -> None:
    tier.fill(tier.tp, 2)
    before = tier.object_keys()
    stem = segment_keys("", segment(tier.tp, 7)).stem
    tier.store.put(f"{stem}.{'a' * 16}{kept}", b"bytes")
    first = reconciled(tier, delete=True)
    assert (found(first), first.deletions.objects) == ({ORPHANS: 1}, 0)
    second = reconciled(tier, delete=True)
    assert (found(second), second.deletions.objects) == ({ORPHANS: 1}, 1)
    assert tier.object_keys() == before
    assert found(reconciled(tier)) == {}


def test_each_deletion_is_an_event_with_the_run_and_the_key(tier: FileTier) -> None:
    tier.fill(tier.tp, 1)
    orphan, upload = segment(tier.tp, 7), segment(tier.tp, 8)
    orphan_key = segment_keys("", orphan).log("a" * 16)
    tier.store.put(orphan_key, b"bytes")
    tier.store.begin_upload(segment_keys("", upload).log("a" * 16))
    revision = tier.rlmm.partition_revisions([tier.tp])[0]
    first, second = deleted_twice(tier)
    assert (first.deletions.objects, second.deletions.objects) == (0, 1)
    assert (second.deletions.uploads, second.deletions.unrecorded) == (1, 0)
    events = list(all_events(tier.rlmm, EventQuery(tier.tp, after_revision=revision)))
    assert {(each.kind, each.key, each.segment_id) for each in events} == {
        ("OBJECT_DELETION", f"1:{orphan_key}", orphan.remote_log_segment_id.id),
        (
            "OBJECT_DELETION",
            f"1:{segment_keys('', upload).log('a' * 16)}",
            upload.remote_log_segment_id.id,
        ),
    }
    (run_id,) = {seen.run_id for seen in all_anomalies(tier.rlmm)}
    assert {(each.reason, each.plan_id) for each in events} == {("no metadata needs it", run_id)}


def test_object_stays_if_its_event_cannot_be_recorded(
    tier: FileTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.fill(tier.tp, 1)
    tier.store.put(segment_keys("", segment(tier.tp, 7)).log("a" * 16), b"bytes")
    before = tier.object_keys()
    reconciled(tier, delete=True)

    def away(*_: object) -> None:
        raise RetriableRemoteStorageError("the database is away")

    monkeypatch.setattr(tier.rlmm, "record_object_deletions", away)
    with pytest.raises(RetriableRemoteStorageError, match="away"):
        reconciled(tier, delete=True)
    assert tier.object_keys() == before


def test_objects_of_an_unknown_topic_are_deleted_and_counted(tier: FileTier) -> None:
    tier.store.put(segment_keys("", segment(a_topic("nobody")[0], 7)).log("a" * 16), b"bytes")
    _, second = deleted_twice(tier)
    assert (second.deletions.objects, second.deletions.unrecorded) == (1, 1)


@pytest.mark.parametrize("known", ["partition", "topic", "nothing"])
def test_what_a_hold_is_over_stays_and_is_counted_whatever_rlmm_knows(
    tier: FileTier, known: str
) -> None:
    tier.fill(tier.tp, 1)
    of = {
        "partition": tier.tp,
        "topic": replace(tier.tp, partition=7),
        "nothing": a_topic("nobody")[0],
    }[known]
    kept = Hold("all", HoldKind.LEGAL, reason="test") if known == "nothing" else hold_of(tier.tp)
    tier.rlmm.set_hold(replace(kept, first_offset=1_000))
    orphan, upload = (segment_keys("", segment(of, n)).log("a" * 16) for n in (7, 8))
    tier.store.put(orphan, b"bytes")
    tier.store.begin_upload(upload)
    before = tier.object_keys()
    _, second = deleted_twice(tier)
    done = second.deletions
    assert (done.objects, done.uploads, done.unrecorded, done.held) == (0, 0, 0, 2)
    assert (tier.object_keys(), len(list(tier.store.list_uploads("")))) == (before, 1)

    tier.rlmm.end_hold(kept)
    if known != "partition":
        hold(tier.rlmm, tier.tp, partition=tier.tp.partition)
    done = reconciled(tier, delete=True).deletions
    unrecorded = 0 if known == "partition" else 2
    assert (done.objects, done.uploads, done.unrecorded, done.held) == (1, 1, unrecorded, 0)


def test_nothing_is_deleted_unless_it_is_asked_for(tier: FileTier) -> None:
    tier.store.put(segment_keys("", segment(tier.tp, 7)).log("a" * 16), b"bytes")
    before = tier.object_keys()
    for _ in range(3):
        assert found(reconciled(tier)) == {ORPHANS: 1}
    assert tier.object_keys() == before


def test_young_objects_are_left_alone(tier: FileTier) -> None:
    key = segment_keys("", segment(tier.tp, 7)).log("a" * 16)
    tier.store.put(key, b"bytes")
    tier.store.begin_upload(key)
    done = reconciled(tier, delete=True, grace_ms=HOUR_MS)
    assert (found(done), done.segments) == ({}, 1)


def test_orphan_first_seen_recently_stays(engine: Engine, tier: FileTier, tmp_path: Path) -> None:
    key = segment_keys("", segment(tier.tp, 7)).log("a" * 16)
    tier.store.put(key, b"bytes")
    os.utime(tmp_path / key, (1_700_000_000, 1_700_000_000))
    for _ in range(2):
        assert reconciled(tier, delete=True, grace_ms=HOUR_MS).deletions.objects == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE anomalies SET first_seen = now() - interval '2 hours'"))
    assert reconciled(tier, delete=True, grace_ms=HOUR_MS).deletions.objects == 1


def test_objects_of_another_attempt_go_and_those_of_the_copy_that_counts_stay(
    tier: FileTier,
) -> None:
    only = tier.fill(tier.tp, 1)[0]
    before = tier.object_keys()
    keys = segment_keys("", only)
    for key in (keys.log("a" * 16), keys.indexes("a" * 16)):
        tier.store.put(key, b"left behind")
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({ORPHANS: 1}, 2)
    assert tier.object_keys() == before


def test_a_complete_copy_without_metadata_is_reported_and_never_deleted(
    engine: Engine, tier: FileTier
) -> None:
    _, lost = tier.fill(tier.tp, 2)
    forget(engine, lost)
    before = tier.object_keys()
    for _ in range(3):
        done = reconciled(tier, delete=True)
        assert (found(done), done.deletions.objects) == ({COMPLETE: 1}, 0)
    assert tier.object_keys() == before
    (anomaly,) = [seen.anomaly for seen in all_anomalies(tier.rlmm)]
    assert anomaly.segment_id == lost.remote_log_segment_id.id


def test_complete_copy_of_an_unknown_topic_is_never_deleted(tier: FileTier) -> None:
    unknown = segment(a_topic("nobody")[0], 0)
    tier.rsm.copy_log_segment_data(unknown, Files(bytes(SIZE_BYTES)).data())
    before = tier.object_keys()
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({COMPLETE: 1}, 0)
    assert tier.object_keys() == before


def test_a_manifest_without_its_bytes_is_an_orphan(engine: Engine, tier: FileTier) -> None:
    (lost,) = tier.fill(tier.tp, 1)
    forget(engine, lost)
    tier.store.delete([key for key in tier.object_keys() if key.endswith(".log")])
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({ORPHANS: 1}, 2)
    assert tier.object_keys() == []


def test_objects_left_by_a_finished_deletion_are_deleted(tier: FileTier) -> None:
    _, gone = tier.fill(tier.tp, 2)
    tier.move(tier.move(gone, DELETE_STARTED), DELETE_FINISHED)
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({ORPHANS: 1}, 3)
    assert len(tier.object_keys()) == 3


def test_objects_left_by_a_removed_partition_are_deleted(tier: FileTier, tmp_path: Path) -> None:
    tier.fill(tier.tp, 1)
    contents = {key: tier.store.get(key) for key in tier.object_keys()}
    tier.mark_deleted(tier.tp)
    assert remove_partition(tier.rlmm, tier.rsm, tier.tp, Deleter(), now_ms()).left == ""
    for key, content in contents.items():
        tier.store.put(key, content)
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({ORPHANS: 1}, 3)


@pytest.mark.parametrize("lost", [".log", ".indexes", ".manifest", ""])
def test_a_finished_segment_without_its_objects_is_reported(tier: FileTier, lost: str) -> None:
    _, broken = tier.fill(tier.tp, 2)
    own = segment_keys("", broken).prefix
    tier.store.delete(
        [key for key in tier.object_keys() if key.startswith(own) and key.endswith(lost)]
    )
    before = tier.object_keys()
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({MISSING: 1}, 0)
    assert tier.object_keys() == before
    (seen,) = all_anomalies(tier.rlmm)
    assert (seen.anomaly.segment_id, seen.times_seen) == (broken.remote_log_segment_id.id, 2)


@pytest.mark.parametrize("kind", ["log", "indexes"])
def test_an_object_of_another_size_than_in_the_metadata_is_reported(
    tier: FileTier, kind: str
) -> None:
    _, short = tier.fill(tier.tp, 2)
    own = segment_keys("", short).prefix
    [key] = [each for each in tier.object_keys() if each.startswith(own) and each.endswith(kind)]
    size = len(tier.store.get(key))
    tier.store.delete([key])
    tier.store.put(key, bytes(size - 1))
    assert found(reconciled(tier)) == {AnomalyKind.CORRUPT_OBJECT: 1}
    [seen] = all_anomalies(tier.rlmm)
    wanted = f"the {kind} object has {size - 1} bytes, by its metadata {size}"
    assert (seen.anomaly.segment_id, seen.anomaly.detail) == (
        short.remote_log_segment_id.id,
        wanted,
    )


def test_objects_of_another_attempt_do_not_replace_missing_ones(tier: FileTier) -> None:
    (broken,) = tier.fill(tier.tp, 1)
    keys = segment_keys("", broken)
    tier.store.delete([key for key in tier.object_keys() if key != keys.manifest])
    for key in (keys.log("a" * 16), keys.indexes("a" * 16)):
        tier.store.put(key, b"left behind")
    before = tier.object_keys()
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({MISSING: 1}, 0)
    assert tier.object_keys() == before


def test_only_abandoned_uploads_are_aborted(tier: FileTier) -> None:
    under_way, abandoned = segment(tier.tp, 0), segment(tier.tp, 1)
    tier.rlmm.add_remote_log_segment_metadata(under_way)
    for each in (under_way, abandoned):
        tier.store.begin_upload(segment_keys("", each).log("a" * 16))
    first, second = deleted_twice(tier)
    assert (found(first), first.deletions.uploads) == ({UPLOAD: 1}, 0)
    assert (found(second), second.deletions.uploads) == ({UPLOAD: 1}, 1)
    (left,) = tier.store.list_uploads("")
    assert left.key == segment_keys("", under_way).log("a" * 16)


def test_if_metadata_and_manifest_name_different_copies_nothing_is_deleted(tier: FileTier) -> None:
    """A store that ignores If-None-Match leaves this state: the last manifest stays."""
    (only,) = tier.fill(tier.tp, 1)
    keys = segment_keys("", only)
    counting = next(key for key in tier.object_keys() if key.endswith(".log")).split(".")[1]
    manifest = tier.store.get(keys.manifest).replace(counting.encode(), b"a" * 16)
    tier.store.put(keys.manifest, manifest)
    for key in (keys.log("a" * 16), keys.indexes("a" * 16)):
        tier.store.put(key, b"another copy")
    before = tier.object_keys()
    for _ in range(3):
        done = reconciled(tier, delete=True)
        assert (found(done), done.deletions.objects) == ({AnomalyKind.CORRUPT_OBJECT: 1}, 0)
    assert tier.object_keys() == before


def test_a_manifest_of_another_segment_is_reported_and_nothing_deleted(tier: FileTier) -> None:
    gone, _ = tier.fill(tier.tp, 2)
    own, unknown = segment_keys("", gone), segment_keys("", segment(tier.tp, 7))
    contents = {
        key: tier.store.get(key) for key in tier.object_keys() if key.startswith(own.prefix)
    }
    tier.move(tier.move(gone, DELETE_STARTED), DELETE_FINISHED)
    tier.store.delete(list(contents))
    for key, content in contents.items():
        tier.store.put(key.replace(own.stem, unknown.stem), content)
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({AnomalyKind.CORRUPT_OBJECT: 1}, 0)
    assert len([key for key in tier.object_keys() if key.startswith(unknown.prefix)]) == 3


def test_too_large_manifest_is_reported_and_nothing_deleted(tier: FileTier) -> None:
    manifest = segment_keys("", segment(tier.tp, 7)).manifest
    tier.store.put(manifest, bytes(MAX_SMALL_OBJECT_BYTES + 1))
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({AnomalyKind.CORRUPT_OBJECT: 1}, 0)
    assert tier.object_keys() == [manifest]


class Archived(FilesystemStorage):
    """Returns no object whose key ends with one of `kinds`."""

    kinds: tuple[str, ...] = ()

    def get(self, key: str) -> bytes:
        self._require_given(key)
        return super().get(key)

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        self._require_given(key)
        return super().fetch(key, start, end)

    def _require_given(self, key: str) -> None:
        if key.endswith(self.kinds):
            raise RemoteStorageError(f"{key}: the object store answered 403 InvalidObjectState")


@pytest.fixture
def archived(tmp_path: Path) -> Archived:
    return Archived(tmp_path)


@pytest.fixture
def over_archived(archived: Archived, rlmm: OwnRlmm) -> Iterator[FileTier]:
    buffers = PartBuffers(2, 64 * 1024, 60_000)
    locations = Locations(Location(1, archived, ""))
    with closing(ObjectRemoteStorageManager(locations, buffers, 1)) as rsm:
        yield FileTier(rsm, rlmm, archived)


def test_a_manifest_that_is_archived_is_named_and_ends_no_run(
    engine: Engine, over_archived: FileTier, archived: Archived
) -> None:
    tier = over_archived
    (complete,) = tier.fill(tier.tp, 1)
    forget(engine, complete)
    archived.put(segment_keys("", segment(tier.tp, 7)).log("a" * 16), b"left behind")
    archived.kinds = (".manifest",)
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({ORPHANS: 1}, 1)
    (unread,) = second.unread
    assert segment_keys("", complete).manifest in unread
    assert len(tier.object_keys()) == 3


def test_a_finished_segment_that_is_archived_is_not_missing(
    over_archived: FileTier, archived: Archived
) -> None:
    tier = over_archived
    (finished,) = tier.fill(tier.tp, 1)
    # So that its manifest is asked which copy counts.
    archived.put(segment_keys("", finished).log("a" * 16), b"another copy")
    archived.kinds = (".manifest", ".log")
    _, second = deleted_twice(tier)
    assert (found(second), second.deletions.objects) == ({}, 0)
    of_manifest, of_segment = second.unread
    assert segment_keys("", finished).manifest in of_manifest
    assert str(finished.remote_log_segment_id) in of_segment


@pytest.mark.parametrize("is_known", [True, False], ids=["known partition", "unknown partition"])
def test_metadata_restored_before_the_deletion_keeps_its_objects(
    tier: FileTier, is_known: bool
) -> None:
    if is_known:
        tier.fill(tier.tp, 1)
    back = segment(tier.tp, 7)
    key = segment_keys("", back).log("a" * 16)
    tier.store.put(key, b"bytes")
    reconciled(tier)

    def restore_once(done: Reconciled) -> None:
        if done.anomalies[ORPHANS] and not restored:
            restored.append(tier.rlmm.add_remote_log_segment_metadata(back))

    restored: list[object] = []
    plan = ReconciliationPlan("second", now_ms() + 1_000, 0, delete=True)
    done = Reconciliation(tier.rlmm, tier.rsm, tier.rsm.objects, plan, restore_once).run()
    assert (found(done), done.deletions.objects) == ({ORPHANS: 1}, 0)
    assert len(restored) == 1
    assert tier.store.describe(key) is not None


def test_a_partition_that_is_removed_meanwhile_ends_no_run(tier: FileTier) -> None:
    tier.fill(tier.tp, 2)
    removed = False

    def remove_once(_: Reconciled) -> None:
        nonlocal removed
        if not removed:
            removed = True
            tier.mark_deleted(tier.tp)
            remove_partition(tier.rlmm, tier.rsm, tier.tp, Deleter(), now_ms())

    plan = ReconciliationPlan("run", now_ms() + 1_000, 0)
    assert (
        found(Reconciliation(tier.rlmm, tier.rsm, tier.rsm.objects, plan, remove_once).run()) == {}
    )


def test_a_finished_segment_of_an_unregistered_location_is_reported(tier: FileTier) -> None:
    foreign = segment(tier.tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(foreign)
    finish = RemoteLogSegmentMetadataUpdate(
        foreign.remote_log_segment_id, now_ms(), FINISHED, 1, b"of another RSM"
    )
    tier.rlmm.update_remote_log_segment_metadata(finish)
    assert found(reconciled(tier)) == {MISSING: 1}


@pytest.mark.deep
def test_more_than_one_report_and_one_look_up_holds(tier: FileTier) -> None:
    tier.fill(tier.tp, 1)
    for number in range(1, 1_101):
        tier.store.put(segment_keys("", segment(tier.tp, number)).log("a" * 16), b"bytes")
    first, second = deleted_twice(tier)
    assert found(first) == found(second) == {ORPHANS: 1_100}
    assert (second.segments, second.deletions.objects) == (1_101, 1_100)
    assert len(tier.object_keys()) == 3


def test_one_key_in_two_locations_goes_from_each_when_it_was_seen_there_twice(
    rlmm: OwnRlmm, moved: ObjectRemoteStorageManager, tp: TopicIdPartition, tmp_path: Path
) -> None:
    old, new = FilesystemStorage(tmp_path / "old"), FilesystemStorage(tmp_path / "new")
    tier, key = FileTier(moved, rlmm, new), segment_keys("", segment(tp, 7)).log("a" * 16)

    def deleted() -> int:
        return reconciled(tier, delete=True, locations=(1, 2)).deletions.objects

    old.put(key, b"left in the old place")
    assert deleted() == 0
    new.put(key, b"left in the new place")
    assert deleted() == 1
    assert (keys_of(old), keys_of(new)) == ([], [key])
    assert deleted() == 1
    assert keys_of(new) == []
    seen = {each.anomaly.object_key: each.times_seen for each in all_anomalies(rlmm)}
    assert seen == {f"1:{key}": 2, f"2:{key}": 2}


def test_a_segment_that_is_complete_in_two_locations_is_reported_with_each(
    rlmm: OwnRlmm, moved: ObjectRemoteStorageManager, tp: TopicIdPartition, tmp_path: Path
) -> None:
    unnamed = segment(tp, 0)
    moved.copy_log_segment_data(unnamed, Files(bytes(SIZE_BYTES)).data())
    old, new = FilesystemStorage(tmp_path / "old"), FilesystemStorage(tmp_path / "new")
    for key in keys_of(new):
        old.put(key, new.get(key))
    done = reconciled(FileTier(moved, rlmm, new), delete=True, locations=(1, 2))
    manifest = segment_keys("", unnamed).manifest
    assert found(done) == {COMPLETE: 2}
    reported = [seen.anomaly.object_key for seen in all_anomalies(rlmm)]
    assert sorted(reported) == [f"1:{manifest}", f"2:{manifest}"]


def test_of_a_few_deleted_segments_only_their_events_are_sent(tier: FileTier) -> None:
    gone, kept, *_ = tier.fill(tier.tp, 10)
    tier.move(tier.move(gone, DELETE_STARTED), DELETE_FINISHED)
    asked = {each.remote_log_segment_id for each in (gone, kept)}
    returned = ReturnedEvents(tier.rlmm)
    view = MetadataView(cast(RemoteLogMetadataManager, returned))
    assert view.deleted(asked) == {gone.remote_log_segment_id}
    assert {event.segment_id for event in returned.events} == {each.id for each in asked}


class ReturnedEvents(Wrapper[RemoteLogMetadataManager]):
    """The real RLMM, with a list of the events that it returned."""

    def __init__(self, rlmm: RemoteLogMetadataManager) -> None:
        super().__init__(rlmm)
        self.events: list[PartitionEvent] = []

    def list_events(self, *args: Any, **kwargs: Any) -> EventPage:
        page = self.real.list_events(*args, **kwargs)
        self.events += page.events
        return page


@pytest.mark.deep
def test_metadata_is_asked_for_many_uploads_and_many_deleted_segments_at_once(
    tier: FileTier,
) -> None:
    removed, other = a_topic("orders", partitions=2)
    tier.fill(removed, 20)
    contents = {key: tier.store.get(key) for key in tier.object_keys()}
    tier.mark_deleted(removed)
    assert remove_partition(tier.rlmm, tier.rsm, removed, Deleter(), now_ms()).left == ""
    for key, content in contents.items():
        tier.store.put(key, content)
    tier.fill(other, 1)
    for number in range(1, 21):
        tier.store.begin_upload(segment_keys("", segment(other, number)).log("a" * 16))
    counted = Counted(tier.rlmm)
    plan = ReconciliationPlan("run", now_ms() + 1_000, 0)
    rlmm = cast(RemoteLogMetadataManager, counted)
    done = Reconciliation(rlmm, tier.rsm, tier.rsm.objects, plan).run()
    assert found(done) == {ORPHANS: 20, UPLOAD: 20}
    assert counted.calls["list_events"] == 1
    # Of the uploads, and of the objects that are listed.
    assert counted.calls["remote_log_segment_metadata_by_id"] == 2

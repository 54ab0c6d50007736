"""Test rebuilds: of a database from last night, of an empty one, and what they leave out."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import MutationContext
from services.api.errors import DeletionRefusedError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_anomalies, all_events, all_partitions
from services.api.segment_batches import ImportedSegments, SegmentImport
from services.api.segment_objects import ObjectQuery, all_segment_objects
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
from services.rsm.layout import segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.workflows.rebuild import HOLD, Rebuild, RebuildPlan, earlier_changes
from services.workflows.rebuild_report import DifferenceKind, Rebuilt
from services.workflows.reconcile import Reconciliation, ReconciliationPlan
from services.workflows.segment_views import MetadataView, store_views
from tests.contract.remote_storage_manager_contract import Files
from tests.contract.test_rsm_transformed import ZSTD, encrypting
from tests.harness.databases import Databases, OwnRlmm
from tests.harness.eventually import PATIENT, eventually
from tests.harness.local_servers import DatabaseServer
from tests.harness.stores import keys_in
from tests.harness.tier import EPOCH, SIZE_BYTES, FileTier, SmallTier, a_topic, ids, now_ms, segment

pytestmark = pytest.mark.deep

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


@pytest.fixture
def empty(tier: FileTier, databases: Databases) -> Iterator[FileTier]:
    """The same bucket, with an RLMM whose database was lost."""
    url = databases.take()
    engine = create_database_engine(url, PATIENT)
    yield FileTier(tier.rsm, SqlRemoteLogMetadataManager(engine), tier.store)
    engine.dispose()
    assert databases.give_back(url) == []


@pytest.fixture
def restored(
    tier: FileTier, engine: Engine, postgres: DatabaseServer
) -> Iterator[Callable[[], Callable[[], FileTier]]]:
    """Back up the database; the result restores it and returns the bucket with the old RLMM."""
    name, engines = f"test_{uuid4().hex}", list[Engine]()

    def back_up() -> Callable[[], FileTier]:
        engine.dispose()
        url = postgres.create_database(name, template=str(engine.url.database))

        def restore() -> FileTier:
            engines.append(create_database_engine(url, PATIENT))
            return FileTier(tier.rsm, SqlRemoteLogMetadataManager(engines[-1]), tier.store)

        return restore

    yield back_up
    for each in engines:
        each.dispose()
    postgres.drop_database(name)


def run(tier: FileTier, *, apply: bool = False) -> Rebuilt:
    plan = RebuildPlan(uuid4().hex, apply)
    return Rebuild(tier.rlmm, tier.rsm, tier.rsm.objects, plan).run()


def counts(done: Rebuilt) -> dict[str, int]:
    return {kind.value: count for kind, count in done.counts.items()}


def require_readable(tier: SmallTier, segments: list[RemoteLogSegmentMetadata]) -> None:
    """Find each segment by its first offset and read its bytes."""
    for each in segments:
        epoch = each.segment_leader_epochs[0].leader_epoch
        found = tier.rlmm.remote_log_segment_metadata(
            each.topic_id_partition, epoch, each.start_offset
        ).value
        assert found is not None
        assert found.remote_log_segment_id == each.remote_log_segment_id
        assert b"".join(tier.rsm.fetch_log_segment(found, 0)) == bytes(SIZE_BYTES)


def undated(segments: list[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Leave out the field that a rebuild declares: the time of the last event."""
    return [replace(each, event_timestamp_ms=0) for each in segments]


def test_a_database_of_last_night_loses_nothing_that_was_acknowledged(
    tier: FileTier, restored: Callable[[], Callable[[], FileTier]]
) -> None:
    deleted, *kept = tier.fill(tier.tp, 3)
    copied = segment(tier.tp, 3)
    tier.rlmm.add_remote_log_segment_metadata(copied)
    restore = restored()
    later = [tier.finish(copied), *tier.fill(tier.tp, 2, first=4), *tier.fill(a_topic()[0], 2)]
    tier.move(deleted, DELETE_STARTED)
    tier.rsm.delete_log_segment_data(deleted)
    tier.move(deleted, DELETE_FINISHED)

    old = restore()
    expected = {"ONLY_IN_BUCKET": 4, "NOT_FINISHED": 1, "ONLY_IN_METADATA": 1}
    dry = run(old)
    assert (counts(dry), dry.imported, dry.finished, dry.freeze) == (expected, 0, 0, None)
    assert old.rlmm.end_hold(HOLD) is None
    applied = run(old, apply=True)
    assert (counts(applied), applied.imported, applied.finished) == (expected, 4, 1)
    require_readable(old, [*kept, *later])
    again = run(old, apply=True)
    assert (counts(again), again.imported, again.same) == ({"ONLY_IN_METADATA": 1}, 0, 7)


def test_an_empty_database_gets_every_segment_again(tier: FileTier, empty: FileTier) -> None:
    partitions = a_topic("orders", 11)
    finished = [each for tp in partitions for each in tier.fill(tp, 1, txn_idx_empty=True)]
    done = run(empty, apply=True)
    assert (counts(done), done.imported, done.needs_operator) == ({"ONLY_IN_BUCKET": 11}, 11, False)
    require_readable(empty, finished)
    assert undated(empty.rows(*partitions)) == undated(tier.rows(*partitions))
    assert [each.topic_id_partition for each in all_partitions(empty.rlmm)] == [
        each.topic_id_partition for each in all_partitions(tier.rlmm)
    ]
    events = list(all_events(empty.rlmm, EventQuery(partitions[0])))
    assert {(each.reason, each.to_state) for each in events} == {("rebuild", FINISHED.value)}


def test_an_attempt_counts_what_a_failed_one_of_the_same_run_changed(
    tier: FileTier, empty: FileTier
) -> None:
    tier.fill(tier.tp, 2)
    begun = segment(tier.tp, 2)
    tier.rlmm.add_remote_log_segment_metadata(begun)
    empty.rlmm.add_remote_log_segment_metadata(begun)
    tier.finish(begun)
    plan = RebuildPlan(uuid4().hex, apply=True)
    listed = list(store_views(all_segment_objects(tier.rsm.objects, ObjectQuery())))

    def attempt(run_id: str) -> Rebuilt:
        rebuild = Rebuild(empty.rlmm, tier.rsm, tier.rsm.objects, plan)
        earlier = earlier_changes(empty.rlmm, tier.tp, run_id)
        view, partition = MetadataView(empty.rlmm), (tier.tp.topic_id, tier.tp.partition)
        with ThreadPoolExecutor(1) as readers:
            return rebuild.compare(view, partition, listed, readers, earlier)

    done = attempt(plan.run_id)
    assert (done.imported, done.finished, done.same) == (2, 1, 0)
    assert attempt(plan.run_id) == done
    assert attempt("another run").same == 3


def test_no_deletion_begins_before_the_rebuild_is_confirmed(
    tier: FileTier, empty: FileTier
) -> None:
    (only,) = tier.fill(tier.tp, 1)
    done = run(empty, apply=True)
    with pytest.raises(DeletionRefusedError, match="sediment db confirm-rebuild"):
        empty.move(only, DELETE_STARTED)
    assert empty.rlmm.end_hold(HOLD, MutationContext(reason="looks right")) == done.freeze
    empty.move(only, DELETE_STARTED)


def test_a_copy_of_another_deployment_is_refused_by_name(
    rlmm: OwnRlmm, empty: FileTier, tmp_path: Path
) -> None:
    """Its objects came into the prefix by hand; those of earlier releases name no deployment."""

    @contextmanager
    def managed(name: str, directory: Path) -> Iterator[ObjectRemoteStorageManager]:
        settings = RsmSettings(backend="filesystem", directory=directory, deployment_id=name)
        with closing(build_manager(settings)) as made:
            made.check()
            yield made

    def copied(rsm: ObjectRemoteStorageManager) -> TopicIdPartition:
        [tp] = a_topic()
        SmallTier(rsm, rlmm).fill(tp, 1)
        return tp

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for each in (ours, theirs):
        each.mkdir()
    with managed("", ours) as rsm:
        earlier = copied(rsm)
    with managed("another", theirs) as rsm:
        other = copied(rsm)
    [found] = [path for path in theirs.iterdir() if path.name == other.topic_id.hex]
    shutil.copytree(found, ours / found.name)
    with managed("ours", ours) as rsm:
        own = copied(rsm)
        check = ReconciliationPlan(uuid4().hex, now_ms() + 1_000, grace_ms=0)
        Reconciliation(empty.rlmm, rsm, rsm.objects, check).run()
        done = run(replace(empty, rsm=rsm), apply=True)
    details = {each.anomaly.topic_id: each.anomaly.detail for each in all_anomalies(empty.rlmm)}
    assert "the deployment another wrote" in details[other.topic_id]
    assert "an RSM without RSM_DEPLOYMENT_ID to take it over" in details[other.topic_id]
    assert "a rebuild can take it over" in details[own.topic_id]
    assert counts(done) == {"ONLY_IN_BUCKET": 2, "REFUSED": 1}
    [refused] = [each for each in done.differences if each.kind is DifferenceKind.REFUSED]
    assert refused.topic_id == other.topic_id
    assert "the deployment another wrote the manifest" in refused.detail
    known = {each.topic_id_partition for each in all_partitions(empty.rlmm)}
    assert known == {earlier, own}
    with managed("", ours) as rsm:
        assert counts(run(replace(empty, rsm=rsm), apply=True)) == {"ONLY_IN_BUCKET": 1}
    known = {each.topic_id_partition for each in all_partitions(empty.rlmm)}
    assert known == {earlier, own, other}


def test_an_interrupted_rebuild_is_run_again_and_deletions_stay_frozen_meanwhile(
    tier: FileTier, empty: FileTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = a_topic("orders", 3)
    first, *_ = [each for tp in partitions for each in tier.fill(tp, 1)]
    take, calls = empty.rlmm.import_remote_log_segments, count(1)

    def away_after_one(imports: Iterable[SegmentImport]) -> ImportedSegments:
        if next(calls) > 1:
            raise RetriableRemoteStorageError("the database is away")
        return take(imports)

    with monkeypatch.context() as patch:
        patch.setattr(empty.rlmm, "import_remote_log_segments", away_after_one)
        with pytest.raises(RetriableRemoteStorageError, match="away"):
            run(empty, apply=True)
    with pytest.raises(DeletionRefusedError):
        empty.move(first, DELETE_STARTED)
    done = run(empty, apply=True)
    assert (counts(done), done.imported, done.same) == ({"ONLY_IN_BUCKET": 2}, 2, 1)


def test_a_freeze_waits_for_the_changes_that_began_before_it(
    engine: Engine, tier: FileTier
) -> None:
    tier.fill(tier.tp, 1)
    waits = text("SELECT FROM pg_locks WHERE relation = 'partitions'::regclass AND NOT granted")

    def is_waiting() -> bool:
        with engine.connect() as connection:
            return connection.execute(waits).first() is not None

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as change:
            change.execute(text("SELECT FROM partitions FOR UPDATE"))
            frozen = pool.submit(tier.rlmm.set_hold, HOLD)
            eventually(is_waiting)
            assert not frozen.done()
        assert frozen.result() == tier.rlmm.end_hold(HOLD)


def test_superseded_attempts_are_listed_and_left_out(tier: FileTier, empty: FileTier) -> None:
    tier.fill(tier.tp, 1)
    (best,) = tier.fill(tier.tp, 1, broker_leader_epoch=EPOCH + 2)
    tier.rlmm.reset_leader_epoch(tier.tp, None)
    tier.fill(tier.tp, 1, broker_leader_epoch=EPOCH + 1)
    later = segment_leader_epochs([(EPOCH + 1, 0)])
    other_epoch = tier.fill(tier.tp, 1, broker_leader_epoch=EPOCH + 1, segment_leader_epochs=later)
    done = run(empty, apply=True)
    assert (counts(done), done.imported) == ({"SUPERSEDED": 2, "ONLY_IN_BUCKET": 2}, 2)
    assert set(ids(empty.rows(tier.tp))) == {*ids([best]), *ids(other_epoch)}
    require_readable(empty, [best, *other_epoch])
    assert all(
        str(best.remote_log_segment_id) in each.detail
        for each in done.differences
        if each.kind is DifferenceKind.SUPERSEDED
    )


@pytest.mark.parametrize("kind", ["no manifest", "another segment", "cut short", "no indexes"])
def test_a_damaged_copy_is_named_and_left_out(tier: FileTier, empty: FileTier, kind: str) -> None:
    sound, broken = tier.fill(tier.tp, 2)
    keys = segment_keys("", broken)
    own = [key for key in tier.object_keys() if key.startswith(keys.prefix)]
    (log,) = [key for key in own if key.endswith(".log")]
    (indexes,) = [key for key in own if key.endswith(".indexes")]
    if kind == "no manifest":
        tier.store.put(keys.manifest, b"{}")
    elif kind == "another segment":
        tier.store.put(keys.manifest, tier.store.get(segment_keys("", sound).manifest))
    elif kind == "cut short":
        tier.store.put(log, bytes(SIZE_BYTES - 1))
    else:
        tier.store.delete([indexes])
    done = run(empty, apply=True)
    assert (counts(done), done.needs_operator) == ({"DAMAGED": 1, "ONLY_IN_BUCKET": 1}, True)
    assert ids(empty.rows(tier.tp)) == ids([sound])
    [named] = [each for each in done.differences if each.kind is DifferenceKind.DAMAGED]
    assert (named.segment_id, named.start_offset) == (ids([broken])[0], broken.start_offset)


def test_of_a_compressed_and_encrypted_bucket_only_what_authenticates_comes_back(
    rlmm: OwnRlmm, empty: FileTier, tmp_path: Path
) -> None:
    (tmp_path / "sealed").mkdir()
    plain = RsmSettings(backend="filesystem", directory=tmp_path / "sealed")
    settings = encrypting(plain, tmp_path, ZSTD)
    [tp], store = a_topic("orders"), FilesystemStorage(tmp_path / "sealed")
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        sound, altered, unsealed, spliced = copies = SmallTier(rsm, rlmm).fill(tp, 4)
        keys = [segment_keys("", each).manifest for each in copies]
        _, seal = store.get(keys[0]).split(b"\n", 1)
        documents = [store.get(key).split(b"\n")[0] for key in keys]
        of_other_broker = documents[1].replace(b'"broker_id":1', b'"broker_id":2')
        own_seal = store.get(keys[1]).split(b"\n", 1)[1]
        store.put(keys[1], b"\n".join([of_other_broker, own_seal]))
        store.put(keys[2], documents[2])
        store.put(keys[3], b"\n".join([documents[3], seal]))
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        after = replace(empty, rsm=rsm)
        done = run(after, apply=True)
        assert counts(done) == {"ONLY_IN_BUCKET": 1, "DAMAGED": 2, "REFUSED": 1}
        require_readable(after, [sound])
    assert ids(empty.rows(tp)) == ids([sound])
    details = {each.segment_id: each.detail for each in done.differences}
    assert "fails its authentication" in details[altered.remote_log_segment_id.id]
    assert "has no seal" in details[unsealed.remote_log_segment_id.id]
    assert "fails its authentication" in details[spliced.remote_log_segment_id.id]


def test_a_manifest_of_another_topic_name_is_left_out(tier: FileTier, empty: FileTier) -> None:
    tier.fill(tier.tp, 1)
    empty.rlmm.add_remote_log_segment_metadata(
        segment(TopicIdPartition(tier.tp.topic_id, "payments", tier.tp.partition), 7)
    )
    done = run(empty, apply=True)
    assert (counts(done), done.imported) == ({"DAMAGED": 1}, 0)
    assert "RLMM knows this topic id as payments" in done.differences[0].detail


def test_what_was_deleted_stays_deleted(engine: Engine, tier: FileTier) -> None:
    purged, gone, going, _ = tier.fill(tier.tp, 4)
    for each in (purged, gone):
        tier.move(tier.move(each, DELETE_STARTED), DELETE_FINISHED)
    with engine.begin() as connection:
        row = {"id": purged.remote_log_segment_id.id}
        connection.execute(text("DELETE FROM segments WHERE segment_id = :id"), row)
    tier.move(going, DELETE_STARTED)
    done = run(tier, apply=True)
    assert (counts(done), done.imported, done.same) == ({"DELETED": 2}, 0, 2)


def test_a_copy_that_rlmm_refuses_is_named_and_the_others_are_imported(
    tier: FileTier, empty: FileTier
) -> None:
    marked, other = a_topic("orders", 2)
    tier.fill(marked, 2)
    (sound,) = tier.fill(other, 1)
    empty.mark_deleted(marked)
    done = run(empty, apply=True)
    assert (counts(done), done.imported) == ({"ONLY_IN_BUCKET": 3, "REFUSED": 2}, 1)
    assert ids(empty.rows(other)) == ids([sound])
    assert "undelete it" in next(e.detail for e in done.differences if e.detail)


def test_copies_in_progress_and_objects_without_a_manifest_are_no_differences(
    tier: FileTier,
) -> None:
    leased = segment(tier.tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(leased, lease_ms=60_000)
    tier.rsm.copy_log_segment_data(leased, Files(bytes(SIZE_BYTES)).data())
    tier.store.put(segment_keys("", segment(tier.tp, 9)).log("a" * 16), b"left behind")
    done = run(tier, apply=True)
    assert (counts(done), done.same, done.incomplete) == ({}, 1, 1)


def test_attempts_in_several_locations_are_ranked_together(
    rlmm: OwnRlmm, moved: ObjectRemoteStorageManager, tmp_path: Path
) -> None:
    old, new = FilesystemStorage(tmp_path / "old"), FilesystemStorage(tmp_path / "new")
    partitions = a_topic("orders", 11)
    # Partition 10 comes before 2 in both listings, as its keys do.
    earlier, other = segment(partitions[2], 0), segment(partitions[10], 0)
    for each in (earlier, other):
        moved.copy_log_segment_data(each, Files(bytes(SIZE_BYTES)).data())
    for key in list(keys_in(new, "")):
        old.put(key, new.get(key))
        new.delete([key])
    later = segment(partitions[2], 0, broker_leader_epoch=EPOCH + 1)
    moved.copy_log_segment_data(later, Files(bytes(SIZE_BYTES)).data())
    plan = RebuildPlan("both places", apply=True, locations=(2, 1))
    done = Rebuild(rlmm, moved, moved.objects, plan).run()
    assert counts(done) == {"SUPERSEDED": 1, "ONLY_IN_BUCKET": 2}
    require_readable(SmallTier(moved, rlmm), [later, other])

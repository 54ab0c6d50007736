"""Test which segments a scrub reads, its report, and its conduct if a service is away."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.errors import InvalidRequestError, RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.operations import AnomalyKind, RecordedAnomaly, RunCounts
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_anomalies,
    all_tool_runs,
)
from services.api.segment_objects import ObjectLocation, SegmentObjects, shard_of
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.local.seaweedfs import S3Endpoint
from services.rsm.active_copies import Waiter
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.deadline import BURST_S, token_bucket
from services.rsm.factory import build_backend, build_manager
from services.rsm.layout import segment_keys
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.rsm.upload import PartBuffers
from services.workflows.scrub import FAILURES_IN_A_ROW, SHARDS, Pace, Scrub, Scrubbed, ScrubPlan
from tests.contract.remote_storage_manager_contract import MIB, Files, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.contract.rsm_through_faults import rsm_behind
from tests.harness.databases import OwnRlmm
from tests.harness.faults import Answer
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.stores import keys_in
from tests.harness.tier import SIZE_BYTES, FileTier, SmallTier, a_topic, segment

pytestmark = pytest.mark.deep

DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
CORRUPT, MISSING = AnomalyKind.CORRUPT_OBJECT, AnomalyKind.MISSING_OBJECTS
# Log, its manifest (to verify it), all index files at once; the manifest's size differs.
READS_OF_A_SEGMENT = 3


@dataclass
class Scrubber:
    """Runs as the command does, except for the clock."""

    rlmm: RemoteLogMetadataManager
    rsm: ObjectRemoteStorageManager
    pauses: list[float] = field(default_factory=list)

    def once(
        self,
        *,
        objects: SegmentObjects | None = None,
        take: Callable[[int], None] = lambda _: None,
        on_progress: Callable[[Scrubbed], None] = lambda _: None,
        **plan: Any,
    ) -> Scrubbed:
        return Scrub(
            self.rlmm,
            self.rsm,
            objects or self.rsm.objects,
            ScrubPlan(uuid4().hex, **plan),
            Pace(take, self.pauses.append),
            on_progress,
        ).run()

    def verified(self) -> dict[UUID, RunCounts]:
        """Return what is recorded of each topic."""
        found = (each.counts for each in all_tool_runs(self.rlmm))
        return {verified.topic_id: verified for verified in found if verified.topic_id is not None}

    def seen(self) -> list[RecordedAnomaly]:
        return list(all_anomalies(self.rlmm))


@pytest.fixture
def scrubber(tier: FileTier) -> Scrubber:
    return Scrubber(tier.rlmm, tier.rsm)


def keys_of(store: FilesystemStorage, metadata: RemoteLogSegmentMetadata, kind: str) -> str:
    prefix = segment_keys("", metadata).prefix
    (key,) = (key for key in keys_in(store, prefix) if key.endswith(kind))
    return key


def change(store: FilesystemStorage, key: str, position: int = 0) -> None:
    content = bytearray(store.get(key))
    content[position] ^= 1
    store.put(key, bytes(content))


def counts(done: Scrubbed) -> tuple[int, int, int, int, int]:
    return done.segments, done.verified, done.damaged, done.unchecked, done.gone


def test_a_sound_tier_is_verified_and_nothing_is_reported(
    tier: FileTier, scrubber: Scrubber
) -> None:
    tier.fill(tier.tp, 5)
    done = scrubber.once()
    assert counts(done) == (5, 5, 0, 0, 0)
    assert done.is_complete
    assert (done.read_bytes > 5 * 1_000, done.reasons, scrubber.seen()) == (True, [], [])


def test_only_finished_segments_are_read(tier: FileTier, scrubber: Scrubber) -> None:
    tier.fill(tier.tp, 2)
    going = tier.fill(tier.tp, 1, first=2)[0]
    tier.move(going, DELETE_STARTED)
    under_way = segment(tier.tp, 3)
    tier.rlmm.add_remote_log_segment_metadata(under_way)
    unknown = segment(a_topic("nobody")[0], 0)
    for each in (under_way, unknown):
        tier.rsm.copy_log_segment_data(each, Files(bytes(SIZE_BYTES)).data())
    for each in (going, under_way, unknown):
        change(tier.store, keys_of(tier.store, each, ".log"))
    assert counts(scrubber.once()) == (2, 2, 0, 0, 0)


@pytest.mark.parametrize("kind", [".log", ".indexes", ".manifest"])
def test_a_changed_object_is_reported_by_its_key_at_each_run(
    tier: FileTier, scrubber: Scrubber, kind: str
) -> None:
    broken = tier.fill(tier.tp, 3)[1]
    key = keys_of(tier.store, broken, kind)
    change(tier.store, key)
    for times in (1, 2):
        done = scrubber.once()
        assert counts(done) == (3, 2, 1, 0, 0)
        assert done.anomalies == {CORRUPT: 1}
        (seen,) = scrubber.seen()
        assert (seen.anomaly.kind, seen.times_seen) == (CORRUPT, times)
        assert seen.anomaly.segment_id == broken.remote_log_segment_id.id
        assert (seen.anomaly.topic_id, seen.anomaly.partition) == (
            tier.tp.topic_id,
            tier.tp.partition,
        )
        assert seen.anomaly.object_key == str(ObjectLocation(1, key))
    named = {".log": "chunk 0, bytes 0 to 999", ".indexes": "OFFSET index", ".manifest": "manifest"}
    assert named[kind] in seen.anomaly.detail


def test_log_and_indexes_that_are_both_damaged_are_two_anomalies_of_one_segment(
    tier: FileTier, scrubber: Scrubber
) -> None:
    (broken,) = tier.fill(tier.tp, 1)
    for kind in (".log", ".indexes"):
        change(tier.store, keys_of(tier.store, broken, kind))
    done = scrubber.once()
    assert (counts(done), done.anomalies) == ((1, 0, 1, 0, 0), {CORRUPT: 2})


@pytest.mark.parametrize("kind", [".log", ".indexes"])
def test_an_object_that_is_not_there_is_missing(
    tier: FileTier, scrubber: Scrubber, kind: str
) -> None:
    broken = tier.fill(tier.tp, 2)[0]
    tier.store.delete([keys_of(tier.store, broken, kind)])
    done = scrubber.once()
    assert (counts(done), done.anomalies) == ((2, 1, 1, 0, 0), {MISSING: 1})
    (seen,) = scrubber.seen()
    # As reconciliation reports it: the same anomaly, whoever finds it.
    assert (seen.anomaly.kind, seen.anomaly.object_key) == (MISSING, "")
    assert seen.anomaly.detail


def test_a_manifest_of_another_copy_is_reported(tier: FileTier, scrubber: Scrubber) -> None:
    (only,) = tier.fill(tier.tp, 1)
    key = segment_keys("", only).manifest
    counting = keys_of(tier.store, only, ".log").split(".")[1]
    tier.store.put(key, tier.store.get(key).replace(counting.encode(), b"a" * 16))
    done = scrubber.once()
    assert (counts(done), done.anomalies) == ((1, 0, 1, 0, 0), {CORRUPT: 1})
    (seen,) = scrubber.seen()
    assert "the metadata is of another copy" in seen.anomaly.detail


def test_segment_without_custom_metadata_is_read_by_its_manifest(
    tier: FileTier, scrubber: Scrubber
) -> None:
    only = segment(tier.tp, 0)
    tier.rlmm.add_remote_log_segment_metadata(only)
    tier.rsm.copy_log_segment_data(only, Files(bytes(SIZE_BYTES)).data())
    tier.move(only, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    assert counts(scrubber.once()) == (1, 1, 0, 0, 0)
    change(tier.store, keys_of(tier.store, only, ".log"))
    assert counts(scrubber.once()) == (1, 0, 1, 0, 0)


@pytest.mark.parametrize("state", [DELETE_STARTED, DELETE_FINISHED])
def test_a_segment_that_is_deleted_meanwhile_is_no_anomaly(
    tier: FileTier, scrubber: Scrubber, state: RemoteLogSegmentState
) -> None:
    tier.fill(tier.tp, 3)
    left = {each.remote_log_segment_id: each for each in tier.rows(tier.tp)}

    def delete_the_others(done: Scrubbed) -> None:
        """Delete the other segments after the first was verified: all were looked up before."""
        if done.verified == 1 and done.segments == 1:
            for each in left.values():
                row = next(row for row in tier.rows(tier.tp) if row == each)
                tier.move(row, DELETE_STARTED)
                tier.rsm.delete_log_segment_data(row)
                if state is DELETE_FINISHED:
                    tier.move(row, DELETE_FINISHED)
            left.clear()

    done = scrubber.once(on_progress=delete_the_others)
    assert counts(done) == (3, 1, 0, 0, 2)
    assert (done.is_complete, scrubber.seen()) == (True, [])


@pytest.mark.deep
def test_parts_have_each_segment_once_and_the_same_each_time(
    tier: FileTier, scrubber: Scrubber
) -> None:
    tier.fill(tier.tp, 20)
    first = [scrubber.once(part=part, parts=4).verified for part in (1, 2, 3, 4)]
    assert sum(first) == 20
    assert [scrubber.once(part=part, parts=4).verified for part in (1, 2, 3, 4)] == first
    ids = [row.remote_log_segment_id.id for row in tier.rows(tier.tp)]
    assert first == [len([id for id in ids if id.int % 4 == number]) for number in range(4)]


def test_of_other_topics_nothing_is_read(tier: FileTier, scrubber: Scrubber) -> None:
    # Beside it in every listing.
    other = TopicIdPartition(UUID(int=tier.tp.topic_id.int ^ 1), "payments", 0)
    tier.fill(tier.tp, 3)
    tier.fill(other, 2)
    done = scrubber.once(topic_ids=frozenset({other.topic_id}))
    assert counts(done) == (2, 2, 0, 0, 0)
    assert counts(scrubber.once()) == (5, 5, 0, 0, 0)


def test_no_more_is_read_than_the_rate_allows(tier: FileTier, scrubber: Scrubber) -> None:
    log = some_bytes(9 * MIB)
    for number in range(3):
        tier.copy(segment(tier.tp, number, segment_size_in_bytes=len(log)), Files(log))
    clock, rate = SteppedClock(), 4 * MIB
    taken: list[tuple[float, int]] = []
    limit = token_bucket(rate, "bytes per second", Waiter(clock.now, clock.pause))

    def take(size_bytes: int) -> None:
        limit.spend(size_bytes)
        taken.append((clock.now(), size_bytes))

    done = scrubber.once(take=take)
    assert counts(done) == (3, 3, 0, 0, 0)
    assert sum(size for _, size in taken) == done.read_bytes > 27 * MIB
    for start, (began, _) in enumerate(taken):
        for end in range(start, len(taken)):
            passed = sum(size for _, size in taken[start:end])
            assert passed <= rate * (taken[end][0] - began + BURST_S) + 0.01 * rate
    # And not much slower.
    assert clock.now() <= done.read_bytes / rate + 1


@dataclass
class SteppedClock:
    at_s: float = 1_000.0
    began_s: float = 1_000.0

    def now(self) -> float:
        return self.at_s - self.began_s

    def pause(self, seconds: float) -> None:
        self.at_s += seconds


def test_a_location_that_is_not_registered_is_refused(scrubber: Scrubber) -> None:
    with pytest.raises(InvalidRequestError, match="location 7 is not registered"):
        scrubber.once(locations=(7,))


@pytest.mark.parametrize(
    "change_of",
    [
        pytest.param(partial(re.sub, "^", "{"), id="no manifest"),
        pytest.param(partial(re.sub, r'"attempt":"\w+"', f'"attempt":"{"a" * 16}"'), id="attempt"),
        pytest.param(partial(re.sub, r'"crc32c":\d+', '"crc32c":7', count=1), id="digest of all"),
        pytest.param(partial(re.sub, r'c32c":\[\d+', 'c32c":[7'), id="digest of a chunk"),
    ],
)
def test_a_manifest_that_changed_on_its_way_is_not_checked(
    tmp_path: Path, tier: FileTier, scrubber: Scrubber, change_of: Callable[[str], str]
) -> None:
    tier.fill(tier.tp, 2)
    once = WrongOnce(tmp_path, change_of)
    location = Location(1, once, "")
    rsm = ObjectRemoteStorageManager(
        Locations(location), PartBuffers(2, MIB, 60_000), upload_threads=1
    )
    with closing(rsm):
        done = scrubber.once(objects=rsm.objects)
        assert counts(done) == (2, 1, 0, 1, 0)
        assert (done.is_complete, scrubber.seen(), scrubber.pauses) == (False, [], [])
        assert (
            "changed during the check" in done.reasons[0] or "read was damaged" in done.reasons[0]
        )
        assert counts(scrubber.once(objects=rsm.objects)) == (2, 2, 0, 0, 0)


class WrongOnce(FilesystemStorage):
    """A store whose first response to a GET of a small object is changed on its way."""

    def __init__(self, directory: Path, change_of: Callable[[str], str]) -> None:
        super().__init__(directory)
        self._change_of = change_of
        self._was_wrong = False

    def get(self, key: str) -> bytes:
        data = super().get(key)
        if self._was_wrong:
            return data
        self._was_wrong = True
        changed = self._change_of(data.decode()).encode()
        assert changed != data
        return changed


class TestOverAStoreThatFails:
    @pytest.fixture
    def settings(self, s3: S3Endpoint) -> RsmSettings:
        return settings_for(s3)

    @pytest.fixture
    def proxy(self, s3: S3Endpoint) -> Iterator[HttpProxy]:
        with HttpProxy(s3.endpoint, s3_operation) as running:
            yield running

    @pytest.fixture
    def tier(self, settings: RsmSettings, rlmm: OwnRlmm) -> Iterator[SmallTier]:
        with closing(build_manager(settings)) as rsm:
            yield SmallTier(rsm, rlmm)

    @contextmanager
    def behind(
        self, proxy: HttpProxy, settings: RsmSettings, tier: SmallTier
    ) -> Iterator[Scrubber]:
        with rsm_behind(proxy, settings, retries=0) as rsm:
            yield Scrubber(tier.rlmm, rsm)

    @pytest.mark.deep
    def test_unreadable_segments_are_reported_and_the_rest_verified(
        self, tier: SmallTier, tp: TopicIdPartition, settings: RsmSettings, proxy: HttpProxy
    ) -> None:
        tier.fill(tp, 5)
        with self.behind(proxy, settings, tier) as scrubber:
            # After all of the first and the second's manifest: its log, which RSM reads beside the
            # manifest to verify it with, and the third's manifest.
            skip = 1 + READS_OF_A_SEGMENT + 1
            proxy.faults.add(Answer(503), operation="GetObject", skip=skip, times=3)
            done = scrubber.once()
            assert counts(done) == (5, 3, 0, 2, 0)
            assert (done.is_complete, done.is_cut_short) == (False, False)
            assert scrubber.pauses == [1.0, 2.0]
            assert (len(done.reasons), scrubber.seen()) == (2, [])
            verified = scrubber.verified()[tp.topic_id]
            assert (verified.segments, verified.done_segments) == (5, 3)
            assert verified.failed_segments == 0
            assert counts(scrubber.once()) == (5, 5, 0, 0, 0)
            assert scrubber.verified()[tp.topic_id].done_segments == 5

    @pytest.mark.deep
    def test_unavailable_store_ends_the_run_with_its_findings(
        self, tier: SmallTier, tp: TopicIdPartition, settings: RsmSettings, proxy: HttpProxy
    ) -> None:
        tier.fill(tp, FAILURES_IN_A_ROW + 5)
        with self.behind(proxy, settings, tier) as scrubber:
            skip = 1 + READS_OF_A_SEGMENT
            proxy.faults.add(Answer(503), operation="GetObject", skip=skip, times=None)
            done = scrubber.once()
        assert counts(done) == (FAILURES_IN_A_ROW + 1, 1, 0, FAILURES_IN_A_ROW, 0)
        assert (done.is_complete, done.is_cut_short) == (False, True)
        assert scrubber.pauses == [1, 2, 4, 8, 16, 30, 30]
        assert tp.topic_id not in scrubber.verified()

    @pytest.mark.deep
    def test_a_listing_that_breaks_off_does_not_end_the_run(
        self, tier: SmallTier, settings: RsmSettings, proxy: HttpProxy
    ) -> None:
        partitions = [a_topic("orders")[0] for _ in range(3)]
        while shard_of(partitions[0].topic_id, SHARDS) != 1:
            partitions[0] = a_topic("orders")[0]
        for each in partitions:
            tier.fill(each, 1)
        with self.behind(proxy, settings, tier) as scrubber:
            proxy.faults.add(Answer(503), operation="ListObjectsV2", skip=1)
            done = scrubber.once()
            assert (done.unlisted, done.is_complete, scrubber.pauses) == (1, False, [1.0])
            assert "not listed" in done.reasons[0]
            # The second listing was that of shard 1.
            listed = {tp.topic_id for tp in partitions if shard_of(tp.topic_id, SHARDS) != 1}
            assert scrubber.verified().keys() & {tp.topic_id for tp in partitions} == listed
            proxy.faults.add(Answer(503), operation="ListObjectsV2")
            with pytest.raises(RetriableRemoteStorageError):
                scrubber.once()

    @pytest.mark.deep
    def test_a_listing_that_is_refused_later_hides_nothing_that_was_found(
        self, tier: SmallTier, tp: TopicIdPartition, settings: RsmSettings, proxy: HttpProxy
    ) -> None:
        # Not in the last shard: a later one is to be refused.
        while (before := shard_of(tp.topic_id, SHARDS)) == SHARDS - 1:
            (tp,) = a_topic("orders")
        tier.fill(tp, 1)
        (only,) = tier.rows(tp)
        backend, prefix = build_backend(settings), segment_keys(settings.prefix, only).prefix
        (log,) = (key for key in keys_in(backend, prefix) if key.endswith(".log"))
        backend.put(log, b"x" * SIZE_BYTES)
        with self.behind(proxy, settings, tier) as scrubber:
            proxy.faults.add(Answer(403), operation="ListObjectsV2", skip=before + 1, times=None)
            done = scrubber.once()
            assert (done.damaged, done.unlisted > 0, done.is_complete) == (1, True, False)
            proxy.faults.clear()
            proxy.faults.add(Answer(403), operation="ListObjectsV2", times=None)
            with pytest.raises(RemoteStorageError, match="403"):
                scrubber.once()

"""RLM beside a stock broker, end to end: the broker is restarted and killed while producers of
every kind write, RLM is killed all the while, a topic is deleted and made again; in the end nothing
is missing anywhere, and nothing is left over."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery, RemotePartitionDeleteState
from services.api.remote_log_manager import ProblemKind
from services.api.remote_log_metadata_manager import all_events, all_partitions
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from tests.harness.databases import Store
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.kafka_broker import kafka_broker
from tests.harness.kafka_client import Topic
from tests.harness.world import running_world
from tests.kafka.constant_reader import ConstantReader
from tests.kafka.log_witness import LogWitness
from tests.kafka.read_log import Content, ReadLog, content_of, fetch_all
from tests.kafka.rlm_killer import RlmKiller
from tests.kafka.short_retention import KeptBytes, KeptMs, let_broker_delete
from tests.kafka.sidecar import BROKER_SETTINGS, DEADLINE_MS, Sidecar, running_sidecar
from tests.kafka.tiered_broker import FINISHED, ranges_in_tier, ranges_on_disk
from tests.kafka.traffic import RECORDS_PER_TRANSACTION, Acknowledged, Traffic

# All of the story happens before the first test of it.
pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1800)]

SEED = 405
OBJECTS_OF_A_SEGMENT = 3
LEAST_KILLS = 10
LEAST_READS = 100
BROKER_ENDINGS = 3
SHORT_SEGMENTS = {"segment.ms": "1000"}
BY_SIZE = Topic("by-size", 1, 24_576, SHORT_SEGMENTS)
BY_TIME = Topic("by-time", 1, 1_048_576, SHORT_SEGMENTS)
MADE_AGAIN = Topic("made-again", 1, 24_576, SHORT_SEGMENTS)
KEPT: dict[str, KeptBytes | KeptMs] = {
    BY_SIZE.name: KeptBytes(200_000),
    BY_TIME.name: KeptMs(30_000),
    MADE_AGAIN.name: KeptBytes(200_000),
}


@dataclass(frozen=True)
class Told:
    """A partition at the end of the story.

    Attributes:
        acknowledged: what its producers were told that it has.
        original: what the broker wrote, byte for byte, whatever it has deleted since.
    """

    name: TopicIdPartition
    acknowledged: Acknowledged
    original: bytes
    read: ReadLog
    content: Content
    rows: list[RemoteLogSegmentMetadata]


@dataclass(frozen=True)
class Story:
    """
    Attributes:
        deleted: the partition of the topic that was deleted, once the tier had some of it.
        deleted_had: the segments that the tier had of it then.
    """

    sidecar: Sidecar
    witness: LogWitness
    reported: list[Told]
    deleted: TopicIdPartition
    deleted_had: int
    kills: int
    reader: ConstantReader


@pytest.fixture(scope="module")
def sidecar(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp("sidecar")
    with (
        kafka_broker(directory / "kafka", BROKER_SETTINGS) as broker,
        running_world(directory / "services", *store, broker.log_dir) as world,
        running_sidecar(broker, world, directory / "rlm", broker.log_dirs) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def story(sidecar: Sidecar, tmp_path_factory: pytest.TempPathFactory) -> Story:
    broker, cluster = sidecar.broker, sidecar.cluster
    by_size, by_time = sidecar.create_tiered(BY_SIZE, BY_TIME)
    (deleted,) = sidecar.create_tiered(MADE_AGAIN)
    traffic = {
        name: Traffic(cluster, topic, SEED)
        for name, topic in ((by_size, BY_SIZE), (by_time, BY_TIME))
    }
    doomed = Traffic(cluster, MADE_AGAIN, SEED)
    witness = LogWitness(broker.log_dirs, tmp_path_factory.mktemp("witness"))
    killer = RlmKiller(sidecar.process, SEED)
    reader = ConstantReader(sidecar.rlm, {n: t.some for n, t in traffic.items()}, SEED)
    with ExitStack() as scene:
        scene.enter_context(witness)
        with ExitStack() as writing:
            for each in traffic.values():
                writing.enter_context(each)
            with reader, killer:
                with doomed:
                    wait_until_tiered(sidecar, deleted, segments=5)
                broker.restart()
                deleted_had = give_up(sidecar, deleted, killer)
                with killer.spared():
                    (again,) = sidecar.create_tiered(MADE_AGAIN)
                traffic[again] = Traffic(cluster, MADE_AGAIN, SEED + 1)
                writing.enter_context(traffic[again])
                broker.kill()
                broker.start()
                for name, each in traffic.items():
                    let_broker_delete(sidecar, name, KEPT[name.topic], each, killer)
                broker.kill()
                broker.start()
                for name, each in traffic.items():
                    let_broker_delete(sidecar, name, KEPT[name.topic], each, killer)
                eventually(lambda: killer.kills >= LEAST_KILLS, DEADLINE_MS)
                eventually(lambda: reader.served["REMOTE"] > LEAST_READS, DEADLINE_MS)
        for name in traffic:
            wait_until_all_is_tiered(sidecar, name)
        eventually(lambda: not sidecar.rows(deleted), DEADLINE_MS)
    reported = [tell(sidecar, witness, name, each) for name, each in traffic.items()]
    return Story(sidecar, witness, reported, deleted, deleted_had, killer.kills, reader)


def wait_until_tiered(sidecar: Sidecar, name: TopicIdPartition, segments: int) -> None:
    def has_segments() -> bool:
        return sum(row.state is FINISHED for row in sidecar.rows(name)) >= segments

    eventually(has_segments, DEADLINE_MS)


def give_up(sidecar: Sidecar, name: TopicIdPartition, killer: RlmKiller) -> int:
    """Delete the topic and kill the RLM that saw it alive; the next one lives until it is marked.
    Answers what the tier had of it."""
    eventually(lambda: sidecar.describe(name).role is not None, DEADLINE_MS)
    had = len(sidecar.rows(name))
    sidecar.cluster.delete(name.topic)

    def is_marked() -> bool:
        known = all_partitions(sidecar.rlmm, topic=name.topic)
        states = {s.topic_id_partition: s.delete_state for s in known}
        return states.get(name, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED) is not None

    with killer.spared():
        eventually(is_marked, DEADLINE_MS)
    return had


def wait_until_all_is_tiered(sidecar: Sidecar, name: TopicIdPartition) -> None:
    """Every rolled segment is FINISHED, nothing is under way, and RLM sees all of the log."""

    def is_tiered() -> None:
        seen = sidecar.describe(name)
        assert seen.lag_segments == 0, seen
        assert seen.last_stable_offset == seen.log_end_offset, seen
        assert {row.state for row in sidecar.rows(name)} == {FINISHED}

    eventually_holds(is_tiered, DEADLINE_MS)


def tell(sidecar: Sidecar, witness: LogWitness, name: TopicIdPartition, traffic: Traffic) -> Told:
    read = fetch_all(sidecar.rlm, name)
    rows = sorted(sidecar.rows(name), key=lambda row: row.start_offset)
    return Told(name, traffic.acknowledged, witness.log(name), read, content_of(read.data), rows)


def test_rlm_was_killed_again_and_again(story: Story) -> None:
    assert story.kills >= LEAST_KILLS


def test_every_batch_is_read_back_as_the_broker_wrote_it(story: Story) -> None:
    for reported in story.reported:
        assert reported.content.end_offset > 0
        assert reported.read.data == reported.original, reported.name


def test_every_acknowledged_record_is_read_back_unchanged(story: Story) -> None:
    for reported in story.reported:
        sent = reported.acknowledged.records
        assert len(sent) > 500, reported.name
        got = {offset: reported.content.records.get(offset) for offset in sent}
        assert got == sent, reported.name


def test_transactions_end_in_the_tier_as_they_ended_in_the_broker(story: Story) -> None:
    for reported in story.reported:
        said, content, original = (
            reported.acknowledged,
            reported.content,
            content_of(reported.original),
        )
        assert min(original.markers.values()) > 10, reported.name
        assert content.markers == original.markers, reported.name
        assert content.committed == original.committed, reported.name
        # As the broker's log has it, a producer may be told of an end that has no marker, and the
        # next end is then that of both; seen only where the broker itself ended meanwhile.
        told_wrong = (said.aborted & content.committed) | (said.committed - content.committed)
        assert len(told_wrong) <= BROKER_ENDINGS * RECORDS_PER_TRANSACTION, reported.name


def test_the_broker_has_deleted_of_it_and_the_tier_serves_that(story: Story) -> None:
    for reported in story.reported:
        seen = story.sidecar.describe(reported.name)
        assert seen.log_start_offset == 0 < seen.local_log_start_offset, reported.name
        assert reported.read.remote_bytes > 0 < reported.read.local_bytes, reported.name
        left = sum(
            row.segment_size_in_bytes
            for row in reported.rows
            if row.end_offset < seen.local_log_start_offset
        )
        assert reported.read.remote_bytes >= left > 0, reported.name


def test_a_broker_that_was_restarted_left_several_leader_epochs(story: Story) -> None:
    epochs = {
        e.leader_epoch for t in story.reported for r in t.rows for e in r.segment_leader_epochs
    }
    assert len(epochs) >= 3


def test_nothing_was_lost_before_it_was_copied(story: Story) -> None:
    for reported in story.reported:
        problems = story.sidecar.describe(reported.name).problems
        assert [p for p in problems if p.kind is ProblemKind.LOST_BEFORE_COPY] == []
        assert story.sidecar.rlmm.partition_state(reported.name).value.gaps == ()


def test_the_finished_segments_are_the_log_without_a_hole_each_offset_once(story: Story) -> None:
    for reported in story.reported:
        expected = 0
        for row in reported.rows:
            assert row.start_offset == expected, row
            expected = row.end_offset + 1
        assert story.sidecar.describe(reported.name).copied_through_offset == expected - 1


def test_each_finished_segment_has_its_objects_and_no_object_is_without_one(story: Story) -> None:
    for reported in story.reported:
        found = Counter(
            row.remote_log_segment_id.id
            for key in story.sidecar.objects(reported.name)
            for row in reported.rows
            if row.remote_log_segment_id.id.hex in key
        )
        assert set(found.values()) == {OBJECTS_OF_A_SEGMENT}
        assert len(found) == len(reported.rows)
        assert found.total() == len(story.sidecar.objects(reported.name))


def test_the_tier_has_the_brokers_segments_and_transaction_indexes(story: Story) -> None:
    aborted = 0
    for reported in story.reported:
        for row in reported.rows:
            stored = b"".join(story.sidecar.rsm.fetch_log_segment(row, 0))
            assert stored == story.witness.file(reported.name, row.start_offset, ".log"), row
            index = b""
            if not row.txn_idx_empty:
                index = b"".join(story.sidecar.rsm.fetch_index(row, IndexType.TRANSACTION))
            assert index == story.witness.file(reported.name, row.start_offset, ".txnindex"), row
            aborted += len(index) > 0
    assert aborted > 0


def test_the_deleted_topic_is_gone_from_the_tier(story: Story) -> None:
    assert story.deleted_had > 0
    assert story.sidecar.rows(story.deleted) == []
    assert story.sidecar.objects(story.deleted) == []


def test_the_topic_of_the_same_name_is_another_one(story: Story) -> None:
    (again,) = [
        reported for reported in story.reported if reported.name.topic == story.deleted.topic
    ]
    assert again.name.topic_id != story.deleted.topic_id
    assert min(again.acknowledged.records) == 0


def test_reads_were_right_all_the_while(story: Story) -> None:
    assert story.reader.failures == []
    assert story.reader.served["LOCAL"] > LEAST_READS
    assert story.reader.served["REMOTE"] > LEAST_READS
    assert story.reader.away > 0


def test_the_audit_trails_have_no_gap(story: Story) -> None:
    for reported in story.reported:
        events = all_events(story.sidecar.rlmm, EventQuery(reported.name))
        revisions = [event.revision for event in events]
        assert revisions == list(range(1, len(revisions) + 1)), reported.name


def test_nothing_is_left_in_the_logs_that_is_not_in_the_tier(story: Story) -> None:
    for reported in story.reported:
        on_disk = ranges_on_disk(story.sidecar.folder(reported.name))
        assert set(on_disk) <= set(ranges_in_tier(reported.rows))


def test_reconcile_finds_nothing(story: Story) -> None:
    world = story.sidecar.world
    done = world.sediment("reconcile", "--grace", "0", "--rsm", world.rsm.address, "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["anomalies"].values()) == {0}, report
    assert report["segments"] == sum(len(reported.rows) for reported in story.reported)

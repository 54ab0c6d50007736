"""A real broker keeps its tier through the plugin: clients see no difference, and nothing is left
over when segments, records or topics go."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from demos.kafka_broker import KafkaBroker
from services.api.errors import RemoteResourceNotFoundError
from services.api.offset_queries import SpecialTime
from services.api.remote_log_metadata_manager import all_kept_segments
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from tests.data.kafka_log_content import (
    MIXED,
    PAYMENTS,
    PROFILES,
    TELEMETRY,
    produce_mixed,
    produce_payments,
    produce_profiles,
    produce_telemetry,
)
from tests.harness.eventually import eventually, eventually_holds
from tests.harness.published import broker_alerts, exported_name
from tests.harness.variants import first_of
from tests.plugin.deployment import Deployment, Partition
from tests.plugin.jmx import read_jmx
from tests.plugin.seen import Seen, seen
from tests.plugin.tiered_partition import DEADLINE_MS, OBJECTS_OF_A_SEGMENT

pytestmark = pytest.mark.plugin

# All codecs; transactions across rolls, aborted ones too; tombstones and odd headers; times out of
# order in segments of several index entries.
TOPICS = (MIXED, PAYMENTS, PROFILES, TELEMETRY)
PRODUCERS = (produce_mixed, produce_payments, produce_profiles, produce_telemetry)
SEGMENTS_AT_LEAST = 24
PAGE = Path(__file__).parents[2] / "docs" / "use" / "kafka-plugin.md"
RECORDS = 10
INDEXES = {
    IndexType.OFFSET: ".index",
    IndexType.TIMESTAMP: ".timeindex",
    IndexType.TRANSACTION: ".txnindex",
    IndexType.PRODUCER_SNAPSHOT: ".snapshot",
}


@dataclass(frozen=True)
class Moved:
    """A partition whose rolled segments are in the tier only.

    Attributes:
        before: what clients saw of it when everything was still on the disk.
        files: links to the broker's files from then.
    """

    partition: Partition
    before: Seen
    files: Path


@pytest.fixture(scope="module")
def moved(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> list[Moved]:
    """Two rounds of the bundled log's content, in two leader epochs, moved to the tier."""
    partitions = deployment.create(*TOPICS)
    for round_number in range(2):
        if round_number > 0:
            deployment.broker.restart()
        for produce in PRODUCERS:
            produce(deployment.cluster, round_number)
        for partition in partitions:  # a copy that a restart ends leaves a row of its own
            partition.wait_until_tiered()
    kept = tmp_path_factory.mktemp("kept")
    made = [Moved(p, seen(p), link_files(p.folder, kept / str(p))) for p in partitions]
    for topic in TOPICS:
        deployment.cluster.configure(topic.name, local_retention_bytes="1")
    for partition in partitions:
        partition.wait_until_only_active_is_local()
    return made


def link_files(folder: Path, target: Path) -> Path:
    """Hard links, which outlive the files' removal by the broker."""
    target.mkdir()
    for file in folder.iterdir():
        os.link(file, target / file.name)
    return target


# --- what is in the tier ------------------------------------------------------------------------


def test_dozens_of_segments_moved(moved: list[Moved]) -> None:
    assert sum(len(m.partition.finished()) for m in moved) >= SEGMENTS_AT_LEAST


def test_tier_ends_at_the_local_log_without_gaps(moved: list[Moved]) -> None:
    for m in moved:
        ends = [row.end_offset for row in m.partition.finished()]
        starts = [row.start_offset for row in m.partition.finished()]
        assert starts == [0, *(end + 1 for end in ends)][: len(starts)], m.partition
        assert max(ends, default=-1) + 1 == m.partition.local_start(), m.partition


def test_the_broker_lists_what_is_in_the_tier(moved: list[Moved]) -> None:
    for m in moved:
        active = m.partition.local_start()
        assert m.partition.listed(SpecialTime.EARLIEST) == 0
        assert m.partition.listed(SpecialTime.EARLIEST_LOCAL) == active
        assert m.partition.listed(SpecialTime.LATEST_TIERED) == active - 1
        assert m.partition.listed(SpecialTime.LATEST) == m.before.bounds.log_end_offset


def test_the_bucket_has_three_objects_for_each_row_and_no_other(moved: list[Moved]) -> None:
    for m in moved:
        counts = {segment: len(keys) for segment, keys in m.partition.objects().items()}
        ids = {row.remote_log_segment_id.id for row in m.partition.rows()}
        assert counts == dict.fromkeys(ids, OBJECTS_OF_A_SEGMENT), m.partition


def test_every_file_is_in_the_tier_byte_for_byte(moved: list[Moved]) -> None:
    with moved[0].partition.deployment.world.storage() as rsm:
        for m in moved:
            for row in m.partition.finished():
                log = m.files / f"{row.start_offset:020}.log"
                assert b"".join(rsm.fetch_log_segment(row, 0)) == log.read_bytes(), row
                for index_type, suffix in INDEXES.items():
                    expected = file_beside(m.files, row, suffix)
                    assert stored_index(rsm, row, index_type) == expected, (row, index_type)


def file_beside(files: Path, row: RemoteLogSegmentMetadata, suffix: str) -> bytes:
    """A file of the segment; a snapshot has the name of the offset behind it."""
    offset = row.end_offset + 1 if suffix == ".snapshot" else row.start_offset
    path = files / f"{offset:020}{suffix}"
    return path.read_bytes() if path.exists() else b""


def stored_index(
    rsm: RemoteStorageManager, row: RemoteLogSegmentMetadata, index_type: IndexType
) -> bytes:
    try:
        return b"".join(rsm.fetch_index(row, index_type))
    except RemoteResourceNotFoundError:
        return b""


def test_an_aborted_transaction_that_spans_a_roll_is_in_the_tier(moved: list[Moved]) -> None:
    payments = [m for m in moved if m.partition.topic.name == PAYMENTS.name]
    with_aborted = [
        row for m in payments for row in m.partition.finished() if not row.txn_idx_empty
    ]
    assert len(with_aborted) > len(payments)
    for m in payments:
        records = m.before.records
        assert 0 < len(records["read_committed"]) < len(records["read_uncommitted"])


# --- what clients see ---------------------------------------------------------------------------


def test_clients_read_the_same_after_segments_moved(moved: list[Moved]) -> None:
    assert_seen_as_before(moved)


def test_clients_read_from_the_tier(moved: list[Moved]) -> None:
    deployment = moved[0].partition.deployment
    deployment.broker.restart()  # so that the plugin holds nothing of what was read before
    calls = deployment.calls_of_rsm("FetchLogSegment")
    for m in moved:
        m.partition.read()
    segments = sum(len(m.partition.finished()) for m in moved)
    assert deployment.calls_of_rsm("FetchLogSegment") >= calls + segments


def test_jmx_counts_reads_of_the_tier(moved: list[Moved]) -> None:
    """Kafka's figures and the plugin's, by the names that docs/use/kafka-plugin.md gives them."""
    deployment = moved[0].partition.deployment
    deployment.broker.stop()
    for log_dir in deployment.broker.log_dirs:  # else the broker has the indexes of earlier reads
        shutil.rmtree(log_dir / "remote-log-index-cache", ignore_errors=True)
    deployment.broker.start()
    before = read_jmx(deployment.broker)
    for m in moved:
        m.partition.read()
    after = read_jmx(deployment.broker)

    def rise(name: str, attribute: str) -> float:
        return after[name, attribute] - before.get((name, attribute), 0)

    segments = [row for m in moved for row in m.partition.finished()]
    size_bytes = sum(row.segment_size_in_bytes for row in segments)
    topics = "kafka.server:type=BrokerTopicMetrics,name="
    assert rise(f"{topics}RemoteFetchBytesPerSec", "Count") >= size_bytes
    assert rise(f"{topics}RemoteFetchRequestsPerSec", "Count") >= len(segments)
    plugin = "io.sediment.kafka:type={},broker=1".format
    calls = f"{plugin('Calls')},service={{}},call={{}}".format
    assert rise(calls("RSM", "FetchLogSegment"), "Calls") >= len(segments)
    assert rise(calls("RSM", "FetchIndex"), "Calls") >= len(segments)
    assert rise(calls("RSM", "FetchLogSegment"), "TimeMs") > 0
    assert rise(calls("RLMM", "GetRemoteLogSegmentMetadata"), "Calls") > 0
    assert rise(plugin("LookUps"), "Misses") > 0
    assert after[plugin("ReadAhead"), "MaxBytes"] == 96 << 20
    failures = {name: count for name, count in after.items() if name[1] == "Failures"}
    assert len(failures) > 3
    shown = {attribute for name, attribute in after if name.startswith("io.sediment.kafka:")}
    assert {attribute for attribute in shown if f"`{attribute}`" not in PAGE.read_text()} == set()
    assert not any(failures.values()), failures


def test_jmx_counts_copies_and_deletions(tiered: Partition) -> None:
    """Kafka's figures of a topic, each from its first event on."""
    segments = tiered.finished()
    before = figures_of(tiered)
    assert before["RemoteCopyLagBytes", "Value"] == 0
    assert before["RemoteCopyLagSegments", "Value"] == 0
    copied_bytes = sum(row.segment_size_in_bytes for row in segments)
    assert before["RemoteCopyBytesPerSec", "Count"] >= copied_bytes
    assert before["RemoteCopyRequestsPerSec", "Count"] >= len(segments)
    assert before.get(("RemoteCopyErrorsPerSec", "Count"), 0) == 0
    assert before.get(("RemoteDeleteRequestsPerSec", "Count"), 0) == 0
    tiered.configure(retention_ms="1")
    tiered.wait_until_nothing_is_left()
    after = figures_of(tiered)
    assert after["RemoteDeleteRequestsPerSec", "Count"] >= len(segments)
    assert after.get(("RemoteDeleteErrorsPerSec", "Count"), 0) == 0


def test_alerts_of_the_page_read_what_its_exporter_rules_make_of_the_brokers_figures(
    tiered: Partition,
) -> None:
    read = read_jmx(tiered.deployment.broker)
    made = {exported_name(name, attribute) for name, attribute in read}
    # A topic has a figure from the first event on, and the broker has all of them.
    of_topic = f",topic={tiered.name.topic}"
    made |= {exported_name(f"{name}{of_topic}", attribute) for name, attribute in read}
    (group,) = broker_alerts()["groups"]
    wanted = {
        metric
        for rule in group["rules"]
        for metric in re.findall(r"kafka_topic_\w+|sediment_plugin_\w+", rule["expr"])
    }
    assert len(wanted) >= len(group["rules"])
    assert wanted <= made
    ours = {name for name, _ in read if name.startswith("io.sediment.kafka:")}
    assert all(exported_name(name, "Anything") for name in ours)
    assert "sediment_plugin_lookups_hits" in made
    assert "sediment_plugin_call_failures_total" in made


def figures_of(partition: Partition) -> dict[tuple[str, str], float]:
    """Return Kafka's figures of a topic, by metric and attribute."""
    of_topic = f",topic={partition.name.topic}"
    return {
        (name.removesuffix(of_topic).rpartition("name=")[2], attribute): value
        for (name, attribute), value in read_jmx(partition.deployment.broker).items()
        if name.endswith(of_topic)
    }


@pytest.mark.parametrize(
    "end",
    first_of(
        [pytest.param(KafkaBroker.kill, id="killed"), pytest.param(KafkaBroker.stop, id="stopped")]
    ),
)
def test_clients_read_the_same_after_the_broker(
    moved: list[Moved], end: Callable[[KafkaBroker], None]
) -> None:
    broker = moved[0].partition.deployment.broker
    end(broker)
    broker.start()
    assert_seen_as_before(moved)
    for m in moved:
        m.partition.assert_nothing_left_before_it_was_copied()


def assert_seen_as_before(moved: list[Moved]) -> None:
    for m in moved:
        now = seen(m.partition, list(m.before.found_for_time))
        assert now == m.before, m.partition


def test_old_active_segment_is_rolled_and_moved(
    deployment: Deployment,
) -> None:
    partition = deployment.create_one("quiet", local_retention_ms="1000")
    values = partition.produce(records=1)
    eventually(lambda: partition.local_start() == 1, DEADLINE_MS)
    assert partition.values() == values


# --- what goes ----------------------------------------------------------------------------------


@pytest.fixture
def tiered(deployment: Deployment) -> Partition:
    """Five segments of two records, four of which are in the tier only."""
    partition = deployment.create_one("tiered", local_retention_bytes="1")
    partition.produce(RECORDS)
    partition.wait_until_moved()
    return partition


def assert_it_starts_at_what_the_tier_keeps(partition: Partition) -> int:
    """Wait until the log start has risen and nothing of the tier lies below it, neither row nor
    object; answer it."""

    def below_is_gone() -> None:
        start = partition.listed(SpecialTime.EARLIEST)
        assert start > 0
        assert all(row.end_offset >= start for row in partition.rows())
        ids = {row.remote_log_segment_id.id for row in partition.rows()}
        counts = {segment: len(keys) for segment, keys in partition.objects().items()}
        assert counts == dict.fromkeys(ids, OBJECTS_OF_A_SEGMENT)

    eventually_holds(below_is_gone, DEADLINE_MS)
    start = partition.listed(SpecialTime.EARLIEST)
    records = partition.read()
    assert [r.offset for r in records] == list(range(start, RECORDS))
    return start


def test_retention_bytes_deletes_segments(tiered: Partition) -> None:
    size_bytes = sum(row.segment_size_in_bytes for row in tiered.finished()[2:])
    active_bytes = tiered.local_segments()[-1].size_bytes
    tiered.configure(retention_bytes=str(size_bytes + active_bytes))
    assert assert_it_starts_at_what_the_tier_keeps(tiered) == 4


def test_retention_ms_deletes_segments(tiered: Partition) -> None:
    tiered.configure(retention_ms="1")
    eventually(lambda: tiered.listed(SpecialTime.EARLIEST) == RECORDS, DEADLINE_MS)
    tiered.wait_until_nothing_is_left()
    assert tiered.read() == []


def test_delete_records_deletes_segments(tiered: Partition) -> None:
    tiered.deployment.cluster.delete_records(tiered.name.topic, 0, 5)
    assert assert_it_starts_at_what_the_tier_keeps(tiered) == 5
    assert [row.start_offset for row in tiered.finished()] == [4, 6]


def test_a_deleted_topic_leaves_nothing_and_its_name_starts_again(tiered: Partition) -> None:
    deployment = tiered.deployment
    deployment.cluster.delete(tiered.name.topic)
    tiered.wait_until_nothing_is_left()
    (again,) = deployment.create(tiered.topic)
    values = again.produce()
    again.wait_until_moved()
    assert again.name.topic_id != tiered.name.topic_id
    assert again.values() == values
    tiered.assert_nothing_is_left()


def test_what_a_deleted_topic_had_is_kept_for_a_while(tiered: Partition) -> None:
    topic, segments = tiered.name.topic, tiered.finished()
    tiered.world.sediment("topics", "set", topic, "--unset", "sediment.delete.grace.ms")
    tiered.deployment.cluster.delete(topic)
    eventually(lambda: tiered.rows() == [], DEADLINE_MS)
    with tiered.world.metadata() as rlmm:
        eventually(lambda: len(list(all_kept_segments(rlmm, topic=topic))) == len(segments))
        kept = list(all_kept_segments(rlmm, topic=topic))
        assert list(all_kept_segments(rlmm, topic=topic, due_only=True)) == []
    assert {row.remote_log_segment_id.id for row in kept} == tiered.objects().keys()
    with tiered.world.storage() as rsm:
        for row in kept:
            assert sum(map(len, rsm.fetch_log_segment(row, 0))) == row.segment_size_in_bytes


# --- a hold -------------------------------------------------------------------------------------


def test_hold_keeps_the_log_start_until_it_is_ended(tiered: Partition) -> None:
    deployment, segments = tiered.deployment, tiered.finished()
    records = tiered.read()
    holds(tiered, "set", "--reason", "test", "--name", "audit", "--from", "50", "--to", "60")
    tiered.configure(retention_ms="1")

    def refusals() -> list[str]:
        refused = "hold audit (operator) keeps offsets 50-60"
        return [line for line in deployment.broker_log() if refused in line]

    # By the second all that the first run did has been done.
    eventually(lambda: len(refusals()) > 1, DEADLINE_MS)
    assert tiered.listed(SpecialTime.EARLIEST) == 0
    assert tiered.read() == records
    rows = tiered.finished()
    assert rows[: len(segments)] == segments
    assert {row.remote_log_segment_id.id for row in rows} == tiered.objects().keys()
    holds(tiered, "end", "audit")
    eventually(lambda: tiered.listed(SpecialTime.EARLIEST) == RECORDS, DEADLINE_MS)
    tiered.wait_until_nothing_is_left()


def holds(partition: Partition, command: str, *options: str) -> None:
    done = partition.world.sediment("holds", command, partition.name.topic, *options)
    assert done.returncode == 0, done.stderr


# --- tiering turned off -------------------------------------------------------------------------


def test_tier_is_read_while_copying_is_disabled(tiered: Partition) -> None:
    segments = tiered.finished()
    tiered.configure(remote_log_copy_disable="true", local_retention_bytes="-2")
    tiered.wait_until_logged("Cancelling the copy RLM task")
    tiered.produce()
    assert len(tiered.read()) == 2 * RECORDS
    assert tiered.finished() == segments
    assert len(tiered.rolled()) >= len(segments)
    tiered.configure(local_retention_bytes="1", remote_log_copy_disable="false")
    tiered.wait_until_moved()
    assert len(tiered.read()) == 2 * RECORDS


def test_topic_leaves_no_segments_when_tiering_is_turned_off(tiered: Partition) -> None:
    active = tiered.local_start()
    tiered.configure(remote_storage_enable="false", remote_log_delete_on_disable="true")
    tiered.wait_until_nothing_is_left()
    records = tiered.read()
    assert [r.offset for r in records] == list(range(active, RECORDS))


# --- a topic that RLM looks after -----------------------------------------------------------------


def test_a_topic_that_rlm_looks_after_gets_no_copy_of_its_broker(tiered: Partition) -> None:
    deployment, segments = tiered.deployment, tiered.finished()
    topic_id, owner = tiered.name.topic_id, "sediment.local.retention.owner"
    with tiered.world.metadata() as rlmm:
        entries = rlmm.topic_config(topic_id).entries
        rlmm.put_topic_config(topic_id, {**entries, owner: "rlm"})
        tiered.produce()

        def refusals() -> list[str]:
            refused = f"topic {tiered.name.topic}: RLM copies it and deletes its local records"
            return [line for line in deployment.broker_log() if refused in line]

        eventually(lambda: len(refusals()) > 1, DEADLINE_MS)
        assert tiered.finished() == segments
        assert {row.remote_log_segment_id.id for row in segments} == tiered.objects().keys()
        rlmm.put_topic_config(topic_id, entries)
    tiered.wait_until_tiered()

"""Import metadata topics of real brokers, with planted faults, and what Kafka itself has tiered."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from benchmarks.local_tiered_storage import local_tiered_storage_settings
from demos.kafka_broker import KafkaBroker, find_java
from demos.kafka_client import Cluster, Topic
from hatch_build import ROOT
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
from services.api.imported_segments import imported_custom_metadata, read_imported
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import all_partitions, all_segments
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.interop.metadata_topic import METADATA_TOPIC
from services.interop.metadata_values import Metadata, MetadataValue, encode_value
from services.local.stack import own_environment
from services.views.documents import fields_as_json
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import eventually
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_broker import kafka_broker
from tests.harness.pages import shown_commands
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_manager
from tests.kafka.tiered_broker import IMPATIENT

pytestmark = pytest.mark.kafka

STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED = RemoteLogSegmentState
LOCATION = 7


@pytest.fixture
def address(rlmm: OwnRlmm) -> Iterator[str]:
    with served_manager(rlmm) as (_, address):
        yield address


class Planted:
    """A topic of metadata that a test writes, of a topic of data that the cluster has."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.server = broker.bootstrap_servers
        self.name = f"metadata-{uuid4().hex[:8]}"
        self.topic = f"data-{uuid4().hex[:8]}"
        admin = KafkaAdminClient(bootstrap_servers=self.server)
        admin.create_topics(
            [
                NewTopic(name, num_partitions=2, replication_factor=1)
                for name in (self.name, self.topic)
            ]
        )
        described = admin.describe_topics([self.topic])
        admin.close()
        self.tp = TopicIdPartition(UUID(str(described[0]["topic_id"])), self.topic, 0)
        self._producer = KafkaProducer(bootstrap_servers=self.server)

    def write(self, *values: Metadata | bytes | None, partition: int = 0) -> None:
        for each in values:
            data = (
                each
                if each is None or isinstance(each, bytes)
                else encode_value(MetadataValue(each))
            )
            self._producer.send(self.name, data, key=b"k", partition=partition)
        self._producer.flush()

    def run(self, address: str, *options: str) -> Completed:
        return sediment(
            *("--rlmm", address, "-o", "json", "metadata", "import", "--location", LOCATION),
            *("--bootstrap-server", self.server, "--topic-name", self.name, *options),
        )


def added(tp: TopicIdPartition, start: int) -> RemoteLogSegmentMetadata:
    epochs = segment_leader_epochs([(0, start)])
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(tp, uuid4()), start, start + 9, 5, 1, 100 + start, epochs, 1000
    )


def moved(
    segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, custom: bytes | None = b"own"
) -> RemoteLogSegmentMetadataUpdate:
    at_ms = segment.event_timestamp_ms + list(RemoteLogSegmentState).index(state)
    return RemoteLogSegmentMetadataUpdate(segment.remote_log_segment_id, at_ms, state, 2, custom)


def as_row(
    segment: RemoteLogSegmentMetadata, *updates: RemoteLogSegmentMetadataUpdate
) -> RemoteLogSegmentMetadata:
    """Return what RLMM is to have of a segment after its updates."""
    for each in updates:
        segment = segment.updated(each)
    custom = imported_custom_metadata(LOCATION, segment.custom_metadata)
    return replace(segment, custom_metadata=custom)


def test_planted_faults_are_reported_and_all_else_is_imported(
    broker: KafkaBroker, rlmm: OwnRlmm, address: str
) -> None:
    planted = Planted(broker)
    tp, gone = planted.tp, TopicIdPartition(uuid4(), planted.topic, 0)
    one, two, three, four = (added(tp, start) for start in (0, 10, 20, 30))
    orphan = added(tp, 90)
    finished = [moved(each, FINISHED) for each in (one, two, three)]
    planted.write(
        one,
        two,
        finished[0],
        moved(orphan, FINISHED),  # 3: an orphan
        moved(two, DELETE_FINISHED),  # 4: impossible
        finished[1],
        moved(two, DELETE_STARTED),
        moved(two, FINISHED),  # 7: impossible
        replace(one, end_offset=5),  # 8: twice
        added(gone, 0),  # 9: of a topic that is gone
        None,  # 10: a tombstone
        four,
    )
    planted.write(three, finished[2], partition=1)
    done = planted.run(address)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert {name: count for name, count in report["dropped"].items() if count} == {
        "ORPHAN": 1,
        "IMPOSSIBLE": 2,
        "TWICE": 1,
        "GONE": 1,
        "NOT_METADATA": 1,
    }
    where = [(each["why"], each["partition"], each["offset"]) for each in report["examples"]]
    assert sorted(where, key=lambda each: each[2]) == [
        ("ORPHAN", 0, 3),
        ("IMPOSSIBLE", 0, 4),
        ("IMPOSSIBLE", 0, 7),
        ("TWICE", 0, 8),
        ("GONE", 0, 9),
        ("NOT_METADATA", 0, 10),
    ]
    assert (report["records"], report["imported"], report["lag"]) == (14, 4, 0)
    rows = {each.remote_log_segment_id: each for each in all_segments(rlmm, tp)}
    assert list(rows.values()) == [
        as_row(one, finished[0]),
        as_row(two, finished[1], moved(two, DELETE_STARTED)),
        as_row(three, finished[2]),
        as_row(four),
    ]
    assert rlmm.highest_offset_for_epoch(tp, 0).value == 29
    assert not rlmm.list_holds().holds

    again = json.loads(planted.run(address).stdout)
    assert (again["records"], again["imported"], again["moved"]) == (0, 0, 0)

    # An id of an earlier run with other content, a move, and a partition's deletion.
    planted.write(
        replace(one, start_offset=1),
        moved(four, FINISHED),
        RemotePartitionDeleteMetadata(tp, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 1, 1),
    )
    third = json.loads(planted.run(address).stdout)
    assert (third["records"], third["imported"], third["moved"]) == (3, 0, 2)
    assert third["dropped"]["TWICE"] == 1
    assert as_row(four, moved(four, FINISHED)) in list(all_segments(rlmm, tp))
    (partition,) = all_partitions(rlmm)
    assert partition.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED


def test_what_is_no_metadata_is_refused_by_name(
    broker: KafkaBroker, rlmm: OwnRlmm, address: str
) -> None:
    planted = Planted(broker)
    one, two = added(planted.tp, 0), added(planted.tp, 10)
    later = bytearray(encode_value(MetadataValue(one)))
    later[0] = 9
    planted.write(one, moved(one, FINISHED), bytes(later), two)
    done = planted.run(address)
    assert done.returncode == 1
    assert "partition 0, offset 2: " in done.stderr
    assert "--skip-unknown" in done.stderr
    assert not list(all_partitions(rlmm))
    dry = json.loads(planted.run(address, "--skip-unknown", "--dry-run").stdout)
    assert (dry["imported"], dry["dropped"]["UNKNOWN"]) == (2, 1)
    assert not list(all_partitions(rlmm))
    done = planted.run(address, "--skip-unknown")
    assert json.loads(done.stdout)["dropped"]["UNKNOWN"] == 1
    assert len(list(all_segments(rlmm, planted.tp))) == 2
    planted.write(encode_value(MetadataValue(two))[:-3])
    done = planted.run(address, "--skip-unknown")
    assert done.returncode == 1
    assert "partition 0, offset 4: " in done.stderr
    # A topic of the cluster that has no metadata, and one that was created again.
    assert planted.run(address, "--topic-name", "no-such-topic").returncode == 2
    other = Planted(broker)
    other.write(b"hello")
    done = other.run(address)
    assert done.returncode == 2
    assert "another topic, one that was created again, or another cluster" in done.stderr
    done = other.run(address, "--restart")
    assert "partition 0, offset 0: " in done.stderr
    assert f"is {other.name} a metadata topic?" in done.stderr


def test_a_switch_ends_badly_while_the_topic_is_written(
    broker: KafkaBroker, rlmm: OwnRlmm, address: str
) -> None:
    planted = Planted(broker)
    planted.write(added(planted.tp, 0))
    words = ["--bootstrap-server", planted.server, "--topic-name", planted.name, "--location", "7"]
    command = ["--rlmm", address, "metadata", "import", *words, "--switch"]
    with subprocess.Popen(
        [sys.executable, "-m", "services.cli", *command],
        env=own_environment({}),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        eventually(lambda: list(all_partitions(rlmm)))
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            planted.write(moved(added(planted.tp, 90), FINISHED))
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.3)
        assert process.stderr is not None
        assert "came in the last 10 s: a broker still has its old classes" in process.stderr.read()
    assert process.returncode == 3
    assert rlmm.list_holds().holds


TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
PAGE = ROOT / "docs/run/come-and-leave.md"
COMPARED = (
    *("topic_id_partition", "segment_id", "start_offset", "end_offset", "max_timestamp_ms"),
    *("broker_id", "event_timestamp_ms", "segment_leader_epochs", "segment_size_in_bytes"),
    *("custom_metadata", "state", "txn_idx_empty"),
)
READER = Path(__file__).with_name("MetadataReader.java")


def kafka_lists(
    server: str, metadata_partitions: int, directory: Path, tps: Sequence[TopicIdPartition]
) -> list[str]:
    """Return what Kafka's own RemoteLogMetadataManager lists, and its highest offsets."""
    named = [f"{uuid_to_text(tp.topic_id)}:{tp.topic}:{tp.partition}:9" for tp in tps]
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        [
            *(find_java(), "-Xmx256m", "-cp", f"{ensure_kafka_jars()}/*", str(READER)),
            *(server, str(metadata_partitions), str(directory), *named),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(done.stdout.splitlines())


def of_page(number: int, server: str, address: str) -> Completed:
    """Run a command of the page about coming and leaving, by its place, with `-o json`."""
    command = shown_commands(PAGE)[number].replace("kafka:9092", server)
    return sediment("--rlmm", address, "-o", "json", *shlex.split(command))


def following(number: int, server: str, address: str) -> subprocess.Popen[str]:
    """Start a command of the page as a process."""
    command = shown_commands(PAGE)[number].replace("kafka:9092", server)
    words = ["--rlmm", address, "-o", "json", *shlex.split(command)]
    return subprocess.Popen(
        [sys.executable, "-m", "services.cli", *words],
        env=own_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_records(server: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=server, linger_ms=0)
    for number in range(count):
        producer.send("orders", bytes(1024), partition=number % 2)
        if number % 10 == 9:
            producer.flush()
    producer.close()


def new_metadata_topic(broker: KafkaBroker, partitions: int) -> str:
    """Make the topic that Kafka's own manager reads; return the cluster's bootstrap servers."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(METADATA_TOPIC, partitions, 1)])
    admin.close()
    return broker.bootstrap_servers


def printed(server: str) -> list[dict[str, Any]]:
    done = sediment("-o", "json", "metadata", "print", "--bootstrap-server", server)
    return [json.loads(line) for line in done.stdout.splitlines()]


def printed_segments(server: str) -> list[dict[str, Any]]:
    """Return the last state of each segment by the topic's records, as they are printed."""
    segments: dict[str, dict[str, Any]] = {}
    for record in printed(server):
        segments[record["segment_id"]] = segments.get(record["segment_id"], {}) | record
    live = [each for each in segments.values() if each["state"] != DELETE_FINISHED.value]
    return in_order([{name: each[name] for name in COMPARED} for each in live])


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by offset, and by id what an interrupted copy and its next attempt share."""
    return sorted(
        rows,
        key=lambda each: (
            each["topic_id_partition"]["partition"],
            each["start_offset"],
            each["segment_id"],
        ),
    )


def imported_segments(rlmm: OwnRlmm, tps: Sequence[TopicIdPartition]) -> list[dict[str, Any]]:
    rows = []
    for row in (row for tp in tps for row in all_segments(rlmm, tp)):
        assert row.custom_metadata is not None
        custom = read_imported(row.custom_metadata)
        assert custom.location_id == 2
        document = fields_as_json(row, *COMPARED[2:])
        document["topic_id_partition"] = fields_as_json(row.topic_id_partition)
        document["segment_id"] = uuid_to_text(row.remote_log_segment_id.id)
        document["custom_metadata"] = None if custom.original is None else custom.original.hex()
        rows.append({name: document[name] for name in COMPARED})
    return in_order(rows)


def wait_until_quiet(server: str) -> None:
    """Return when Kafka has written metadata, and for a while no further record.

    A copy that the restart interrupted stays as it is.
    """
    seen: list[int] = []

    def is_quiet() -> bool:
        seen.append(len(printed(server)))
        return len(seen) > 8 and seen[-1] > 0 and len(set(seen[-8:])) == 1

    eventually(is_quiet, poll_ms=500)


def segments_of(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("RemoteLogSegmentMetadata{")]


def test_what_kafka_has_tiered_comes_and_leaves_again(
    broker: KafkaBroker, rlmm: OwnRlmm, address: str, tmp_path: Path
) -> None:
    """Its own RemoteLogMetadataManager lists the same segments before and after."""
    settings = local_tiered_storage_settings(tmp_path / "tier")
    settings |= {"remote.log.manager.task.interval.ms": "200"}
    with kafka_broker(tmp_path / "source", settings | IMPATIENT) as source:
        server = source.bootstrap_servers
        cluster, topic = Cluster(server), Topic("orders", 2, 16 * 1024, TIERED)
        cluster.create(topic)
        write_records(server, 300)
        source.restart()
        server = source.bootstrap_servers
        write_records(server, 300)
        admin = KafkaAdminClient(bootstrap_servers=server)
        topic_id = UUID(str(admin.describe_topics(["orders"])[0]["topic_id"]))
        tps = [TopicIdPartition(topic_id, "orders", partition) for partition in range(2)]
        wait_until_quiet(server)
        admin.delete_records({TopicPartition("orders", 0): 100})
        wait_until_quiet(server)

        dry = json.loads(of_page(0, server, address).stdout)
        assert not list(all_partitions(rlmm))
        done = of_page(1, server, address)
        report = json.loads(done.stdout)
        assert (done.returncode, report["lag"], report["records"]) == (0, 0, dry["records"])
        assert report["imported"] == dry["imported"]
        expected = printed_segments(server)
        assert imported_segments(rlmm, tps) == expected
        states = [each["state"] for each in expected]
        assert states.count(FINISHED.value) > 20
        # Kafka keeps the whole segment that has the log start.
        assert rlmm.partition_state(tps[0]).value.log_start_offset == 100
        assert not rlmm.list_holds().holds
        refused = of_page(3, server, address)
        assert refused.returncode == 3
        assert "copying is not disabled on 1 topic: orders" in refused.stderr
        listed = kafka_lists(server, 1, tmp_path / "one", tps)
        assert len(listed) > 20

        target = new_metadata_topic(broker, 5)
        done = of_page(4, target, address)
        assert (done.returncode, json.loads(done.stdout)["added"]) == (0, len(listed) - 18)
        assert kafka_lists(target, 5, tmp_path / "two", tps) == listed
        again = json.loads(of_page(4, target, address).stdout)
        assert (again["added"], again["moved"]) == (0, 0)

        # Both follow: what is written meanwhile, and a topic that is deleted.
        comes, leaves = following(2, server, address), following(5, target, address)
        eventually(lambda: rlmm.list_holds().holds)
        admin.close()
        source.restart()  # A broker that is away is asked again.
        admin = KafkaAdminClient(bootstrap_servers=server)
        write_records(server, 300)
        wait_until_quiet(server)
        longer = kafka_lists(server, 1, tmp_path / "three", tps)
        assert len(longer) > len(listed) + 10
        eventually(lambda: kafka_lists(target, 5, tmp_path / "four", tps) == longer)
        admin.delete_topics(["orders"])
        wait_until_quiet(server)
        eventually(lambda: not [row for tp in tps for row in all_segments(rlmm, tp)])
        eventually(lambda: not segments_of(kafka_lists(target, 5, tmp_path / "four", tps)))
        for each in (comes, leaves):
            each.send_signal(signal.SIGTERM)
            output, errors = each.communicate(timeout=60)
            assert each.returncode == 0, errors
            assert json.loads(output)["moved"] > 10
        admin.close()

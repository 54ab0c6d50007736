"""Import metadata topics of real brokers, with planted faults, and what Kafka itself has tiered."""

import json
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from demos.kafka_broker import KafkaBroker
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.imported_segments import imported_custom_metadata
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import all_partitions, all_segments
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.interop.metadata_values import Metadata, MetadataValue, encode_value
from tests.harness.databases import OwnRlmm
from tests.harness.sediment_command import Completed, sediment
from tests.harness.served import served_manager

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
    # A topic of the cluster that has no metadata, and one that was made anew.
    assert planted.run(address, "--topic-name", "no-such-topic").returncode == 2
    other = Planted(broker)
    other.write(b"hello")
    done = other.run(address)
    assert done.returncode == 2
    assert "another topic, one that was made anew, or another cluster" in done.stderr
    done = other.run(address, "--restart")
    assert "partition 0, offset 0: " in done.stderr
    assert f"is {other.name} a metadata topic?" in done.stderr

"""Export metadata to a topic in memory: what a run writes, by Kafka's rules and with keys."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.interop.metadata_export import ExportPlan, MetadataExport
from services.interop.metadata_fold import TopicRecord
from services.interop.metadata_topic import decode_key
from services.interop.metadata_values import KEYED_VERSION, decode_value
from tests.contract.rlmm.segments import DELETE_FINISHED, DELETE_STARTED, FINISHED, segment
from tests.harness.databases import OwnRlmm

MARKED, PARTITION_STARTED, PARTITION_FINISHED = RemotePartitionDeleteState


class TopicInMemory:
    """A topic of three partitions; `compact` does what Kafka's cleaner does of a whole log."""

    def __init__(self) -> None:
        self.written: dict[int, list[TopicRecord]] = {0: [], 1: [], 2: []}

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        return {number: (0, len(records)) for number, records in self.written.items()}

    def records(self, partition: int, first: int, end: int) -> Iterator[Sequence[TopicRecord]]:
        yield self.written[partition][first:end]

    def write(self, records: Sequence[tuple[int, bytes | None, bytes | None]]) -> None:
        for partition, key, value in records:
            of = self.written[partition]
            of.append(TopicRecord(partition, len(of), key, value))

    def compact(self) -> None:
        for partition, records in self.written.items():
            latest = {each.key: each for each in records}
            kept = [each for each in latest.values() if each.value is not None]
            self.written[partition] = sorted(kept, key=lambda each: each.offset)

    def all(self) -> list[TopicRecord]:
        return [each for records in self.written.values() for each in records]

    def states(self) -> list[str]:
        """Return what the records say, in their order; "" is a tombstone."""
        return [
            "" if each.value is None else decode_value(each.value).metadata.state.value
            for each in self.all()
        ]


def moved(rlmm: OwnRlmm, metadata: RemoteLogSegmentMetadata, *states: object) -> None:
    for state in states:
        rlmm.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(metadata.remote_log_segment_id, 9, state, 1)  # type: ignore[arg-type]  # a state
        )


def export(rlmm: OwnRlmm, topic: TopicInMemory, *, keyed: bool = False) -> MetadataExport:
    made = MetadataExport(rlmm, topic, ExportPlan(keyed=keyed))
    made.begin()
    made.run()
    return made


@pytest.fixture
def tp() -> TopicIdPartition:
    return TopicIdPartition(uuid4(), "orders", 0)


def test_each_run_writes_what_the_topic_lacks(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    one, two, failed = (segment(tp, start, start + 9) for start in (0, 10, 20))
    for each in (one, two, failed):
        rlmm.add_remote_log_segment_metadata(each)
    moved(rlmm, one, FINISHED)
    moved(rlmm, failed, DELETE_STARTED)
    topic = TopicInMemory()
    export(rlmm, topic)
    assert sorted(topic.states()) == sorted(
        ["COPY_SEGMENT_STARTED"] * 3 + ["COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"]
    )
    assert {each.key for each in topic.all()} == {None}
    before = len(topic.all())
    export(rlmm, topic)
    assert len(topic.all()) == before
    moved(rlmm, two, FINISHED)
    moved(rlmm, one, DELETE_STARTED, DELETE_FINISHED)
    running = export(rlmm, topic)
    assert topic.states()[before:] == [
        "COPY_SEGMENT_FINISHED",
        "DELETE_SEGMENT_STARTED",
        "DELETE_SEGMENT_FINISHED",
    ]
    running.run()
    assert len(topic.all()) == before + 3
    moved(rlmm, two, DELETE_STARTED, DELETE_FINISHED)
    moved(rlmm, failed, DELETE_FINISHED)
    for state in RemotePartitionDeleteState:
        rlmm.put_remote_partition_delete_metadata(RemotePartitionDeleteMetadata(tp, state, 1, 1))
    running.run()
    assert topic.states()[-3:] == [each.value for each in RemotePartitionDeleteState]
    length = len(topic.all())
    running.run()
    export(rlmm, topic)
    assert len(topic.all()) == length


def test_keyed_records_are_compacted_to_the_last_state(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    """The five scenarios of KIP-1266, with keys of the leader epoch of each copy."""
    topic = TopicInMemory()

    def copy(end_offset: int, epoch: int) -> RemoteLogSegmentMetadata:
        made = segment(tp, end_offset - 9, end_offset, broker_leader_epoch=epoch)
        rlmm.add_remote_log_segment_metadata(made)
        return made

    def present() -> dict[tuple[int | None, int | None], str]:
        export(rlmm, topic, keyed=True)
        topic.compact()
        states = {}
        for each in topic.all():
            assert each.key is not None
            assert each.value is not None
            key, value = decode_key(each.key), decode_value(each.value)
            assert (key.topic_id, key.partition) == (tp.topic_id, tp.partition)
            assert value.version == KEYED_VERSION
            states[key.end_offset, key.broker_leader_epoch] = value.metadata.state.value
        return states

    # 1: a copy. 2: two leaders, both finish. 3: a retry under one epoch.
    first = copy(1000, 3)
    moved(rlmm, first, FINISHED)
    old, new = copy(2000, 3), copy(2000, 4)
    moved(rlmm, old, FINISHED)
    moved(rlmm, new, FINISHED)
    retried = copy(3000, 5), copy(3000, 5)
    assert present()[3000, 5] == "COPY_SEGMENT_STARTED"
    moved(rlmm, retried[1], FINISHED)
    all_finished = {
        (1000, 3): "COPY_SEGMENT_FINISHED",
        (2000, 3): "COPY_SEGMENT_FINISHED",
        (2000, 4): "COPY_SEGMENT_FINISHED",
        (3000, 5): "COPY_SEGMENT_FINISHED",
    }
    assert present() == all_finished
    assert present() == all_finished
    moved(rlmm, retried[0], DELETE_STARTED, DELETE_FINISHED)
    assert present() == all_finished
    # 4: a segment is deleted, and all its keys are forgotten.
    for each in (old, new):
        moved(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    assert present().keys() == {(1000, 3), (3000, 5)}
    # 5: the partition is deleted; its marker stays.
    for each in (first, retried[1]):
        moved(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    for state in RemotePartitionDeleteState:
        rlmm.put_remote_partition_delete_metadata(RemotePartitionDeleteMetadata(tp, state, 1, 1))
    assert present() == {(None, None): "DELETE_PARTITION_FINISHED"}


def test_a_topic_has_keys_or_has_not(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9))
    plain, keyed = TopicInMemory(), TopicInMemory()
    export(rlmm, plain)
    export(rlmm, keyed, keyed=True)
    with pytest.raises(InvalidRequestError, match="offset 0: has no key; export without --keyed"):
        export(rlmm, plain, keyed=True)
    with pytest.raises(InvalidRequestError, match="offset 0: has a key; export with --keyed"):
        export(rlmm, keyed)

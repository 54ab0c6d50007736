"""Export metadata to a topic in memory: what a run writes, by Kafka's rules and with keys."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.interop.metadata_export import ExportPlan, MetadataExport
from services.interop.metadata_fold import TopicRecord
from services.interop.metadata_values import decode_value
from tests.contract.rlmm.segments import DELETE_FINISHED, DELETE_STARTED, FINISHED, segment
from tests.harness.databases import OwnRlmm
from tests.harness.keyed_scenarios import five_scenarios, moved, present_of

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
    topic = TopicInMemory()
    for expected in five_scenarios(rlmm, tp):
        export(rlmm, topic, keyed=True)
        topic.compact()
        assert present_of(tp, ((each.key, each.value) for each in topic.all())) == expected


def test_a_topic_has_keys_or_has_not(rlmm: OwnRlmm, tp: TopicIdPartition) -> None:
    rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9))
    plain, keyed = TopicInMemory(), TopicInMemory()
    export(rlmm, plain)
    export(rlmm, keyed, keyed=True)
    with pytest.raises(InvalidRequestError, match="offset 0: has no key; export without --keyed"):
        export(rlmm, plain, keyed=True)
    with pytest.raises(InvalidRequestError, match="offset 0: has a key; export with --keyed"):
        export(rlmm, keyed)

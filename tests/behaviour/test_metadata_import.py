"""Import a metadata topic in memory: resumed, by two at once, in pieces, and with holds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from services.api.errors import ConcurrentUpdateError, DeletionRefusedError, InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_segments
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    segment_leader_epochs,
)
from services.interop import metadata_import
from services.interop.metadata_fold import Drop, TopicRecord
from services.interop.metadata_import import HOLD_NAME, ImportPlan, MetadataImport
from services.interop.metadata_values import Metadata, MetadataValue, encode_value
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, segment
from tests.harness.databases import OwnRlmm

PLAN = ImportPlan(3)


class SourceInMemory:
    """A cluster with one topic of data, and a metadata topic of one partition."""

    def __init__(self) -> None:
        self.cluster_id = str(uuid4())
        self.topic_id = uuid4()
        self.tp = TopicIdPartition(uuid4(), "orders", 0)
        self.written: list[bytes] = []

    def write(self, *values: Metadata) -> None:
        self.written += [encode_value(MetadataValue(each)) for each in values]

    def ranges(self) -> Mapping[int, tuple[int, int]]:
        return {0: (0, len(self.written))}

    def records(self, partition: int, first: int, end: int) -> Iterator[Sequence[TopicRecord]]:
        for offset in range(first, end):
            yield [TopicRecord(partition, offset, None, self.written[offset])]

    def topic_ids(self) -> Mapping[str, UUID]:
        return {self.tp.topic: self.tp.topic_id}

    def log_starts(self, partitions: Collection[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
        return dict.fromkeys(partitions, 15)


def moved(metadata: RemoteLogSegmentMetadata, state: object) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(metadata.remote_log_segment_id, 9, state, 1, b"x")  # type: ignore[arg-type]  # a state


@pytest.fixture
def source() -> SourceInMemory:
    return SourceInMemory()


def started(rlmm: OwnRlmm, source: SourceInMemory, plan: ImportPlan = PLAN) -> MetadataImport:
    made = MetadataImport(rlmm, source, plan)
    made.begin()
    return made


def test_retention_waits_until_the_log_starts_are_known(
    rlmm: OwnRlmm, source: SourceInMemory
) -> None:
    made = [segment(source.tp, start, start + 9) for start in (0, 10, 20)]
    source.write(*made, *(moved(each, FINISHED) for each in made))
    started(rlmm, source).run()
    (hold,) = rlmm.list_holds().holds
    assert (hold.name, hold.topic) == (HOLD_NAME, "orders")
    with pytest.raises(DeletionRefusedError, match="metadata-import"):
        rlmm.update_remote_log_segment_metadata(moved(made[0], DELETE_STARTED))
    # The import has ended, or was killed, and resumes: its hold lasts until the log starts are set.
    again = started(rlmm, source)
    assert again.run().records == 0
    assert again.finish().log_starts == 1
    assert not rlmm.list_holds().holds
    assert rlmm.partition_state(source.tp).value.log_start_offset == 15


def test_of_two_imports_at_once_one_is_refused(rlmm: OwnRlmm, source: SourceInMemory) -> None:
    one, other = started(rlmm, source), started(rlmm, source)
    source.write(segment(source.tp, 0, 9))
    one.run()
    source.write(segment(source.tp, 10, 19))
    with pytest.raises(ConcurrentUpdateError, match="another import runs"):
        other.run()
    assert one.run().imported.imported == 2
    assert len(list(all_segments(rlmm, source.tp))) == 2


@pytest.mark.deep
def test_what_is_too_large_for_one_transaction_comes_in_pieces(
    rlmm: OwnRlmm, source: SourceInMemory
) -> None:
    many = segment_leader_epochs([(epoch, epoch) for epoch in range(9_000)])
    made = [
        replace(segment(source.tp, 0, 9_000 + n), segment_leader_epochs=many) for n in range(12)
    ]
    source.write(*made)
    assert started(rlmm, source).run().imported.imported == 12
    assert len(list(all_segments(rlmm, source.tp))) == 12


def test_only_chosen_topics_come(rlmm: OwnRlmm, source: SourceInMemory) -> None:
    source.write(segment(source.tp, 0, 9))
    report = started(rlmm, source, replace(PLAN, topics=("payments",))).run()
    assert (report.records, report.not_selected, report.imported.imported) == (1, 1, 0)


def test_what_comes_in_later_steps_is_moved(
    rlmm: OwnRlmm, source: SourceInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_import, "RECORDS_PER_STEP", 2)
    made = [segment(source.tp, start, start + 9) for start in (0, 10, 20)]
    source.write(*made, *(moved(each, FINISHED) for each in made), moved(made[0], DELETE_STARTED))
    dry = started(rlmm, source, replace(PLAN, apply=False)).run()
    report = started(rlmm, source).run()
    assert (report.imported.imported, report.imported.moved, report.lag) == (3, 4, 0)
    assert (dry.imported, dry.dropped) == (report.imported, report.dropped)
    assert [each.state for each in all_segments(rlmm, source.tp)] == [
        DELETE_STARTED,
        FINISHED,
        FINISHED,
    ]


def test_a_topic_that_was_deleted_is_still_followed(rlmm: OwnRlmm, source: SourceInMemory) -> None:
    only = segment(source.tp, 0, 9)
    source.write(only, moved(only, FINISHED))
    started(rlmm, source).run()
    source.tp = TopicIdPartition(uuid4(), "orders", 0)
    source.write(moved(only, DELETE_STARTED))
    report = started(rlmm, source).run()
    assert (report.imported.moved, report.dropped[Drop.GONE]) == (1, 0)


def test_positions_behind_the_end_are_refused(rlmm: OwnRlmm, source: SourceInMemory) -> None:
    source.write(segment(source.tp, 0, 9), segment(source.tp, 10, 19))
    started(rlmm, source).run()
    del source.written[1:]
    with pytest.raises(InvalidRequestError, match="position 2 is behind the topic's end 1"):
        started(rlmm, source)

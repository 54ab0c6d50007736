"""Test that an imported partition gives the same results as one with the same history."""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_metadata_manager import all_segments
from services.api.segment_batches import (
    CUSTOM_METADATA_BYTES_PER_IMPORT,
    MAX_BATCH,
    MAX_IMPORTED_EPOCHS,
    ImportedSegments,
    SegmentImport,
    imports_of,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    revision_of,
    segment,
)
from tests.contract.test_rlmm_over_grpc import client_over
from tests.deep.histories.draws import Draw, Draws
from tests.deep.histories.model import Model
from tests.deep.histories.operations import Add, Import, Move, changes_in
from tests.deep.histories.space import Space
from tests.harness.databases import OwnRlmm
from tests.harness.rlmm_history import store_long_history

TOPIC_ID = uuid4()
LIVED = TopicIdPartition(TOPIC_ID, "orders", 0)
IMPORTED = TopicIdPartition(TOPIC_ID, "orders", 1)
DELETION = (DELETE_STARTED, DELETE_FINISHED)
MANY = 20_000


def of_partition(
    metadata: RemoteLogSegmentMetadata, tp: TopicIdPartition
) -> RemoteLogSegmentMetadata:
    """Return the same segment in another partition."""
    return replace(
        metadata, remote_log_segment_id=RemoteLogSegmentId(tp, metadata.remote_log_segment_id.id)
    )


def look_up_rows(engine: Engine, tp: TopicIdPartition) -> Sequence[Any]:
    """Read the rows that look-ups use, without times."""
    keys = {"topic_id": tp.topic_id, "partition": tp.partition}
    of_partition = "WHERE topic_id = :topic_id AND partition = :partition"
    with engine.connect() as connection:
        epochs = connection.execute(
            text(
                "SELECT leader_epoch, segment_id, segment_start_offset, start_offset, end_offset, "
                f"referenced, overlapped FROM segment_epochs {of_partition} "
                "ORDER BY leader_epoch, segment_id"
            ),
            keys,
        ).all()
        highest = connection.execute(
            text(
                "SELECT leader_epoch, highest_offset, longest_reach "
                f"FROM highest_offsets {of_partition} ORDER BY leader_epoch"
            ),
            keys,
        ).all()
    return [*epochs, *highest]


class CopyDraws(Draws):
    """Draw copies that begin, in the first partition."""

    def _draws(self) -> dict[Draw, float]:
        return {self._add: 1}

    def _tp(self) -> int:
        return 0

    def _ids(self, tp: int) -> Sequence[int]:
        return range(30)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(8))
def test_imported_segments_are_found_as_if_they_had_lived(rlmm: OwnRlmm, seed: int) -> None:
    """A segment that is imported in a state of deletion has never finished."""
    model, space, rng = Model(), Space.of_partitions(2), random.Random(seed)
    draws, segments = CopyDraws(rng, model, space), list[Add]()
    for _ in range(50):
        drawn = draws.next()
        drawn.reply(model, space)
        if not any(each.applied for each in changes_in(drawn.reply(rlmm, space))):
            continue
        assert isinstance(drawn, Add)
        states = rng.choice([(), *[(FINISHED,)] * 6, (DELETE_STARTED,), DELETION])
        for state in states:
            Move(0, drawn.id, state, broker_id=drawn.broker_id).answer(rlmm, space)
        segments.append(replace(drawn, tp=1, state=[drawn.state, *states][-1]))
    sizes = iter(lambda: rng.choice([1, 3, 8, 40]), 0)
    rest = iter(segments)
    messages = list(takewhile(len, (tuple(islice(rest, size)) for size in sizes)))
    assert Import(1, tuple(messages)).answer(rlmm, space) == ImportedSegments(len(segments), 0)
    lived, imported = (look_up_rows(rlmm.engine, tp) for tp in space.partitions)
    assert imported == lived


def test_a_copy_that_takes_the_place_of_a_deleted_one_overlaps_nothing(rlmm: OwnRlmm) -> None:
    """Nothing clears that flag: with it each look-up of the epoch would read more than a row."""
    gone, later = segment(LIVED, 0, 19, state=FINISHED), segment(LIVED, 5, 9, state=FINISHED)
    deleted = replace(gone, state=DELETE_STARTED)
    rlmm.import_remote_log_segments(SegmentImport((each,)) for each in (gone, deleted, later))
    at_once = tuple(of_partition(each, IMPORTED) for each in (gone, deleted, later))
    assert rlmm.import_remote_log_segments([SegmentImport(at_once)]) == ImportedSegments(2, 0, 1)
    assert look_up_rows(rlmm.engine, IMPORTED) == look_up_rows(rlmm.engine, LIVED)
    assert [row.overlapped for row in look_up_rows(rlmm.engine, IMPORTED)[:2]] == [False, False]


@pytest.mark.deep
def test_a_long_history_is_the_same_elsewhere(rlmm: OwnRlmm) -> None:
    history = store_long_history(rlmm.database_url, 2_500)
    elsewhere = replace(history.tp, partition=1)
    moved = (of_partition(each, elsewhere) for each in all_segments(rlmm, history.tp))
    assert rlmm.import_remote_log_segments(imports_of(moved)).imported == history.count
    assert look_up_rows(rlmm.engine, elsewhere) == look_up_rows(rlmm.engine, history.tp)
    for tp in (history.tp, elsewhere):
        assert rlmm.highest_offset_for_epoch(tp, 0).value == history.end_offset
        assert rlmm.next_segment_with_txn_index(tp, 0, 0).value is None


def test_items_are_read_one_by_one_each_when_all_before_it_are_committed(rlmm: OwnRlmm) -> None:
    beside = SqlRemoteLogMetadataManager(rlmm.engine)

    def items() -> Iterator[SegmentImport]:
        for number in range(5):
            if number > 0:
                assert revision_of(beside, LIVED) == number
            yield SegmentImport((segment(LIVED, number, number, state=FINISHED),))

    assert rlmm.import_remote_log_segments(items()).imported == 5


@pytest.mark.deep
def test_twenty_thousand_segments_come_in_one_stream(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = (
        segment(LIVED, n, n, state=FINISHED, txn_idx_empty=True, custom_metadata=bytes(40))
        for n in range(MANY)
    )
    with client_over(database_url) as rlmm:
        began = time.monotonic()
        assert rlmm.import_remote_log_segments(imports_of(made)) == ImportedSegments(MANY, 0)
        seconds = time.monotonic() - began
        with capsys.disabled():
            sys.stdout.write(f"\n{MANY / seconds:,.0f} segments/s imported over gRPC\n")
        assert rlmm.highest_offset_for_epoch(LIVED, 0).value == MANY - 1
        assert rlmm.next_segment_with_txn_index(LIVED, 0, 0).value is None
        assert revision_of(rlmm, LIVED) == MANY


def test_segments_are_put_into_as_few_items_as_may_be() -> None:
    tps = [TopicIdPartition(TOPIC_ID, "orders", partition) for partition in (0, 0, 1, 0)]
    made = [segment(tp, n, n) for n, tp in enumerate(tps)]
    assert [each.segments for each in imports_of(made)] == [
        (made[0], made[1]),
        (made[2],),
        (made[3],),
    ]
    assert list(imports_of([])) == []


@pytest.mark.parametrize(
    ("fields", "epochs", "per_item"),
    [
        ({}, 1, MAX_BATCH),
        ({}, MAX_IMPORTED_EPOCHS // 3, 3),
        ({"custom_metadata": bytes(CUSTOM_METADATA_BYTES_PER_IMPORT // 2)}, 1, 2),
        ({"custom_metadata": bytes(CUSTOM_METADATA_BYTES_PER_IMPORT + 1)}, 1, 1),
    ],
)
def test_item_holds_as_many_segments_as_a_message(
    fields: dict[str, Any], epochs: int, per_item: int
) -> None:
    leader_epochs = {epoch: epoch for epoch in range(epochs)}
    one = segment(LIVED, 0, epochs, leader_epochs, **fields)
    sizes = [len(each.segments) for each in imports_of([one] * (2 * per_item + 1))]
    assert sizes == [per_item, per_item, 1]

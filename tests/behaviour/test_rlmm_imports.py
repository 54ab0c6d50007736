"""Test that an imported partition gives the same results as one with the same history."""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from services.api.calls import MutationContext
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.segment_batches import (
    CUSTOM_METADATA_BYTES_PER_IMPORT,
    MAX_BATCH,
    MAX_IMPORTED_EPOCHS,
    ImportedSegments,
    SegmentImport,
    SegmentLookup,
    imports_of,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    STARTED,
    id_of,
    move,
    revision_of,
    segment,
)
from tests.contract.test_rlmm_over_grpc import client_over
from tests.harness.rlmm_history import store_long_history

TOPIC_ID = uuid4()
LIVED = TopicIdPartition(TOPIC_ID, "orders", 0)
IMPORTED = TopicIdPartition(TOPIC_ID, "orders", 1)
EPOCHS = (0, 1, 2)
OFFSETS = 90
STATES = [FINISHED] * 6 + [STARTED, DELETE_STARTED, DELETE_FINISHED]
NEWEST_LEADER_EPOCH = 4
MANY = 20_000


def live(rlmm: RemoteLogMetadataManager, metadata: RemoteLogSegmentMetadata) -> None:
    """Add the segment and move it to its state; a deleted segment has never finished."""
    # Whatever epoch the copy is of: an import is not fenced.
    newest = MutationContext(broker_leader_epoch=NEWEST_LEADER_EPOCH)
    rlmm.add_remote_log_segment_metadata(replace(metadata, state=STARTED), newest)
    states: dict[RemoteLogSegmentState, Sequence[RemoteLogSegmentState]] = {
        FINISHED: (FINISHED,),
        DELETE_STARTED: (DELETE_STARTED,),
        DELETE_FINISHED: (DELETE_STARTED, DELETE_FINISHED),
    }
    for state in states.get(metadata.state, ()):
        move(
            rlmm,
            metadata,
            state,
            event_timestamp_ms=metadata.event_timestamp_ms,
            broker_id=metadata.broker_id,
        )


def of_partition(
    metadata: RemoteLogSegmentMetadata, tp: TopicIdPartition
) -> RemoteLogSegmentMetadata:
    """Return the same segment in another partition."""
    return replace(
        metadata, remote_log_segment_id=RemoteLogSegmentId(tp, metadata.remote_log_segment_id.id)
    )


def random_segments(seed: int) -> list[RemoteLogSegmentMetadata]:
    """Return segments adjacent, overlapping and out of order, in all states; some epochs without
    offsets.
    """
    rng, made, end = random.Random(seed), [], 0
    for _ in range(24):
        start = end if rng.random() < 0.7 else rng.randrange(end + 3)
        last = min(start + rng.choice([0, 1, 3, 9, 9, 24]), OFFSETS - 5)
        if start > last:
            continue
        epochs = {rng.choice(EPOCHS[:2]): start}
        if rng.random() < 0.3:
            epochs[2] = rng.randint(start, last)
        made.append(
            segment(
                LIVED,
                start,
                last,
                epochs,
                state=rng.choice(STATES),
                txn_idx_empty=rng.random() < 0.8,
                broker_leader_epoch=rng.choice([None, 3, NEWEST_LEADER_EPOCH]),
                segment_size_in_bytes=rng.randrange(-1, 1_000),
                custom_metadata=rng.choice([None, b"", b"x"]),
            )
        )
        end = max(end, last + 1) % (OFFSETS - 10)
    return made


def answers(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, ids: list[Any]) -> Iterator[Any]:
    """Yield the result of every query, with ids for segments, without revisions."""

    def named(found: RemoteLogSegmentMetadata | None) -> RemoteLogSegmentMetadata | None:
        return None if found is None else of_partition(found, LIVED)

    by_id = rlmm.remote_log_segment_metadata_by_id(tp, ids).value
    yield [named(each) for each in by_id]
    yield rlmm.earliest_log_offset(tp).value
    for epoch in (None, *EPOCHS, 9):
        for states in ((), (FINISHED,), (STARTED, DELETE_STARTED)):
            found = all_segments(rlmm, tp, epoch, states=states)
            yield [named(each) for each in found]
        yield [named(each) for each in all_segments(rlmm, tp, epoch, min_offset=40)]
    for epoch in EPOCHS:
        yield rlmm.highest_offset_for_epoch(tp, epoch).value
        yield rlmm.remote_log_size(tp, epoch).value
        lookups = [SegmentLookup(tp, epoch, offset) for offset in range(OFFSETS)]
        for found_or_error in rlmm.remote_log_segment_metadata_batch(lookups):
            assert not isinstance(found_or_error, Exception)
            yield named(found_or_error.value)
        for offset in range(OFFSETS):
            yield named(rlmm.next_segment_with_txn_index(tp, epoch, offset).value)
            yield named(rlmm.remote_log_segment_metadata(tp, epoch, offset).value)


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


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(8))
def test_random_segments_answer_every_query_as_if_they_had_lived(
    rlmm: RemoteLogMetadataManager, engine: Engine, seed: int
) -> None:
    made = random_segments(seed)
    for each in made:
        live(rlmm, each)
    rng, rest = random.Random(seed), [of_partition(each, IMPORTED) for each in made]
    messages = []
    while rest:
        size = rng.choice([1, 3, 8, 40])
        messages.append(SegmentImport(tuple(rest[:size])))
        rest = rest[size:]
    assert rlmm.import_remote_log_segments(messages) == ImportedSegments(len(made), 0)
    ids = [id_of(each) for each in made]
    assert list(answers(rlmm, IMPORTED, ids)) == list(answers(rlmm, LIVED, ids))
    assert look_up_rows(engine, IMPORTED) == look_up_rows(engine, LIVED)


@pytest.mark.deep
def test_a_long_history_is_the_same_elsewhere(
    rlmm: RemoteLogMetadataManager, engine: Engine, database_url: str
) -> None:
    history = store_long_history(database_url, 2_500)
    elsewhere = replace(history.tp, partition=1)
    moved = (of_partition(each, elsewhere) for each in all_segments(rlmm, history.tp))
    assert rlmm.import_remote_log_segments(imports_of(moved)).imported == history.count
    assert look_up_rows(engine, elsewhere) == look_up_rows(engine, history.tp)
    for tp in (history.tp, elsewhere):
        assert rlmm.highest_offset_for_epoch(tp, 0).value == history.end_offset
        assert rlmm.next_segment_with_txn_index(tp, 0, 0).value is None


def test_items_are_read_one_by_one_each_when_all_before_it_are_committed(
    rlmm: RemoteLogMetadataManager, engine: Engine
) -> None:
    beside = SqlRemoteLogMetadataManager(engine)

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

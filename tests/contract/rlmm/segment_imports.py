"""Test imports of metadata that another system kept, message by message."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    FencedLeaderEpochError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    SegmentAlreadyExistsError,
)
from services.api.ids import TopicIdPartition
from services.api.partitions import (
    EventQuery,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_events,
    all_partitions,
)
from services.api.segment_batches import (
    MAX_BATCH,
    ImportedSegments,
    SegmentImport,
    SourcePosition,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    OTHER_BROKER,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    RlmmContractPart,
    id_at,
    id_of,
    segment,
)
from tests.harness.holds import hold

WHY = MutationContext(reason="moved house", plan_id="import-1")


def take_over(
    rlmm: RemoteLogMetadataManager,
    *messages: list[RemoteLogSegmentMetadata],
    context: MutationContext = NO_CONTEXT,
) -> ImportedSegments:
    return rlmm.import_remote_log_segments(
        SegmentImport(tuple(segments), context) for segments in messages
    )


class SegmentImports(RlmmContractPart):
    def test_segments_in_any_state_are_imported_unchanged(self) -> None:
        made = [
            self.segment(0, 9, state=DELETE_STARTED, custom_metadata=b"", broker_id=OTHER_BROKER),
            self.segment(10, 19, {0: 10, 3: 15}, state=FINISHED, custom_metadata=b"\0x"),
            self.segment(20, 29, {3: 20}, state=STARTED, event_timestamp_ms=1, max_timestamp_ms=-1),
            self.segment(30, 39, {3: 30}, state=DELETE_FINISHED, segment_size_in_bytes=-1),
        ]
        assert take_over(self.rlmm, made) == ImportedSegments(imported=4)
        page = self.rlmm.list_remote_log_segments(self.tp)
        assert page.segments == tuple(made[:3])
        assert page.revision == 4
        found = self.rlmm.remote_log_segment_metadata_by_id(self.tp, [id_of(each) for each in made])
        assert found.value == tuple(made)
        assert self.ids(3) == [id_of(made[1]), id_of(made[2])]
        assert self.rlmm.remote_log_size(self.tp, 3).value == 2 * 1_048_576

    def test_only_finished_imported_segments_are_found(self) -> None:
        states = (DELETE_STARTED, FINISHED, STARTED, DELETE_FINISHED)
        made = [self.segment(10 * n, 10 * n + 9, state=state) for n, state in enumerate(states)]
        take_over(self.rlmm, made)
        assert [self.id_at(0, offset) for offset in (0, 10, 19, 20, 30)] == [
            None,
            id_of(made[1]),
            id_of(made[1]),
            None,
            None,
        ]
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 19
        assert self.rlmm.earliest_log_offset(self.tp).value == 10

    def test_imported_segments_can_continue_their_life_cycle(self) -> None:
        made = [
            self.segment(0, 9, state=FINISHED),
            self.segment(10, 19, state=STARTED),
            self.segment(20, 29, state=DELETE_STARTED),
            self.segment(30, 39, state=DELETE_FINISHED),
        ]
        take_over(self.rlmm, made)
        self.move(made[0], DELETE_STARTED, DELETE_FINISHED)
        self.move(made[1], FINISHED)
        self.move(made[2], DELETE_FINISHED)
        assert not self.move(made[3], DELETE_FINISHED).applied
        assert self.ids() == self.ids(0) == [id_of(made[1])]
        assert self.id_at(0, 15) == id_of(made[1])

    @pytest.mark.parametrize("messages", [1, 2])
    def test_segments_finish_in_the_order_in_which_they_come(self, messages: int) -> None:
        made = [
            self.segment(0, 9, state=FINISHED, txn_idx_empty=True),
            self.segment(10, 19, state=FINISHED, txn_idx_empty=True),
            self.segment(5, 29, state=FINISHED),
            self.segment(12, 14, state=FINISHED),
        ]
        cut = len(made) if messages == 1 else 2
        self.rlmm.import_remote_log_segments(
            SegmentImport(tuple(part)) for part in (made[:cut], made[cut:]) if part
        )
        # The third displaced the second; the fourth, which ends short of it, displaces nothing.
        assert [self.id_at(0, offset) for offset in (4, 5, 11, 13, 15, 29)] == [
            id_of(made[index]) for index in (0, 2, 2, 3, 2, 2)
        ]
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 29

    def test_the_same_again_are_repeats(self) -> None:
        made = [self.segment(start, start + 9, state=FINISHED) for start in (0, 10)]
        take_over(self.rlmm, made)
        further = self.segment(20, 29, state=FINISHED)
        assert take_over(self.rlmm, made, [made[1], further]) == ImportedSegments(1, 3)
        assert self.revision() == 3
        trail = all_events(self.rlmm, EventQuery(self.tp))
        assert [event.repeat_count for event in trail] == [1, 2, 0]

    def test_one_that_comes_twice_in_a_message_is_a_repeat(self) -> None:
        only = self.segment(0, 9, state=FINISHED)
        assert take_over(self.rlmm, [only, only]) == ImportedSegments(1, 1)
        assert self.ids() == [id_of(only)]

    def test_a_copy_that_was_added_is_a_repeat(self) -> None:
        only = self.add(self.segment(0, 9, broker_leader_epoch=2))
        assert take_over(self.rlmm, [only]) == ImportedSegments(0, 1)

    def test_nothing_comes_to_nothing(self) -> None:
        assert self.rlmm.import_remote_log_segments(iter(())) == ImportedSegments(0, 0)

    def test_conflicting_message_changes_nothing_and_earlier_ones_stay(self) -> None:
        first, second, third = (
            self.segment(start, start + 9, state=FINISHED) for start in (0, 10, 20)
        )
        changed = replace(first, custom_metadata=b"else")
        with pytest.raises(
            SegmentAlreadyExistsError,
            match=rf"^segments\[1\]: segment {first.remote_log_segment_id} is there .* "
            r"\(message 2 of the import\)$",
        ):
            take_over(self.rlmm, [first], [second, changed], [third])
        assert self.ids() == [id_of(first)]
        assert self.id_at(0, 10) is None
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 9
        assert self.revision() == 1
        assert take_over(self.rlmm, [first], [second], [third]) == ImportedSegments(2, 1)

    @pytest.mark.parametrize("moves", [(DELETE_STARTED,), (DELETE_STARTED, DELETE_FINISHED)])
    def test_import_of_a_deleted_segment_does_not_restore_it(
        self, moves: tuple[object, ...]
    ) -> None:
        made = [
            self.segment(start, start + 9, state=FINISHED, custom_metadata=b"x")
            for start in (0, 10)
        ]
        take_over(self.rlmm, made)
        self.move(made[0], *moves, broker_id=OTHER_BROKER, event_timestamp_ms=99)  # type: ignore[arg-type]  # of RemoteLogSegmentState
        before = self.revision()
        further = self.segment(20, 29, state=FINISHED)
        assert take_over(self.rlmm, [*made, further]) == ImportedSegments(1, 2)
        assert self.revision() == before + 1
        assert self.id_at(0, 5) is None
        # The deletion was asked for once.
        trail = list(all_events(self.rlmm, EventQuery(self.tp)))
        assert [event.repeat_count for event in trail] == [0, 1, *[0] * len(moves), 0]

    def test_a_copy_that_has_finished_since_is_a_repeat(self) -> None:
        only = self.segment(0, 9)
        take_over(self.rlmm, [only])
        self.move(only, FINISHED, custom_metadata=b"of the copy", event_timestamp_ms=99)
        assert take_over(self.rlmm, [only]) == ImportedSegments(0, 1)
        assert self.id_at(0, 5) == id_of(only)

    @pytest.mark.parametrize(
        "change", [{"end_offset": 8}, {"segment_size_in_bytes": 1}, {"custom_metadata": b"y"}]
    )
    def test_other_content_is_refused_in_a_later_state_too(self, change: dict[str, Any]) -> None:
        only = self.segment(0, 9, state=FINISHED)
        take_over(self.rlmm, [only])
        self.move(only, DELETE_STARTED)
        with pytest.raises(SegmentAlreadyExistsError, match="in DELETE_SEGMENT_STARTED"):
            take_over(self.rlmm, [replace(only, **change)])

    def test_segment_below_the_log_start_is_imported_as_being_deleted(self) -> None:
        take_over(self.rlmm, [self.segment(30, 39, {1: 30}, state=FINISHED)])
        self.rlmm.raise_log_start_offset(self.tp, 15)
        made = [self.segment(start, start + 9, state=FINISHED) for start in (0, 10)]
        copying = self.segment(0, 4)
        assert take_over(self.rlmm, [*made, copying]) == ImportedSegments(3, 0)
        found = self.rlmm.remote_log_segment_metadata_by_id(
            self.tp, [id_of(s) for s in (*made, copying)]
        )
        assert {id_of(each): each.state for each in found.value} == {
            id_of(made[0]): DELETE_STARTED,
            id_of(made[1]): FINISHED,
            id_of(copying): STARTED,
        }
        assert [self.id_at(0, offset) for offset in (5, 12)] == [None, id_of(made[1])]
        assert take_over(self.rlmm, [*made, copying]) == ImportedSegments(0, 3)
        self.move(made[0], DELETE_FINISHED)
        assert take_over(self.rlmm, made) == ImportedSegments(0, 2)

    def test_one_that_comes_twice_in_a_message_below_the_log_start_is_a_repeat(self) -> None:
        take_over(self.rlmm, [self.segment(10, 19, state=FINISHED)])
        self.rlmm.raise_log_start_offset(self.tp, 10)
        only = self.segment(0, 9, state=FINISHED)
        assert take_over(self.rlmm, [only, only]) == ImportedSegments(1, 1)

    def test_on_hold_nothing_is_taken_as_being_deleted(self) -> None:
        take_over(self.rlmm, [self.segment(10, 19, state=FINISHED)])
        self.rlmm.raise_log_start_offset(self.tp, 10)
        hold(self.rlmm, self.tp)
        below = self.segment(0, 9, state=FINISHED)
        take_over(self.rlmm, [below])
        assert self.rlmm.remote_log_segment_metadata_by_id(self.tp, [id_of(below)]).value == (
            below,
        )

    def test_a_segment_in_an_earlier_state_moves_forward(self) -> None:
        only = self.add(self.segment(0, 9))
        finished = replace(only, state=FINISHED, custom_metadata=b"x", event_timestamp_ms=9)
        assert take_over(self.rlmm, [finished], context=WHY) == ImportedSegments(moved=1)
        assert self.id_at(0, 5) == id_of(only)
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 9
        gone = replace(finished, state=DELETE_FINISHED, broker_id=OTHER_BROKER)
        assert take_over(self.rlmm, [finished, gone, gone]) == ImportedSegments(0, 2, 1)
        assert self.ids() == []
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 9
        found = self.rlmm.remote_log_segment_metadata_by_id(self.tp, [id_of(only)])
        assert found.value == (gone,)
        trail = list(all_events(self.rlmm, EventQuery(self.tp)))
        assert [(e.from_state, e.to_state) for e in trail] == [
            ("", "COPY_SEGMENT_STARTED"),
            ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"),
            ("COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_FINISHED"),
        ]
        assert (trail[1].reason, trail[1].plan_id) == ("moved house", "import-1")

    def test_a_segment_passes_all_states_within_one_message(self) -> None:
        made = [self.segment(start, start + 9) for start in (0, 10)]
        lives = [
            replace(each, state=state)
            for state in (STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED)
            for each in made
            if state in (STARTED, FINISHED) or each is made[0]
        ]
        assert take_over(self.rlmm, lives) == ImportedSegments(2, 0, 4)
        assert self.ids() == [id_of(made[1])]
        assert self.rlmm.highest_offset_for_epoch(self.tp, 0).value == 19
        totals = self.summary().totals
        assert (totals.finished_segments, totals.live_segments) == (1, 1)

    def test_a_copy_that_finishes_after_a_deletion_takes_its_place(self) -> None:
        first, second = self.segment(0, 19), self.segment(5, 9)
        lives = [replace(first, state=FINISHED), replace(first, state=DELETE_STARTED)]
        take_over(self.rlmm, [*lives, replace(second, state=FINISHED)])
        assert [self.id_at(0, offset) for offset in (4, 5, 9, 12)] == [
            None,
            id_of(second),
            id_of(second),
            None,
        ]

    def test_a_move_with_other_content_is_refused(self) -> None:
        only = self.add(self.segment(0, 9))
        with pytest.raises(SegmentAlreadyExistsError, match="in COPY_SEGMENT_STARTED"):
            take_over(self.rlmm, [replace(only, state=FINISHED, end_offset=8)])
        assert self.revision() == 1

    def test_a_source_moves_with_what_is_imported(self) -> None:
        other = TopicIdPartition(uuid4(), "payments", 3)
        made = [self.segment(0, 9), segment(other, 0, 9, state=FINISHED)]
        cluster = str(uuid4())
        first = SourcePosition(cluster, uuid4(), 7, 10)
        item = SegmentImport(tuple(made), position=first)
        assert self.rlmm.import_remote_log_segments([item]) == ImportedSegments(2)
        assert self.rlmm.import_remote_log_segments([item]) == ImportedSegments(0, 2)
        second = replace(first, next_offset=11)
        moved = (replace(made[0], state=FINISHED),)
        item = SegmentImport(moved, position=second, previous_position=first)
        assert self.rlmm.import_remote_log_segments([item]) == ImportedSegments(moved=1)
        nothing = SegmentImport(
            (), position=replace(first, next_offset=12), previous_position=second
        )
        assert self.rlmm.import_remote_log_segments([nothing]) == ImportedSegments()
        assert nothing.position in self.rlmm.list_source_positions()
        assert self.rlmm.list_source_positions(cluster) == [nothing.position]
        assert self.rlmm.list_source_positions("another") == []

    def test_an_import_from_another_position_changes_nothing(self) -> None:
        first = SourcePosition(str(uuid4()), uuid4(), 7, 10)
        self.rlmm.import_remote_log_segments([SegmentImport((self.segment(0, 9),), position=first)])
        further = replace(first, next_offset=20)
        for previous in (
            None,
            replace(first, next_offset=9),
            replace(first, topic_id=uuid4()),
        ):
            item = SegmentImport((self.segment(10, 19),), WHY, (), further, previous)
            with pytest.raises(ConcurrentUpdateError, match="another import runs"):
                self.rlmm.import_remote_log_segments([item])
        elsewhere = replace(further, partition=8)
        item = SegmentImport((self.segment(10, 19),), WHY, (), elsewhere, first)
        with pytest.raises(ConcurrentUpdateError, match="no position is stored"):
            self.rlmm.import_remote_log_segments([item])
        assert self.revision() == 1
        assert self.rlmm.list_source_positions(first.cluster_id) == [first]

    def test_deletions_of_partitions_are_imported_forward(self) -> None:
        only = self.segment(0, 9, state=FINISHED)
        position = SourcePosition(str(uuid4()), uuid4(), 0, 0)

        def take(
            segments: tuple[RemoteLogSegmentMetadata, ...], *states: RemotePartitionDeleteState
        ) -> ImportedSegments:
            nonlocal position
            before = position if position.next_offset else None
            position = replace(position, next_offset=position.next_offset + 1)
            deletes = tuple(
                RemotePartitionDeleteMetadata(self.tp, state, 5, OTHER_BROKER) for state in states
            )
            item = SegmentImport(segments, NO_CONTEXT, deletes, position, before)
            return self.rlmm.import_remote_log_segments([item])

        assert take((only,), MARKED) == ImportedSegments(1, 0, 1)
        assert self.state_of_deletion() is MARKED
        # Its segments are not all deleted: ours does that.
        assert take((), PARTITION_STARTED, PARTITION_FINISHED, MARKED).moved == 1
        assert self.state_of_deletion() is PARTITION_STARTED
        gone = replace(only, state=DELETE_FINISHED)
        assert take((gone,), PARTITION_FINISHED).moved == 2
        assert take((self.segment(10, 19),)) == ImportedSegments(of_removed_partitions=1)
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)

    def state_of_deletion(self) -> RemotePartitionDeleteState | None:
        return self.summary().delete_state

    def summary(self) -> PartitionSummary:
        tp = self.tp
        found = all_partitions(self.rlmm, topic=tp.topic)
        return next(each for each in found if each.topic_id_partition == tp)

    def test_each_new_segment_is_an_event_with_the_reason(self) -> None:
        made = [
            self.segment(0, 9, state=FINISHED, broker_id=7, broker_leader_epoch=3),
            self.segment(10, 19, state=DELETE_FINISHED),
        ]
        take_over(self.rlmm, made, context=WHY)
        trail = list(all_events(self.rlmm, EventQuery(self.tp)))
        assert [(e.kind, e.from_state, e.to_state, e.segment_id) for e in trail] == [
            ("SEGMENT", "", each.state.value, id_of(each)) for each in made
        ]
        assert {(e.reason, e.plan_id, e.request_id) for e in trail} == {
            ("moved house", "import-1", "")
        }
        assert [(e.broker_id, e.broker_leader_epoch) for e in trail] == [(7, 3), (1, None)]
        assert [e.key.rpartition(":")[2] for e in trail if e.key] == ["3", "-1"]

    def test_it_raises_the_highest_leader_epoch_and_is_not_fenced(self) -> None:
        made = [
            self.segment(10 * n, 10 * n + 9, state=FINISHED, broker_leader_epoch=epoch)
            for n, epoch in enumerate((4, 7, None, 2))
        ]
        assert take_over(self.rlmm, made).imported == 4
        with pytest.raises(FencedLeaderEpochError):
            self.add(self.segment(40, 49, broker_leader_epoch=6))
        self.add(self.segment(40, 49, broker_leader_epoch=7))

    def test_messages_may_be_of_several_partitions_in_turn(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        elsewhere = TopicIdPartition(uuid4(), "payments", 0)
        made = [
            segment(each, start, start + 9, state=FINISHED)
            for start in (0, 10)
            for each in (self.tp, other, elsewhere)
        ]
        assert take_over(self.rlmm, *[[each] for each in made]).imported == 6
        assert [id_at(self.rlmm, each, 0, 12) for each in (self.tp, other, elsewhere)] == [
            id_of(each) for each in made[3:]
        ]


class ImportRefusals(RlmmContractPart):
    @pytest.mark.parametrize("states", [(MARKED,), (MARKED, PARTITION_STARTED)])
    def test_a_partition_that_is_being_deleted_takes_no_import(
        self, states: tuple[object, ...]
    ) -> None:
        known = self.segment(0, 9, state=FINISHED)
        take_over(self.rlmm, [known])
        self.put_deletion(*states)  # type: ignore[arg-type]  # of RemotePartitionDeleteState
        before = self.revision()
        for again in (known, self.segment(10, 19)):
            with pytest.raises(InvalidStateTransitionError, match="DELETE_PARTITION"):
                take_over(self.rlmm, [again])
        assert self.revision() == before

    def test_a_deleted_partition_takes_no_import(self) -> None:
        self.put_deletion(MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        with pytest.raises(InvalidStateTransitionError, match="was removed from the tier"):
            take_over(self.rlmm, [self.segment(0, 9, state=FINISHED)])

    def test_a_message_of_several_partitions_is_refused(self) -> None:
        other = TopicIdPartition(self.tp.topic_id, self.tp.topic, 1)
        with pytest.raises(
            InvalidRequestError,
            match=r"^segments\[1\]\.remote_log_segment_id\.topic_id_partition: must be that of",
        ):
            take_over(self.rlmm, [self.segment(0, 9), segment(other, 0, 9)])
        self._require_unknown()

    def test_a_message_without_segments_or_with_too_many_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"^segments: must be 1 to 1000, are 0"):
            take_over(self.rlmm, [])
        many = [self.segment(n, n) for n in range(MAX_BATCH + 1)]
        with pytest.raises(InvalidRequestError, match=r"^segments: must be 1 to 1000, are 1001"):
            take_over(self.rlmm, many)
        self._require_unknown()

    def test_a_message_of_too_many_leader_epochs_is_refused(self) -> None:
        many = {epoch: epoch for epoch in range(9_000)}
        with pytest.raises(InvalidRequestError, match=r"^segments: at most 50000 leader epochs"):
            take_over(self.rlmm, [self.segment(0, 9_000, many) for _ in range(6)])
        too_many = self.segment(0, 10_001, {epoch: epoch for epoch in range(10_001)})
        with pytest.raises(
            InvalidRequestError, match=r"^segments\[1\]\.segment_leader_epochs: at most 10000"
        ):
            take_over(self.rlmm, [self.segment(0, 9), too_many])
        self._require_unknown()

    def test_long_custom_metadata_is_named_by_its_segment(self) -> None:
        long = self.segment(0, 9, custom_metadata=bytes(129))
        with pytest.raises(CustomMetadataTooLargeError, match=r"^segments\[1\]\.custom_metadata: "):
            take_over(self.rlmm, [self.segment(10, 19), long])
        self._require_unknown()

    def test_what_belongs_to_a_source_needs_its_position(self) -> None:
        deletes = (RemotePartitionDeleteMetadata(self.tp, MARKED, 1, 1),)
        for item in (
            SegmentImport((self.segment(0, 9),), partition_deletes=deletes),
            SegmentImport(
                (self.segment(0, 9),), previous_position=SourcePosition("c", uuid4(), 0, 1)
            ),
        ):
            with pytest.raises(InvalidRequestError, match=r"^position: must be set with"):
                self.rlmm.import_remote_log_segments([item])
        many = SegmentImport((), NO_CONTEXT, deletes * 1001, SourcePosition("c", uuid4(), 0, 1))
        with pytest.raises(InvalidRequestError, match=r"^partition_deletes: must be at most 1000"):
            self.rlmm.import_remote_log_segments([many])
        self._require_unknown()

    @pytest.mark.parametrize(
        "context",
        [
            MutationContext(request_id="once"),
            MutationContext(rule_detail="5 > 4"),
            MutationContext(broker_leader_epoch=3),
            MutationContext(expected_revision=0),
            MutationContext(expected_config_revision=0),
            MutationContext(retention_owner=RetentionOwner.SWEEP),
        ],
    )
    def test_of_the_context_only_reason_and_plan_may_be_set(self, context: MutationContext) -> None:
        with pytest.raises(InvalidRequestError, match=r"^context: only reason and plan_id"):
            take_over(self.rlmm, [self.segment(0, 9)], context=context)
        self._require_unknown()

    def test_a_reason_with_nul_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"^context\.reason: "):
            take_over(self.rlmm, [self.segment(0, 9)], context=MutationContext(reason="\0"))

    def test_a_topic_id_under_another_name_is_refused(self) -> None:
        take_over(self.rlmm, [self.segment(0, 9)])
        renamed = TopicIdPartition(self.tp.topic_id, "payments", 1)
        with pytest.raises(
            InvalidRequestError,
            match=r"^segments\[0\]\.remote_log_segment_id\.topic_id_partition\.topic: .*message 1",
        ):
            take_over(self.rlmm, [segment(renamed, 0, 9)])

    def test_error_of_the_imported_source_reaches_the_caller(self) -> None:
        class BrokenSourceError(Exception):
            pass

        def segments() -> Iterator[SegmentImport]:
            yield SegmentImport((self.segment(0, 9, state=FINISHED),))
            raise BrokenSourceError

        with pytest.raises(BrokenSourceError):
            self.rlmm.import_remote_log_segments(segments())

    def _require_unknown(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp)

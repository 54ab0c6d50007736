"""Test replaced bytes of finished segments, and the custom metadata that a mark answers."""

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    CustomMetadataTooLargeError,
    InvalidRequestError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.segments import RemoteLogSegmentMetadata
from services.api.watches import ChangedSegment
from tests.contract.rlmm.gaps import WRONG_EXPECTATIONS, last_event
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    RlmmContractPart,
    id_of,
    update_to,
)
from tests.contract.rlmm.watches import updates_up_to, watching

OLD, NEW, OTHER = b"old", b"new", b"other"


class ReplacedData(RlmmContractPart):
    def with_old_data(self, start: int = 0, end: int = 9) -> RemoteLogSegmentMetadata:
        """Return a finished segment with custom metadata OLD."""
        copied = self.add(self.segment(start, end, broker_leader_epoch=3))
        self.move(copied, FINISHED, custom_metadata=OLD)
        return copied

    def replace_data(
        self,
        segment: RemoteLogSegmentMetadata,
        expected: bytes = OLD,
        new: bytes = NEW,
        context: MutationContext | None = None,
    ) -> MutationOutcome:
        return self.rlmm.replace_segment_data(
            segment.remote_log_segment_id, expected, new, context or MutationContext()
        )

    def custom_metadata_at(self, offset: int) -> bytes | None:
        found = self.rlmm.remote_log_segment_metadata(self.tp, 0, offset).value
        return None if found is None else found.custom_metadata

    def test_a_replaced_segment_stays_finished_with_the_new_bytes(self) -> None:
        copied = self.with_old_data()
        why = MutationContext(reason="index rebuilt", rule_detail="OFFSET")
        assert self.replace_data(copied, context=why) == MutationOutcome(True, 3)
        found = self.rlmm.remote_log_segment_metadata(self.tp, 0, 5).value
        assert found is not None
        assert (found.state, found.custom_metadata) == (FINISHED, NEW)
        assert (found.broker_id, found.event_timestamp_ms) == (BROKER, 6_000)
        event = last_event(self.rlmm, self.tp)
        assert (event.revision, event.kind, event.segment_id) == (3, "SEGMENT", id_of(copied))
        assert event.from_state == event.to_state == FINISHED.value
        assert (event.reason, event.rule_detail) == ("index rebuilt", "OFFSET")
        assert (event.broker_id, event.key.split(":")[2:]) == (-1, ["9", "3"])

    def test_bytes_that_the_segment_has_are_a_repeat(self) -> None:
        copied = self.with_old_data()
        first = self.replace_data(copied)
        assert self.replace_data(copied) == MutationOutcome(False, first.revision)
        assert self.replace_data(copied, expected=OTHER) == MutationOutcome(False, first.revision)
        assert self.revision() == first.revision

    def test_only_one_of_two_replacements_is_applied(self) -> None:
        copied = self.with_old_data()
        self.replace_data(copied)
        with pytest.raises(ConcurrentUpdateError, match="replaced meanwhile"):
            self.replace_data(copied, new=OTHER)
        assert self.custom_metadata_at(5) == NEW

    def test_only_a_finished_segment_is_replaced(self) -> None:
        started = self.add(self.segment(10, 19, custom_metadata=OLD))
        with pytest.raises(InvalidStateTransitionError, match="COPY_SEGMENT_STARTED"):
            self.replace_data(started)
        going = self.with_old_data()
        for state in (DELETE_STARTED, DELETE_FINISHED):
            self.move(going, state)
            with pytest.raises(InvalidStateTransitionError, match=state.value):
                self.replace_data(going)
        unknown = RemoteLogSegmentId(self.tp, random_uuid())
        with pytest.raises(RemoteResourceNotFoundError, match="never added"):
            self.rlmm.replace_segment_data(unknown, OLD, NEW)

    def test_a_segment_without_custom_metadata_is_not_replaced(self) -> None:
        copied = self.finished(0, 9)
        for expected in (b"", OLD):
            with pytest.raises(ConcurrentUpdateError):
                self.replace_data(copied, expected=expected)

    @pytest.mark.parametrize("wrong", WRONG_EXPECTATIONS)
    def test_a_replacement_may_expect_a_revision(self, wrong: MutationContext) -> None:
        copied = self.with_old_data()
        with pytest.raises(ConcurrentUpdateError):
            self.replace_data(copied, context=wrong)
        right = MutationContext(expected_revision=2, expected_config_revision=0)
        assert self.replace_data(copied, context=right).applied

    def test_a_replacement_is_remembered_by_its_request_id(self) -> None:
        copied, why = self.with_old_data(), MutationContext(request_id="one")
        first = self.replace_data(copied, context=why)
        self.replace_data(copied, NEW, OTHER)
        assert self.replace_data(copied, context=why) == first
        assert self.custom_metadata_at(5) == OTHER
        with pytest.raises(InvalidRequestError, match="request_id"):
            self.replace_data(copied, new=OTHER, context=why)

    def test_a_replacement_is_asked_for_rightly(self) -> None:
        copied = self.with_old_data()
        with pytest.raises(CustomMetadataTooLargeError, match="new_custom_metadata: at most 128"):
            self.replace_data(copied, new=b"x" * 129)
        wrong = TopicIdPartition(self.tp.topic_id, "payments", 0)
        with pytest.raises(InvalidRequestError, match=r"segment_id\.topic_id_partition\.topic:"):
            self.rlmm.replace_segment_data(RemoteLogSegmentId(wrong, id_of(copied)), OLD, NEW)
        assert self.custom_metadata_at(5) == OLD

    def test_look_ups_prefer_a_replaced_segment_as_before(self) -> None:
        """Of two that hold the offset the later finish counts, which a replacement is not."""
        first, second = self.with_old_data(0, 30), self.with_old_data(5, 30)
        third = self.with_old_data(10, 12)
        for offset, found in ((2, first), (11, third), (20, second)):
            assert self.id_at(0, offset) == id_of(found)
        self.replace_data(first)
        for offset, found in ((2, first), (11, third), (20, second)):
            assert self.id_at(0, offset) == id_of(found)

    def test_a_watch_reports_the_replaced_segment(self) -> None:
        copied = self.with_old_data()
        with watching(self.rlmm, self.tp) as updates:
            next(updates)
            revision = self.replace_data(copied).revision
            [update] = updates_up_to(updates, revision)
            assert update.segments == (ChangedSegment(id_of(copied), FINISHED),)

    def test_a_mark_answers_what_names_the_objects_to_delete(self) -> None:
        copied = self.with_old_data()
        replaced = self.replace_data(copied)
        why = MutationContext(request_id="mark")
        marked = MutationOutcome(True, replaced.revision + 1, NEW)
        assert self.move(copied, DELETE_STARTED, context=why) == marked
        assert self.move(copied, DELETE_STARTED, context=why) == marked
        repeated = MutationOutcome(False, marked.revision, NEW)
        assert self.move(copied, DELETE_STARTED) == repeated
        assert self.move(copied, DELETE_FINISHED).custom_metadata is None
        assert self.move(copied, DELETE_STARTED).custom_metadata == NEW

    def test_each_mark_of_a_batch_answers_its_own(self) -> None:
        replaced, other, without = (
            self.with_old_data(),
            self.with_old_data(10, 19),
            self.finished(20, 29),
        )
        self.replace_data(replaced)
        marks = [SegmentUpdate(update_to(each, DELETE_STARTED)) for each in (other, without)]
        marks.append(SegmentUpdate(update_to(replaced, DELETE_STARTED)))
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(marks)
        named = [each.custom_metadata for each in outcomes if isinstance(each, MutationOutcome)]
        assert named == [OLD, None, NEW]

"""Test kept segments: which marks keep their objects, how long, and who ends it."""

from uuid import UUID

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    DeletionRefusedError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, random_uuid
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_kept_segments,
    all_partitions,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import DEFAULT_DELETE_GRACE_MS, RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    finished,
    id_of,
    move,
    segment,
    update_to,
)
from tests.harness.eventually import eventually
from tests.harness.holds import REBUILD, hold

BY_BROKER = MutationContext(reason="broker 1", retention_owner=RetentionOwner.BROKER)
BY_RLM = MutationContext(reason="objects deleted", retention_owner=RetentionOwner.RLM)
BY_SWEEP = MutationContext(retention_owner=RetentionOwner.SWEEP, plan_id="sweep-1")
SHORT = {"sediment.delete.grace.ms": "1"}


def kept(rlmm: RemoteLogMetadataManager, topic_id: UUID, *, due_only: bool = False) -> list[UUID]:
    """Return the ids of a topic's kept segments, in the order of the list."""
    listed = all_kept_segments(rlmm, due_only=due_only)
    return [id_of(each) for each in listed if each.topic_id_partition.topic_id == topic_id]


class KeptSegments(RlmmContractPart):
    def deleted_by(
        self, start: int, end: int, context: MutationContext = BY_BROKER
    ) -> RemoteLogSegmentMetadata:
        only = self.finished(start, end)
        self.move(only, DELETE_STARTED, DELETE_FINISHED, context=context)
        return only

    def due(self, start: int, end: int) -> RemoteLogSegmentMetadata:
        """Return a kept segment whose time has passed."""
        only = self.finished(start, end)
        self.rlmm.put_topic_config(self.tp.topic_id, SHORT)
        self.move(only, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
        eventually(lambda: self.kept(due_only=True) == [id_of(only)])
        return only

    def kept(self, *, due_only: bool = False) -> list[UUID]:
        return kept(self.rlmm, self.tp.topic_id, due_only=due_only)

    def kept_until_ms(self, metadata: RemoteLogSegmentMetadata) -> int | None:
        [found] = self.rlmm.remote_log_segment_metadata_by_id(self.tp, [id_of(metadata)]).value
        return found.kept_until_ms

    def now_ms(self) -> int:
        [summary] = [s for s in all_partitions(self.rlmm) if s.topic_id_partition == self.tp]
        return summary.read_at_ms

    def test_what_a_broker_deletes_is_kept_for_a_day_by_the_databases_clock(self) -> None:
        only = self.finished(0, 9)
        before_ms = self.now_ms()
        marked = self.move(only, DELETE_STARTED, context=BY_BROKER)
        assert marked.kept_until_ms is not None
        day_ms = DEFAULT_DELETE_GRACE_MS
        assert before_ms + day_ms <= marked.kept_until_ms <= self.now_ms() + day_ms
        [listed] = self.rlmm.list_remote_log_segments(self.tp).segments
        assert listed.kept_until_ms == self.kept_until_ms(only) == marked.kept_until_ms
        assert self.kept() == []

        done = self.move(only, DELETE_FINISHED, context=BY_BROKER)
        assert done.kept_until_ms == self.kept_until_ms(only) == marked.kept_until_ms
        assert self.ids() == []
        [listed] = all_kept_segments(self.rlmm, topic=self.tp.topic, due_only=False)
        assert listed.remote_log_segment_id == only.remote_log_segment_id
        assert listed.state is DELETE_FINISHED
        assert listed.kept_until_ms == marked.kept_until_ms
        assert self.kept(due_only=True) == []

    @pytest.mark.parametrize("state", [DELETE_STARTED, DELETE_FINISHED])
    def test_a_repeat_returns_the_same_time(self, state: RemoteLogSegmentState) -> None:
        only = self.finished(0, 9)
        marked = self.move(only, DELETE_STARTED, context=BY_BROKER)
        if state is DELETE_FINISHED:
            self.move(only, DELETE_FINISHED)
        self.rlmm.put_topic_config(self.tp.topic_id, {"sediment.delete.grace.ms": "0"})
        for context in (BY_BROKER, BY_RLM, MutationContext()):
            again = self.move(only, DELETE_STARTED, context=context)
            assert (again.applied, again.kept_until_ms) == (False, marked.kept_until_ms)

    def test_a_remembered_request_returns_it_too(self) -> None:
        only = self.finished(0, 9)
        context = MutationContext(request_id="mark-1", retention_owner=RetentionOwner.BROKER)
        first = self.move(only, DELETE_STARTED, context=context)
        assert first.kept_until_ms is not None
        assert self.move(only, DELETE_STARTED, context=context) == first

    def test_a_batch_returns_the_time_of_each(self) -> None:
        several = [self.finished(start, start + 9) for start in (0, 10)]
        copy = self.add(self.segment(20, 29))
        contexts = (BY_BROKER, BY_RLM, BY_BROKER)
        outcomes = self.rlmm.update_remote_log_segment_metadata_batch(
            [
                SegmentUpdate(update_to(each, DELETE_STARTED), context)
                for each, context in zip([*several, copy], contexts, strict=True)
            ]
        )
        times = [each.kept_until_ms for each in outcomes if isinstance(each, MutationOutcome)]
        assert times == [self.kept_until_ms(several[0]), None, None]
        assert times[0] is not None

    @pytest.mark.parametrize("context", [MutationContext(), BY_RLM, BY_SWEEP], ids=str)
    def test_what_others_delete_is_not_kept(self, context: MutationContext) -> None:
        only = self.finished(0, 9)
        assert self.move(only, DELETE_STARTED, context=context).kept_until_ms is None
        self.move(only, DELETE_FINISHED, context=BY_BROKER)
        assert self.kept_until_ms(only) is None
        assert self.kept() == []

    def test_a_copy_that_failed_is_not_kept(self) -> None:
        copy = self.add(self.segment(0, 9))
        assert self.move(copy, DELETE_STARTED, context=BY_BROKER).kept_until_ms is None
        self.move(copy, DELETE_FINISHED, context=BY_BROKER)
        assert self.kept() == []

    def test_without_a_grace_nothing_is_kept(self) -> None:
        only = self.finished(0, 9)
        self.rlmm.put_topic_config(self.tp.topic_id, {"sediment.delete.grace.ms": "0"})
        assert self.move(only, DELETE_STARTED, context=BY_BROKER).kept_until_ms is None
        self.move(only, DELETE_FINISHED, context=BY_BROKER)
        assert self.kept() == []

    @pytest.mark.parametrize("text", ["-1", "315360000001", "a day"])
    def test_a_grace_is_at_most_ten_years(self, text: str) -> None:
        self.finished(0, 9)
        with pytest.raises(InvalidRequestError, match=r"^sediment\.delete\.grace\.ms: must be "):
            self.rlmm.put_topic_config(self.tp.topic_id, {"sediment.delete.grace.ms": text})
        longest = {"sediment.delete.grace.ms": "315360000000"}
        self.rlmm.put_topic_config(self.tp.topic_id, longest)
        self.deleted_by(10, 19)
        assert len(self.kept()) == 1

    @pytest.mark.parametrize("context", [BY_RLM, BY_SWEEP], ids=["rlm", "sweep"])
    def test_who_deletes_the_objects_ends_it_once(self, context: MutationContext) -> None:
        only = self.due(0, 9)
        before = self.revision()
        ended = self.move(only, DELETE_FINISHED, context=context)
        assert (ended.applied, ended.kept_until_ms, ended.revision) == (True, None, before + 1)
        assert self.kept() == []
        assert self.kept_until_ms(only) is None
        again = self.move(only, DELETE_FINISHED, context=context)
        assert (again.revision, again.kept_until_ms) == (before + 1, None)

    @pytest.mark.parametrize("context", [BY_BROKER, MutationContext()], ids=["broker", "nobody"])
    def test_nobody_else_ends_it(self, context: MutationContext) -> None:
        only = self.due(0, 9)
        assert self.move(only, DELETE_FINISHED, context=context).applied is False
        assert self.kept() == [id_of(only)]

    def test_it_does_not_end_before_its_time(self) -> None:
        only = self.deleted_by(0, 9)
        until = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        message = f"^topic orders, partition 0: the objects of .+ are kept until {until}; delete"
        for context in (BY_RLM, BY_SWEEP):
            with pytest.raises(DeletionRefusedError, match=message):
                self.move(only, DELETE_FINISHED, context=context)
        assert self.kept() == [id_of(only)]

    def test_what_is_on_hold_is_not_due(self) -> None:
        only = self.due(0, 9)
        hold(self.rlmm, self.tp)
        assert self.kept(due_only=True) == []
        assert self.kept() == [id_of(only)]

    def test_nothing_is_due_while_deletions_are_frozen(self) -> None:
        only = self.due(0, 9)
        self.rlmm.set_hold(REBUILD)
        try:
            assert self.kept(due_only=True) == []
            assert self.kept() == [id_of(only)]
        finally:
            self.rlmm.end_hold(REBUILD)
        assert self.kept(due_only=True) == [id_of(only)]

    def test_kept_segments_outlive_their_partition(self) -> None:
        only = self.finished(0, 9)
        self.rlmm.put_topic_config(self.tp.topic_id, SHORT)
        self.put_deletion(MARKED, PARTITION_STARTED)
        self.move(only, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
        assert self.put_deletion(PARTITION_FINISHED).applied
        eventually(lambda: self.kept(due_only=True) == [id_of(only)])
        assert self.kept_until_ms(only) is not None
        assert self.move(only, DELETE_FINISHED, context=BY_RLM).applied
        assert self.kept() == []
        with pytest.raises(RemoteResourceNotFoundError, match=r"^RLMM has no partition "):
            self.kept_until_ms(only)

    def test_pages_of_kept_segments_follow_each_other(self) -> None:
        topic = f"kept-{random_uuid()}"
        tps = [TopicIdPartition(random_uuid(), topic, partition) for partition in range(2)]
        made = [finished(self.rlmm, tp, start, start + 9) for tp in tps for start in (0, 10)]
        for each in made:
            move(self.rlmm, each, DELETE_STARTED, DELETE_FINISHED, context=BY_BROKER)
        move(self.rlmm, segment_of_another(self.rlmm), DELETE_STARTED, context=BY_BROKER)
        found, token = list[RemoteLogSegmentMetadata](), ""
        for _ in range(2):
            page = self.rlmm.list_kept_segments(topic=topic, page_size=2, page_token=token)
            assert len(page.segments) == 2
            found, token = [*found, *page.segments], page.next_page_token
        assert token == ""
        assert {id_of(each) for each in found} == {id_of(each) for each in made}
        times = [each.kept_until_ms or 0 for each in found]
        assert times == sorted(times)
        token = self.rlmm.list_kept_segments(topic=topic, page_size=2).next_page_token
        with pytest.raises(InvalidRequestError, match=r"^page_token: is of another query$"):
            self.rlmm.list_kept_segments(page_token=token)
        with pytest.raises(InvalidRequestError, match=r"^topic: must not contain NUL$"):
            self.rlmm.list_kept_segments(topic="a\0")


def segment_of_another(rlmm: RemoteLogMetadataManager) -> RemoteLogSegmentMetadata:
    other = segment(TopicIdPartition(random_uuid(), "payments", 0), 0, 9)
    rlmm.add_remote_log_segment_metadata(other)
    move(rlmm, other, FINISHED)
    return other

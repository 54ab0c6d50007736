"""Test the refusals by the topic's settings and the client's expectations, and their limits."""

from collections.abc import Callable
from typing import ClassVar

import pytest

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    add,
    finished,
    id_at,
    id_of,
    move,
    put_deletion,
    revision_of,
    segment,
)

HOLD = {"sediment.hold": "true"}
PAUSED = {"sediment.sweep.paused": "true"}
CALLERS = [None, *RetentionOwner]


def owned_by(owner: RetentionOwner) -> dict[str, str]:
    return {"sediment.retention.owner": owner.value}


def is_held(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> bool:
    """Return whether the list of partitions shows this one on hold."""
    [held] = [s.is_held for s in all_partitions(rlmm) if s.topic_id_partition == tp]
    return held


class Holds(RlmmContractPart):
    def test_of_a_topic_on_hold_no_finished_copy_is_deleted(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        before = revision_of(rlmm, tp)
        for owner in CALLERS:
            with pytest.raises(DeletionRefusedError, match=r"^topic orders: sediment\.hold is set"):
                move(rlmm, only, DELETE_STARTED, context=MutationContext(retention_owner=owner))
        assert id_at(rlmm, tp, 0, 5) == id_of(only)
        assert revision_of(rlmm, tp) == before
        assert is_held(rlmm, tp) is True
        rlmm.put_topic_config(tp.topic_id, {})
        assert is_held(rlmm, tp) is False
        assert move(rlmm, only, DELETE_STARTED).applied

    def test_a_hold_also_holds_a_partition_that_is_being_deleted(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        with pytest.raises(DeletionRefusedError, match=r"sediment\.hold"):
            move(rlmm, only, DELETE_STARTED)

    def test_a_deletion_of_the_partition_is_marked_but_not_started_on_hold(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        finished(rlmm, tp, 0, 9)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        assert put_deletion(rlmm, tp, MARKED).applied
        with pytest.raises(DeletionRefusedError, match=r"^topic orders: sediment\.hold is set"):
            put_deletion(rlmm, tp, PARTITION_STARTED)
        rlmm.put_topic_config(tp.topic_id, {})
        started = put_deletion(rlmm, tp, PARTITION_STARTED)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        assert put_deletion(rlmm, tp, PARTITION_STARTED).revision == started.revision

    def test_a_hold_lets_copies_be_made_and_cleaned_up_and_deletions_in_progress_end(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        going = add(rlmm, segment(tp, 0, 9), FINISHED, DELETE_STARTED)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        finished(rlmm, tp, 10, 19)
        add(rlmm, segment(tp, 20, 29), DELETE_STARTED, DELETE_FINISHED)
        assert move(rlmm, going, DELETE_FINISHED).applied

    def test_partition_without_segments_finishes_its_deletion_on_hold(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        assert put_deletion(rlmm, tp, PARTITION_FINISHED).applied

    def test_a_repeat_is_judged_before_the_hold(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        one, why = finished(rlmm, tp, 0, 9), MutationContext(request_id="one")
        first = move(rlmm, one, DELETE_STARTED, context=why)
        rlmm.put_topic_config(tp.topic_id, HOLD)
        assert move(rlmm, one, DELETE_STARTED) == MutationOutcome(False, first.revision)
        assert move(rlmm, one, DELETE_STARTED, context=why) == first


class ListsForDeletion(RlmmContractPart):
    """A client that may not delete may not read the list that precedes a deletion."""

    @pytest.mark.parametrize(
        "settings", [HOLD, *map(owned_by, RetentionOwner), PAUSED, {}], ids=str
    )
    @pytest.mark.parametrize("caller", RetentionOwner)
    def test_a_list_for_deletion_is_refused_if_the_deletion_would_be(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        settings: dict[str, str],
        caller: RetentionOwner,
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.put_topic_config(tp.topic_id, settings)
        refused = _is_refused(lambda: rlmm.list_remote_log_segments(tp, deletes_for=caller))
        context = MutationContext(retention_owner=caller)
        assert refused == _is_refused(lambda: move(rlmm, only, DELETE_STARTED, context=context))
        assert not _is_refused(lambda: rlmm.list_remote_log_segments(tp))

    def test_any_client_that_removes_a_partition_may_list_it(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.put_topic_config(tp.topic_id, owned_by(RetentionOwner.SWEEP))
        put_deletion(rlmm, tp, MARKED)
        with pytest.raises(DeletionRefusedError):
            rlmm.list_remote_log_segments(tp, deletes_for=RetentionOwner.BROKER)
        put_deletion(rlmm, tp, PARTITION_STARTED)
        page = rlmm.list_remote_log_segments(tp, deletes_for=RetentionOwner.BROKER)
        assert [id_of(each) for each in page.segments] == [id_of(only)]

    def test_of_an_unknown_partition_nothing_is_refused(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            rlmm.list_remote_log_segments(tp, deletes_for=RetentionOwner.BROKER)


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except DeletionRefusedError:
        return True
    return False


class RetentionOwners(RlmmContractPart):
    @pytest.mark.parametrize("caller", CALLERS)
    @pytest.mark.parametrize("owner", RetentionOwner)
    def test_only_the_retention_owner_deletes(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        owner: RetentionOwner,
        caller: RetentionOwner | None,
    ) -> None:
        only, why = finished(rlmm, tp, 0, 9), MutationContext(retention_owner=caller)
        rlmm.put_topic_config(tp.topic_id, owned_by(owner))
        called = caller or RetentionOwner.BROKER
        if called is owner:
            assert move(rlmm, only, DELETE_STARTED, context=why).applied
        else:
            refusal = f"retention.owner is {owner.value}, not {called.value}"
            with pytest.raises(DeletionRefusedError, match=refusal):
                move(rlmm, only, DELETE_STARTED, context=why)
            assert id_at(rlmm, tp, 0, 5) == id_of(only)

    @pytest.mark.parametrize("caller", CALLERS)
    def test_without_a_retention_owner_every_client_may_delete(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        caller: RetentionOwner | None,
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        why = MutationContext(retention_owner=caller)
        assert move(rlmm, only, DELETE_STARTED, context=why).applied

    @pytest.mark.parametrize("settings", [PAUSED, {**PAUSED, "sediment.retention.owner": "sweep"}])
    def test_a_pause_refuses_sweeps(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, settings: dict[str, str]
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.put_topic_config(tp.topic_id, settings)
        sweep = MutationContext(retention_owner=RetentionOwner.SWEEP)
        with pytest.raises(DeletionRefusedError, match=r"orders: sediment\.sweep\.paused is set"):
            move(rlmm, only, DELETE_STARTED, context=sweep)

    def test_sweep_pause_does_not_refuse_other_clients(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        first, second = finished(rlmm, tp, 0, 9), finished(rlmm, tp, 10, 19)
        rlmm.put_topic_config(tp.topic_id, PAUSED)
        rlm = MutationContext(retention_owner=RetentionOwner.RLM)
        assert move(rlmm, first, DELETE_STARTED).applied
        assert move(rlmm, second, DELETE_STARTED, context=rlm).applied

    @pytest.mark.parametrize("caller", CALLERS)
    def test_any_client_deletes_segments_after_a_removal_has_begun(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        caller: RetentionOwner | None,
    ) -> None:
        only = finished(rlmm, tp, 0, 9)
        rlmm.put_topic_config(tp.topic_id, {**owned_by(RetentionOwner.RLM), **PAUSED})
        put_deletion(rlmm, tp, MARKED, PARTITION_STARTED)
        why = MutationContext(retention_owner=caller)
        assert move(rlmm, only, DELETE_STARTED, context=why).applied

    @pytest.mark.parametrize("caller", [None, RetentionOwner.BROKER, RetentionOwner.SWEEP])
    def test_a_mark_that_may_be_taken_back_lifts_nothing(
        self,
        rlmm: RemoteLogMetadataManager,
        tp: TopicIdPartition,
        caller: RetentionOwner | None,
    ) -> None:
        only, why = finished(rlmm, tp, 0, 9), MutationContext(retention_owner=caller)
        put_deletion(rlmm, tp, MARKED)
        refusals = [owned_by(RetentionOwner.RLM)]
        refusals += [PAUSED] if caller is RetentionOwner.SWEEP else []
        for settings in refusals:
            rlmm.put_topic_config(tp.topic_id, settings)
            with pytest.raises(DeletionRefusedError):
                move(rlmm, only, DELETE_STARTED, context=why)
            with pytest.raises(DeletionRefusedError):
                rlmm.raise_log_start_offset(tp, 5, why)
        rlmm.undelete_partition(tp)
        assert id_at(rlmm, tp, 0, 5) == id_of(only)

    def test_clean_up_of_a_copy_is_nobodys_retention(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        rlmm.put_topic_config(tp.topic_id, {**owned_by(RetentionOwner.SWEEP), **PAUSED})
        assert move(rlmm, only, DELETE_STARTED).applied


Change = Callable[[RemoteLogMetadataManager, TopicIdPartition, MutationContext], MutationOutcome]


def _finish(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, why: MutationContext
) -> MutationOutcome:
    [waiting] = rlmm.list_remote_log_segments(tp).segments
    return move(rlmm, waiting, FINISHED, context=why)


def _mark(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, why: MutationContext
) -> MutationOutcome:
    return put_deletion(rlmm, tp, MARKED, context=why)


def _raise_log_start(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, why: MutationContext
) -> MutationOutcome:
    return rlmm.raise_log_start_offset(tp, 5, why)


class Expectations(RlmmContractPart):
    CHANGES: ClassVar[dict[str, Change]] = {
        "add": lambda rlmm, tp, why: rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9), why),
        "update": _finish,
        "mark": _mark,
        "raise_log_start": _raise_log_start,
    }

    @pytest.fixture
    def prepared(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> TopicIdPartition:
        """Provide a partition of revision 4, with offsets up to 9 and one active copy.

        Its settings have revision 2.
        """
        add(rlmm, segment(tp, 0, 9), FINISHED, DELETE_STARTED, DELETE_FINISHED)
        add(rlmm, segment(tp, 10, 19))
        rlmm.put_topic_config(tp.topic_id, PAUSED)
        rlmm.put_topic_config(tp.topic_id, {})
        return tp

    @pytest.mark.parametrize("name", CHANGES)
    def test_a_change_holds_if_both_revisions_are_the_expected_ones(
        self, rlmm: RemoteLogMetadataManager, prepared: TopicIdPartition, name: str
    ) -> None:
        why = MutationContext(expected_revision=5, expected_config_revision=2)
        assert self.CHANGES[name](rlmm, prepared, why) == MutationOutcome(True, 6)

    @pytest.mark.parametrize("name", CHANGES)
    def test_another_revision_of_the_partition_is_refused_with_both(
        self, rlmm: RemoteLogMetadataManager, prepared: TopicIdPartition, name: str
    ) -> None:
        with pytest.raises(ConcurrentUpdateError, match="orders has revision 5, not 4"):
            self.CHANGES[name](rlmm, prepared, MutationContext(expected_revision=4))
        assert revision_of(rlmm, prepared) == 5

    @pytest.mark.parametrize("name", CHANGES)
    def test_another_revision_of_the_settings_is_refused_with_both(
        self, rlmm: RemoteLogMetadataManager, prepared: TopicIdPartition, name: str
    ) -> None:
        with pytest.raises(ConcurrentUpdateError, match="orders have revision 2, not 1"):
            self.CHANGES[name](rlmm, prepared, MutationContext(expected_config_revision=1))
        assert revision_of(rlmm, prepared) == 5

    def test_a_partition_that_is_not_known_has_revision_0(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        with pytest.raises(ConcurrentUpdateError, match="has revision 0, not 1"):
            put_deletion(rlmm, tp, MARKED, context=MutationContext(expected_revision=1))
        new = MutationContext(expected_revision=0, expected_config_revision=0)
        assert put_deletion(rlmm, tp, MARKED, context=new).applied

    def test_a_repeat_is_judged_before_the_expectations(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        why = MutationContext(expected_revision=0, expected_config_revision=7)
        only = finished(rlmm, tp, 0, 9)
        marked = put_deletion(rlmm, tp, MARKED)
        assert move(rlmm, only, FINISHED, context=why) == MutationOutcome(False, 2)
        assert put_deletion(rlmm, tp, MARKED, context=why) == MutationOutcome(
            False, marked.revision
        )

    def test_repeated_request_may_expect_a_later_revision(
        self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
    ) -> None:
        only = add(rlmm, segment(tp, 0, 9))
        why = MutationContext(request_id="one", expected_revision=1)
        first = move(rlmm, only, FINISHED, context=why)
        again = MutationContext(request_id="one", expected_revision=2, expected_config_revision=9)
        assert move(rlmm, only, FINISHED, context=again) == first

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
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_STARTED,
    RlmmContractPart,
    id_of,
    move,
    put_deletion,
    revision_of,
    segment,
)
from tests.harness.holds import hold

CALLERS = [None, *RetentionOwner]


def owned_by(owner: RetentionOwner) -> dict[str, str]:
    return {"sediment.retention.owner": owner.value}


class ListsForDeletion(RlmmContractPart):
    """A client that may not delete may not read the list that precedes a deletion."""

    @pytest.mark.parametrize("settings", [None, *map(owned_by, RetentionOwner), {}], ids=str)
    @pytest.mark.parametrize("caller", RetentionOwner)
    def test_a_list_for_deletion_is_refused_if_the_deletion_would_be(
        self, settings: dict[str, str] | None, caller: RetentionOwner
    ) -> None:
        only = self.finished(0, 9)
        if settings is None:
            hold(self.rlmm, self.tp)
        else:
            self.rlmm.put_topic_config(self.tp.topic_id, settings)
        refused = _is_refused(
            lambda: self.rlmm.list_remote_log_segments(self.tp, deletes_for=caller)
        )
        context = MutationContext(retention_owner=caller)
        assert refused == _is_refused(lambda: self.move(only, DELETE_STARTED, context=context))
        assert not _is_refused(lambda: self.rlmm.list_remote_log_segments(self.tp))

    def test_any_client_that_removes_a_partition_may_list_it(self) -> None:
        only = self.finished(0, 9)
        self.rlmm.put_topic_config(self.tp.topic_id, owned_by(RetentionOwner.SWEEP))
        self.put_deletion(MARKED)
        with pytest.raises(DeletionRefusedError):
            self.rlmm.list_remote_log_segments(self.tp, deletes_for=RetentionOwner.BROKER)
        self.put_deletion(PARTITION_STARTED)
        page = self.rlmm.list_remote_log_segments(self.tp, deletes_for=RetentionOwner.BROKER)
        assert [id_of(each) for each in page.segments] == [id_of(only)]

    def test_of_an_unknown_partition_nothing_is_refused(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.list_remote_log_segments(self.tp, deletes_for=RetentionOwner.BROKER)


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
        self, owner: RetentionOwner, caller: RetentionOwner | None
    ) -> None:
        only, why = self.finished(0, 9), MutationContext(retention_owner=caller)
        self.rlmm.put_topic_config(self.tp.topic_id, owned_by(owner))
        called = caller or RetentionOwner.BROKER
        if called is owner:
            assert self.move(only, DELETE_STARTED, context=why).applied
        else:
            refusal = f"retention.owner is {owner.value}, not {called.value}"
            with pytest.raises(DeletionRefusedError, match=refusal):
                self.move(only, DELETE_STARTED, context=why)
            assert self.id_at(0, 5) == id_of(only)

    @pytest.mark.parametrize("caller", CALLERS)
    def test_without_a_retention_owner_every_client_may_delete(
        self, caller: RetentionOwner | None
    ) -> None:
        only = self.finished(0, 9)
        why = MutationContext(retention_owner=caller)
        assert self.move(only, DELETE_STARTED, context=why).applied

    @pytest.mark.parametrize("caller", CALLERS)
    def test_any_client_deletes_segments_after_a_removal_has_begun(
        self, caller: RetentionOwner | None
    ) -> None:
        only = self.finished(0, 9)
        self.rlmm.put_topic_config(self.tp.topic_id, owned_by(RetentionOwner.RLM))
        self.put_deletion(MARKED, PARTITION_STARTED)
        why = MutationContext(retention_owner=caller)
        assert self.move(only, DELETE_STARTED, context=why).applied

    @pytest.mark.parametrize("caller", [None, RetentionOwner.BROKER, RetentionOwner.SWEEP])
    def test_a_mark_that_may_be_taken_back_lifts_nothing(
        self, caller: RetentionOwner | None
    ) -> None:
        only, why = self.finished(0, 9), MutationContext(retention_owner=caller)
        self.put_deletion(MARKED)
        self.rlmm.put_topic_config(self.tp.topic_id, owned_by(RetentionOwner.RLM))
        with pytest.raises(DeletionRefusedError):
            self.move(only, DELETE_STARTED, context=why)
        with pytest.raises(DeletionRefusedError):
            self.rlmm.raise_log_start_offset(self.tp, 5, why)
        self.rlmm.undelete_partition(self.tp)
        assert self.id_at(0, 5) == id_of(only)

    def test_clean_up_of_a_copy_is_nobodys_retention(self) -> None:
        only = self.add(self.segment(0, 9))
        self.rlmm.put_topic_config(self.tp.topic_id, owned_by(RetentionOwner.SWEEP))
        assert self.move(only, DELETE_STARTED).applied


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
    def prepared(self) -> TopicIdPartition:
        """Provide a partition of revision 4, with offsets up to 9 and one active copy.

        Its settings have revision 2.
        """
        self.add(self.segment(0, 9), FINISHED, DELETE_STARTED, DELETE_FINISHED)
        self.add(self.segment(10, 19))
        self.rlmm.put_topic_config(self.tp.topic_id, owned_by(RetentionOwner.RLM))
        self.rlmm.put_topic_config(self.tp.topic_id, {})
        return self.tp

    @pytest.mark.parametrize("name", CHANGES)
    def test_a_change_holds_if_both_revisions_are_the_expected_ones(
        self, prepared: TopicIdPartition, name: str
    ) -> None:
        why = MutationContext(expected_revision=5, expected_config_revision=2)
        assert self.CHANGES[name](self.rlmm, prepared, why) == MutationOutcome(True, 6)

    @pytest.mark.parametrize("name", CHANGES)
    def test_another_revision_of_the_partition_is_refused_with_both(
        self, prepared: TopicIdPartition, name: str
    ) -> None:
        with pytest.raises(ConcurrentUpdateError, match="orders has revision 5, not 4"):
            self.CHANGES[name](self.rlmm, prepared, MutationContext(expected_revision=4))
        assert revision_of(self.rlmm, prepared) == 5

    @pytest.mark.parametrize("name", CHANGES)
    def test_another_revision_of_the_settings_is_refused_with_both(
        self, prepared: TopicIdPartition, name: str
    ) -> None:
        with pytest.raises(ConcurrentUpdateError, match="orders have revision 2, not 1"):
            self.CHANGES[name](self.rlmm, prepared, MutationContext(expected_config_revision=1))
        assert revision_of(self.rlmm, prepared) == 5

    def test_a_partition_that_is_not_known_has_revision_0(self) -> None:
        with pytest.raises(ConcurrentUpdateError, match="has revision 0, not 1"):
            self.put_deletion(MARKED, context=MutationContext(expected_revision=1))
        new = MutationContext(expected_revision=0, expected_config_revision=0)
        assert self.put_deletion(MARKED, context=new).applied

    def test_a_repeat_is_judged_before_the_expectations(self) -> None:
        why = MutationContext(expected_revision=0, expected_config_revision=7)
        only = self.finished(0, 9)
        marked = self.put_deletion(MARKED)
        assert self.move(only, FINISHED, context=why) == MutationOutcome(False, 2)
        assert self.put_deletion(MARKED, context=why) == MutationOutcome(False, marked.revision)

    def test_repeated_request_may_expect_a_later_revision(self) -> None:
        only = self.add(self.segment(0, 9))
        why = MutationContext(request_id="one", expected_revision=1)
        first = self.move(only, FINISHED, context=why)
        again = MutationContext(request_id="one", expected_revision=2, expected_config_revision=9)
        assert self.move(only, FINISHED, context=again) == first

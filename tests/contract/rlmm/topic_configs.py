"""Test a topic's settings: versions, refusals, and repeated puts."""

from collections.abc import Mapping
from uuid import uuid4

import pytest

from services.api.calls import MutationContext
from services.api.errors import (
    ConcurrentUpdateError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.topic_config import (
    CHANGE_DELAY,
    CHANGE_DELAY_MS,
    UNLIMITED,
    RetentionOwner,
    StoredTopicConfig,
)
from tests.contract.rlmm.segments import (
    BROKER,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    RlmmContractPart,
    put_deletion,
    revision_of,
)

SWEPT = {"retention.ms": "1000", "sediment.retention.owner": "sweep"}
WEEK = {"retention.ms": "604800000"}
HOUR_MS = 3_600_000
TIERED = {"remote.storage.enable": "true"}
LARGEST = 2**63 - 1


class TopicConfigs(RlmmContractPart):
    @pytest.fixture
    def topic(self) -> TopicIdPartition:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp)], [], BROKER)
        return self.tp

    def test_a_topic_for_which_nothing_was_put_has_revision_0(
        self, topic: TopicIdPartition
    ) -> None:
        stored = self.rlmm.topic_config(topic.topic_id)
        assert stored == StoredTopicConfig(topic.topic_id, "orders", {}, 0)

    def test_put_settings_are_returned_and_read(self, topic: TopicIdPartition) -> None:
        stored = self.rlmm.put_topic_config(topic.topic_id, SWEPT, now=True)
        assert stored == StoredTopicConfig(topic.topic_id, "orders", SWEPT, 1)
        assert self.rlmm.topic_config(topic.topic_id) == stored
        assert stored.config.retention_ms == 1000
        assert stored.config.retention_owner is RetentionOwner.SWEEP

    def test_a_put_replaces_everything(self, topic: TopicIdPartition) -> None:
        self.rlmm.put_topic_config(topic.topic_id, {**SWEPT, "sediment.owner": "team"})
        assert self.rlmm.put_topic_config(topic.topic_id, SWEPT).entries == SWEPT
        assert self.rlmm.put_topic_config(topic.topic_id, {}).entries == {}
        assert self.rlmm.topic_config(topic.topic_id).revision == 3

    def test_texts_of_settings_are_stored_unchanged(self, topic: TopicIdPartition) -> None:
        texts = {"retention.ms": str(LARGEST), "retention.bytes": "007", "cleanup.policy": ""}
        self.rlmm.put_topic_config(topic.topic_id, texts)
        assert self.rlmm.topic_config(topic.topic_id).entries == texts

    def test_the_same_entries_again_change_nothing(self, topic: TopicIdPartition) -> None:
        assert self.rlmm.put_topic_config(topic.topic_id, {}).revision == 0
        first = self.rlmm.put_topic_config(topic.topic_id, SWEPT, 0)
        # As a caller repeats itself that lost the answer.
        assert self.rlmm.put_topic_config(topic.topic_id, SWEPT, 0) == first
        assert self.rlmm.topic_config(topic.topic_id) == first

    def test_another_revision_than_the_expected_one_is_refused_with_both(
        self, topic: TopicIdPartition
    ) -> None:
        self.rlmm.put_topic_config(topic.topic_id, SWEPT, 0)
        with pytest.raises(ConcurrentUpdateError, match="orders have revision 1, not 4"):
            self.rlmm.put_topic_config(topic.topic_id, TIERED, 4)
        assert self.rlmm.put_topic_config(topic.topic_id, TIERED, 1).revision == 2

    def test_a_negative_expected_revision_is_refused(self, topic: TopicIdPartition) -> None:
        with pytest.raises(InvalidRequestError, match=r"^expected_revision"):
            self.rlmm.put_topic_config(topic.topic_id, TIERED, -1)

    @pytest.mark.parametrize(
        ("entries", "setting"),
        [
            ({"retention.m": "1"}, "retention.m"),
            ({"n" * 100_000: "1"}, "n" * 64 + ":"),
            ({"retention.ms": "week"}, "retention.ms"),
            ({"retention.ms": ""}, "retention.ms"),
            ({"retention.ms": "1\0"}, "retention.ms"),
            ({"retention.ms": "9" * 257}, "retention.ms"),
            ({"retention.ms": str(LARGEST + 1)}, "retention.ms"),
            ({"retention.ms": "-2"}, "retention.ms"),
            ({"local.retention.ms": "-3"}, "local.retention.ms"),
            ({"remote.log.copy.disable": "yes"}, "remote.log.copy.disable"),
            ({"sediment.retention.owner": "me"}, "sediment.retention.owner"),
            ({"cleanup.policy": "compact"}, "cleanup.policy"),
            ({"retention.ms": "5", "local.retention.ms": "6"}, "local.retention.ms"),
            ({"retention.bytes": "5", "local.retention.bytes": "-1"}, "local.retention.bytes"),
            ({"retention.ms": "5", "remote.copy.lag.ms": "6"}, "remote.copy.lag.ms"),
        ],
    )
    def test_bad_settings_are_refused_by_name_and_change_nothing(
        self, topic: TopicIdPartition, entries: Mapping[str, str], setting: str
    ) -> None:
        before = self.rlmm.put_topic_config(topic.topic_id, SWEPT)
        with pytest.raises(InvalidRequestError, match=f"^{setting}"):
            self.rlmm.put_topic_config(topic.topic_id, entries)
        assert self.rlmm.topic_config(topic.topic_id) == before

    def test_tiering_is_not_turned_off_unless_the_tier_may_be_deleted(
        self, topic: TopicIdPartition
    ) -> None:
        off = {"remote.storage.enable": "false"}
        self.rlmm.put_topic_config(topic.topic_id, TIERED)
        for without in (off, {}):
            with pytest.raises(InvalidRequestError, match=r"^remote\.storage\.enable"):
                self.rlmm.put_topic_config(topic.topic_id, without)
        self.rlmm.put_topic_config(topic.topic_id, {**off, "remote.log.delete.on.disable": "true"})

    def test_a_topic_that_is_not_known_is_not_found(self) -> None:
        unknown = uuid4()
        with pytest.raises(RemoteResourceNotFoundError, match=uuid_to_text(unknown)):
            self.rlmm.topic_config(unknown)
        with pytest.raises(RemoteResourceNotFoundError, match=uuid_to_text(unknown)):
            self.rlmm.put_topic_config(unknown, {})

    def test_the_settings_outlive_the_topics_partitions(self, topic: TopicIdPartition) -> None:
        stored = self.rlmm.put_topic_config(topic.topic_id, SWEPT)
        put_deletion(self.rlmm, topic, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        assert self.rlmm.topic_config(topic.topic_id) == stored

    def test_another_topic_of_the_same_name_has_its_own(self, topic: TopicIdPartition) -> None:
        again = TopicIdPartition(uuid4(), topic.topic, 0)
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(again)], [], BROKER)
        self.rlmm.put_topic_config(topic.topic_id, SWEPT)
        assert self.rlmm.topic_config(again.topic_id).entries == {}

    def test_settings_do_not_move_the_revision_of_a_partition(
        self, topic: TopicIdPartition
    ) -> None:
        before = revision_of(self.rlmm, topic)
        self.rlmm.put_topic_config(topic.topic_id, SWEPT)
        assert revision_of(self.rlmm, topic) == before

    def test_a_reason_that_cannot_be_stored_is_refused(self, topic: TopicIdPartition) -> None:
        with pytest.raises(InvalidRequestError, match=r"^context\.reason"):
            self.rlmm.put_topic_config(topic.topic_id, SWEPT, context=MutationContext(reason="\0"))

    def test_what_only_changed_settings_delete_waits_for_a_day(
        self, topic: TopicIdPartition
    ) -> None:
        first = self.rlmm.put_topic_config(topic.topic_id, WEEK)
        assert first.earlier == {}
        assert first.earlier_config.retention_ms == UNLIMITED
        self.rlmm.put_topic_config(topic.topic_id, WEEK, now=True)
        lowered = self.rlmm.put_topic_config(topic.topic_id, SWEPT)
        assert lowered.earlier == WEEK
        read_at_ms = self.rlmm.partition_state(topic).value.read_at_ms
        assert lowered.waits_until_ms is not None
        assert 0 <= read_at_ms + CHANGE_DELAY_MS - lowered.waits_until_ms < HOUR_MS
        assert self.rlmm.topic_config(topic.topic_id) == lowered

    def test_set_back_nothing_waits(self, topic: TopicIdPartition) -> None:
        self.rlmm.put_topic_config(topic.topic_id, WEEK, now=True)
        assert self.rlmm.put_topic_config(topic.topic_id, SWEPT).waits_until_ms is not None
        assert self.rlmm.put_topic_config(topic.topic_id, WEEK).waits_until_ms is None

    def test_settings_that_wait_are_put_again_at_once(self, topic: TopicIdPartition) -> None:
        assert self.rlmm.put_topic_config(topic.topic_id, SWEPT).waits_until_ms is not None
        at_once = self.rlmm.put_topic_config(topic.topic_id, SWEPT, now=True)
        assert at_once == StoredTopicConfig(topic.topic_id, "orders", SWEPT, 2)
        assert self.rlmm.put_topic_config(topic.topic_id, SWEPT, now=True) == at_once

    def test_a_delay_is_only_lowered_at_once(self, topic: TopicIdPartition) -> None:
        with pytest.raises(InvalidRequestError, match=f"^{CHANGE_DELAY}: is lowered"):
            self.rlmm.put_topic_config(topic.topic_id, {CHANGE_DELAY: "0"})
        self.rlmm.put_topic_config(topic.topic_id, {CHANGE_DELAY: "0"}, now=True)
        as_kafka = self.rlmm.put_topic_config(topic.topic_id, {**SWEPT, CHANGE_DELAY: "0"})
        assert as_kafka.waits_until_ms is None
        # The delay of the settings now counts, also for those that were put before.
        assert self.rlmm.put_topic_config(topic.topic_id, SWEPT).earlier == {CHANGE_DELAY: "0"}

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
from services.api.remote_log_metadata_manager import PartitionLeadership, RemoteLogMetadataManager
from services.api.topic_config import RetentionOwner, StoredTopicConfig
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
TIERED = {"remote.storage.enable": "true"}
LARGEST = 2**63 - 1


class TopicConfigs(RlmmContractPart):
    @pytest.fixture
    def topic(self, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> TopicIdPartition:
        rlmm.on_partition_leadership_changes([PartitionLeadership(tp)], [], BROKER)
        return tp

    def test_a_topic_for_which_nothing_was_put_has_revision_0(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        stored = rlmm.topic_config(topic.topic_id)
        assert stored == StoredTopicConfig(topic.topic_id, "orders", {}, 0)

    def test_put_settings_are_returned_and_read(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        stored = rlmm.put_topic_config(topic.topic_id, SWEPT)
        assert stored == StoredTopicConfig(topic.topic_id, "orders", SWEPT, 1)
        assert rlmm.topic_config(topic.topic_id) == stored
        assert stored.config.retention_ms == 1000
        assert stored.config.retention_owner is RetentionOwner.SWEEP

    def test_a_put_replaces_everything(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        rlmm.put_topic_config(topic.topic_id, {**SWEPT, "sediment.hold": "true"})
        assert rlmm.put_topic_config(topic.topic_id, SWEPT).entries == SWEPT
        assert rlmm.put_topic_config(topic.topic_id, {}).entries == {}
        assert rlmm.topic_config(topic.topic_id).revision == 3

    def test_texts_of_settings_are_stored_unchanged(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        texts = {"retention.ms": str(LARGEST), "retention.bytes": "007", "cleanup.policy": ""}
        rlmm.put_topic_config(topic.topic_id, texts)
        assert rlmm.topic_config(topic.topic_id).entries == texts

    def test_the_same_entries_again_change_nothing(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        assert rlmm.put_topic_config(topic.topic_id, {}).revision == 0
        first = rlmm.put_topic_config(topic.topic_id, SWEPT, 0)
        # As a caller repeats itself that lost the answer.
        assert rlmm.put_topic_config(topic.topic_id, SWEPT, 0) == first
        assert rlmm.topic_config(topic.topic_id) == first

    def test_another_revision_than_the_expected_one_is_refused_with_both(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        rlmm.put_topic_config(topic.topic_id, SWEPT, 0)
        with pytest.raises(ConcurrentUpdateError, match="orders have revision 1, not 4"):
            rlmm.put_topic_config(topic.topic_id, TIERED, 4)
        assert rlmm.put_topic_config(topic.topic_id, TIERED, 1).revision == 2

    def test_a_negative_expected_revision_is_refused(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        with pytest.raises(InvalidRequestError, match=r"^expected_revision"):
            rlmm.put_topic_config(topic.topic_id, TIERED, -1)

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
            ({"sediment.hold": "yes"}, "sediment.hold"),
            ({"sediment.retention.owner": "me"}, "sediment.retention.owner"),
            ({"cleanup.policy": "compact"}, "cleanup.policy"),
            ({"retention.ms": "5", "local.retention.ms": "6"}, "local.retention.ms"),
            ({"retention.bytes": "5", "local.retention.bytes": "-1"}, "local.retention.bytes"),
            ({"retention.ms": "5", "remote.copy.lag.ms": "6"}, "remote.copy.lag.ms"),
        ],
    )
    def test_bad_settings_are_refused_by_name_and_change_nothing(
        self,
        rlmm: RemoteLogMetadataManager,
        topic: TopicIdPartition,
        entries: Mapping[str, str],
        setting: str,
    ) -> None:
        before = rlmm.put_topic_config(topic.topic_id, SWEPT)
        with pytest.raises(InvalidRequestError, match=f"^{setting}"):
            rlmm.put_topic_config(topic.topic_id, entries)
        assert rlmm.topic_config(topic.topic_id) == before

    def test_tiering_is_not_turned_off_unless_the_tier_may_be_deleted(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        off = {"remote.storage.enable": "false"}
        rlmm.put_topic_config(topic.topic_id, TIERED)
        for without in (off, {}):
            with pytest.raises(InvalidRequestError, match=r"^remote\.storage\.enable"):
                rlmm.put_topic_config(topic.topic_id, without)
        rlmm.put_topic_config(topic.topic_id, {**off, "remote.log.delete.on.disable": "true"})

    def test_a_topic_that_is_not_known_is_not_found(self, rlmm: RemoteLogMetadataManager) -> None:
        unknown = uuid4()
        with pytest.raises(RemoteResourceNotFoundError, match=uuid_to_text(unknown)):
            rlmm.topic_config(unknown)
        with pytest.raises(RemoteResourceNotFoundError, match=uuid_to_text(unknown)):
            rlmm.put_topic_config(unknown, {})

    def test_the_settings_outlive_the_topics_partitions(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        stored = rlmm.put_topic_config(topic.topic_id, SWEPT)
        put_deletion(rlmm, topic, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
        assert rlmm.topic_config(topic.topic_id) == stored

    def test_another_topic_of_the_same_name_has_its_own(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        again = TopicIdPartition(uuid4(), topic.topic, 0)
        rlmm.on_partition_leadership_changes([PartitionLeadership(again)], [], BROKER)
        rlmm.put_topic_config(topic.topic_id, SWEPT)
        assert rlmm.topic_config(again.topic_id).entries == {}

    def test_settings_do_not_move_the_revision_of_a_partition(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        before = revision_of(rlmm, topic)
        rlmm.put_topic_config(topic.topic_id, SWEPT)
        assert revision_of(rlmm, topic) == before

    def test_a_reason_that_cannot_be_stored_is_refused(
        self, rlmm: RemoteLogMetadataManager, topic: TopicIdPartition
    ) -> None:
        with pytest.raises(InvalidRequestError, match=r"^context\.reason"):
            rlmm.put_topic_config(topic.topic_id, SWEPT, context=MutationContext(reason="\0"))

"""Test the record of a topic's cluster."""

from dataclasses import replace
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.api.segment_batches import MAX_CLUSTER_ID_LENGTH
from tests.contract.rlmm.repairs import summary_of
from tests.contract.rlmm.segments import (
    BROKER,
    RlmmContractPart,
    put_deletion,
)

MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
OURS, THEIRS = "J8cFZbWqTv2uCmZLY0mS3w", "another"


def lead(rlmm: RemoteLogMetadataManager, cluster: str | None, *tps: TopicIdPartition) -> None:
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 0) for tp in tps], [], 1, cluster)


def cluster_of(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> str | None:
    return summary_of(rlmm, tp).cluster_id


class ClustersOfTopics(RlmmContractPart):
    @pytest.mark.parametrize("cluster", [OURS, "c", "x" * MAX_CLUSTER_ID_LENGTH])
    def test_a_topics_cluster_is_the_announced_one(self, cluster: str) -> None:
        lead(self.rlmm, cluster, self.tp)
        assert cluster_of(self.rlmm, self.tp) == cluster

    def test_the_cluster_is_the_topics_for_leaders_and_followers(self) -> None:
        other = replace(self.tp, partition=self.tp.partition + 1)
        lead(self.rlmm, None, other)
        self.rlmm.on_partition_leadership_changes([], [PartitionLeadership(self.tp)], BROKER, OURS)
        assert (cluster_of(self.rlmm, self.tp), cluster_of(self.rlmm, other)) == (OURS, OURS)

    def test_without_an_announcement_none_is_known(self) -> None:
        self.add(self.segment(0, 9))
        assert cluster_of(self.rlmm, self.tp) is None
        lead(self.rlmm, None, self.tp)
        assert cluster_of(self.rlmm, self.tp) is None
        assert self.tp not in [
            s.topic_id_partition for s in all_partitions(self.rlmm, cluster_id=OURS)
        ]

    def test_it_is_noted_of_a_topic_that_was_known_before_which_is_no_event(self) -> None:
        lead(self.rlmm, None, self.tp)
        before = self.revision()
        lead(self.rlmm, OURS, self.tp)
        assert (cluster_of(self.rlmm, self.tp), self.revision()) == (OURS, before)

    @pytest.mark.parametrize("later", [THEIRS, None])
    def test_first_cluster_of_a_topic_is_kept(self, later: str | None) -> None:
        new = replace(self.tp, topic_id=uuid4())
        lead(self.rlmm, OURS, self.tp)
        lead(self.rlmm, later, self.tp, new)
        assert (cluster_of(self.rlmm, self.tp), cluster_of(self.rlmm, new)) == (OURS, later)

    def test_a_list_may_be_of_one_clusters_topics(self) -> None:
        ours, theirs, nobodys = (TopicIdPartition(uuid4(), "same", 0) for _ in range(3))
        two = f"two-{uuid4().hex}"
        lead(self.rlmm, two, ours, replace(ours, partition=1), replace(ours, partition=2))
        lead(self.rlmm, THEIRS, theirs)
        lead(self.rlmm, None, nobodys)
        put_deletion(self.rlmm, ours, MARKED)
        listed = [
            s.topic_id_partition for s in all_partitions(self.rlmm, cluster_id=two, page_size=2)
        ]
        assert listed == [replace(ours, partition=n) for n in range(3)]
        marked = all_partitions(self.rlmm, cluster_id=two, delete_states=[MARKED])
        assert [s.topic_id_partition for s in marked] == [ours]
        assert list(all_partitions(self.rlmm, topic="other", cluster_id=two)) == []

    def test_a_token_of_another_clusters_list_is_refused(self) -> None:
        cluster = f"paged-{uuid4().hex}"
        lead(self.rlmm, cluster, self.tp, replace(self.tp, partition=self.tp.partition + 1))
        token = self.rlmm.list_partitions(cluster_id=cluster, page_size=1).next_page_token
        assert token
        for other in (THEIRS, ""):
            with pytest.raises(InvalidRequestError, match="page_token"):
                self.rlmm.list_partitions(cluster_id=other, page_token=token)

    def test_undelete_forgets_the_cluster_until_it_is_announced_again(self) -> None:
        lead(self.rlmm, OURS, self.tp)
        self.rlmm.undelete_partition(self.tp)
        assert cluster_of(self.rlmm, self.tp) == OURS, "there was no mark"
        self.put_deletion(MARKED)
        assert cluster_of(self.rlmm, self.tp) == OURS
        self.rlmm.undelete_partition(self.tp)
        assert cluster_of(self.rlmm, self.tp) is None
        lead(self.rlmm, OURS, self.tp)
        assert cluster_of(self.rlmm, self.tp) == OURS

    def test_since_when_a_partition_is_known_stays(self) -> None:
        lead(self.rlmm, None, self.tp)
        later = replace(self.tp, partition=self.tp.partition + 1)
        lead(self.rlmm, OURS, self.tp, later)
        first, second = summary_of(self.rlmm, self.tp), summary_of(self.rlmm, later)
        assert 0 < first.known_since_ms <= second.known_since_ms <= first.read_at_ms
        self.put_deletion(MARKED)
        assert summary_of(self.rlmm, self.tp).known_since_ms == first.known_since_ms

    @pytest.mark.parametrize("cluster", ["", "x" * (MAX_CLUSTER_ID_LENGTH + 1), "a\0"])
    def test_invalid_cluster_id_is_refused_and_changes_nothing(self, cluster: str) -> None:
        with pytest.raises(InvalidRequestError, match=r"^cluster_id: must"):
            lead(self.rlmm, cluster, self.tp)
        assert self.tp not in [
            s.topic_id_partition for s in all_partitions(self.rlmm, topic=self.tp.topic)
        ]
        if cluster == "a\0":
            with pytest.raises(InvalidRequestError, match=r"^cluster_id: must"):
                self.rlmm.list_partitions(cluster_id=cluster)

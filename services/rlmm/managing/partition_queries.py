"""RLMM on SQL: which partitions there are, their state and their audit trail."""

from collections.abc import Sequence

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.partition_events import EventPage, EventQuery
from services.api.partition_queries import PartitionPage
from services.api.partition_state import PartitionState
from services.api.partitions import RemotePartitionDeleteState
from services.api.segment_batches import MAX_REVISIONS
from services.api.validation import require_count
from services.rlmm import event_listings, listings, page_tokens, partition_states, segment_reads
from services.rlmm.managing.database import OnDatabase


class SqlPartitionQueries(OnDatabase):
    """With is_ready satisfies services.api.partition_queries.PartitionQueries."""

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        return self._transactions.read(
            lambda connection: partition_states.read(connection, topic_id_partition)
        )

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        query = listings.PartitionQuery(topic, delete_states, cluster_id)
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(query.fingerprint(), page_token)
        return self._transactions.read(
            lambda connection: listings.list_partitions(connection, query, limit=limit, after=after)
        )

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        require_count(partitions, "partitions", MAX_REVISIONS)
        return self._transactions.read(
            lambda connection: segment_reads.revisions(connection, partitions)
        )

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        event_listings.check_query(query)
        limit = page_tokens.page_limit(page_size)
        after = page_tokens.decode(event_listings.fingerprint(query), page_token)
        return self._transactions.read(
            lambda connection: event_listings.list_events(
                connection, query, limit=limit, after=after
            )
        )

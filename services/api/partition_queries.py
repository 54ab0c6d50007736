"""RLMM: which partitions there are, their state and their audit trail."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from services.api.calls import AtRevision
from services.api.ids import TopicIdPartition
from services.api.partition_events import EventPage, EventQuery, PartitionEvent
from services.api.partition_state import PartitionState
from services.api.partitions import RemotePartitionDeleteState

_LATEST_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """A known partition.

    Attributes:
        delete_state: None: it is not being deleted.
        marked_at_ms: when it was marked for deletion, by the database's clock; None: it was not.
        read_at_ms: now, by the database's clock.
        cluster_id: of the topic's cluster, as on_partition_leadership_changes told it first; None:
            it was not told, or was forgotten with a mark that was taken back.
        known_since_ms: when the partition became known, by the database's clock.
    """

    topic_id_partition: TopicIdPartition
    delete_state: RemotePartitionDeleteState | None
    revision: int
    marked_at_ms: int | None = None
    read_at_ms: int = 0
    cluster_id: str | None = None
    known_since_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionPage:
    partitions: tuple[PartitionSummary, ...]
    next_page_token: str


class PartitionQueries(Protocol):
    """What reads partitions; a part of RemoteLogMetadataManager, which says what holds for all."""

    def partition_state(self, topic_id_partition: TopicIdPartition) -> AtRevision[PartitionState]:
        """The tier's log start and lineage, and the leader's latest report, read at once."""
        ...

    def list_partitions(
        self,
        *,
        topic: str = "",
        delete_states: Sequence[RemotePartitionDeleteState] = (),
        cluster_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> PartitionPage:
        """One page of the known partitions, by topic id and partition.

        Args:
            topic: only of topics of this name; "": of all.
            delete_states: only those in one of these; empty: in any or in none.
            cluster_id: only of topics that are known to be of this cluster; "": of all.
        """
        ...

    def partition_revisions(self, partitions: Sequence[TopicIdPartition]) -> list[int]:
        """The revisions of up to MAX_REVISIONS partitions, in their order; 0: not known.

        Raises:
            InvalidRequestError: no partitions, or too many; a topic id under another name.
        """
        ...

    def list_events(
        self, query: EventQuery, *, page_size: int = 0, page_token: str = ""
    ) -> EventPage:
        """One page of a partition's audit trail, ascending by revision, without gaps from the
        oldest event that is kept. Also of a partition that was deleted.

        A page may hold fewer events than asked for, even none, though others follow: it is one
        message, and looks at a bounded number of events.

        Args:
            page_size: 0 means DEFAULT_PAGE_SIZE; above MAX_PAGE_SIZE means MAX_PAGE_SIZE.
            page_token: of the page before, from the same query.

        Raises:
            RemoteResourceNotFoundError: there never was such a partition.
            InvalidRequestError: a negative page size; a token of another query or of nobody.
        """
        ...

    def is_ready(self, topic_id_partition: TopicIdPartition) -> bool:
        """The database is reachable and has a schema that this release works on; for any partition
        (KIP-1105). Never raises for these."""
        ...


def all_partitions(
    manager: PartitionQueries,
    *,
    topic: str = "",
    delete_states: Sequence[RemotePartitionDeleteState] = (),
    cluster_id: str = "",
    page_size: int = 0,
) -> Iterator[PartitionSummary]:
    """Every page of list_partitions, one page in memory at a time."""
    token = ""
    while True:
        page = manager.list_partitions(
            topic=topic,
            delete_states=delete_states,
            cluster_id=cluster_id,
            page_size=page_size,
            page_token=token,
        )
        yield from page.partitions
        token = page.next_page_token
        if not token:
            return


def all_events(manager: PartitionQueries, query: EventQuery) -> Iterator[PartitionEvent]:
    """Every page of list_events, one page in memory at a time."""
    token = ""
    while True:
        page = manager.list_events(query, page_token=token)
        yield from page.events
        token = page.next_page_token
        if not token:
            return


def latest_event(
    manager: PartitionQueries,
    query: EventQuery,
    revision: int,
    is_wanted: Callable[[PartitionEvent], bool],
) -> PartitionEvent | None:
    """The last of the query's events, up to this revision of the partition, that is wanted; None:
    none that is kept. Looks among the latest ones first: an audit trail is long."""
    count = _LATEST_EVENTS
    while True:
        after_revision = max(query.after_revision, revision - count)
        last = None
        for event in all_events(manager, replace(query, after_revision=after_revision)):
            if event.revision > revision:
                break
            last = event if is_wanted(event) else last
        if last is not None or after_revision == query.after_revision:
            return last
        count *= 10

"""What metadata knows of the segments that stores have, asked of many at once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias
from uuid import UUID

from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partition_events import EventQuery
from services.api.partition_queries import all_events, all_partitions
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_objects import SegmentObjectName, shard_of
from services.api.segment_queries import segments_by_id
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.stored_segments import PartitionKey

Rows: TypeAlias = dict[UUID, RemoteLogSegmentMetadata]

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_FEW = 20
"""Below so many, RLMM walks the audit trail for each; from here on it is sent whole, once."""


class KnownSegments:
    """Segments of the partitions that are known when it is made; of others nothing is known.

    What cannot be asked of RLMM without a topic's name, which keys of objects do not bear, it asks
    with the name that RLMM has for the topic id. Every method raises RetriableRemoteStorageError
    where RLMM cannot be reached.
    """

    def __init__(self, rlmm: RemoteLogMetadataManager) -> None:
        self._rlmm = rlmm
        known = (each.topic_id_partition for each in all_partitions(rlmm))
        self._partitions = {(tp.topic_id, tp.partition): tp for tp in known}

    def partitions(self, shard: int, shards: int) -> Iterator[TopicIdPartition]:
        """Those whose objects a listing of this shard has."""
        return (tp for tp in self._partitions.values() if shard_of(tp.topic_id, shards) == shard)

    def rows(self, partition: PartitionKey, ids: Sequence[UUID]) -> Rows:
        """Those of a partition's segments that have metadata at this moment, in any state."""
        tp = self._partitions.get(partition)
        if tp is None:
            return {}
        try:
            found = list(segments_by_id(self._rlmm, tp, ids))
        except RemoteResourceNotFoundError:
            return {}  # The partition was removed meanwhile.
        return {each.remote_log_segment_id.id: each for each in found}

    def states(self, names: Sequence[SegmentObjectName]) -> list[RemoteLogSegmentState | None]:
        """What metadata says at this moment of the segment of each object, in order; None: there is
        none. One question a partition."""
        ids: dict[PartitionKey, dict[UUID, None]] = defaultdict(dict)
        for name in names:
            ids[name.topic_id, name.partition][name.segment_id] = None
        rows = {partition: self.rows(partition, list(wanted)) for partition, wanted in ids.items()}
        found = (rows[name.topic_id, name.partition].get(name.segment_id) for name in names)
        return [None if row is None else row.state for row in found]

    def deleted(self, segments: Iterable[RemoteLogSegmentId]) -> set[RemoteLogSegmentId]:
        """Those of which an event says that their deletion finished. Asked of segments without
        metadata, also of partitions that are no more.

        No index leads from a segment to its events: the audit trail of each partition is read. For
        a few segments RLMM does that, and sends theirs alone; for many it is sent once for all of
        them, until all are found.
        """
        wanted: dict[TopicIdPartition, set[UUID]] = defaultdict(set)
        for each in segments:
            wanted[each.topic_id_partition].add(each.id)
        found = ((tp, self._deleted(tp, ids)) for tp, ids in wanted.items())
        return {RemoteLogSegmentId(tp, id) for tp, ids in found for id in ids}

    def _deleted(self, tp: TopicIdPartition, ids: set[UUID]) -> set[UUID]:
        found: set[UUID] = set()
        try:
            for query in _queries(tp, ids):
                for event in all_events(self._rlmm, query):
                    if event.segment_id in ids and event.to_state == _DELETED.name:
                        found.add(event.segment_id)
                        if query.segment_id is not None or found == ids:
                            break
        except (RemoteResourceNotFoundError, InvalidRequestError):
            pass  # Of a topic that RLMM does not know, or knows under another name.
        return found


def _queries(tp: TopicIdPartition, ids: set[UUID]) -> list[EventQuery]:
    """Those that have all events of `ids` between them."""
    return [EventQuery(tp, segment_id=id) for id in ids] if len(ids) < _FEW else [EventQuery(tp)]

"""Find the segments of offsets in RLMM, and remember them while their partitions do not change."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.api.calls import AtRevision
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

_PARTITIONS = 1024
_SEGMENTS = 16
_SEARCHES = 256
"""The most that are remembered: partitions, and segments and searches of each."""


class SegmentLookUps:
    """Look up segments. Thread-safe.

    Args:
        max_searches: that are remembered of all partitions, the last used ones.
    """

    def __init__(self, rlmm: RemoteLogMetadataManager, max_searches: int = 16 * 1024) -> None:
        self._rlmm = rlmm
        self._max_searches = max_searches
        self._lock = threading.Lock()
        self._found: OrderedDict[TopicIdPartition, tuple[int, deque[RemoteLogSegmentMetadata]]] = (
            OrderedDict()
        )
        self._searches: OrderedDict[TopicIdPartition, _TransactionSearches] = OrderedDict()
        self._all_searches = 0

    def find(
        self, name: TopicIdPartition, epoch: int, offset: int, revision: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """Find the finished segment that contains `offset` in this leader epoch.

        The result is None if there is none or the partition is unknown.

        Args:
            revision: of the partition, if it was just read: what was found at it is not looked up
                again.

        Raises:
            RetriableRemoteStorageError: if RLMM or its database is unreachable.
        """
        remembered = self._remembered(name, epoch, offset, revision)
        if remembered is not None:
            return remembered
        try:
            found = self._rlmm.remote_log_segment_metadata(name, epoch, offset)
        except RemoteResourceNotFoundError:
            return None
        if found.value is not None:
            self.remember(name, found.value, found.revision)
        return found.value

    def remember(
        self, name: TopicIdPartition, segment: RemoteLogSegmentMetadata, revision: int
    ) -> None:
        """Remember a segment that RLMM finds at this revision of its partition."""
        with self._lock:
            at, segments = self._found.pop(name, (-1, deque()))
            if at != revision:
                segments = deque(maxlen=_SEGMENTS)
            segments.append(segment)
            self._found[name] = revision, segments
            if len(self._found) > _PARTITIONS:
                self._found.popitem(last=False)

    def knows(self, name: TopicIdPartition, offset: int, revision: int | None) -> bool:
        """Return whether a segment with this offset was found at this revision."""
        with self._lock:
            at, segments = self._found.get(name, (None, ()))
            if revision is None or at != revision:
                return False
            return any(each.start_offset <= offset <= each.end_offset for each in segments)

    def next_with_transactions(
        self, name: TopicIdPartition, epoch: int, offset: int, revision: int | None = None
    ) -> AtRevision[RemoteLogSegmentMetadata | None]:
        """Find the next segment of this leader epoch with a transaction index, at `offset` or on.

        Args:
            revision: as for `find`.

        Raises:
            RemoteResourceNotFoundError: if the partition is unknown.
            RetriableRemoteStorageError: if RLMM or its database is unreachable.
        """
        with self._lock:
            seen = self._searches.get(name)
            if seen is not None and seen.revision == revision:
                self._searches.move_to_end(name)
                for from_offset, segment in seen.found.get(epoch, ()):
                    if from_offset <= offset and (segment is None or offset <= segment.end_offset):
                        return AtRevision(segment, seen.revision)
        answer = self._rlmm.next_segment_with_txn_index(name, epoch, offset)
        with self._lock:
            seen = self._searches.get(name)
            if seen is None or seen.revision != answer.revision or seen.count >= _SEARCHES:
                self._forget_searches(name)
                self._searches[name] = seen = _TransactionSearches(answer.revision)
            seen.found.setdefault(epoch, []).append((offset, answer.value))
            seen.count += 1
            self._all_searches += 1
            self._searches.move_to_end(name)
            while self._all_searches > self._max_searches:
                self._forget_searches(next(iter(self._searches)))
        return answer

    def _forget_searches(self, name: TopicIdPartition) -> None:
        seen = self._searches.pop(name, None)
        self._all_searches -= seen.count if seen is not None else 0

    def _remembered(
        self, name: TopicIdPartition, epoch: int, offset: int, revision: int | None
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            at, segments = self._found.get(name, (None, ()))
            if revision is None or at != revision:
                return None
            return next((each for each in segments if _contains(each, epoch, offset)), None)


@dataclass(slots=True)
class _TransactionSearches:
    """The segments with transaction indexes that were found at one revision of a partition.

    Attributes:
        found: by leader epoch: from which offset on, and what. A search from any offset up to the
            segment's end finds the same.
    """

    revision: int
    found: dict[int, list[tuple[int, RemoteLogSegmentMetadata | None]]] = field(
        default_factory=dict
    )
    count: int = 0


class ListedSegments:
    """Find in a listing what a look-up of an offset finds, in each leader epoch. Single use."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._last: dict[int, RemoteLogSegmentMetadata] = {}
        self._containing: Counter[int] = Counter()

    def add(self, segment: RemoteLogSegmentMetadata) -> None:
        """Add the next segment, in the order of start offsets."""
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            return
        for epoch, first, last in segment.epoch_ranges():
            if max(first, segment.start_offset) <= self._offset:
                self._last[epoch] = segment
                self._containing[epoch] += self._offset <= last

    def found(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the segments that contain the offset: one of an epoch, or none.

        RLMM alone knows which one of several it prefers.
        """
        for epoch, segment in self._last.items():
            if self._containing[epoch] == 1 and _contains(segment, epoch, self._offset):
                yield segment


def _contains(segment: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    return any(
        epoch == of and max(first, segment.start_offset) <= offset <= last
        for of, first, last in segment.epoch_ranges()
    )

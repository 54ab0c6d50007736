"""Find the segments of offsets in RLMM; store what it answers until their partitions change."""

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from cachetools import LRUCache

from services.api.calls import AtRevision
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

_SEGMENTS = 16
_SEARCHES = 256
"""The most that are stored of one partition."""


@dataclass(slots=True)
class _Results:
    """What RLMM answered at one revision of a partition.

    Attributes:
        searches: for transaction indexes, by leader epoch: from which offset on, and the segment.
            A search from any offset up to the segment's end has the same result.
    """

    revision: int
    segments: deque[RemoteLogSegmentMetadata] = field(
        default_factory=lambda: deque(maxlen=_SEGMENTS)
    )
    searches: dict[int, list[tuple[int, RemoteLogSegmentMetadata | None]]] = field(
        default_factory=dict
    )
    number_of_searches: int = 0


def _size(results: _Results) -> int:
    return len(results.segments) + results.number_of_searches


class SegmentLookUps:
    """Look up segments. Thread-safe.

    Args:
        max_results: that are stored of all partitions, those of the last used ones.
    """

    def __init__(self, rlmm: RemoteLogMetadataManager, max_results: int = 16 * 1024) -> None:
        self._rlmm = rlmm
        self._lock = threading.Lock()
        self._results: LRUCache[TopicIdPartition, _Results] = LRUCache(max_results, _size)

    def find(
        self, name: TopicIdPartition, epoch: int, offset: int, revision: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """Find the finished segment that contains `offset` in this leader epoch.

        The result is None if there is none or the partition is unknown.

        Args:
            revision: of the partition, if it was just read: results at this revision are used.

        Raises:
            RetriableRemoteStorageError: if RLMM or its database is unreachable.
        """
        known = self.known(name, epoch, offset, revision)
        if known is not None:
            return known
        try:
            answer = self._rlmm.remote_log_segment_metadata(name, epoch, offset)
        except RemoteResourceNotFoundError:
            return None
        if answer.value is not None:
            self.store(name, answer.value, answer.revision)
        return answer.value

    def known(
        self, name: TopicIdPartition, epoch: int, offset: int, revision: int | None
    ) -> RemoteLogSegmentMetadata | None:
        """Return what `find` has stored at this revision; None if it would call RLMM."""
        with self._lock:
            cached = self._at(name, revision)
            segments = tuple(cached.segments) if cached else ()
        return next((each for each in segments if _contains(each, epoch, offset)), None)

    def store(
        self, name: TopicIdPartition, segment: RemoteLogSegmentMetadata, revision: int
    ) -> None:
        """Store a segment that RLMM finds at this revision of its partition."""
        with self._lock:
            results = self._at(name, revision) or _Results(revision)
            results.segments.append(segment)
            self._results[name] = results

    def has_segment(self, name: TopicIdPartition, offset: int, revision: int | None) -> bool:
        """Return whether a segment with this offset is stored at this revision."""
        with self._lock:
            cached = self._at(name, revision)
            segments = cached.segments if cached else ()
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
            if (cached := self._at(name, revision)) is not None:
                for from_offset, segment in cached.searches.get(epoch, ()):
                    if from_offset <= offset and (segment is None or offset <= segment.end_offset):
                        return AtRevision(segment, cached.revision)
        answer = self._rlmm.next_segment_with_txn_index(name, epoch, offset)
        self.store_search(name, epoch, offset, answer)
        return answer

    def store_search(
        self,
        name: TopicIdPartition,
        epoch: int,
        offset: int,
        answer: AtRevision[RemoteLogSegmentMetadata | None],
    ) -> None:
        """Store what RLMM answers to a search for a transaction index."""
        with self._lock:
            results = self._at(name, answer.revision)
            if results is None or results.number_of_searches >= _SEARCHES:
                results = _Results(answer.revision)
            results.searches.setdefault(epoch, []).append((offset, answer.value))
            results.number_of_searches += 1
            self._results[name] = results

    def _at(self, name: TopicIdPartition, revision: int | None) -> _Results | None:
        """Return what is stored of a partition, if it is of this revision."""
        cached: _Results | None = self._results.get(name)
        return cached if cached is not None and cached.revision == revision else None


class ListedSegments:
    """Find in a listing what look-ups of an offset find, in each leader epoch. Single use."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._last: dict[int, RemoteLogSegmentMetadata] = {}
        self._containing: Counter[int] = Counter()
        self._next: dict[int, RemoteLogSegmentMetadata | None] = {}
        self._has_foreign_epoch = False

    def add(self, segment: RemoteLogSegmentMetadata) -> None:
        """Add the next segment, in the order of start offsets."""
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            return
        may_abort = segment.end_offset >= self._offset and not segment.txn_idx_empty
        for epoch, first, last in segment.epoch_ranges():
            if max(first, segment.start_offset) <= self._offset:
                self._last[epoch] = segment
                self._containing[epoch] += self._offset <= last
            if first <= last < segment.start_offset:
                self._has_foreign_epoch = True
            elif first <= last:
                earlier = self._next.setdefault(epoch, None)
                if may_abort and (earlier is None or _order(segment) < _order(earlier)):
                    self._next[epoch] = segment

    def segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the segments that contain the offset: one of an epoch, or none.

        RLMM alone knows which one of several it prefers.
        """
        for epoch, segment in self._last.items():
            if self._containing[epoch] == 1 and _contains(segment, epoch, self._offset):
                yield segment

    def searches(self) -> Mapping[int, RemoteLogSegmentMetadata | None]:
        """Return what a search for transaction indexes finds from the offset on, by leader epoch.

        Nothing if a segment lists an epoch without records in it: RLMM alone knows then.
        """
        return {} if self._has_foreign_epoch else self._next


def _order(segment: RemoteLogSegmentMetadata) -> tuple[int, UUID]:
    return segment.start_offset, segment.remote_log_segment_id.id


def _contains(segment: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    return any(
        epoch == of and max(first, segment.start_offset) <= offset <= last
        for of, first, last in segment.epoch_ranges()
    )

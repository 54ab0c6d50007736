"""Answer ListOffsets and OffsetForLeaderEpoch, partition by partition."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from services.api.calls import current_call
from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.offset_queries import (
    MAX_OFFSET_QUERIES,
    EpochAnswer,
    EpochQuery,
    FoundOffset,
    OffsetQueries,
    OffsetQuery,
    SpecialTime,
)
from services.api.remote_log_manager import FetchError, IsolationLevel
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.validation import INT64_MAX, require_count
from services.common.fair_queue import FairQueue, Slot
from services.records.decode import UnreadableRecordsError
from services.rlm.fetch.errors import PARTITION_FAILURES, ReadTimeoutError, kafka_error
from services.rlm.fetch.partition_view import Bounds, PartitionView
from services.rlm.fetch.segment_reader import RemoteSegmentReader
from services.rlm.fetch.tier_calls import TierWait
from services.rlm.fetch.timestamps import (
    TimedRecord,
    first_in_log,
    first_in_tier,
    record_of_greatest_time,
)
from services.rlm.partition import Partition

_log = logging.getLogger(__name__)

_LOCAL_TIMES = (SpecialTime.LATEST, SpecialTime.MAX_TIMESTAMP, SpecialTime.EARLIEST_LOCAL)
"""Answered without the tier, if the log is here."""


class OffsetFinder:
    """Answer queries for offsets of the partitions that `partition_of` knows. Thread-safe.

    Args:
        timeout_s: the most time for one request (Kafka: remote.list.offsets.request.timeout.ms).
    """

    def __init__(
        self,
        partition_of: Callable[[TopicIdPartition], Partition],
        remote: RemoteSegmentReader,
        rlmm: RemoteLogMetadataManager,
        timeout_s: float = 30.0,
    ) -> None:
        self._partition_of = partition_of
        self._remote = remote
        self._rlmm = rlmm
        self._timeout_s = timeout_s
        # The others are left to fetches, however long the searches wait for the store.
        at_once = max(remote.calls.threads // 2, 1)
        self._searches = FairQueue(f"concurrent searches of the tier (limit {at_once})", at_once)

    def list_offsets(self, queries: OffsetQueries) -> list[FoundOffset]:
        """Answer as OffsetService.list_offsets.

        Queries that need no tier are answered first: those that do may use up the time.
        """
        wait = self._wait(queries.timeout_ms / 1000 or self._timeout_s)
        answers: dict[int, FoundOffset] = {}
        of_tier: list[tuple[int, PartitionView, Callable[[], FoundOffset]]] = []
        for at, query in enumerate(queries.queries):
            name = query.topic_id_partition
            view = PartitionView(self._partition_of(name), self._remote, wait=wait)
            finder = _Search(view, self._rlmm, queries.isolation_level)
            search: Callable[[], FoundOffset] = partial(finder.answer, query)
            if wait.left_s <= 0:
                answers[at] = self._answer(name, partial(_late, name))
            elif view.needs_tier(_offset_of(query)):
                of_tier.append((at, view, search))
            else:
                answers[at] = self._answer(name, search)
        begun: deque[tuple[int, Callable[[], FoundOffset]]] = deque()
        for at, view, search in of_tier:
            if len(begun) == self._searches.capacity:
                first, answer = begun.popleft()
                answers[first] = answer()
            begun.append((at, self._begin(view, search, wait)))
        for at, answer in begun:
            answers[at] = answer()
        return [answers[at] for at in range(len(queries.queries))]

    def _wait(self, asked_s: float) -> TierWait:
        """Return the time of one request; refused calls are repeated as long as for a fetch."""
        timeout_s = min(asked_s, self._timeout_s, current_call().left_s())
        return TierWait(timeout_s, is_shared=True, retry_s=self._remote.calls.wait_s)

    def _begin(
        self, view: PartitionView, search: Callable[[], FoundOffset], wait: TierWait
    ) -> Callable[[], FoundOffset]:
        """Begin the search of a query that needs the tier; return what waits for the answer."""
        name = view.partition.topic_id_partition
        if wait.left_s <= 0:
            return partial(self._answer, name, partial(_late, name))
        if self._remote.calls.late.are_too_many(name):
            # It is not begun, and the searches of other partitions need not wait for it.
            return partial(self._answer, name, lambda: view.calls.result(view.calls.begin(search)))
        try:
            place = self._place(name, wait)
        except ReadTimeoutError:
            return partial(self._answer, name, partial(_late, name))
        begun = view.calls.begin(search)
        begun.add_done_callback(lambda _: place.release())

        def found() -> FoundOffset:
            with place:  # A search that is late holds no slot.
                return view.calls.result(begun)

        return partial(self._answer, name, found)

    def _place(self, name: TopicIdPartition, wait: TierWait) -> Slot:
        """Wait for a place among the searches; raise ReadTimeoutError if none is free in time."""
        try:
            return self._searches.acquire(timeout_s=wait.left_s)
        except RetriableRemoteStorageError as e:
            raise ReadTimeoutError(f"{name}: {e}") from e

    def _answer(self, name: TopicIdPartition, found: Callable[[], FoundOffset]) -> FoundOffset:
        try:
            return found()
        except ReadTimeoutError:
            text = "not found in time; retry, or allow more with timeout_ms"
            return FoundOffset(name, FetchError.REQUEST_TIMED_OUT, text)
        except UnreadableRecordsError as e:
            return FoundOffset(name, FetchError.CORRUPT_MESSAGE, str(e))
        except PARTITION_FAILURES as e:
            return FoundOffset(name, _named(name, e), str(e))

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        """Answer as OffsetService.offsets_for_leader_epochs."""
        require_count(queries, "queries", MAX_OFFSET_QUERIES)
        wait = self._wait(self._timeout_s)
        return [self._end_of_epoch(query, wait) for query in queries]

    def _end_of_epoch(self, query: EpochQuery, wait: TierWait) -> EpochAnswer:
        name = query.topic_id_partition
        view = PartitionView(self._partition_of(name), self._remote, wait=wait)

        def search() -> EpochAnswer:
            view.find_bounds(INT64_MAX)
            view.check_leader_epoch(query.current_leader_epoch)
            return EpochAnswer(name, end=view.end_of_epoch(query.leader_epoch))

        try:
            if not view.needs_tier(INT64_MAX, query.leader_epoch):
                return search()
            if self._remote.calls.late.are_too_many(name):
                return view.calls.in_time(search)  # As above.
            with self._place(name, wait):
                return view.calls.in_time(search)
        except ReadTimeoutError as e:
            return EpochAnswer(name, FetchError.REQUEST_TIMED_OUT, str(e))
        except PARTITION_FAILURES as e:
            return EpochAnswer(name, _named(name, e), str(e))


def _late(name: TopicIdPartition) -> NoReturn:
    raise ReadTimeoutError(f"{name}: the time is over")


def _offset_of(query: OffsetQuery) -> int:
    """Return an offset that needs the tier if the query does."""
    return INT64_MAX if query.timestamp_ms in _LOCAL_TIMES else -1


def _named(name: TopicIdPartition, failure: Exception) -> FetchError:
    error = kafka_error(failure)
    if error is FetchError.UNKNOWN_SERVER_ERROR:
        _log.error("%s: finding an offset failed", name, exc_info=failure)
    return error


class _Search:
    """Find one offset of one partition. Single use."""

    def __init__(
        self, view: PartitionView, rlmm: RemoteLogMetadataManager, isolation: IsolationLevel
    ) -> None:
        self._view = view
        self._rlmm = rlmm
        self._isolation = isolation
        self._name = view.partition.topic_id_partition

    def answer(self, query: OffsetQuery) -> FoundOffset:
        view, time_ms = self._view, query.timestamp_ms
        bounds = view.find_bounds(_offset_of(query), self._isolation)
        view.check_leader_epoch(query.current_leader_epoch)
        match time_ms:
            case SpecialTime.LATEST:
                end = bounds.end_for(self._isolation)
                return FoundOffset(self._name, offset=end, leader_epoch=view.known_epoch())
            case SpecialTime.EARLIEST:
                return self._at(bounds.log_start_offset)
            case SpecialTime.EARLIEST_LOCAL:
                return self._at(self._local_start(bounds))
            case SpecialTime.LATEST_TIERED:
                return self._latest_tiered(bounds)
            case SpecialTime.EARLIEST_PENDING_UPLOAD:
                return self._earliest_pending_upload(bounds)
            case SpecialTime.MAX_TIMESTAMP:
                log = view.log
                return self._record(
                    bounds, None if log is None else record_of_greatest_time(log, view.calls.wait)
                )
        start = bounds.log_start_offset
        found = first_in_tier(view, self._rlmm, time_ms, start)
        if found is None and view.log is not None:
            first = max(start, view.log.log_start_offset)
            found = first_in_log(view.log, time_ms, first, view.calls.wait)
        return self._record(bounds, found)

    def _record(self, bounds: Bounds, found: TimedRecord | None) -> FoundOffset:
        """Answer with a record, if a reader of this isolation level gets it."""
        if found is None or found.offset >= bounds.end_for(self._isolation):
            return FoundOffset(self._name)
        return FoundOffset(
            self._name,
            timestamp_ms=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
        )

    def _at(self, offset: int) -> FoundOffset:
        """Answer with an offset and its leader epoch."""
        log = self._view.log
        lineage = None if log is None else log.lineage
        if lineage is None or lineage.epoch_for_offset(offset) is None:
            try:
                lineage = self._view.lineage()
            except (RemoteStorageError, ReadTimeoutError):
                # The offset is known without the tier's leader epochs.
                return FoundOffset(self._name, offset=offset)
        epoch = lineage.epoch_for_offset(offset)
        return FoundOffset(self._name, offset=offset, leader_epoch=epoch)

    def _local_start(self, bounds: Bounds) -> int:
        log = self._view.log
        if log is None:
            return bounds.log_end_offset
        return max(log.log_start_offset, self._view.tier.log_start_offset)

    def _latest_tiered(self, bounds: Bounds) -> FoundOffset:
        highest = self._highest_tiered(bounds)
        # Kafka forgets the leader epochs of what is below the log start.
        if highest < bounds.log_start_offset:
            return FoundOffset(self._name, offset=highest)
        return self._at(highest)

    def _earliest_pending_upload(self, bounds: Bounds) -> FoundOffset:
        """Source: UnifiedLog.fetchEarliestPendingUploadOffset."""
        highest = self._highest_tiered(bounds)
        if highest >= 0:
            return self._at(max(highest + 1, bounds.log_start_offset))
        if self._local_start(bounds) == bounds.log_start_offset:
            return self._at(bounds.log_start_offset)
        return FoundOffset(self._name)

    def _highest_tiered(self, bounds: Bounds) -> int:
        """Return the last offset that was ever copied in this lineage; -1 if none was.

        Source: RemoteLogManager.findHighestRemoteOffset.
        """
        with self._view.calls.slot():
            lineage = self._view.lineage()
            for entry in reversed(lineage.entries):
                epoch = entry.leader_epoch
                find = partial(self._rlmm.highest_offset_for_epoch, self._name, epoch)
                try:
                    highest = self._view.calls.call(find).value
                except RemoteResourceNotFoundError:
                    return -1
                if highest is not None:
                    return min(highest, lineage.end_offset_for(epoch, bounds.log_end_offset) - 1)
        return -1

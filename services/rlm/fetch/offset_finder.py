"""Answer ListOffsets and OffsetForLeaderEpoch, partition by partition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

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
    OffsetAnswer,
    OffsetQueries,
    OffsetQuery,
    SpecialTime,
)
from services.api.remote_log_manager import FetchError, IsolationLevel
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.validation import INT64_MAX, require_count
from services.common.fair_queue import FairQueue
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
from services.rlm.metrics import EXPIRED_LIST_OFFSETS
from services.rlm.partition import Partition

A = TypeVar("A", OffsetAnswer, EpochAnswer)

_LOCAL_TIMES = (SpecialTime.LATEST, SpecialTime.MAX_TIMESTAMP, SpecialTime.EARLIEST_LOCAL)
"""Answered without the tier, if the log is here."""


@dataclass(frozen=True, slots=True)
class _Search(Generic[A]):
    """The search for the answer to one query.

    Attributes:
        run: finds the answer, within the time of the view.
        kind: makes the answer of a partition, an error and its message.
    """

    view: PartitionView
    needs_tier: bool
    run: Callable[[], A]
    kind: Callable[[TopicIdPartition, FetchError, str], A]


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
        self._slots = FairQueue(f"concurrent searches of the tier (limit {at_once})", at_once)

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]:
        """Answer as OffsetService.list_offsets."""
        wait = self._wait(queries.timeout_ms / 1000 or self._timeout_s)

        def search(query: OffsetQuery) -> _Search[OffsetAnswer]:
            view = self._view(query, wait)
            finder = _Finder(view, self._rlmm, queries.isolation_level)
            needs_tier = view.needs_tier(_offset_of(query))
            return _Search(view, needs_tier, partial(finder.answer, query), OffsetAnswer)

        return self._answers([search(query) for query in queries.queries])

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        """Answer as OffsetService.offsets_for_leader_epochs."""
        require_count(queries, "queries", MAX_OFFSET_QUERIES)
        wait = self._wait(self._timeout_s)

        def search(query: EpochQuery) -> _Search[EpochAnswer]:
            view = self._view(query, wait)
            needs_tier = view.needs_tier(INT64_MAX, query.leader_epoch)
            return _Search(view, needs_tier, partial(_end_of_epoch, view, query), EpochAnswer)

        return self._answers([search(query) for query in queries])

    def _wait(self, timeout_s: float) -> TierWait:
        """Return the time of one request; refused calls are repeated as long as for a fetch."""
        timeout_s = min(timeout_s, self._timeout_s, current_call().left_s())
        return TierWait(timeout_s, is_shared=True, retry_s=self._remote.calls.wait_s)

    def _view(self, query: OffsetQuery | EpochQuery, wait: TierWait) -> PartitionView:
        return PartitionView(self._partition_of(query.topic_id_partition), self._remote, wait=wait)

    def _answers(self, searches: Sequence[_Search[A]]) -> list[A]:
        """Answer, without the tier first: queries that need it may use up the time."""
        answers = {at: _answer(s, s.run) for at, s in enumerate(searches) if not s.needs_tier}
        begun = {at: self._begin(s) for at, s in enumerate(searches) if s.needs_tier}
        answers |= {at: answer() for at, answer in begun.items()}
        return [answers[at] for at in range(len(searches))]

    def _begin(self, search: _Search[A]) -> Callable[[], A]:
        """Begin a search of the tier; return what waits for its answer."""
        calls, name = search.view.calls, search.view.partition.topic_id_partition
        if self._remote.calls.late.are_too_many(name):
            # It is not begun, and the searches of other partitions need not wait for it.
            return partial(_answer, search, lambda: calls.result(calls.begin(search.run)))
        try:
            slot = self._slots.acquire(timeout_s=calls.wait.left_s)
        except RetriableRemoteStorageError as e:
            EXPIRED_LIST_OFFSETS.inc()
            return partial(search.kind, name, FetchError.REQUEST_TIMED_OUT, str(e))
        begun = calls.begin(search.run)
        begun.add_done_callback(lambda _: slot.release())

        def result() -> A:
            with slot:  # A search that is late holds no slot.
                return calls.result(begun)

        return partial(_answer, search, result)


def _answer(search: _Search[A], result: Callable[[], A]) -> A:
    """Return the result of a search, or the answer that names its error."""
    name = search.view.partition.topic_id_partition
    try:
        if search.view.calls.wait.left_s <= 0 and not search.needs_tier:
            raise ReadTimeoutError
        return result()
    except ReadTimeoutError:
        EXPIRED_LIST_OFFSETS.inc()
        text = "not found in time; retry, or allow more time (ListOffsets: timeout_ms)"
        return search.kind(name, FetchError.REQUEST_TIMED_OUT, text)
    except UnreadableRecordsError as e:
        return search.kind(name, FetchError.CORRUPT_MESSAGE, str(e))
    except PARTITION_FAILURES as e:
        return search.kind(name, kafka_error(name, e), str(e))


def _offset_of(query: OffsetQuery) -> int:
    """Return an offset that needs the tier if the query does."""
    return INT64_MAX if query.timestamp_ms in _LOCAL_TIMES else -1


def _end_of_epoch(view: PartitionView, query: EpochQuery) -> EpochAnswer:
    view.find_bounds(INT64_MAX)
    view.check_leader_epoch(query.current_leader_epoch)
    end = view.end_of_epoch(query.leader_epoch)
    return EpochAnswer(query.topic_id_partition, end=end)


class _Finder:
    """Find one offset of one partition. Single use."""

    def __init__(
        self, view: PartitionView, rlmm: RemoteLogMetadataManager, isolation: IsolationLevel
    ) -> None:
        self._view = view
        self._rlmm = rlmm
        self._isolation = isolation
        self._name = view.partition.topic_id_partition

    def answer(self, query: OffsetQuery) -> OffsetAnswer:
        view, time_ms = self._view, query.timestamp_ms
        bounds = view.find_bounds(_offset_of(query), self._isolation)
        view.check_leader_epoch(query.current_leader_epoch)
        match time_ms:
            case SpecialTime.LATEST:
                end = bounds.end_for(self._isolation)
                return OffsetAnswer(self._name, offset=end, leader_epoch=view.known_epoch())
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
        record = first_in_tier(view, self._rlmm, time_ms, start)
        if record is None and view.log is not None:
            first = max(start, view.log.log_start_offset)
            record = first_in_log(view.log, time_ms, first, view.calls.wait)
        return self._record(bounds, record)

    def _record(self, bounds: Bounds, record: TimedRecord | None) -> OffsetAnswer:
        """Answer with a record, if a reader of this isolation level gets it."""
        if record is None or record.offset >= bounds.end_for(self._isolation):
            return OffsetAnswer(self._name)
        return OffsetAnswer(
            self._name,
            timestamp_ms=record.timestamp_ms,
            offset=record.offset,
            leader_epoch=record.leader_epoch,
        )

    def _at(self, offset: int) -> OffsetAnswer:
        """Answer with an offset and its leader epoch."""
        log = self._view.log
        lineage = None if log is None else log.lineage
        if lineage is None or lineage.epoch_for_offset(offset) is None:
            try:
                lineage = self._view.lineage()
            except (RemoteStorageError, ReadTimeoutError):
                # The offset is known without the tier's leader epochs.
                return OffsetAnswer(self._name, offset=offset)
        epoch = lineage.epoch_for_offset(offset)
        return OffsetAnswer(self._name, offset=offset, leader_epoch=epoch)

    def _local_start(self, bounds: Bounds) -> int:
        log = self._view.log
        if log is None:
            return bounds.log_end_offset
        return max(log.log_start_offset, self._view.tier.log_start_offset)

    def _latest_tiered(self, bounds: Bounds) -> OffsetAnswer:
        highest = self._highest_tiered(bounds)
        # Kafka forgets the leader epochs of what is below the log start.
        if highest < bounds.log_start_offset:
            return OffsetAnswer(self._name, offset=highest)
        return self._at(highest)

    def _earliest_pending_upload(self, bounds: Bounds) -> OffsetAnswer:
        """Source: UnifiedLog.fetchEarliestPendingUploadOffset."""
        highest = self._highest_tiered(bounds)
        if highest >= 0:
            return self._at(max(highest + 1, bounds.log_start_offset))
        if self._local_start(bounds) == bounds.log_start_offset:
            return self._at(bounds.log_start_offset)
        return OffsetAnswer(self._name)

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

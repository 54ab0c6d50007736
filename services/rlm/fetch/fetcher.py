"""Serve a fetch, partition by partition, in parts that fit a message."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import ceil

from services.api.errors import RemoteResourceNotFoundError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    FetchRole,
    IsolationLevel,
    RecordSource,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT32_MAX
from services.common.retry import RETRIABLE_ERRORS, replan
from services.records.batches import Batch, BatchError
from services.rlm.fetch.aborted_transactions import AbortedTransactions, index_entries
from services.rlm.fetch.index_cache import damaged
from services.rlm.fetch.kafka_errors import PARTITION_FAILURES, kafka_error
from services.rlm.fetch.partition_view import (
    Bounds,
    DamagedLogError,
    NotServedHereError,
    OffsetOutOfRangeError,
    PartitionView,
)
from services.rlm.fetch.purgatory import FetchPurgatory
from services.rlm.fetch.read_ahead import ReadTimeoutError
from services.rlm.fetch.segment_reader import (
    LostSegmentError,
    ReadThrottledError,
    RemoteSegmentReader,
    TierRead,
    local_batches,
)
from services.rlm.kafka_log.partition_dir import LocalSegment, SegmentVanishedError
from services.rlm.metrics import TopicCounts
from services.rlm.partition import Partition


@dataclass
class RequestBudget:
    """Limit the bytes of all partitions of a request.

    Attributes:
        left_bytes: the rest of the request's limit.
        empty: nothing was returned yet, so the next batch is returned whatever its size.
        tier_is_late: a partition has waited for the tier in vain, so the next ones do not wait.
    """

    left_bytes: int
    empty: bool = True
    tier_is_late: bool = False


class PartitionBudget:
    """Limit the bytes of one partition, within its request."""

    def __init__(self, request: RequestBudget, max_bytes: int) -> None:
        self._request = request
        self._left_bytes = max_bytes
        self.exhausted = False

    @property
    def left_bytes(self) -> int:
        return max(min(self._left_bytes, self._request.left_bytes), 0)

    def takes(self, size_bytes: int) -> bool:
        """Count a batch if it still fits; the first that does not fit ends the read."""
        if size_bytes > self.left_bytes and not self._request.empty:
            self.exhausted = True
            return False
        self._request.empty = False
        self._request.left_bytes -= size_bytes
        self._left_bytes -= size_bytes
        return True


_ATTEMPTS = 3


class PartitionFetch:
    """Read one partition once. Single use."""

    def __init__(
        self,
        partition: Partition,
        remote: RemoteSegmentReader,
        offset: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        role: FetchRole = FetchRole.CONSUMER,
        waits: bool = True,
    ) -> None:
        self._partition = partition
        self._remote = remote
        self._offset = self._part_offset = offset
        # As in Kafka, a follower gets all records, whatever the isolation level.
        self._is_follower = role is FetchRole.FOLLOWER
        self._isolation = IsolationLevel.READ_UNCOMMITTED if self._is_follower else isolation
        self._role = role
        self._aborted: AbortedTransactions | None = None
        # A replica must not go by what may have changed.
        max_age_s = remote.stale_s if role is FetchRole.CONSUMER else 0.0
        self.view = PartitionView(partition, remote, max_age_s, waits)

    def find_bounds(self) -> Bounds:
        """Read what the offset needs of log and tier, as PartitionView.find_bounds."""
        return self.view.find_bounds(self._offset, self._isolation)

    def check_range(self, bounds: Bounds) -> None:
        """Check that the offset to fetch is within `bounds`.

        Raises:
            OffsetOutOfRangeError: if it is not.
            NotServedHereError: if it is not, but the log here may have it.
            MovedToTierError: if a follower wants it, and only the tier has it.
        """
        if self._offset < bounds.log_start_offset:
            raise self._not_there(
                f"offset {self._offset} is below the log start offset {bounds.log_start_offset}"
            )
        if self._offset > bounds.log_end_offset:
            raise self._not_there(
                f"offset {self._offset} is beyond the log end offset {bounds.log_end_offset}"
            )
        log = self.view.log
        local_start = max(log.log_start_offset, self.view.tier.log_start_offset) if log else 0
        if self._is_follower and self._offset < local_start:
            raise self.view.moved(self._offset)
        if self._partition.role.log_is_not_served and self._offset == bounds.log_end_offset:
            # This may not be the log's end, so a consumer must not wait here.
            raise self._not_there(f"the tier ends below offset {self._offset}")

    def aborted_below(self, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions of the next part, which ends before `end_offset`.

        Those of earlier parts are left out, unless the log changed meanwhile.

        Raises:
            DamagedLogError, LogFileError, SegmentVanishedError, RemoteStorageError: if an index
                cannot be read.
        """
        if self._isolation is not IsolationLevel.READ_COMMITTED:
            return ()
        found = replan(
            lambda search: search.below(end_offset),
            self._search_aborted,
            first=self._aborted,
            stale=SegmentVanishedError,
        )
        # Never again what ended before the next part: a reader has forgotten that it ended.
        self._part_offset = end_offset
        return found

    def _search_aborted(self) -> AbortedTransactions:
        if self._aborted is not None:
            self.view.read_log()
            self.view.refresh_tier()
        entries = index_entries(self.view, self._part_offset)
        self._aborted = AbortedTransactions(entries, self._part_offset)
        return self._aborted

    def batches(self, budget: PartitionBudget) -> Iterator[tuple[RecordSource, Batch]]:
        """Read whole batches from the offset, to the end of the budget or of what may be read.

        Raises:
            OffsetOutOfRangeError, NotServedHereError: if no segment contains the next offset.
            MovedToTierError: if a follower wants the next offset, and only the tier has it.
            ReadThrottledError: if the fetch quota is used up.
            ReadTimeoutError: if the store does not send the next bytes in time.
            LostSegmentError, DamagedLogError, LogFileError, RemoteStorageError: if the segment
                cannot be read.
        """
        vanished, vanished_at = 0, -1
        end = self.view.bounds().end_for(self._isolation, self._role)
        while self._offset < end and not budget.exhausted:
            segment = self.view.log.segment_for(self._offset) if self.view.log else None
            try:
                if segment is not None:
                    yield from self._local(segment, end, budget)
                else:
                    yield from self._from_tier(end, budget)
            except SegmentVanishedError:
                # A segment that was deleted here since is in the tier, or lost. Segments may vanish
                # one after the other; this is an error only if the read makes no progress.
                vanished = vanished + 1 if vanished_at == self._offset else 1
                vanished_at = self._offset
                if vanished > _ATTEMPTS or self._partition.role.local is None:
                    raise
                self.view.read_log()
                self.view.refresh_tier()

    def _local(
        self, segment: LocalSegment, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, Batch]]:
        log = self.view.log
        assert log is not None
        try:
            for batch in local_batches(log, segment, self._offset, end_offset, budget.takes):
                yield RecordSource.LOCAL, batch
                self._offset = batch.last_offset + 1
        except BatchError as e:
            path = segment.log_path
            raise DamagedLogError(
                f"{self._partition.topic_id_partition}: {path}: {e}; `kafka-dump-log.sh "
                f"--deep-iteration --files {path}` shows what is left of it"
            ) from e
        following = min(segment.next_base_offset or end_offset, end_offset)
        if budget.exhausted or self._offset >= following:
            return
        # The next segment's file is missing, or the log was compacted.
        hole = self.view.find_remote(self._offset)
        if hole is None:
            self._offset = following
        elif self._is_follower:
            raise self.view.moved(self._offset)
        else:
            yield from self._segment_of_tier(hole, end_offset, budget)

    def _from_tier(
        self, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, Batch]]:
        segment = self.view.find_remote(self._offset)
        if segment is not None and self._is_follower:
            raise self.view.moved(self._offset)
        if segment is None:
            raise self._not_there(f"no segment contains offset {self._offset}")
        yield from self._segment_of_tier(segment, end_offset, budget)

    def _segment_of_tier(
        self, segment: RemoteLogSegmentMetadata, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, Batch]]:
        self._remote.require_quota()
        batches = self._remote.batches(
            segment,
            self._offset,
            budget.takes,
            budget.left_bytes,
            end_offset,
            lambda: self.view.find_remote(segment.end_offset + 1),
            self.view.waits,
        )
        fetched_bytes = 0
        try:
            with self.view.remote_slot(), closing(batches):
                for batch in batches:
                    fetched_bytes += batch.size_bytes
                    if fetched_bytes >= MAX_PART_BYTES:
                        self._remote.count_fetched(fetched_bytes)
                        fetched_bytes = 0
                    yield RecordSource.REMOTE, batch
                    self._offset = batch.last_offset + 1
        except RemoteResourceNotFoundError as e:
            raise self._lost_or_deleted(segment, e) from e
        except BatchError as e:
            raise damaged(segment, f"{e} of the copied log") from e
        finally:
            self._remote.count_fetched(fetched_bytes)
        if not budget.exhausted:
            self._offset = max(self._offset, segment.end_offset + 1)

    def _lost_or_deleted(
        self, segment: RemoteLogSegmentMetadata, error: RemoteResourceNotFoundError
    ) -> OffsetOutOfRangeError | NotServedHereError | LostSegmentError:
        now = self.view.find_remote(self._offset, is_changed=True)
        if now is None or now.remote_log_segment_id != segment.remote_log_segment_id:
            return self._not_there(f"offset {self._offset} was deleted during the read")
        return LostSegmentError(
            f"offset {self._offset}: segment {segment.remote_log_segment_id} "
            f"({segment.start_offset} to {segment.end_offset}) is not in the store: {error}"
        )

    def _not_there(self, text: str) -> OffsetOutOfRangeError | NotServedHereError:
        return self.view.not_there(self._offset, text)


MAX_PART_BYTES = 1024 * 1024
FIRST_PART_BYTES = 32 * 1024
"""A partition's first part is sent as soon as it has so much, so that a reader begins early."""

_NO_ERRORS = (ReadTimeoutError, ReadThrottledError)
"""As in Kafka, reads that take too long or exceed the quota are answered without an error."""

_LATE = (ReadTimeoutError, *RETRIABLE_ERRORS)

_RETRY_AFTER_MS = 1000

_log = logging.getLogger(__name__)


def _throttle_time_ms(error: Exception) -> int:
    if isinstance(error, ReadTimeoutError):
        return 1
    if isinstance(error, ReadThrottledError):
        return min(ceil(error.wait_s * 1000), INT32_MAX)
    return _RETRY_AFTER_MS if isinstance(error, ThrottledError) else 0


class Fetcher:
    """Serve fetches of the partitions that `partition_of` knows or creates. Thread-safe."""

    def __init__(
        self,
        partition_of: Callable[[TopicIdPartition], Partition],
        remote: RemoteSegmentReader,
        counts: TopicCounts,
        purgatory: FetchPurgatory,
    ) -> None:
        self._purgatory = purgatory
        self._partition_of = partition_of
        self._remote = remote
        self._counts = counts

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        """Fetch as in RemoteLogManager.fetch.

        A read that fails after it returned batches ends without an error; the next fetch, from the
        next offset, returns the error.
        """
        self._purgatory.hold(request)
        total = RequestBudget(request.max_bytes)
        for wanted in request.partitions:
            yield from self._fetch_partition(wanted, request, total)

    def _fetch_partition(
        self, wanted: FetchPartition, request: FetchRequest, total: RequestBudget
    ) -> Iterator[FetchPart]:
        name, offset = wanted.topic_id_partition, wanted.fetch_offset
        isolation, role = request.isolation_level, request.role
        budget, waits = PartitionBudget(total, wanted.max_bytes), not total.tier_is_late
        partition = self._partition_of(name)
        fetch = PartitionFetch(partition, self._remote, offset, isolation, role, waits)
        parts = _Parts(name, fetch.aborted_below)
        tier_read = TierRead(self._counts, name.topic)
        try:
            parts.bounds = fetch.find_bounds()
            parts.tier_age_s = fetch.view.tier_age_s
            fetch.view.check_leader_epoch(wanted.current_leader_epoch)
            if role is FetchRole.FOLLOWER:
                fetch.view.require_leader()
            diverging = fetch.view.diverging_epoch(wanted.last_fetched_epoch, offset)
            if diverging is not None:
                yield parts.diverging(diverging)
                return
            fetch.check_range(parts.bounds)
            for source, batch in fetch.batches(budget):
                tier_read.got(source, batch.size_bytes)
                yield from parts.add(source, batch)
            yield from parts.finish()
        except PARTITION_FAILURES as e:
            total.tier_is_late |= isinstance(e, _LATE)
            if not isinstance(e, _NO_ERRORS):
                tier_read.failed(e)
            yield from parts.end_early(e)
        finally:
            tier_read.end()


class _Parts:
    """Join batches of one partition into parts of up to MAX_PART_BYTES.

    Args:
        aborted_below: returns the aborted transactions of a part, given the offset after it.
    """

    def __init__(
        self,
        name: TopicIdPartition,
        aborted_below: Callable[[int], tuple[AbortedTransaction, ...]],
    ) -> None:
        self._name = name
        self._aborted_below = aborted_below
        self._pieces: list[memoryview] = []
        self._gathered_bytes = 0
        self._end_offset = 0
        self._source: RecordSource | None = None
        self._is_empty = True
        self.bounds = Bounds(-1, -1, -1, -1)
        self.tier_age_s: float | None = None

    def add(self, source: RecordSource, batch: Batch) -> Sequence[FetchPart]:
        """Add the next batch; return the parts that are complete."""
        parts: list[FetchPart] = []
        if source is not self._source or self._gathered_bytes + batch.size_bytes > MAX_PART_BYTES:
            parts += self._flush()
        self._source = source
        self._pieces.append(batch.data)
        self._gathered_bytes += batch.size_bytes
        self._end_offset = batch.last_offset + 1
        if self._is_empty and self._gathered_bytes >= FIRST_PART_BYTES:
            parts += self._flush()
        return parts

    def finish(self) -> Iterator[FetchPart]:
        """Yield the rest, or one empty part for a partition without batches."""
        yield from self._flush()
        if self._is_empty:
            yield self._part()

    def end_early(self, error: Exception) -> Iterator[FetchPart]:
        """Yield the batches before the error, or the error if there are none.

        A part without either lets the reader fetch again at once.
        """
        try:
            yield from self._flush()
        except PARTITION_FAILURES as e:
            error = e
        if self._is_empty and isinstance(error, _NO_ERRORS):
            yield replace(self._part(), throttle_time_ms=_throttle_time_ms(error))
        elif self._is_empty:
            yield self._error(error)
        else:
            _log.info("%s: read ended early: %s", self._name, error)

    def diverging(self, epoch: EpochEnd) -> FetchPart:
        """Return the part of a reader whose log differs from this one."""
        return replace(self._part(), diverging_epoch=epoch)

    def _error(self, error: Exception) -> FetchPart:
        kind = kafka_error(error)
        if kind is FetchError.UNKNOWN_SERVER_ERROR:
            _log.error("%s: fetch failed", self._name, exc_info=error)
        return replace(
            self._part(),
            error=kind,
            error_message=str(error),
            throttle_time_ms=_throttle_time_ms(error),
        )

    def _flush(self) -> Iterator[FetchPart]:
        pieces, self._pieces, self._gathered_bytes = self._pieces, [], 0
        if not pieces:
            return
        # Before the records are sent: a reader must not take them for committed.
        aborted = self._aborted_below(self._end_offset)
        self._is_empty = False
        if len(pieces) > 1:
            yield self._part(b"".join(pieces), self._source, aborted)
            return
        # Only a batch that is alone may be larger than a part; it is split.
        for at in range(0, len(pieces[0]), MAX_PART_BYTES):
            data = bytes(pieces[0][at : at + MAX_PART_BYTES])
            yield self._part(data, self._source, aborted)
            aborted = ()

    def _part(
        self,
        record_batches: bytes = b"",
        source: RecordSource | None = None,
        aborted: tuple[AbortedTransaction, ...] = (),
    ) -> FetchPart:
        return FetchPart(
            topic_id_partition=self._name,
            high_watermark=self.bounds.high_watermark,
            last_stable_offset=self.bounds.last_stable_offset,
            log_start_offset=self.bounds.log_start_offset,
            record_batches=record_batches,
            source=source,
            aborted_transactions=aborted,
            metadata_age_ms=None if self.tier_age_s is None else int(self.tier_age_s * 1000),
        )

"""Serve a fetch, partition by partition, in parts that fit a message."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil

from services.api.errors import RemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.lineage import EpochEnd
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchPart,
    FetchPartition,
    FetchRequest,
    RecordSource,
)
from services.api.validation import INT32_MAX
from services.records.runs import BatchRun
from services.rlm.fetch.errors import (
    PARTITION_FAILURES,
    LostSegmentError,
    ReadThrottledError,
    ReadTimeoutError,
    kafka_error,
)
from services.rlm.fetch.partition_fetch import PartitionBudget, PartitionFetch, RequestBudget
from services.rlm.fetch.partition_view import Bounds
from services.rlm.fetch.prepared_reads import PreparedRead, in_parallel
from services.rlm.fetch.purgatory import FetchPurgatory
from services.rlm.fetch.segment_reader import RemoteSegmentReader
from services.rlm.fetch.tier_calls import TierWait
from services.rlm.metrics import (
    EXPIRED_FETCHES,
    REMOTE_FETCH_BYTES,
    REMOTE_FETCH_ERRORS,
    REMOTE_FETCH_REQUESTS,
    TopicCounts,
)
from services.rlm.partition import Partition

MAX_PART_BYTES = 1024 * 1024
FIRST_PART_BYTES = 32 * 1024
"""A partition's first part is sent as soon as it has so much, so that a reader begins early."""

_NO_ERRORS = (ReadTimeoutError, ReadThrottledError)
"""As in Kafka, reads that take too long or exceed the quota are answered without an error."""

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
        self._purgatory.wait_for_records(request)
        total = RequestBudget(request.max_bytes)
        wait = TierWait(self._remote.calls.wait_of(request), is_shared=True)
        reads = [self._read_of(each, request, wait) for each in request.partitions]
        with in_parallel(reads, self._remote.calls.threads, total) as prepared:
            for read in prepared:
                for part in self._parts_of(read, total):
                    with wait.paused():
                        yield part

    def _read_of(
        self, fetched: FetchPartition, request: FetchRequest, wait: TierWait
    ) -> PreparedRead:
        partition = self._partition_of(fetched.topic_id_partition)
        offset, isolation, role = fetched.fetch_offset, request.isolation_level, request.role
        fetch = PartitionFetch(partition, self._remote, offset, isolation, role, wait)
        return PreparedRead(fetched, fetch, is_alone=len(request.partitions) == 1)

    def _parts_of(self, read: PreparedRead, total: RequestBudget) -> Iterator[FetchPart]:
        name, view = read.request.topic_id_partition, read.fetch.view
        parts = _Parts(name, read.fetch.aborted_below)
        remote_bytes, failure = 0, None
        try:
            budget = PartitionBudget(total, read.request.max_bytes)
            diverging = read.ready(budget)
            parts.set_bounds(read)
            if diverging is not None:
                yield parts.diverging(diverging)
                return
            with closing(read.fetch.runs(budget)) as runs:
                for source, run in runs:
                    if source is RecordSource.REMOTE:
                        remote_bytes += run.size_bytes
                    complete = parts.add(source, run)
                    if complete:
                        # All of them: a batch in several parts must not end with its first one.
                        with view.calls.without_slot():
                            yield from complete
            yield from parts.finish()
        except PARTITION_FAILURES as e:
            failure = e
            if isinstance(e, ReadTimeoutError):
                EXPIRED_FETCHES.inc()
            parts.set_bounds(read)
            yield from parts.end_early(e)
        finally:
            self._count(name.topic, remote_bytes, failure)

    def _count(self, topic: str, remote_bytes: int, failure: Exception | None) -> None:
        """Count a fetch of one partition in the tier's metrics, once for all of its batches.

        A fetch that the local log serves is not counted, and an offset out of range is not an error
        of the tier.

        Source: RemoteLogReader.
        """
        has_failed = isinstance(failure, (RemoteStorageError, LostSegmentError))
        if remote_bytes or has_failed:
            self._counts.add(REMOTE_FETCH_REQUESTS, topic)
        if remote_bytes:
            self._counts.add(REMOTE_FETCH_BYTES, topic, remote_bytes)
        if has_failed:
            self._counts.add(REMOTE_FETCH_ERRORS, topic)


class _Parts:
    """Gather batches of one partition into parts of up to MAX_PART_BYTES.

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

    def set_bounds(self, read: PreparedRead) -> None:
        """Set the offsets and the age that all further parts have, if the read knows them."""
        if read.bounds is not None:
            self.bounds, self.tier_age_s = read.bounds, read.fetch.view.tier_age_s

    def add(self, source: RecordSource, run: BatchRun) -> Sequence[FetchPart]:
        """Add the next batches; return the parts that are complete."""
        parts: list[FetchPart] = []
        if source is not self._source or self._gathered_bytes + run.size_bytes > MAX_PART_BYTES:
            parts += self._flush()
        self._source = source
        self._pieces.append(run.data)
        self._gathered_bytes += run.size_bytes
        self._end_offset = run.last_offset + 1
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
        if not self._is_empty:
            _log.info("%s: read ended early: %s", self._name, error)
            return
        part = replace(self._part(), throttle_time_ms=_throttle_time_ms(error))
        if not isinstance(error, _NO_ERRORS):
            name = kafka_error(self._name, error)
            part = replace(part, error=name, error_message=str(error))
        yield part

    def diverging(self, epoch: EpochEnd) -> FetchPart:
        """Return the part of a reader whose log differs from this one."""
        return replace(self._part(), diverging_epoch=epoch)

    def _flush(self) -> Iterator[FetchPart]:
        pieces, self._pieces, self._gathered_bytes = self._pieces, [], 0
        if not pieces:
            return
        # Before the records are sent: a reader must not mistake them for committed ones.
        aborted = self._aborted_below(self._end_offset)
        self._is_empty = False
        if len(pieces) > 1:
            yield self._part(tuple(pieces), self._source, aborted)
            return
        # Only a batch that is alone may be larger than a part; it is split.
        for at in range(0, len(pieces[0]), MAX_PART_BYTES):
            data = pieces[0][at : at + MAX_PART_BYTES]
            yield self._part((data,), self._source, aborted)
            aborted = ()

    def _part(
        self,
        pieces: tuple[memoryview, ...] = (),
        source: RecordSource | None = None,
        aborted: tuple[AbortedTransaction, ...] = (),
    ) -> FetchPart:
        return FetchPart(
            topic_id_partition=self._name,
            high_watermark=self.bounds.high_watermark,
            last_stable_offset=self.bounds.last_stable_offset,
            log_start_offset=self.bounds.log_start_offset,
            pieces=pieces,
            source=source,
            aborted_transactions=aborted,
            metadata_age_ms=None if self.tier_age_s is None else int(self.tier_age_s * 1000),
        )

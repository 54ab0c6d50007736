"""Answer a fetch, partition by partition, in parts that fit a message."""

import logging
from collections.abc import Callable, Iterator

from services.api.errors import CorruptSegmentError, RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    RecordSource,
)
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.fetch.partition_fetch import (
    Bounds,
    NotServedHereError,
    OffsetOutOfRangeError,
    PartitionBudget,
    PartitionFetch,
    RequestBudget,
    UnknownPartitionError,
)
from services.rlm.fetch.segment_reader import LostSegmentError, RemoteSegmentReader, TierRead
from services.rlm.kafka_log.batches import Batch, BatchError
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.metrics import TopicCounts
from services.rlm.partition import Partition

MAX_PART_BYTES = 1024 * 1024

_FETCH_FAILURES = (
    UnknownPartitionError,
    OffsetOutOfRangeError,
    NotServedHereError,
    LostSegmentError,
    BatchError,
    LogFileError,
    SegmentVanishedError,
    RemoteStorageError,
)

_ERRORS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], FetchError], ...] = (
    (UnknownPartitionError, FetchError.UNKNOWN_TOPIC_ID),
    (OffsetOutOfRangeError, FetchError.OFFSET_OUT_OF_RANGE),
    (NotServedHereError, FetchError.NOT_LEADER_OR_FOLLOWER),
    (RETRIABLE_ERRORS, FetchError.TIERED_STORAGE_NOT_AVAILABLE),
    ((BatchError, CorruptSegmentError), FetchError.CORRUPT_MESSAGE),
    # A leader-epoch index: the offset exists, so the error must not be OFFSET_OUT_OF_RANGE.
    (RemoteResourceNotFoundError, FetchError.UNKNOWN_SERVER_ERROR),
)

_log = logging.getLogger(__name__)


class Fetcher:
    """Serve fetches of the partitions that `partition_of` knows or creates. Thread-safe."""

    def __init__(
        self,
        partition_of: Callable[[TopicIdPartition], Partition],
        remote: RemoteSegmentReader,
        counts: TopicCounts,
    ) -> None:
        self._partition_of = partition_of
        self._remote = remote
        self._counts = counts

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        """As RemoteLogManager.fetch. A read that fails after it returned batches just ends; the
        next fetch, from the next offset, returns the error."""
        total = RequestBudget(request.max_bytes)
        for wanted in request.partitions:
            budget = PartitionBudget(total, wanted.max_bytes)
            yield from self._fetch_partition(wanted, budget)

    def _fetch_partition(
        self, wanted: FetchPartition, budget: PartitionBudget
    ) -> Iterator[FetchPart]:
        name = wanted.topic_id_partition
        fetch = PartitionFetch(self._partition_of(name), self._remote, wanted.fetch_offset)
        parts = _Parts(name)
        tier_read = TierRead(self._counts, name.topic)
        try:
            parts.bounds = fetch.find_bounds()
            fetch.check_range(parts.bounds)
            for source, batch in fetch.batches(budget):
                tier_read.got(source, batch.size_bytes)
                yield from parts.add(source, batch)
        except _FETCH_FAILURES as e:
            tier_read.failed(e)
            if parts.empty:
                yield parts.error(e)
                return
            _log.info("%s: read ended early: %s", name, e)
        yield from parts.finish()


class _Parts:
    """Join batches of one partition to parts of up to MAX_PART_BYTES."""

    def __init__(self, name: TopicIdPartition) -> None:
        self._name = name
        self._pieces: list[memoryview] = []
        self._gathered_bytes = 0
        self._source: RecordSource | None = None
        self.bounds = Bounds(-1, -1, -1, -1)
        self.empty = True

    def add(self, source: RecordSource, batch: Batch) -> Iterator[FetchPart]:
        self.empty = False
        if source is not self._source or self._gathered_bytes + batch.size_bytes > MAX_PART_BYTES:
            yield from self._flush()
        self._source = source
        self._pieces.append(batch.data)
        self._gathered_bytes += batch.size_bytes

    def finish(self) -> Iterator[FetchPart]:
        """Return the rest; for a partition without batches, one empty part."""
        yield from self._flush()
        if self.empty:
            yield self._part(b"", None)

    def error(self, error: Exception) -> FetchPart:
        kinds = (kind for classes, kind in _ERRORS if isinstance(error, classes))
        kind = next(kinds, FetchError.UNKNOWN_SERVER_ERROR)
        if kind is FetchError.UNKNOWN_SERVER_ERROR:
            _log.error("%s: fetch failed", self._name, exc_info=error)
        return self._part(b"", None, kind, str(error))

    def _flush(self) -> Iterator[FetchPart]:
        pieces, self._pieces, self._gathered_bytes = self._pieces, [], 0
        if not pieces:
            return
        joined = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        # Only a batch larger than a part is alone in `joined`; it is split.
        for at in range(0, len(joined), MAX_PART_BYTES):
            yield self._part(bytes(joined[at : at + MAX_PART_BYTES]), self._source)

    def _part(
        self,
        record_batches: bytes,
        source: RecordSource | None,
        error: FetchError = FetchError.NONE,
        message: str = "",
    ) -> FetchPart:
        return FetchPart(
            self._name,
            error,
            message,
            self.bounds.high_watermark,
            self.bounds.last_stable_offset,
            self.bounds.log_start_offset,
            record_batches,
            source,
        )

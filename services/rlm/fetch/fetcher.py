"""Serve a fetch, partition by partition, in parts that fit a message."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchPartition,
    FetchRequest,
    RecordSource,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.common.retry import RETRIABLE_ERRORS
from services.records.batches import Batch, BatchError
from services.rlm.fetch.index_cache import damaged
from services.rlm.fetch.segment_reader import (
    LostSegmentError,
    RemoteSegmentReader,
    TierRead,
    local_batches,
)
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment, LogFileError, SegmentVanishedError
from services.rlm.metrics import TopicCounts
from services.rlm.partition import Partition
from services.rlm.tier_state import Tier


@dataclass
class RequestBudget:
    """Limit the bytes of all partitions of a request.

    Attributes:
        left_bytes: the rest of the request's limit.
        empty: nothing was returned yet, so the next batch is returned whatever its size.
    """

    left_bytes: int
    empty: bool = True


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


class OffsetOutOfRangeError(Exception):
    """The error for an offset below the log start, beyond the log end, or between segments.

    An offset between the high watermark and the log end is in range, as in Kafka (LocalLog.read),
    with no records yet.
    """


class NotServedHereError(Exception):
    """The error for an offset that the tier lacks, if this broker has the log but no role (yet).

    It is not OFFSET_OUT_OF_RANGE, after which a consumer restarts at an end of the log. Only
    offsets below the tier's log start are certainly gone.
    """


class DamagedLogError(Exception):
    """The error for a damaged batch in a log file of the broker; no error of the tier."""


class UnknownPartitionError(Exception):
    """The error for a partition that is neither in the log directories nor in the tier."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition that can be read.

    Attributes:
        log_start_offset: the first offset, in the tier or here, not below the tier's log start;
            -1 if the tier's state was not read yet.
        high_watermark: the offset after the last readable one.
        log_end_offset: the offset after the last one that is here or in the tier.
    """

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


class PartitionFetch:
    """Read one partition once. Single use."""

    def __init__(self, partition: Partition, remote: RemoteSegmentReader, offset: int) -> None:
        self._partition = partition
        self._remote = remote
        self._offset = offset
        self._log: LocalLog | None = None
        self._tier = Tier()

    def find_bounds(self) -> Bounds:
        """Read the log and, if the offset is below it, the tier's state.

        Local and future offsets need no tier, so that a dead store or database never slows them.

        Raises:
            UnknownPartitionError: if neither the broker nor the tier has the partition.
            NotServedHereError: if the tier does not have the partition, but its log is here.
            RetriableRemoteStorageError: if the tier is needed and unreachable.
        """
        local = self._partition.role.local
        self._log = local.read() if local else None
        self._tier = self._partition.tier.last_seen
        if self._log is None or self._offset < self._log.log_start_offset:
            self._refresh_tier()
        if self._log is None and not self._tier.known:
            text = f"{self._partition.topic_id_partition} is not known here"
            if self._partition.role.log_is_not_served:
                raise NotServedHereError(f"{text} yet, but its log is here; retry in a few seconds")
            raise UnknownPartitionError(text)
        return self._bounds()

    def check_range(self, bounds: Bounds) -> None:
        """Check that the offset to fetch is within `bounds`.

        Raises:
            OffsetOutOfRangeError: if it is not.
            NotServedHereError: if it is not, but the log here may have it.
        """
        if self._offset < bounds.log_start_offset:
            raise self._not_there(
                f"offset {self._offset} is below the log start offset {bounds.log_start_offset}"
            )
        if self._offset > bounds.log_end_offset:
            raise self._not_there(
                f"offset {self._offset} is beyond the log end offset {bounds.log_end_offset}"
            )
        if self._partition.role.log_is_not_served and self._offset == bounds.log_end_offset:
            # This may not be the log's end, so a consumer must not wait here.
            raise self._not_there(f"the tier ends below offset {self._offset}")

    def batches(self, budget: PartitionBudget) -> Iterator[tuple[RecordSource, Batch]]:
        """Read whole batches from the offset, to the end of the budget or the high watermark.

        Raises:
            OffsetOutOfRangeError, NotServedHereError: if no segment contains the next offset.
            LostSegmentError, DamagedLogError, LogFileError, RemoteStorageError: if the segment
                cannot be read.
        """
        vanished, vanished_at = 0, -1
        end = self._bounds().high_watermark
        while self._offset < end and not budget.exhausted:
            segment = self._log.segment_for(self._offset) if self._log else None
            try:
                if segment is not None:
                    yield from self._local(segment, end, budget)
                else:
                    yield from self._from_tier(budget)
            except SegmentVanishedError:
                # A segment that was deleted here since is in the tier, or lost. Segments may vanish
                # one after the other; this is an error only if the read makes no progress.
                vanished = vanished + 1 if vanished_at == self._offset else 1
                vanished_at = self._offset
                if vanished > _ATTEMPTS or self._partition.role.local is None:
                    raise
                self._log = self._partition.role.local.read()
                self._refresh_tier()

    def _bounds(self) -> Bounds:
        starts = [] if self._log is None else [self._log.log_start_offset]
        if self._tier.start_offset is not None:
            starts.append(self._tier.start_offset)
        if self._log is None:
            end = self._tier.end_offset
            return Bounds(min(starts, default=end), end, end, end)
        # As in Kafka, the log start bounds every read: readers do not get expired records, though
        # the broker's disk may still have them. A local read uses the last known log start, which
        # the copy pass refreshes: a request to RLMM would make local reads depend on the database.
        known = self._tier.known is not None
        start = max(min(starts), self._tier.log_start_offset) if known else -1
        log, tier = self._log, self._tier
        # Copied records were settled then, whatever the checkpoint has now.
        copied_end = max(tier.covered(log.lineage).last + 1, tier.log_start_offset)
        settled = min(copied_end, log.log_end_offset)
        return Bounds(
            start,
            max(log.last_stable_offset, settled),
            max(log.high_watermark, settled),
            log.log_end_offset,
        )

    def _refresh_tier(self) -> None:
        with self._remote.acquire_slot():
            self._refresh_tier_in_slot()

    def _refresh_tier_in_slot(self) -> None:
        try:
            self._tier = self._partition.tier.refresh()
        except InvalidRequestError as e:  # the topic id has another name
            raise UnknownPartitionError(str(e)) from e

    def _local(
        self, segment: LocalSegment, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, Batch]]:
        assert self._log is not None
        try:
            for batch in local_batches(self._log, segment, self._offset, end_offset, budget.takes):
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
        hole = self._find_remote(self._offset)
        if hole is None:
            self._offset = following
        else:
            yield from self._segment_of_tier(hole, budget)

    def _from_tier(self, budget: PartitionBudget) -> Iterator[tuple[RecordSource, Batch]]:
        segment = self._find_remote(self._offset)
        if segment is None:
            raise self._not_there(f"no segment contains offset {self._offset}")
        yield from self._segment_of_tier(segment, budget)

    def _segment_of_tier(
        self, segment: RemoteLogSegmentMetadata, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, Batch]]:
        batches = self._remote.batches(segment, self._offset, budget.takes, budget.left_bytes)
        try:
            with closing(batches):
                for batch in batches:
                    yield RecordSource.REMOTE, batch
                    self._offset = batch.last_offset + 1
        except RemoteResourceNotFoundError as e:
            raise self._lost_or_deleted(segment, e) from e
        except BatchError as e:
            raise damaged(segment, f"{e} of the copied log") from e
        if not budget.exhausted:
            self._offset = max(self._offset, segment.end_offset + 1)

    def _lost_or_deleted(
        self, segment: RemoteLogSegmentMetadata, error: RemoteResourceNotFoundError
    ) -> OffsetOutOfRangeError | NotServedHereError | LostSegmentError:
        now = self._find_remote(self._offset)
        if now is None or now.remote_log_segment_id != segment.remote_log_segment_id:
            return self._not_there(f"offset {self._offset} was deleted during the read")
        return LostSegmentError(
            f"offset {self._offset}: segment {segment.remote_log_segment_id} "
            f"({segment.start_offset} to {segment.end_offset}) is not in the store: {error}"
        )

    def _not_there(self, text: str) -> OffsetOutOfRangeError | NotServedHereError:
        log_start_offset = self._tier.log_start_offset
        if self._partition.role.log_is_not_served and self._offset >= log_start_offset:
            return NotServedHereError(
                f"{text}, and this RLM has no role for the log here; retry, or ask the leader's RLM"
            )
        return OffsetOutOfRangeError(text)

    def _find_remote(self, offset: int) -> RemoteLogSegmentMetadata | None:
        with self._remote.acquire_slot():
            if self._tier.newest is None:
                self._refresh_tier_in_slot()
            local = self._log.lineage if self._log else Lineage()
            lineage = self._partition.tier.lineage.merged(self._tier, local)
            name = self._partition.topic_id_partition
            return self._remote.find(name, lineage, offset)


MAX_PART_BYTES = 1024 * 1024

_FETCH_FAILURES = (
    UnknownPartitionError,
    OffsetOutOfRangeError,
    NotServedHereError,
    LostSegmentError,
    DamagedLogError,
    LogFileError,
    SegmentVanishedError,
    RemoteStorageError,
)

_ERRORS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], FetchError], ...] = (
    (UnknownPartitionError, FetchError.UNKNOWN_TOPIC_ID),
    (OffsetOutOfRangeError, FetchError.OFFSET_OUT_OF_RANGE),
    (NotServedHereError, FetchError.NOT_LEADER_OR_FOLLOWER),
    (RETRIABLE_ERRORS, FetchError.TIERED_STORAGE_NOT_AVAILABLE),
    ((DamagedLogError, CorruptSegmentError), FetchError.CORRUPT_MESSAGE),
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
        """Fetch as in RemoteLogManager.fetch.

        A read that fails after it returned batches ends without an error; the next fetch, from the
        next offset, returns the error.
        """
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
    """Join batches of one partition into parts of up to MAX_PART_BYTES."""

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
        """Yield the rest, or one empty part for a partition without batches."""
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

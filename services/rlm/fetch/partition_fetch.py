"""Read one partition from an offset on: local segments first, below them the tier."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.lineage import Lineage
from services.api.remote_log_manager import RecordSource
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.fetch.segment_reader import LostSegmentError, RemoteSegmentReader, local_batches
from services.rlm.kafka_log.batches import Batch
from services.rlm.kafka_log.errors import BatchError, SegmentVanishedError
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.partition import Partition
from services.rlm.tier_state import Tier


@dataclass
class RequestBudget:
    """Of all partitions together.

    Attributes:
        left_bytes: what is left of the request's limit.
        empty: nothing was returned yet: the next batch is, whatever its size.
    """

    left_bytes: int
    empty: bool = True


class PartitionBudget:
    """Of one partition, within its request."""

    def __init__(self, request: RequestBudget, max_bytes: int) -> None:
        self._request = request
        self._left_bytes = max_bytes
        self.exhausted = False

    @property
    def left_bytes(self) -> int:
        return max(min(self._left_bytes, self._request.left_bytes), 0)

    def takes(self, size_bytes: int) -> bool:
        """Count a batch in, if it still fits; the first that does not ends the partition."""
        if size_bytes > self.left_bytes and not self._request.empty:
            self.exhausted = True
            return False
        self._request.empty = False
        self._request.left_bytes -= size_bytes
        self._left_bytes -= size_bytes
        return True


_ATTEMPTS = 3


class OffsetOutOfRangeError(Exception):
    """The offset is below the log start, beyond the log end, or in a hole between segments. One
    between the high watermark and the log end is none such, as in Kafka (LocalLog.read): nothing is
    there yet."""


class NotServedHereError(Exception):
    """The tier does not have the offset, and whether the log does is not known: it lies here, but
    this broker has no role for it, or none yet. Not out of range: a consumer that is told so begins
    anew at an end of the log. Only what lies below the tier's log start is nowhere."""


class UnknownPartitionError(Exception):
    """Neither the log directories nor the tier know the partition."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What of a partition can be read.

    Attributes:
        log_start_offset: the first offset, in the tier or here, not below the tier's log start;
            -1: the tier was not looked at yet.
        high_watermark: the offset after the last one.
        log_end_offset: the offset after the last one that is here or in the tier.
    """

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int


class PartitionFetch:
    """One read of one partition. Single use."""

    def __init__(self, partition: Partition, remote: RemoteSegmentReader, offset: int) -> None:
        self._partition = partition
        self._remote = remote
        self._offset = offset
        self._log: LocalLog | None = None
        self._tier = Tier()

    def look(self) -> Bounds:
        """Find out what there is; of an offset that is here, or that is still to come, the tier is
        not asked, so that a dead store or database never slows it.

        Raises:
            UnknownPartitionError.
            NotServedHereError: the tier does not know it, and its log lies here.
            RetriableRemoteStorageError: the tier must be asked and cannot be.
        """
        local = self._partition.role.local
        self._log = local.look() if local else None
        self._tier = self._partition.tier.last_seen
        if self._log is None or self._offset < self._log.log_start_offset:
            self._refresh_tier()
        if self._log is None and not self._tier.known:
            text = f"{self._partition.topic_id_partition} is not known here"
            if self._partition.role.log_is_not_served:
                raise NotServedHereError(f"{text} yet, and its log lies here")
            raise UnknownPartitionError(text)
        return self._bounds()

    def check_range(self, bounds: Bounds) -> None:
        """
        Raises:
            OffsetOutOfRangeError: the offset to fetch is outside of `bounds`.
            NotServedHereError: it is, but the log that lies here may have it.
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
            # Nobody knows whether it is the end, at which a consumer would wait.
            raise self._not_there(f"the tier ends below offset {self._offset}")

    def batches(self, budget: PartitionBudget) -> Iterator[tuple[RecordSource, Batch]]:
        """Whole batches from the offset on, until the budget ends or the high watermark is reached.

        Raises:
            OffsetOutOfRangeError, NotServedHereError: no segment holds the offset that comes next.
            LostSegmentError, BatchError, LogFileError, RemoteStorageError: it cannot be read.
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
                # What was deleted here since is in the tier, or lost. One after the other may go
                # while this goes on: only where it gets no further something is wrong.
                vanished = vanished + 1 if vanished_at == self._offset else 1
                vanished_at = self._offset
                if vanished > _ATTEMPTS or self._partition.role.local is None:
                    raise
                self._log = self._partition.role.local.look()
                self._refresh_tier()

    def _bounds(self) -> Bounds:
        starts = [] if self._log is None else [self._log.log_start_offset]
        if self._tier.start_offset is not None:
            starts.append(self._tier.start_offset)
        if self._log is None:
            end = self._tier.end_offset
            return Bounds(min(starts, default=end), end, end, end)
        # As in Kafka the log start bounds every read: what retention expired is gone for readers
        # though the broker's disk may have it still. A local read goes by the log start that was
        # seen last, at most a copy pass ago: to ask for it would tie local reads to the database.
        known = self._tier.known is not None
        start = max(min(starts), self._tier.log_start_offset) if known else -1
        log, tier = self._log, self._tier
        # What was copied was settled then, whatever is written down here by now.
        copied_end = max(tier.covered(log.lineage).last + 1, tier.log_start_offset)
        settled = min(copied_end, log.log_end_offset)
        return Bounds(
            start,
            max(log.last_stable_offset, settled),
            max(log.high_watermark, settled),
            log.log_end_offset,
        )

    def _refresh_tier(self) -> None:
        with self._remote.turn():
            self._refresh_tier_in_turn()

    def _refresh_tier_in_turn(self) -> None:
        try:
            self._tier = self._partition.tier.refresh()
        except InvalidRequestError as e:  # the topic's id belongs to another name
            raise UnknownPartitionError(str(e)) from e

    def _local(
        self, segment: LocalSegment, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, Batch]]:
        assert self._log is not None
        for batch in local_batches(self._log, segment, self._offset, end_offset, budget.takes):
            yield RecordSource.LOCAL, batch
            self._offset = batch.last_offset + 1
        following = min(segment.next_base_offset or end_offset, end_offset)
        if budget.exhausted or self._offset >= following:
            return
        # A segment's file is missing behind this one, or the log was compacted.
        hole = self._find_remote(self._offset)
        if hole is None:
            self._offset = following
        else:
            yield from self._segment_of_tier(hole, budget)

    def _from_tier(self, budget: PartitionBudget) -> Iterator[tuple[RecordSource, Batch]]:
        segment = self._find_remote(self._offset)
        if segment is None:
            raise self._not_there(f"no segment holds offset {self._offset}")
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
            raise self._lost_or_deleted(segment) from e
        except BatchError as e:
            raise CorruptSegmentError(str(e)) from e
        if not budget.exhausted:
            self._offset = max(self._offset, segment.end_offset + 1)

    def _lost_or_deleted(
        self, segment: RemoteLogSegmentMetadata
    ) -> OffsetOutOfRangeError | NotServedHereError | LostSegmentError:
        now = self._find_remote(self._offset)
        if now is None or now.remote_log_segment_id != segment.remote_log_segment_id:
            return self._not_there(f"offset {self._offset} was deleted while it was read")
        return LostSegmentError(
            f"offset {self._offset}: segment {segment.remote_log_segment_id} "
            f"({segment.start_offset} to {segment.end_offset}) is not in the store"
        )

    def _not_there(self, text: str) -> OffsetOutOfRangeError | NotServedHereError:
        log_start_offset = self._tier.log_start_offset
        if self._partition.role.log_is_not_served and self._offset >= log_start_offset:
            return NotServedHereError(
                f"{text}, and this RLM has no role for the log that lies here; ask again, or the "
                "leader's"
            )
        return OffsetOutOfRangeError(text)

    def _find_remote(self, offset: int) -> RemoteLogSegmentMetadata | None:
        with self._remote.turn():
            if self._tier.newest is None:
                self._refresh_tier_in_turn()
            local = self._log.lineage if self._log else Lineage()
            lineage = self._partition.tier.lineage.merged(self._tier, local)
            name = self._partition.topic_id_partition
            return self._remote.find(name, lineage, offset)

"""Read one partition of a fetch: from its offset on, whole batches, within the request's budget."""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from services.api.errors import (
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchRole,
    IsolationLevel,
    ProblemKind,
    RecordSource,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.common.retry import replan
from services.records.batches import HEADER_BYTES, BatchError
from services.records.runs import BatchRun
from services.rlm.fetch.aborted_transactions import AbortedTransactions, IndexEntries
from services.rlm.fetch.chunk_cache import Chunk
from services.rlm.fetch.errors import (
    DamagedLogError,
    FencedReaderError,
    LostSegmentError,
    MovedToTierError,
    NotServedHereError,
    OffsetOutOfRangeError,
    ReadTimeoutError,
    RecentTierError,
    SegmentReplacedError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
)
from services.rlm.fetch.index_cache import unreadable_batch_error
from services.rlm.fetch.partition_view import Bounds, PartitionView
from services.rlm.fetch.segment_reader import RemoteSegmentReader, local_runs
from services.rlm.fetch.tier_calls import TierWait
from services.rlm.kafka_log.partition_dir import LocalSegment, LogFileError, SegmentVanishedError
from services.rlm.partition import Partition


@dataclass
class RequestBudget:
    """Limit the bytes of all partitions of a request.

    Attributes:
        left_bytes: the rest of the request's limit.
        is_unused: nothing was returned yet, so the next batch is returned whatever its size.
    """

    left_bytes: int
    is_unused: bool = True


class PartitionBudget:
    """Limit the bytes of one partition, within its request."""

    def __init__(self, request: RequestBudget, max_bytes: int) -> None:
        self._request = request
        self._left_bytes = max_bytes
        self.has_admitted = False
        self._has_refused = False

    @property
    def left_bytes(self) -> int:
        return max(min(self._left_bytes, self._request.left_bytes), 0)

    @property
    def exhausted(self) -> bool:
        """Return whether no further batch can fit, so that none needs to be read."""
        return self._has_refused or (not self._request.is_unused and self.left_bytes < HEADER_BYTES)

    def limit(self, most_bytes: int) -> None:
        """Limit the rest of the read to so many bytes."""
        self._left_bytes = min(self._left_bytes, most_bytes)

    def admit(self, size_bytes: int) -> bool:
        """Count a batch if it still fits; the first that does not fit ends the read."""
        if size_bytes > self.left_bytes and not self._request.is_unused:
            self._has_refused = True
            return False
        self._request.is_unused, self.has_admitted = False, True
        self._request.left_bytes -= size_bytes
        self._left_bytes -= size_bytes
        return True


_ATTEMPTS = 3

_INDEX_IS_GONE = (SegmentVanishedError, RecentTierError)
"""The errors if what the search needs was deleted after the log or the tier was read."""

DECIDED_BY_TIER = (
    UnknownPartitionError,
    OffsetOutOfRangeError,
    NotServedHereError,
    FencedReaderError,
    UnknownLeaderEpochError,
    LostSegmentError,
    RecentTierError,
)
"""The errors that the tier's state decides, so that RLMM has to be read for them."""


class PartitionFetch:
    """Read one partition once. Single use."""

    def __init__(
        self,
        partition: Partition,
        remote: RemoteSegmentReader,
        offset: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        role: FetchRole = FetchRole.CONSUMER,
        wait: TierWait | None = None,
    ) -> None:
        self._offset = self._part_offset = offset
        # As in Kafka, a follower gets all records, whatever the isolation level.
        self.is_follower = role is FetchRole.FOLLOWER
        self._isolation = IsolationLevel.READ_UNCOMMITTED if self.is_follower else isolation
        self._role = role
        self._aborted: AbortedTransactions | None = None
        self._index_entries: IndexEntries | None = None
        self.view = PartitionView(partition, remote, remote.ages_for(role), wait)
        self._ends_with_segment = False
        self._first: RemoteLogSegmentMetadata | None = None

    def find_bounds(self) -> Bounds:
        """Read what the offset needs of log and tier, as PartitionView.find_bounds."""
        return self.view.find_bounds(self._offset, self._isolation)

    def check_range(self, bounds: Bounds) -> None:
        """Check that the offset to fetch is within `bounds`, or in a recorded gap before them.

        Raises:
            OffsetOutOfRangeError: if it is not.
            NotServedHereError: if it is not, but the log here or the leader's may have it.
            MovedToTierError: if a follower wants it, and only the tier has it.
        """
        if self._offset < bounds.log_start_offset:
            if self.is_follower or self._offset < self.view.tier.log_start_offset:
                raise self._absent(
                    f"offset {self._offset} is below the log start offset {bounds.log_start_offset}"
                )
            self._offset = self._part_offset = self.view.offset_after_hole(self._offset)
        if self._offset > bounds.log_end_offset:
            text = f"offset {self._offset} is beyond the log end offset {bounds.log_end_offset}"
            raise self.view.behind_error(text) or self._absent(text)
        log = self.view.log
        local_start = max(log.log_start_offset, self.view.tier.log_start_offset) if log else 0
        if self.is_follower and self._offset < local_start:
            raise MovedToTierError(self._offset)
        if self.view.partition.role.log_is_not_served and self._offset == bounds.log_end_offset:
            # This may not be the log's end, so a consumer must not wait here.
            raise self._absent(f"the tier ends below offset {self._offset}")

    def _end(self) -> int:
        """Return the offset after the last one that the reader may get."""
        return self.view.bounds().end_for(self._isolation, self._role)

    def find_first(self) -> RemoteLogSegmentMetadata | None:
        """Read all that a read needs of RLMM and RSM before its first record.

        Returns:
            The remote segment that has it; None if a local one has, or none.

        Raises:
            MovedToTierError, LostSegmentError, DamagedLogError, RemoteStorageError, and others of
                `runs`: if the segment cannot be read.
        """
        self._first = self._aborted = self._index_entries = None
        is_here = self.view.log is not None and self.view.log.segment_for(self._offset) is not None
        if is_here or self.is_follower or self._offset >= self._end():
            return None
        self.view.remote.require_quota()
        self._first = segment = self.view.find_remote(self._offset)
        if segment is None:
            return None
        self._load_index(segment)
        return segment

    def request_first(self, first_bytes: int) -> Chunk | None:
        """Do as `find_first`, and request the first bytes.

        Nothing else of this read waits for RLMM or an index then: it ends with its segment, as in
        Kafka. Release the chunk after the read. Raises as `find_first`.
        """
        segment = self.find_first()
        if segment is None:
            return None
        self._ends_with_segment = True
        with self._naming(segment, is_in_pool=True), self.view.calls.slot():
            if self._isolation is IsolationLevel.READ_COMMITTED:
                try:
                    self._search_aborted().search(min(segment.end_offset + 1, self._end()))
                except _INDEX_IS_GONE:
                    self._aborted = None  # The read begins another search.
            with suppress(ThrottledError):
                return self.view.remote.request_first(segment, self._offset, first_bytes)
        return None

    def aborted_below(self, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions of the next part, which ends before `end_offset`.

        Those of earlier parts are left out, unless the log changed meanwhile.

        Raises:
            OffsetOutOfRangeError: if the part's records were deleted meanwhile, and with them
                perhaps the index of their transactions.
            DamagedLogError, LogFileError, SegmentVanishedError, RemoteStorageError: if an index
                cannot be read.
        """
        if self._isolation is not IsolationLevel.READ_COMMITTED:
            return ()
        # In this thread, however long RLMM takes: in a log of many leader epochs the search calls
        # RLMM for each of them. With a limit, each fetch would start it from the beginning.
        aborted = replan(
            lambda search: search.below(end_offset),
            self._search_aborted,
            first=self._aborted,
            stale=_INDEX_IS_GONE,
        )
        self._require_undeleted(end_offset)
        # Never again what ended before the next part: a reader has forgotten that it ended.
        self._part_offset = end_offset
        return aborted

    def _search_aborted(self) -> AbortedTransactions:
        if self._aborted is not None:
            self.view.read_log()
            self.view.refresh_tier()
        self._index_entries = IndexEntries(self.view, self._part_offset)
        self._aborted = AbortedTransactions(self._index_entries, self._part_offset)
        return self._aborted

    def _require_undeleted(self, end_offset: int) -> None:
        """Check that the part's records were not deleted before the search for transactions."""
        view, name = self.view, self.view.partition.topic_id_partition
        if self._index_entries is not None and self._index_entries.is_changed:
            view.refresh_tier()
            if view.tier_age_s is not None:
                raise RetriableRemoteStorageError(
                    f"{name}: the tier has changed, and RLMM cannot be reached any more; retry"
                )
            if not view.tier.known:
                raise UnknownPartitionError(f"{name} was deleted from the tier during the read")
        bounds, first = view.bounds(), self._part_offset
        if first < bounds.log_start_offset or end_offset > bounds.log_end_offset:
            raise OffsetOutOfRangeError(
                f"{name}: offsets {first} to {end_offset - 1} were deleted during the read; there "
                f"are {bounds.log_start_offset} to {bounds.log_end_offset - 1} now"
            )

    def runs(self, budget: PartitionBudget) -> Generator[tuple[RecordSource, BatchRun], None, None]:
        """Read whole batches from the offset, to the end of the budget or of what may be read.

        Raises:
            OffsetOutOfRangeError, NotServedHereError: if the next offset was deleted.
            MovedToTierError: if a follower wants the next offset, and only the tier has it.
            ReadThrottledError: if the fetch quota is used up.
            ReadTimeoutError: if the store does not send the next bytes in time.
            LostSegmentError, DamagedLogError, LogFileError, RemoteStorageError: if the segment
                cannot be read.
        """
        vanished, vanished_at = 0, -1
        end = self._end()
        while self._offset < end and not budget.exhausted:
            segment = self.view.log.segment_for(self._offset) if self.view.log else None
            try:
                if segment is not None:
                    yield from self._local(segment, end, budget)
                else:
                    yield from self._from_tier(end, budget)
                if segment is None and self._ends_with_segment and budget.has_admitted:
                    return
            except SegmentVanishedError:
                # A segment that was deleted here since is in the tier, or lost. Segments may vanish
                # one after the other; this is an error only if the read makes no progress.
                vanished = vanished + 1 if vanished_at == self._offset else 1
                vanished_at = self._offset
                if vanished > _ATTEMPTS or self.view.partition.role.local is None:
                    raise
                self.view.read_log()
                self.view.calls.in_time(self.view.refresh_tier)
            except DECIDED_BY_TIER as e:
                if not self.view.tier_is_recent and not isinstance(e, SegmentReplacedError):
                    raise
                self.view.calls.in_time(self.view.refresh_tier)

    def _local(
        self, segment: LocalSegment, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, BatchRun]]:
        log = self.view.log
        assert log is not None
        try:
            for run in local_runs(segment, self._offset, end_offset, budget.admit):
                yield RecordSource.LOCAL, run
                self._offset = run.last_offset + 1
        except BatchError as e:
            path = segment.log_path
            if e.kind is ProblemKind.LIMIT_EXCEEDED:
                raise LogFileError(e.kind, path, str(e), e.offset) from e
            raise DamagedLogError(
                f"{self.view.partition.topic_id_partition}: {path}: {e}; `kafka-dump-log.sh "
                f"--deep-iteration --files {path}` shows what is left of it"
            ) from e
        following = min(segment.next_base_offset or end_offset, end_offset)
        if budget.exhausted or self._offset >= following:
            return
        # The next segment's file is missing, or the log was compacted.
        copied = self._find_segment()
        if copied is None:
            self._offset = following
        elif self.is_follower:
            raise MovedToTierError(self._offset)
        else:
            self.view.calls.in_time(partial(self._load_index, copied))
            yield from self._segment_of_tier(copied, end_offset, budget)

    def _from_tier(
        self, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, BatchRun]]:
        segment, self._first = self._first, None
        if segment is None:
            segment = self._find_segment()
            if segment is None:
                after = partial(self.view.offset_after_hole, self._offset)
                self._offset = self.view.calls.in_time(after)
                return
            if self.is_follower:
                raise MovedToTierError(self._offset)
            if self._offset > segment.start_offset:
                self.view.calls.in_time(partial(self._load_index, segment))
        yield from self._segment_of_tier(segment, end_offset, budget)

    def _segment_of_tier(
        self, segment: RemoteLogSegmentMetadata, end_offset: int, budget: PartitionBudget
    ) -> Iterator[tuple[RecordSource, BatchRun]]:
        expected_bytes = max(min(budget.left_bytes, segment.segment_size_in_bytes), 1)
        reserved_bytes = self.view.remote.reserve_quota(expected_bytes)
        if reserved_bytes < expected_bytes:
            budget.limit(reserved_bytes)
        runs = self.view.remote.runs(
            segment,
            self._offset,
            budget.admit,
            budget.left_bytes,
            end_offset,
            lambda: self._following(segment),
            self.view.calls.wait,
        )
        fetched_bytes = 0
        try:
            with self._naming(segment), self.view.calls.slot(), closing(runs):
                for run in runs:
                    fetched_bytes += run.size_bytes
                    yield RecordSource.REMOTE, run
                    self._offset = run.last_offset + 1
                    if budget.exhausted:
                        break  # The next header may be in bytes that were not requested.
        finally:
            self.view.remote.settle_quota(reserved_bytes, fetched_bytes)
        if not budget.exhausted:
            self._offset = max(self._offset, segment.end_offset + 1)

    def _following(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """Find the segment to read ahead in; none if that might hold up other reads."""
        if self._ends_with_segment:
            return None
        background = self.view.background_view()
        with suppress(ReadTimeoutError):
            return background.calls.in_time(lambda: background.find_remote(segment.end_offset + 1))
        return None

    def _find_segment(self) -> RemoteLogSegmentMetadata | None:
        return self.view.calls.in_time(lambda: self.view.find_remote(self._offset))

    def _load_index(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Load what the read needs of a segment's index into the cache; return True."""
        remote = self.view.remote
        with self._naming(segment, is_in_pool=True):
            return self.view.calls.call(
                lambda: remote.load_index(segment, self._offset),
                lambda: remote.has_index(segment, self._offset) or None,
            )

    @contextmanager
    def _naming(
        self, segment: RemoteLogSegmentMetadata, is_in_pool: bool = False
    ) -> Iterator[None]:
        """Name the segment in the errors of its read."""
        try:
            yield
        except RemoteResourceNotFoundError as e:
            find = partial(self.view.find_remote, self._offset, is_changed=True)
            now = find() if is_in_pool else self.view.calls.in_time(find)
            if now is not None and now.remote_log_segment_id != segment.remote_log_segment_id:
                raise SegmentReplacedError(f"offset {self._offset} is in another segment") from e
            if now is None:
                raise self._absent(f"offset {self._offset} was deleted during the read") from e
            id, reason = str(segment.remote_log_segment_id), str(e)
            reason = reason.partition(": ")[2] if reason.startswith(id) else reason
            raise LostSegmentError(
                f"offset {self._offset}: segment {id} ({segment.start_offset} to "
                f"{segment.end_offset}) is not in the store: {reason}"
            ) from e
        except BatchError as e:
            raise unreadable_batch_error(segment, e) from e

    def _absent(self, text: str) -> OffsetOutOfRangeError | NotServedHereError:
        return self.view.absent_offset_error(self._offset, text)

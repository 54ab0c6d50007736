"""See one partition as a request sees it: its log, its tier, and the offsets that can be read."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotDoneError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX, Lock
from typing import TypeVar

from services.api.errors import (
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.lineage import EpochEnd, Lineage
from services.api.partitions import is_recorded
from services.api.remote_log_manager import FetchRole, IsolationLevel
from services.api.segments import RemoteLogSegmentMetadata
from services.common.fair_queue import Slot
from services.rlm.copy.gaps import lost_ranges
from services.rlm.fetch.errors import (
    FencedReaderError,
    MovedToTierError,
    NotServedHereError,
    OffsetOutOfRangeError,
    ReadTimeoutError,
    RecentTierError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
)
from services.rlm.fetch.read_ahead import TierWait
from services.rlm.fetch.reader_pool import ReaderPool
from services.rlm.fetch.segment_lookups import ListedSegments
from services.rlm.fetch.segment_reader import MetadataAges, RemoteSegmentReader
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.partition import Partition
from services.rlm.tier import Tier

T = TypeVar("T")

_ROUNDING_S = 0.005
"""A wait for another read may end so much before the time is over."""


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

    def end_for(self, isolation: IsolationLevel, role: FetchRole = FetchRole.CONSUMER) -> int:
        """Return the offset after the last one that such a reader gets."""
        if role is FetchRole.FOLLOWER:
            return self.log_end_offset
        if isolation is IsolationLevel.READ_COMMITTED:
            return min(self.last_stable_offset, self.high_watermark)
        return self.high_watermark


class PartitionView:
    """The log and the tier of one partition, as one request sees them.

    Not thread-safe: only one thread at a time uses it, that of the request or one of the pool.

    Attributes:
        log: None if this broker has no log of the partition, or no role for it.
        tier: as it was last known, or read for this request.
        tier_is_recent: it was read a moment ago for another request, not for this one.
        tier_age_s: its age, if it was to be read and RLMM was unreachable.
    """

    def __init__(
        self,
        partition: Partition,
        remote: RemoteSegmentReader,
        ages: MetadataAges | None = None,
        wait: TierWait | None = None,
    ) -> None:
        """See a partition.

        Args:
            ages: how old the tier's state may be; by default it is read for this request.
            wait: for a slot, and for the store.
        """
        self.partition = partition
        self.remote = remote
        self.log: LocalLog | None = None
        self.tier = Tier()
        self._tier_stable_end: int | None = None
        self._lock = Lock()
        self._slot: Slot | None = None
        self._needs_slot = True
        self._is_late = False
        self._ages = ages or MetadataAges()
        self.wait = wait or TierWait(remote.wait_s)
        self.tier_age_s: float | None = None
        self.tier_is_recent = False
        self._tier_is_later_than_log = False

    @contextmanager
    def remote_slot(self) -> Iterator[None]:
        """Hold a slot for remote reads; within another block of this view it is the same slot.

        A request that needed a second slot while it holds one could wait for itself.

        Raises:
            ThrottledError, ReadTimeoutError: if no slot is free, or became free in time.
        """
        if self._slot is not None or not self._needs_slot:
            yield
            return
        self._hold(self.remote.acquire_slot(self.wait))
        try:
            yield
        finally:
            self._release_slot()

    def ask(self, call: Callable[[], T]) -> T:
        """Call RLMM or RSM within a slot, and again for a while if that fails for now.

        Raises as TierWait.retry and `remote_slot`.
        """
        with self.remote_slot():
            return self.wait.retry(call)

    @contextmanager
    def without_slot(self) -> Iterator[None]:
        """Hold no slot in the block, in which a client takes what was read, however slowly.

        Raises:
            ThrottledError, ReadTimeoutError: if no slot is free afterwards.
        """
        had_slot = self._slot is not None
        self._release_slot()
        yield
        if had_slot:
            self._hold(self.remote.acquire_slot(self.wait))

    def _hold(self, slot: Slot) -> None:
        with self._lock:
            if self._needs_slot:
                self._slot = slot
                return
        slot.release()

    def _release_slot(self) -> None:
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        """Begin work with this view in a thread of the pool; get its result with `result`."""
        return self._submit(self.remote.pool, work)

    def _submit(self, pool: ReaderPool, work: Callable[[], T]) -> "Future[T]":
        if self.remote.late.are_too_many(self.partition.topic_id_partition):
            return Future()  # `result` waits for it in vain, so that the client does not spin.
        try:
            return pool.submit(work)
        except RuntimeError:  # The pool is closed, or no thread can be started.
            never: Future[T] = Future()
            never.cancel()
            return never

    def result(self, begun: "Future[T]") -> T:
        """Wait for begun work for as long as the wait allows.

        Work that is late goes on without a slot, so that a later read finds what it leaves in the
        caches. The view is of no use then.

        Raises:
            ReadTimeoutError: if the work is late.
            Others: the error of the work.
        """
        try:
            try:
                return begun.result(timeout=min(self.wait.left_s, TIMEOUT_MAX))
            except NotDoneError:
                if not begun.done():
                    raise
                return begun.result()  # It has ended just now.
        except RetriableRemoteStorageError as e:
            if self.wait.left_s > _ROUNDING_S:
                raise
            raise ReadTimeoutError(str(e)) from e  # It waited for another read.
        except (NotDoneError, CancelledError):
            if not begun.cancel():
                self.remote.late.add(self.partition.topic_id_partition, begun)
            self._is_late = True
            self.abandon()
            raise ReadTimeoutError(
                f"{self.partition.topic_id_partition}: RLMM or RSM has not answered within "
                f"{self.wait.wait_s:g} s; retry"
            ) from None

    def in_time(self, work: Callable[[], T]) -> T:
        """Run work that calls RLMM or RSM in the pool, and wait as for one answer.

        Raises as `result`.
        """
        if self._is_late:
            raise ReadTimeoutError(f"{self.partition.topic_id_partition}: an earlier call is late")
        with self.wait.one_answer():
            return self.result(self._submit(self.remote.calls, work))

    def abandon(self) -> None:
        """Release the slot; work that still runs with this view needs none."""
        with self._lock:
            self._needs_slot = False
        self._release_slot()

    def beside(self) -> "PartitionView":
        """Return a view of the same log and tier for work that the read does not depend on.

        It needs no slot: the reader that wants it holds one.
        """
        view = PartitionView(self.partition, self.remote, self._ages, self.wait)
        view.log, view.tier, view._needs_slot = self.log, self.tier, False
        return view

    def needs_tier(self, offset: int, last_fetched_epoch: int | None = None) -> bool:
        """Return whether a read at `offset` needs RLMM or RSM, as far as the log shows."""
        try:
            self.read_log()
        except (LogFileError, SegmentVanishedError):
            return False  # Only its own answer has the error.
        if self.log is None or offset < self.log.log_start_offset:
            return True
        epochs = self.log.lineage.entries
        return last_fetched_epoch is not None and (
            not epochs or last_fetched_epoch < epochs[0].leader_epoch
        )

    def find_bounds(
        self,
        offset: int = -1,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Bounds:
        """Read the log and, if `offset` is below it, the tier's state.

        Local and future offsets need no tier, so that a dead store or database never slows them.

        Raises:
            UnknownPartitionError: if neither the broker nor the tier has the partition.
            NotServedHereError: if the tier does not have the partition, but its log is here.
            RetriableRemoteStorageError: if the tier is needed and unreachable.
        """
        self.read_log()
        self.tier = self.partition.tier.cached
        needs_tier = self.log is None or offset < self.log.log_start_offset
        if needs_tier and not self._use_recent(offset, isolation):
            self.refresh_tier(offset)
        if self.log is None and not self.tier.known:
            text = f"{self.partition.topic_id_partition} is not known here"
            if self.partition.role.log_is_not_served:
                raise NotServedHereError(f"{text} yet, but its log is here; retry in a few seconds")
            raise UnknownPartitionError(text)
        if self.log is None and self.tier_age_s is not None and offset > self.tier.end_offset:
            # The tier may have grown since; OFFSET_OUT_OF_RANGE would let a consumer begin again.
            raise RetriableRemoteStorageError(
                f"{self.partition.topic_id_partition}: offset {offset} is beyond what is known "
                "here of the tier while RLMM cannot be reached; retry"
            )
        if self.log is None and isolation is IsolationLevel.READ_COMMITTED:
            try:
                self._tier_stable_end = self._read_tier_stable_end()
            except RemoteResourceNotFoundError:
                if not self.tier_is_recent:
                    raise
                self.read_tier_always()  # The newest segment was deleted since.
                return self.find_bounds(offset, isolation)
        return self.bounds()

    def read_log(self) -> None:
        """Read the log's present state."""
        local = self.partition.role.local
        self._tier_is_later_than_log = False
        self.log = local.read() if local else None

    def _use_recent(self, offset: int, isolation: IsolationLevel) -> bool:
        """Use a tier that was read a moment ago, if a known segment of it has the offset."""
        tier = self.partition.tier.recent(self._ages.recent_s)
        name = self.partition.topic_id_partition
        if tier is None or not self.remote.lookups.knows(name, offset, tier.revision):
            return False
        if isolation is IsolationLevel.READ_COMMITTED and not self._reaches_log(tier):
            return False
        self.tier, self.tier_age_s, self.tier_is_recent = tier, None, True
        return True

    def _reaches_log(self, tier: Tier) -> bool:
        """Return whether the tier has all that the log does not have any more.

        A segment that was copied and deleted here after the tier was read is in neither: its
        transaction index would be missed.
        """
        return self.log is None or tier.end_offset >= self.log.segments[0].base_offset

    def require_complete_tier(self) -> None:
        """Check that a tier that was read before the log reaches it, if RLMM is unreachable.

        Raises:
            RetriableRemoteStorageError: if it does not.
        """
        if not self._tier_is_later_than_log and not self._reaches_log(self.tier):
            raise RetriableRemoteStorageError(
                f"{self.partition.topic_id_partition}: segments may have been copied and deleted "
                "here since RLMM could be reached, and their transactions are not known; retry"
            )

    def read_tier_always(self) -> None:
        """Use nothing that was read for other requests from now on."""
        self._ages = replace(self._ages, recent_s=0.0)

    def refresh_tier(self, offset: int = -1) -> None:
        """Read the tier's present state; if that lists it, remember the segment of `offset`.

        Raises:
            UnknownPartitionError: if the topic id has another name.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        listed = ListedSegments(offset)
        self.tier_is_recent = self._tier_is_later_than_log = False
        state = self.partition.tier
        try:
            self.tier, self.tier_age_s = self.ask(
                lambda: state.refresh_or_last(
                    self._ages.stale_s, listed.add, min(self.wait.left_s, TIMEOUT_MAX)
                )
            )
        except InvalidRequestError as e:
            raise UnknownPartitionError(str(e)) from e
        self._tier_is_later_than_log = self.tier_age_s is None
        if self.tier.revision is not None:
            for segment in listed.found():
                name = self.partition.topic_id_partition
                self.remote.lookups.remember(name, segment, self.tier.revision)

    def bounds(self) -> Bounds:
        """Return the offsets that can be read, by what was read so far."""
        starts = [] if self.log is None else [self.log.log_start_offset]
        if self.tier.start_offset is not None:
            starts.append(self.tier.start_offset)
        if self.log is None:
            end = self.tier.end_offset
            stable_end = self._tier_stable_end
            stable = end if stable_end is None else min(stable_end, end)
            return Bounds(min(starts, default=end), stable, end, end)
        # As in Kafka, the log start bounds every read: readers do not get expired records, though
        # the broker's disk may still have them. A local read uses the last known log start, which
        # the copy pass refreshes: a request to RLMM would make local reads depend on the database.
        known = self.tier.known is not None
        start = max(min(starts), self.tier.log_start_offset) if known else -1
        log, tier = self.log, self.tier
        # Copied records were settled then, whatever the checkpoint has now.
        copied_end = max(tier.covered(log.lineage).last + 1, tier.log_start_offset)
        settled = min(copied_end, log.log_end_offset)
        return Bounds(
            start,
            max(log.last_stable_offset, settled),
            max(log.high_watermark, settled),
            log.log_end_offset,
        )

    def _read_tier_stable_end(self) -> int | None:
        """Return the first offset of a transaction whose end is not in the tier; None if unknown.

        Kafka copies a segment once nothing that began before its end is open. The end of what was
        ended may be behind it, in a segment that is not copied yet.
        """
        newest = self.tier.newest
        return None if newest is None else self.ask(lambda: self.remote.first_open_offset(newest))

    def find_remote(self, offset: int, is_changed: bool = False) -> RemoteLogSegmentMetadata | None:
        """Find the finished segment that contains `offset` in this partition's lineage.

        It is not looked up again while the tier is as it was last read, unless `is_changed`.
        """
        with self.remote_slot():
            epoch, revision = self._epoch_of(offset), None if is_changed else self.tier.revision
            if epoch is None:
                return None
            name, find = self.partition.topic_id_partition, self.remote.lookups.find
            return self.ask(lambda: find(name, epoch, offset, revision))

    def _epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch of an offset of the tier; None if it is before the first."""
        if self.log is None:
            if self.tier.newest is None:
                self.refresh_tier(offset)
            shown = self.tier.epoch_of(offset)
            if shown is not None:
                return shown
        return self.lineage().epoch_for_offset(offset)

    def lineage(self) -> Lineage:
        """Return the leader epochs of tier and log."""
        with self.remote_slot():
            if self.tier.newest is None:
                self.refresh_tier()
            local = self.log.lineage if self.log else Lineage()
            try:
                return self.ask(lambda: self.partition.tier.lineage.merged(self.tier, local))
            except RemoteResourceNotFoundError as e:
                if not self.tier_is_recent:
                    raise
                raise RecentTierError(str(e)) from e

    def check_leader_epoch(self, epoch: int | None) -> None:
        """Check the leader epoch that a reader knows; None passes (KIP-320).

        Only an RLM with a role knows the present epoch. Without one a later epoch than those of the
        tier may be right.

        Raises:
            FencedReaderError: if a later epoch is known here.
            UnknownLeaderEpochError: if the epoch is later than the present one.
        """
        if epoch is None:
            return
        known = self.known_epoch()
        name = self.partition.topic_id_partition
        if known is not None and epoch < known:
            raise FencedReaderError(f"{name} is in leader epoch {known}, not in {epoch} any more")
        if self.partition.role.leadership is not None and (known is None or epoch > known):
            raise UnknownLeaderEpochError(f"{name} is in leader epoch {known} here, not in {epoch}")

    def known_epoch(self) -> int | None:
        """Return the latest leader epoch that is known here, by role, log and tier."""
        found = [] if self.log is None else [self.log.lineage.latest_epoch]
        if self.partition.role.leadership is not None:
            found.append(self.partition.role.leadership.leader_epoch)
        if self.tier.newest is not None:
            found.append(self.tier.newest.segment_leader_epochs[-1].leader_epoch)
        return max((epoch for epoch in found if epoch is not None), default=None)

    def end_of_epoch(self, epoch: int) -> EpochEnd | None:
        """Return the end of the greatest epoch here that is not above `epoch`.

        The tier's leader epochs are read only if the log does not reach back to `epoch`. None: the
        epoch is later than all here.

        Raises:
            RemoteStorageError: if the tier's leader epochs are needed and cannot be read.
        """
        lineage = self.log.lineage if self.log else Lineage()
        if not lineage.entries or epoch < lineage.entries[0].leader_epoch:
            lineage = self.lineage()
        return lineage.end_of(epoch, self.bounds().log_end_offset)

    def diverging_epoch(self, last_fetched_epoch: int | None, offset: int) -> EpochEnd | None:
        """Return where a reader's log leaves this one, if it does (KIP-320).

        Source: Partition.readRecords.

        Args:
            last_fetched_epoch: of the reader's last record, before `offset`; None if not compared.

        Raises:
            OffsetOutOfRangeError: if no epoch here is as late.
            RemoteStorageError: as end_of_epoch.
        """
        if last_fetched_epoch is None:
            return None
        end = self.end_of_epoch(last_fetched_epoch)
        if end is None:
            raise OffsetOutOfRangeError(
                f"leader epoch {last_fetched_epoch} of the last fetched record is later than all "
                "of this log"
            )
        diverges = end.leader_epoch < last_fetched_epoch or end.end_offset < offset
        return end if diverges else None

    def require_leader(self) -> None:
        """Check that a follower may fetch here.

        Raises:
            NotServedHereError: if this broker does not lead the partition.
        """
        if self.log is None or not self.partition.role.is_leader:
            name = self.partition.topic_id_partition
            raise NotServedHereError(f"{name} is not led here; a replica asks the leader's RLM")

    def behind_hole(self, offset: int) -> int:
        """Return the next offset that the tier or the log has, if neither has `offset`.

        A reader continues there, as behind records that were compacted.

        Raises:
            OffsetOutOfRangeError, NotServedHereError: if the offset was deleted, or none follows.
            RetriableRemoteStorageError: if the offset may be lost, which is not recorded yet.
            RecentTierError: if the tier was read for another request.
            RemoteStorageError: if RLMM or RSM cannot be read.
        """
        if self.tier_is_recent:
            raise RecentTierError(f"offset {offset} is not in the tier as it was a moment ago")
        covered, log = self.tier.covered(self.lineage()), self.log
        following = [first for first, _ in covered if first > offset]
        if log is not None and log.log_start_offset > offset:
            following.append(log.log_start_offset)
        if not following or covered.covers(offset, offset):
            raise self.not_there(offset, f"offset {offset} was deleted during the read")
        behind, partition = min(following), self.partition
        log = None if log is None else log.from_offset(self.tier.log_start_offset)
        lost = self.ask(lambda: lost_ranges(partition, log, covered, self.tier))
        if not any(first <= offset <= last for first, last in lost):
            if offset < self.bounds().log_start_offset:
                raise self.not_there(offset, f"offset {offset} was deleted")
        elif not is_recorded(
            self.ask(lambda: partition.tier.gaps.refresh(self.tier)), offset, behind - 1
        ):
            if partition.role.log_is_not_served:
                raise self.not_there(offset, f"offset {offset} is in no segment of the tier")
            raise RetriableRemoteStorageError(
                f"{partition.topic_id_partition}: offsets {offset} to {behind - 1} are neither in "
                "the tier nor on this disk, and no loss is recorded yet; retry"
            )
        return behind

    def moved(self, offset: int) -> MovedToTierError:
        """Make the error of a follower's offset that is only in the tier."""
        return MovedToTierError(
            f"offset {offset} is in the tier only; begin the replica's log by "
            "BuildRemoteLogAuxState of the earliest local offset (ListOffsets -4)"
        )

    def not_there(self, offset: int, text: str) -> OffsetOutOfRangeError | NotServedHereError:
        """Make the error of an offset that is neither here nor in the tier."""
        if self.partition.role.log_is_not_served and offset >= self.tier.log_start_offset:
            return NotServedHereError(
                f"{text}, and this RLM has no role for the log here; retry, or ask the leader's RLM"
            )
        return OffsetOutOfRangeError(text)

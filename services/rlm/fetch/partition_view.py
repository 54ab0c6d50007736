"""Find what a request needs to know of one partition: its log, its tier, the offsets to read.

What for. A broker knows its log; RLM has a log that another program writes, a tier that other RLMs
write, and perhaps no role. A PartitionView answers what is where: where the partition begins and
ends, which segment of the tier has an offset, in which leader epoch it lies, what follows a hole.

How to use. One view for each partition of a request. `find_bounds` reads the log and, only if the
offset needs it, the tier; then `find_remote`, `offset_after_hole`, `end_of_epoch`,
`diverging_epoch` and the checks answer from that. `calls` makes all calls to RLMM and RSM
(tier_calls.py).

Invariants.
* A local or future offset needs no call, so that a dead store or database never slows local reads.
* The log start bounds every read, as in Kafka: expired records are not read, even if the disk still
  has them. What is in the tier is settled, whatever the broker's checkpoint has now.
* What was read for another request a moment ago is used only to show records. Before a refusal that
  the tier decides, the tier is read for this request (RecentTierError causes that).
* No offset is called out of range while it may exist: without a role, or while RLMM is away, the
  answer is one that a reader repeats.

Cancellation. A view is of no use after a late call. Crash: a view has no state that outlives its
request. A dead database: the tier as it was last known serves consumers for a while, marked with
its age; a dead store fails only reads that need it.
"""

from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX

from services.api.calls import AtRevision
from services.api.errors import (
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.lineage import EpochEnd, Lineage
from services.api.partitions import is_recorded
from services.api.remote_log_manager import FetchRole, IsolationLevel
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.records.index_files import open_transactions
from services.rlm.fetch.errors import (
    FencedReaderError,
    NotServedHereError,
    OffsetOutOfRangeError,
    RecentTierError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
)
from services.rlm.fetch.segment_lookups import ListedSegments
from services.rlm.fetch.segment_reader import MetadataAges, RemoteSegmentReader
from services.rlm.fetch.tier_calls import RequestCalls, TierWait
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.losses import lost_ranges
from services.rlm.partition import Partition
from services.rlm.tier import Tier


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
    """The log and the tier of one partition, as one request has read them.

    Not thread-safe: only one thread at a time uses it, that of the request or one of the pool.

    Attributes:
        log: None if this broker has no log of the partition, or no role for it.
        tier: as it was last known, or read for this request.
        calls: those for this view to RLMM and RSM.
        tier_is_recent: it was read a moment ago for another request, not for this one.
        tier_age_s: its age, if it was to be read and RLMM was unreachable.
    """

    def __init__(
        self,
        partition: Partition,
        remote: RemoteSegmentReader,
        ages: MetadataAges | None = None,
        wait: TierWait | None = None,
        *,
        needs_slot: bool = True,
    ) -> None:
        """Begin without a log and a tier, which `find_bounds` reads.

        Args:
            ages: how old the tier's state may be; by default it is read for this request.
            wait, needs_slot: as for RequestCalls.
        """
        self.partition = partition
        self.remote = remote
        self.log: LocalLog | None = None
        self.tier = Tier()
        self._tier_stable_end: int | None = None
        self._ages = ages or MetadataAges()
        self.calls = RequestCalls(
            remote.calls, partition.topic_id_partition, wait, needs_slot=needs_slot
        )
        self.tier_age_s: float | None = None
        self.tier_is_recent = False
        self._tier_is_later_than_log = False

    def background_view(self) -> "PartitionView":
        """Return a view of the same log and tier for work that the read does not depend on.

        It needs no slot: its reader holds one.
        """
        view = PartitionView(
            self.partition, self.remote, self._ages, self.calls.wait, needs_slot=False
        )
        view.log, view.tier = self.log, self.tier
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
                newest, was_recent = self.tier.newest, self.tier_is_recent
                self.read_tier_always()
                if not was_recent:
                    self.refresh_tier(offset)
                    if self.tier.newest == newest:
                        raise
                # It was deleted since.
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
        if tier is None or not self.remote.lookups.has_segment(name, offset, tier.revision):
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
        """Use no tier that was read for another request from now on."""
        self._ages = replace(self._ages, recent_s=0.0)

    def refresh_tier(self, offset: int = -1) -> None:
        """Read the tier's present state; if that lists it, store the segment of `offset`.

        Raises:
            UnknownPartitionError: if the topic id has another name.
            RetriableRemoteStorageError: if RLMM is unreachable.
        """
        listed = ListedSegments(offset)
        self.tier_is_recent = self._tier_is_later_than_log = False
        state = self.partition.tier
        try:
            self.tier, self.tier_age_s = self.calls.call(
                lambda: state.refresh_or_last(
                    self._ages.stale_s, listed.add, min(self.calls.wait.left_s, TIMEOUT_MAX)
                )
            )
        except InvalidRequestError as e:
            raise UnknownPartitionError(str(e)) from e
        self._tier_is_later_than_log = self.tier_age_s is None
        if self.tier.revision is not None and self.tier_age_s is None:
            name = self.partition.topic_id_partition
            for segment in listed.segments():
                self.remote.lookups.store(name, segment, self.tier.revision)
            for epoch, found in listed.searches().items() if self.tier.is_exact else ():
                answer = AtRevision(found, self.tier.revision)
                self.remote.lookups.store_search(name, epoch, offset, answer)

    def bounds(self) -> Bounds:
        """Return the offsets that can be read, by the log and the tier as last read."""
        starts = [] if self.log is None else [self.log.log_start_offset]
        if self.tier.start_offset is not None:
            starts.append(self.tier.start_offset)
        if self.log is None:
            end = self.tier.end_offset
            stable_end = self._tier_stable_end
            stable = end if stable_end is None else min(stable_end, end)
            return Bounds(min(starts, default=end), stable, end, end)
        # A local read uses the last known log start, which the copy pass refreshes: a request to
        # RLMM would make local reads depend on the database.
        known = self.tier.known is not None
        start = max(min(starts), self.tier.log_start_offset) if known else -1
        log, tier = self.log, self.tier
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
        ended may be behind it, in a segment that is not in the tier.
        """
        newest = self.tier.newest
        if newest is None:
            return None
        kind = IndexType.PRODUCER_SNAPSHOT
        indexes = self.remote.indexes
        snapshot = self.calls.call(
            lambda: indexes.index(newest, kind), lambda: indexes.in_memory(newest, kind)
        )
        return min(open_transactions(snapshot).values(), default=newest.end_offset + 1)

    def find_remote(self, offset: int, is_changed: bool = False) -> RemoteLogSegmentMetadata | None:
        """Find the finished segment that contains `offset` in this partition's lineage.

        An earlier result is used while the tier is as it was last read, unless `is_changed`.
        """
        with self.calls.slot():
            epoch, revision = self._epoch_of(offset), None if is_changed else self.tier.revision
            if epoch is None:
                return None
            name, lookups = self.partition.topic_id_partition, self.remote.lookups
            return self.calls.call(
                lambda: lookups.find(name, epoch, offset, revision),
                lambda: lookups.known(name, epoch, offset, revision),
            )

    def _epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch of an offset of the tier; None if it is before the first."""
        if self.log is None:
            if self.tier.newest is None:
                self.refresh_tier(offset)
            epoch = self.tier.epoch_of(offset)
            if epoch is not None:
                return epoch
        return self.lineage().epoch_for_offset(offset)

    def lineage(self) -> Lineage:
        """Return the leader epochs of tier and log."""
        with self.calls.slot():
            if self.tier.newest is None:
                self.refresh_tier()
            local, lineage = (
                self.log.lineage if self.log else Lineage(),
                self.partition.tier.lineage,
            )
            try:
                return self.calls.call(
                    lambda: lineage.merged(self.tier, local),
                    lambda: lineage.known(self.tier, local),
                )
            except RemoteResourceNotFoundError as e:
                if self.tier_is_recent:
                    raise RecentTierError(str(e)) from e
                newest = self.tier.newest
                self.refresh_tier()
                if self.tier.newest == newest:
                    raise
                return self.lineage()  # It was superseded since.

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
        epochs = [] if self.log is None else [self.log.lineage.latest_epoch]
        if self.partition.role.leadership is not None:
            epochs.append(self.partition.role.leadership.leader_epoch)
        if self.tier.newest is not None:
            epochs.append(self.tier.newest.segment_leader_epochs[-1].leader_epoch)
        return max((epoch for epoch in epochs if epoch is not None), default=None)

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
            NotServedHereError: if only the end of a follower's log decides.
            RemoteStorageError: as end_of_epoch.
        """
        if last_fetched_epoch is None:
            return None
        end = self.end_of_epoch(last_fetched_epoch)
        if end is None:
            text = (
                f"leader epoch {last_fetched_epoch} of the last fetched record is later than all "
                "of this log"
            )
            raise self.behind_error(text) or OffsetOutOfRangeError(text)
        diverges = end.leader_epoch < last_fetched_epoch or end.end_offset < offset
        if diverges and self._ends_with_log(end):
            behind = self.behind_error(f"leader epoch {end.leader_epoch} ends at {end.end_offset}")
            if behind is not None:
                raise behind
        return end if diverges else None

    def _ends_with_log(self, end: EpochEnd) -> bool:
        """Return whether an epoch ends only because the log here does, or without one the tier."""
        latest = (self.log.lineage if self.log else self.lineage()).latest_epoch
        return latest is None or end.leader_epoch >= latest

    def behind_error(self, text: str) -> NotServedHereError | None:
        """Make the error of what may be behind the end of the log here; None if nothing is.

        A follower's log ends where it has got to, that of a broker whose disk was replaced is
        missing at first, and a partition that moved away ends here with the tier: their ends say
        nothing of the leader's log. OFFSET_OUT_OF_RANGE and a diverging epoch would let a reader
        begin again, or drop what it has.
        """
        log, role = self.log, self.partition.role
        leadership = role.leadership
        if leadership is None:
            if not (role.log_is_elsewhere or role.log_is_not_served):
                return None
            return NotServedHereError(
                f"{text} in the tier, and another broker may have more; retry, or call the "
                "leader's RLM"
            )
        if log and leadership.is_leader and not leadership.is_overtaken(log.lineage):
            return None
        return NotServedHereError(
            f"{text} in this broker's log, which follows the leader's; retry, or call the leader's "
            "RLM"
        )

    def require_leader(self) -> None:
        """Check that a follower may fetch here.

        Raises:
            NotServedHereError: if this broker does not lead the partition.
        """
        if self.log is None or not self.partition.role.is_leader:
            name = self.partition.topic_id_partition
            raise NotServedHereError(f"{name} is not led here; fetch from the leader's RLM")

    def offset_after_hole(self, offset: int) -> int:
        """Return the next offset that the tier or the log has, if neither has `offset`.

        A reader continues there, as after records that were compacted.

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
            raise self.absent_offset_error(offset, f"offset {offset} was deleted during the read")
        after, partition = min(following), self.partition
        log = None if log is None else log.from_offset(self.tier.log_start_offset)
        lost = self.calls.call(lambda: lost_ranges(partition, log, covered, self.tier))
        if not any(first <= offset <= last for first, last in lost):
            if offset < self.bounds().log_start_offset:
                raise self.absent_offset_error(offset, f"offset {offset} was deleted")
        elif not is_recorded(
            self.calls.call(lambda: partition.tier.gaps.refresh(self.tier)), offset, after - 1
        ):
            if partition.role.log_is_not_served:
                text = f"offset {offset} is in no segment of the tier"
                raise self.absent_offset_error(offset, text)
            raise RetriableRemoteStorageError(
                f"{partition.topic_id_partition}: offsets {offset} to {after - 1} are neither in "
                "the tier nor on this disk, and no loss is recorded yet; retry"
            )
        return after

    def absent_offset_error(
        self, offset: int, text: str
    ) -> OffsetOutOfRangeError | NotServedHereError:
        """Make the error of an offset that is neither here nor in the tier."""
        if self.partition.role.log_is_not_served and offset >= self.tier.log_start_offset:
            return NotServedHereError(
                f"{text}, and this RLM has no role for the log here; retry, or call the leader's "
                "RLM"
            )
        return OffsetOutOfRangeError(text)

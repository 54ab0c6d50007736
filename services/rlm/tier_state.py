"""Follow the state of one partition in RLMM and RSM.

A pass or a read asks `TierState.refresh` for the `Tier` (tier.py): what RLMM has, at one revision.
Beside it stand four facts that are read only when a pass needs them:

* `lineage`: the leader epochs of the tier, from the newest segment's LEADER_EPOCH index in RSM;
* `gaps`: the offsets that RLMM records as lost, read if offsets are missing;
* `raised_log_start`: whether retention or the end of tiering raised the log start, which says
  whether missing offsets behind it were ever to be copied;
* `beginning`: where the log began when its copying began into an empty tier.

Rules:

* A `Tier` never changes once it is returned: an unchanged partition is the same object, so `is`
  tells whether anything changed. An unchanged partition costs one row of RLMM, or nothing while
  `Revisions` follows its revision and it `is_as_polled`.
* Who changes the partition from this process calls `changed_here` before: until the next refresh
  neither the polled revision nor a recent tier counts as current.
* When RLMM was set back (`Revisions.resets`), everything is read again, whatever its revision.
* Deletions and copies are decided by `refresh` only. `recent` and `refresh_or_last` serve reads:
  the first shows what was read a moment ago, the second also what is known while RLMM is down.

A dead RLMM: `refresh` raises. `refresh_or_last` answers from memory up to its age, and lets one
reader a second try again, while the others get what is known. A cancelled or killed pass leaves
nothing behind: all of this is memory, and the next process reads it from RLMM.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.lineage import Lineage, parse_checkpoint
from services.api.partitions import EventQuery, OffsetGap, PartitionEvent
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    RemoteLogMetadataManager,
    SegmentPage,
    latest_event,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.retention import DeletionReason
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.revisions import Revisions
from services.rlm.tier import Tier

OnListed = Callable[[RemoteLogSegmentMetadata], None]

_RETRY_AFTER_S = 1.0
_DISABLED = DeletionReason.TIERING_DISABLED.value


def _ignore(segment: RemoteLogSegmentMetadata) -> None:
    """Do nothing."""


class TierState:
    """Follow one partition in RLMM. Thread-safe.

    Args:
        revisions: the latest known revisions; None if nothing follows them.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        topic_id_partition: TopicIdPartition,
        revisions: Revisions | None = None,
    ) -> None:
        self.lineage = TierLineage(rsm)
        self.gaps = RecordedGaps(rlmm, topic_id_partition)
        self.raised_log_start = RaisedLogStart(rlmm, topic_id_partition)
        self.beginning = LogBeginning(rlmm, topic_id_partition)
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._revisions = revisions
        self._lock = threading.Lock()
        self._tier = Tier()
        self._changes_here = self._changes_seen = 0
        self._resets_seen = 0
        self._began_s = 0.0
        self._current_s: float | None = None
        self._failed_s: float | None = None
        self.listing_s = 0.0
        """The duration of the latest listing of all segments, seconds."""

    @property
    def cached(self) -> Tier:
        return self._tier

    @property
    def polled_revision(self) -> int | None:
        """Return the latest revision that is followed; None if nothing follows it."""
        return None if self._revisions is None else self._revisions.of(self._name)

    @property
    def is_as_polled(self) -> bool:
        """Return whether the last known state is current.

        It is current if the latest poll has its revision, and this process has changed nothing
        since.
        """
        if self._revisions is None or self._tier.revision is None:
            return False
        if self._changes_here != self._changes_seen or self._resets() != self._resets_seen:
            return False
        return self._revisions.of(self._name) == self._tier.revision

    def changed_here(self) -> None:
        """Ignore the poll until the next refresh, because this process changes the partition."""
        with self._lock:
            self._changes_here += 1

    def refresh(self) -> Tier:
        """Return the tier as RLMM has it now.

        The result is the same object while nothing changes, and an empty tier if RLMM does not know
        the partition.
        """
        with self._lock:
            return self._refresh()

    def _resets(self) -> int:
        return 0 if self._revisions is None else self._revisions.resets(self._name)

    def _refresh(self, listed: OnListed = _ignore) -> Tier:
        began_s = self._began_s = time.monotonic()
        known, resets = self._tier.revision, self._resets()
        if resets != self._resets_seen:
            known = None
            self.gaps.forget()
            self.raised_log_start.forget()
        try:
            page = self._page("", known)
            if not page.not_modified:
                self._tier = self._read(page, listed)
                self.listing_s = time.monotonic() - began_s
        except RemoteResourceNotFoundError:
            self._tier = Tier(known=False)
        except (RetriableRemoteStorageError, ThrottledError):
            self._failed_s = time.monotonic()
            raise
        # From before the call: what it returned may be as old.
        self._current_s, self._failed_s = began_s, None
        self._changes_seen, self._resets_seen = self._changes_here, resets
        return self._tier

    def recent(self, max_age_s: float) -> Tier | None:
        """Return the tier if RLMM was read at most so long ago, and this process changed nothing.

        For reads of records that it shows only: no other answer may be decided by it.
        """
        # Before the tier, which is then at least as new.
        current_s = self._current_s
        if current_s is None or time.monotonic() - current_s >= max_age_s:
            return None
        return self._tier if self._changes_here == self._changes_seen else None

    def refresh_or_last(
        self, max_age_s: float, listed: OnListed = _ignore, wait_s: float = -1
    ) -> tuple[Tier, float | None]:
        """Return the tier as `refresh` does; as it was last known if RLMM is unreachable.

        Args:
            max_age_s: how old it may be.
            listed: called with each segment, by start offset, if the tier has changed.
            wait_s: how long to wait for another reader that lists the tier for the first time;
                negative: as long as it takes.

        Returns:
            The tier, and its age in seconds if RLMM is unreachable.

        Raises:
            RetriableRemoteStorageError: if it is older, or not known, or `wait_s` is over.
        """
        last = self._last_known(max_age_s)
        if last is not None and self._has_just_failed():
            return last
        # A silent RLMM keeps one reader only. The others must not call it one after another.
        late_s = _RETRY_AFTER_S - (time.monotonic() - self._began_s)
        if last is not None:
            late_s = max(late_s, _RETRY_AFTER_S / 20)
            # The reader has to get what is known before its time is over.
            wait_s = late_s if wait_s < 0 else min(late_s, wait_s / 2)
        if not self._lock.acquire(timeout=wait_s if wait_s >= 0 else -1):
            if last is None:
                raise RetriableRemoteStorageError(
                    f"{self._name}: another read lists its segments for the first time; retry"
                )
            return last
        try:
            if last is not None and self._has_just_failed():
                return last
            return self._refresh(listed), None
        except (RetriableRemoteStorageError, ThrottledError):
            last = self._last_known(max_age_s)
            if last is None:
                raise
            return last
        finally:
            self._lock.release()

    def _has_just_failed(self) -> bool:
        failed_s = self._failed_s
        return failed_s is not None and time.monotonic() - failed_s < _RETRY_AFTER_S

    def _last_known(self, max_age_s: float) -> tuple[Tier, float] | None:
        if self._current_s is None or not self._tier.known:
            return None
        age_s = time.monotonic() - self._current_s
        return (self._tier, age_s) if age_s <= max_age_s else None

    def adopt(self, listed: Tier) -> None:
        """Use a tier that another caller listed completely at one revision."""
        with self._lock:
            known = self._tier.revision
            if listed.revision is not None and (known is None or known < listed.revision):
                self._tier = listed

    def _read(self, page: SegmentPage, listed: OnListed) -> Tier:
        # The first page's revision: changes between the pages are read at the next refresh.
        tier = Tier(known=True, revision=page.revision, log_start_offset=page.log_start_offset)
        while True:
            for segment in page.segments:
                tier.add(segment)
                listed(segment)
            if not page.next_page_token:
                return tier
            page = self._page(page.next_page_token, None)

    def _page(self, token: str, if_revision_not: int | None) -> SegmentPage:
        return self._rlmm.list_remote_log_segments(
            self._name,
            if_revision_not=if_revision_not,
            page_size=MAX_PAGE_SIZE,
            page_token=token,
        )


class RecordedGaps:
    """Follow the recorded gaps of a partition. Thread-safe.

    They are read once per revision.
    """

    def __init__(
        self, rlmm: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._lock = threading.Lock()
        self._revision: int | None = None
        self._gaps: tuple[OffsetGap, ...] = ()

    @property
    def cached(self) -> tuple[OffsetGap, ...]:
        return self._gaps

    def forget(self) -> None:
        """Read them again, whatever the revision."""
        with self._lock:
            self._revision = None

    def refresh(self, tier: Tier) -> tuple[OffsetGap, ...]:
        """Return the gaps in RLMM at the tier's revision, or later.

        Raises:
            RemoteResourceNotFoundError: if the partition was deleted.
        """
        with self._lock:
            if self._revision is None or self._revision != tier.revision:
                self._gaps = self._rlmm.partition_state(self._name).value.gaps
                self._revision = tier.revision
            return self._gaps


class LogBeginning:
    """Follow where a log began when its copying began into an empty tier. Thread-safe.

    What the broker deletes from there on before it is copied is lost. While the tier is empty, RLMM
    has it in the report, as the offset after copied_through_offset.
    """

    def __init__(
        self, rlmm: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._lock = threading.Lock()
        self._is_read = False
        self._offset: int | None = None

    @property
    def cached(self) -> int | None:
        """Return the offset; None if it is unknown, or the tier was not empty."""
        return self._offset

    def read(self, tier: Tier) -> None:
        """Read the offset from RLMM, once.

        Raises:
            RemoteResourceNotFoundError: if the partition was deleted.
        """
        with self._lock:
            if self._is_read:
                return
            state = self._rlmm.partition_state(self._name).value
            report, known = state.report, [gap.start_offset for gap in state.gaps]
            if report is not None and not tier.segments:
                copied_through = report.copied_through_offset
                # Below the tier's log start it is that, and NOTHING_COPIED also if copying is
                # disabled: a log that begins at 0 had not lost anything yet.
                is_beginning = copied_through >= tier.log_start_offset
                if is_beginning or report.local_log_start_offset == tier.log_start_offset == 0:
                    known.append(copied_through + 1)
            self._offset = min(known, default=None)
            self._is_read = True

    def begin(self, tier: Tier, log_start_offset: int, removed_before_offset: int) -> None:
        """Record the log of a pass that copies; offsets deleted on request are not lost."""
        with self._lock:
            if self._offset is not None:
                self._offset = max(self._offset, removed_before_offset)
            elif not tier.segments:
                self._offset = log_start_offset

    def forget(self) -> None:
        """Forget the offset, because the partition is not copied now."""
        with self._lock:
            self._offset, self._is_read = None, True


@dataclass(frozen=True, slots=True)
class _Cause:
    """The answer whether tiering was disabled at a log start, by the events up to a revision."""

    log_start_offset: int
    revision: int
    is_disabled: bool


class RaisedLogStart:
    """Follow the cause that raised a partition's log start. Thread-safe.

    If retention raised it, everything below was in the tier, and everything above was to be copied.
    If TIERING_DISABLED raised it, or deleted the tier's segments from there on, the offset at which
    copying resumed is unknown.
    """

    def __init__(
        self, rlmm: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._lock = threading.Lock()
        self._cause: _Cause | None = None

    def forget(self) -> None:
        """Read it again, whatever the revision."""
        with self._lock:
            self._cause = None

    def cached(self, tier: Tier) -> int:
        """Return the result of `refresh` without RLMM; an unknown cause counts as retention."""
        return _copied_from(tier, self._cause)

    def refresh(self, tier: Tier) -> int:
        """Return the tier's log start if everything above was to be copied; 0 if unknown.

        Raises:
            RemoteResourceNotFoundError: if the partition never existed.
        """
        with self._lock:
            self._cause = self._find_cause(tier)
            return _copied_from(tier, self._cause)

    def _find_cause(self, tier: Tier) -> _Cause | None:
        cause, revision = self._cause, tier.revision
        if cause is not None and cause.log_start_offset != tier.log_start_offset:
            cause = None
        # Only another raise of the log start ends the effect of TIERING_DISABLED.
        is_settled = cause is not None and (cause.is_disabled or cause.revision == revision)
        if is_settled or revision is None:
            return cause
        query = EventQuery(self._name, 0 if cause is None else cause.revision)
        event = latest_event(self._rlmm, query, revision, _shows_cause)
        if event is not None:
            is_disabled = event.reason == _DISABLED
        else:
            is_disabled = cause is None and self._may_be_disabled()
        return _Cause(tier.log_start_offset, revision, is_disabled)

    def _may_be_disabled(self) -> bool:
        """Return whether the settings allow disabling now, because the audit trail is too short."""
        return self._rlmm.topic_config(self._name.topic_id).config.remote_log_delete_on_disable


def _copied_from(tier: Tier, cause: _Cause | None) -> int:
    if cause is not None and cause.is_disabled and cause.log_start_offset == tier.log_start_offset:
        return 0
    return tier.log_start_offset


def _shows_cause(event: PartitionEvent) -> bool:
    # If the log start was already at this offset, disabling wrote no LOG_START event.
    return event.kind == "LOG_START" or event.reason == _DISABLED


class TierLineage:
    """Follow the newest segment's LEADER_EPOCH index, which has the whole lineage. Thread-safe.

    Attributes:
        unanswered_calls: requests in a row that RSM or its store did not answer.
    """

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self.unanswered_calls = 0
        self._rsm = rsm
        self._lock = threading.Lock()
        self._read_from: RemoteLogSegmentId | None = None
        self._lineage = Lineage()

    def merged(self, tier: Tier, local: Lineage) -> Lineage:
        """Return the tier's lineage, overruled by the broker's.

        If the broker's lineage reaches back to the tier's beginning, return it alone.

        Raises:
            RemoteResourceNotFoundError, CorruptSegmentError: if the index cannot be read.
        """
        if reaches_back(tier, local):
            return local
        return self.of(tier).merged_with_report(local)

    def needs_rsm(self, tier: Tier, local: Lineage) -> bool:
        """Return whether `merged` has to call RSM."""
        newest = tier.newest
        is_read = newest is not None and self._read_from == newest.remote_log_segment_id
        return not is_read and not reaches_back(tier, local)

    @property
    def last_read(self) -> Lineage:
        return self._lineage

    def of(self, tier: Tier) -> Lineage:
        """Return the lineage of the newest segment; an empty one if there is no segment."""
        if tier.newest is None:
            return Lineage()
        with self._lock:
            if self._read_from != tier.newest.remote_log_segment_id:
                data = self._index_of(tier.newest)
                try:
                    self._lineage = parse_checkpoint(data.decode("ascii"))
                except (UnicodeDecodeError, InvalidRequestError) as e:
                    name = tier.newest.remote_log_segment_id
                    raise CorruptSegmentError(f"{name}: LEADER_EPOCH index: {e}") from e
                self._read_from = tier.newest.remote_log_segment_id
            return self._lineage

    def _index_of(self, segment: RemoteLogSegmentMetadata) -> bytes:
        unanswered, self.unanswered_calls = self.unanswered_calls, 0
        try:
            return b"".join(self._rsm.fetch_index(segment, IndexType.LEADER_EPOCH))
        except (RetriableRemoteStorageError, ThrottledError) as e:
            self.unanswered_calls = unanswered + 1
            name = segment.remote_log_segment_id
            raise RetriableRemoteStorageError(
                f"cannot read the tier's leader epochs from {name}; retrying: {e}"
            ) from e


def reaches_back(tier: Tier, lineage: Lineage) -> bool:
    """Return whether the lineage reaches back to the tier's beginning."""
    return tier.start_offset is None or lineage.epoch_for_offset(tier.start_offset) is not None

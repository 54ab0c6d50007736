"""Follow the state of one partition in RLMM.

`TierState.refresh` returns the `Tier` (tier.py): what RLMM has of the partition, at one revision.
`lineage` (tier_lineage.py), `gaps`, `log_start_cause` and `beginning` (loss_facts.py) are read only
when a pass needs them.

Rules:

* A `Tier` never changes once it is returned: an unchanged partition is the same object, so `is`
  detects any change. An unchanged partition costs one row of RLMM, or nothing while `Revisions`
  follows its revision and it `is_as_polled`.
* A caller that changes the partition calls `changed_here` before: until the next refresh neither
  the polled revision nor a recent tier counts as current. After a copy, `copied` adds what changed.
* When RLMM was set back (`Revisions.resets`), everything is read again, whatever its revision.
* Deletions and copies are decided by `refresh` only, but for tails while the tier `is_as_polled`.
  `recent` and `refresh_or_last` serve reads of records: `recent` returns a tier that was read a
  moment ago, `refresh_or_last` also the last known one while RLMM is down.

While RLMM is down, `refresh` raises. `refresh_or_last` returns the last known tier up to its age;
one reader a second calls RLMM again, and the others do not wait for it. A pass that is cancelled or
killed leaves nothing to repair: this state is in memory only.
"""

import threading
import time
from collections.abc import Callable

from services.api.errors import (
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    RemoteLogMetadataManager,
    SegmentPage,
)
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.loss_facts import LogBeginning, LogStartCause, RecordedGaps
from services.rlm.revisions import Revisions
from services.rlm.tier import Tier
from services.rlm.tier_lineage import TierLineage

OnListed = Callable[[RemoteLogSegmentMetadata], None]

_RETRY_AFTER_S = 1.0


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
        self.log_start_cause = LogStartCause(rlmm, topic_id_partition)
        self.beginning = LogBeginning(rlmm, topic_id_partition)
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._revisions = revisions
        self._lock = threading.Lock()
        self._tier = Tier()
        self._changes_here = self._changes_read = 0
        self._resets_read = 0
        self._began_s = 0.0
        self._polled_before: int | None = None
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
        """Return whether the latest poll has the revision of the last known tier.

        It is False if this process has changed the partition since.
        """
        if self._changes_here != self._changes_read or self._resets() != self._resets_read:
            return False
        return self._tier.revision is not None and self._tier.revision == self.polled_revision

    @property
    def is_behind_poll(self) -> bool:
        """Return whether the partition has changed since the last refresh, as the poll has it."""
        polled = self.polled_revision
        return polled is not None and polled not in (self._tier.revision or 0, self._polled_before)

    @property
    def may_have_changed_elsewhere(self) -> bool:
        """Return whether another process may have changed the partition since the last refresh."""
        is_unknown = self._tier.revision is None or self.polled_revision is None
        return is_unknown or self.is_behind_poll or self._resets() != self._resets_read

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
        known, resets, polled = self._tier.revision, self._resets(), self.polled_revision
        if resets != self._resets_read:
            known = None
            self.gaps.forget()
            self.log_start_cause.forget()
        try:
            page = self._page("", known)
            if not page.not_modified:
                self._tier = self._read(page, listed)
                self.listing_s = time.monotonic() - began_s
        except RemoteResourceNotFoundError:
            self._tier = self._tier if self._tier.known is False else Tier(known=False)
        except (RetriableRemoteStorageError, ThrottledError):
            self._failed_s = time.monotonic()
            raise
        # From before the call: what it returned may be as old.
        self._current_s, self._failed_s = began_s, None
        self._changes_read, self._resets_read = self._changes_here, resets
        self._polled_before = polled
        return self._tier

    def recent(self, max_age_s: float) -> Tier | None:
        """Return the tier if RLMM was read at most so long ago, and this process changed nothing.

        For reads of records that it shows only: no other answer may be decided by it.
        """
        # Before the tier, which is then at least as new.
        current_s = self._current_s
        if current_s is None or time.monotonic() - current_s >= max_age_s:
            return None
        return self._tier if self._changes_here == self._changes_read else None

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

    def copied(self, segment: RemoteLogSegmentMetadata, added_at: int, finished_at: int) -> None:
        """Add a segment that this process has copied, so that no listing is needed for it.

        It is listed if another change came between, or it does not begin behind all others.

        Args:
            added_at, finished_at: the partition's revisions of the copy.
        """
        with self._lock:
            known = self._tier.revision
            # At `added_at` another pass listed the segment while it was copied.
            if known in (added_at - 1, added_at) and added_at + 1 == finished_at:
                self._tier = self._tier.behind_all(segment, finished_at) or self._tier
                polled = self.polled_revision  # It may have the copy only later.
                self._polled_before = min(polled or 0, finished_at)
            if self._tier.revision == finished_at and self._changes_here == self._changes_read + 1:
                self._changes_read = self._changes_here  # This copy is the only change.

    def _read(self, page: SegmentPage, listed: OnListed) -> Tier:
        # The first page's revision: changes between the pages are read at the next refresh.
        tier = Tier(known=True, revision=page.revision, log_start_offset=page.log_start_offset)
        while True:
            for segment in page.segments:
                tier.add(segment)
                listed(segment)
            tier.is_exact &= page.revision == tier.revision
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

"""Read from RLMM what distinguishes lost offsets from deleted ones.

Each fact is read only if a pass finds that offsets are missing (losses.py).
"""

import threading
from dataclasses import dataclass

from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery, OffsetGap, PartitionEvent
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, latest_event
from services.api.retention import DeletionReason
from services.rlm.tier import Tier

_DISABLED = DeletionReason.TIERING_DISABLED.value


class _Fact:
    """A fact of one partition, read from RLMM and cached. Thread-safe."""

    def __init__(
        self, rlmm: RemoteLogMetadataManager, topic_id_partition: TopicIdPartition
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._lock = threading.Lock()


class RecordedGaps(_Fact):
    """The recorded gaps of a partition, read once per revision."""

    _revision: int | None = None
    cached: tuple[OffsetGap, ...] = ()

    def forget(self) -> None:
        """Read them again at the next refresh, whatever the revision."""
        with self._lock:
            self._revision = None

    def refresh(self, tier: Tier) -> tuple[OffsetGap, ...]:
        """Return the gaps in RLMM at the tier's revision, or later.

        Raises:
            RemoteResourceNotFoundError: if the partition was deleted.
        """
        with self._lock:
            if self._revision is None or self._revision != tier.revision:
                self.cached = self._rlmm.partition_state(self._name).value.gaps
                self._revision = tier.revision
            return self.cached


class LogBeginning(_Fact):
    """The offset at which a log began when its copying began into an empty tier.

    Offsets from there on that the broker deletes before their copy are lost. While the tier is
    empty, RLMM has the offset in the report, as the one after copied_through_offset.

    Attributes:
        cached: the offset; None if it is unknown, or the tier was not empty.
    """

    _is_read = False
    cached: int | None = None

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
            self.cached = min(known, default=None)
            self._is_read = True

    def begin(self, tier: Tier, log_start_offset: int, removed_before_offset: int) -> None:
        """Record the log of a pass that copies; offsets deleted on request are not lost."""
        with self._lock:
            if self.cached is not None:
                self.cached = max(self.cached, removed_before_offset)
            elif not tier.segments:
                self.cached = log_start_offset

    def forget(self) -> None:
        """Forget the offset, because the partition is not copied now."""
        with self._lock:
            self.cached, self._is_read = None, True


@dataclass(frozen=True, slots=True)
class _Cause:
    """Whether tiering was disabled at a log start, by the events up to a revision."""

    log_start_offset: int
    revision: int
    is_disabled: bool


class LogStartCause(_Fact):
    """The cause that raised a partition's log start.

    If retention raised it, everything below was in the tier, and everything above was to be copied.
    If TIERING_DISABLED raised it, or deleted the tier's segments from there on, the offset at which
    copying resumed is unknown.
    """

    _cause: _Cause | None = None

    def forget(self) -> None:
        """Read it again at the next refresh, whatever the revision."""
        with self._lock:
            self._cause = None

    def cached(self, tier: Tier) -> int:
        """Return the result of `refresh` without RLMM; an unknown cause counts as retention."""
        cause, start = self._cause, tier.log_start_offset
        is_disabled = cause is not None and cause.is_disabled and cause.log_start_offset == start
        return 0 if is_disabled else start

    def refresh(self, tier: Tier) -> int:
        """Return the tier's log start if everything above was to be copied; 0 if unknown.

        Raises:
            RemoteResourceNotFoundError: if the partition never existed.
        """
        with self._lock:
            self._cause = self._find_cause(tier)
            return self.cached(tier)

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


def _shows_cause(event: PartitionEvent) -> bool:
    # If the log start was already at this offset, disabling wrote no LOG_START event.
    return event.kind == "LOG_START" or event.reason == _DISABLED

"""One partition's part of the tier, as RLMM lists it; read anew only when its revision moved."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_queries import MAX_PAGE_SIZE, SegmentPage
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rlm.tier_view.offset_ranges import OffsetRanges
from services.rlm.tier_view.revisions import Revisions

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@dataclass(slots=True)
class Tier:
    """What is copied of a partition. Holds no list of finished segments, nor of those being
    deleted: of either there may be hundreds of thousands.

    Attributes:
        known: RLMM has the partition; None: it was not asked yet.
        log_start_offset: the tier's, as RLMM keeps it: what lies below is gone or going.
        segments, size_bytes: finished ones.
        start_offset: the lowest, not below log_start_offset, that a look-up in a finished segment
            finds; None: there is none.
        newest: the finished segment with the latest epoch, of these the one that ends last.
        unfinished: copies under way or left behind, whoever began them, and what is left of them
            where their clean-up did not end.
        deleting_segments, deleting_bytes: what had been copied and is DELETE_SEGMENT_STARTED.
        ranges: of each leader epoch, the offsets in finished segments.
        removed_before_offset: the latest log start inside of a segment that was copied: the records
            below were deleted on request (DeleteRecords), here and before they came here.
        has_finished_below_log_start: a deletion that raised the log start did not get further.
    """

    known: bool | None = None
    revision: int | None = None
    log_start_offset: int = 0
    segments: int = 0
    size_bytes: int = 0
    start_offset: int | None = None
    newest: RemoteLogSegmentMetadata | None = None
    unfinished: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    deleting_segments: int = 0
    deleting_bytes: int = 0
    ranges: dict[int, OffsetRanges] = field(default_factory=lambda: defaultdict(OffsetRanges))
    removed_before_offset: int = 0
    has_finished_below_log_start: bool = False

    @property
    def end_offset(self) -> int:
        """The offset after the newest segment's last one; the log start where there is none."""
        end = self.newest.end_offset + 1 if self.newest else 0
        return max(end, self.log_start_offset)

    @property
    def deleted_before_offset(self) -> int:
        """Whatever is missing below was deleted: by retention, or on request (DeleteRecords)."""
        return max(self.removed_before_offset, self.log_start_offset)

    def covered(self, lineage: Lineage) -> OffsetRanges:
        """The offsets that are copied in `lineage`; what an overruled leader wrote is not.

        Epochs before the first one of the lineage count up to where that begins: brokers forget
        the epochs of what they no longer have.
        """
        return OffsetRanges(_clipped(self.ranges, lineage))

    def add(self, segment: RemoteLogSegmentMetadata) -> None:
        """Take the next segment in the order of start offsets."""
        size_bytes = max(segment.segment_size_in_bytes, 0)
        if segment.state is _DELETING and segment.custom_metadata is not None:
            self.deleting_segments += 1
            self.deleting_bytes += size_bytes
            return
        if segment.state is not _FINISHED:
            self.unfinished.append(segment)
            return
        self.segments += 1
        self.size_bytes += size_bytes
        first_epoch_start = segment.epoch_ranges()[0][1]
        if segment.end_offset < self.log_start_offset:
            self.has_finished_below_log_start = True
        elif self.start_offset is None:
            # Below its first epoch a segment has what was deleted while it was still local.
            lowest = max(segment.start_offset, first_epoch_start)
            self.start_offset = max(lowest, self.log_start_offset)
        if first_epoch_start > segment.start_offset:
            self.removed_before_offset = max(self.removed_before_offset, first_epoch_start)
        if self.newest is None or _age(segment) > _age(self.newest):
            self.newest = segment
        for epoch, first, last in segment.epoch_ranges():
            self.ranges[epoch].add(max(first, segment.start_offset), last)


def _age(segment: RemoteLogSegmentMetadata) -> tuple[int, int]:
    return segment.segment_leader_epochs[-1].leader_epoch, segment.end_offset


def _clipped(ranges: dict[int, OffsetRanges], lineage: Lineage) -> Iterator[tuple[int, int]]:
    if not lineage.entries:
        for of_epoch in ranges.values():
            yield from of_epoch
        return
    starts = {entry.leader_epoch: entry.start_offset for entry in lineage.entries}
    first_epoch = lineage.entries[0].leader_epoch
    for epoch, of_epoch in ranges.items():
        if epoch >= first_epoch and epoch not in starts:
            continue
        # The broker clamps its first entry to its own log start, so that bounds nothing.
        lowest = starts[epoch] if epoch > first_epoch else 0
        no_end = of_epoch.last + 1
        end = lineage.end_offset_for(epoch, no_end)
        for first, last in of_epoch:
            yield max(first, lowest), min(last, end - 1)


class TierView:
    """Follows one partition in RLMM. Thread-safe; an unchanged partition costs one row, or nothing
    where its revision is polled.

    Args:
        revisions: what RLMM told lately of many partitions; None: nobody polls.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        topic_id_partition: TopicIdPartition,
        revisions: Revisions | None = None,
    ) -> None:
        self._rlmm = rlmm
        self._name = topic_id_partition
        self._revisions = revisions
        self._lock = threading.Lock()
        self._tier = Tier()
        self._changes_here = self._changes_seen = 0
        self.listing_s = 0.0
        """How long the latest listing of all segments took, by which their sizes are told."""

    @property
    def last_seen(self) -> Tier:
        return self._tier

    @property
    def is_as_polled(self) -> bool:
        """What was seen last was still so a short while ago, by what is polled, and this process
        has changed nothing since: of that the poll may not know yet."""
        if self._revisions is None or self._tier.revision is None:
            return False
        if self._changes_here != self._changes_seen:
            return False
        return self._revisions.of(self._name) == self._tier.revision

    def changed_here(self) -> None:
        """This process changes it: what is polled is not to be believed until the next refresh."""
        with self._lock:
            self._changes_here += 1

    def refresh(self) -> Tier:
        """The tier as RLMM has it now, the same object for as long as nothing changes; an empty one
        where the partition is not known.

        Raises:
            RetriableRemoteStorageError: RLMM or its database cannot be reached.
        """
        with self._lock:
            began_s = time.monotonic()
            try:
                page = self._page("", self._tier.revision)
                if not page.not_modified:
                    self._tier = self._read(page)
                    self.listing_s = time.monotonic() - began_s
            except RemoteResourceNotFoundError:
                self._tier = Tier(known=False)
            self._changes_seen = self._changes_here
            return self._tier

    def take(self, listed: Tier) -> None:
        """What somebody else has listed, whole and at one revision: it need not be read again."""
        with self._lock:
            seen = self._tier.revision
            if listed.revision is not None and (seen is None or seen < listed.revision):
                self._tier = listed

    def _read(self, page: SegmentPage) -> Tier:
        # The first page's revision: what changes between the pages is looked at again.
        tier = Tier(known=True, revision=page.revision, log_start_offset=page.log_start_offset)
        while True:
            for segment in page.segments:
                tier.add(segment)
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

"""Play a partition's story step by step, and read the audit trail and the result of every query.

Copies are called A, B, C, ... in the order in which they begin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from services.api.calls import MutationContext, MutationOutcome
from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import EventQuery, PartitionEvent, PartitionReport, PartitionState
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_events,
    all_segments,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rsm.backends.filesystem import FilesystemStorage
from tests.contract.remote_storage_manager_contract import Files
from tests.contract.rlmm.partition_states import lineage, taken
from tests.contract.rlmm.segments import FINISHED, segment, update_to

SIZE = 1_000
"""Bytes of each segment."""
_FILES = Files(bytes(SIZE), dict.fromkeys(IndexType, b"index"))
_NAMES = "ABCDEFGH"
_ACTOR = "anonymous"
"""The actor of every call without TLS."""


@dataclass(frozen=True)
class Projection:
    """The results of the queries in one leader epoch; see a story's `projection`.

    Attributes:
        listed: the copies with offsets of the epoch, and their states.
        found: the copy that answers for the offset.
        highest: the last offset that ever finished in the epoch.
        size: of the epoch, bytes.
        earliest: the first offset of the tier.
    """

    listed: Mapping[str, RemoteLogSegmentState] = field(default_factory=dict)
    found: str | None = None
    highest: int | None = None
    size: int = 0
    earliest: int | None = None


class PartitionStory:
    """One partition, in an RLMM and with its objects in an RSM over a directory."""

    def __init__(
        self, rlmm: RemoteLogMetadataManager, rsm: RemoteStorageManager, directory: Path
    ) -> None:
        self.rlmm = rlmm
        self.rsm = rsm
        self.tp = TopicIdPartition(random_uuid(), "orders", 0)
        self._store = FilesystemStorage(directory)
        self._copies: dict[str, RemoteLogSegmentMetadata] = {}
        self._told = 0
        self._reports = 0

    # --- what brokers do ----------------------------------------------------------------------

    def lead(self, broker: int, epoch: int) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp, epoch)], [], broker)

    def begin(
        self, start: int, end: int, epochs: Mapping[int, int], *, broker: int, leader_epoch: int
    ) -> str:
        """Begin a broker's copy; return its name."""
        name = _NAMES[len(self._copies)]
        begun = segment(
            self.tp,
            start,
            end,
            epochs,
            broker_id=broker,
            broker_leader_epoch=leader_epoch,
            segment_size_in_bytes=SIZE,
        )
        self.rlmm.add_remote_log_segment_metadata(begun)
        self._copies[name] = begun
        return name

    def finish(self, name: str, *, leader_epoch: int | None = None) -> MutationOutcome:
        """Finish a copy whose objects its broker has stored.

        Uses the leader epoch of the copy's begin, or `leader_epoch`.
        """
        copy = self._copies[name]
        stored = self.rsm.copy_log_segment_data(copy, _FILES.data())
        epoch = copy.broker_leader_epoch if leader_epoch is None else leader_epoch
        return self.rlmm.update_remote_log_segment_metadata(
            update_to(copy, FINISHED, broker_id=copy.broker_id, custom_metadata=stored),
            MutationContext(broker_leader_epoch=epoch),
        )

    def copy(
        self, start: int, end: int, epochs: Mapping[int, int], *, broker: int, leader_epoch: int
    ) -> str:
        """Begin and finish a copy."""
        name = self.begin(start, end, epochs, broker=broker, leader_epoch=leader_epoch)
        self.finish(name)
        return name

    def report(
        self, broker: int, epoch: int, *epochs: tuple[int, int], local_start: int, end: int
    ) -> PartitionState:
        """Send the leader's report: its leader epochs, and its offsets (`end` is exclusive)."""
        self._reports += 1
        report = PartitionReport(
            self.tp,
            broker_id=broker,
            leader_epoch=epoch,
            report_number=self._reports,
            lineage=lineage(*epochs),
            local_log_start_offset=local_start,
            log_end_offset=end,
            high_watermark=end,
            last_stable_offset=end,
            only_local_bytes=0,
            copied_through_offset=-1,
        )
        return taken(self.rlmm, report)

    # --- what is asked ------------------------------------------------------------------------

    def reported(self) -> list[str]:
        """Return the events since the previous call, in the form of `trail`."""
        lines = self.trail(self._told)
        self._told += len(lines)
        return lines

    def trail(self, after_revision: int = 0) -> list[str]:
        """Return the events, a line each: key, copy, state, broker and its leader epoch; assert no
        gap.
        """
        query = EventQuery(self.tp, after_revision=after_revision)
        events = list(all_events(self.rlmm, query))
        first = after_revision + 1
        assert [each.revision for each in events] == list(range(first, first + len(events)))
        assert {each.actor for each in events} <= {_ACTOR}
        return [self._line(each) for each in events]

    def projection(self, epoch: int, offset: int) -> Projection:
        return Projection(
            self.listed(epoch),
            self.found(epoch, offset),
            self.rlmm.highest_offset_for_epoch(self.tp, epoch).value,
            self.rlmm.remote_log_size(self.tp, epoch).value,
            self.rlmm.earliest_log_offset(self.tp).value,
        )

    def listed(self, epoch: int) -> dict[str, RemoteLogSegmentState]:
        """Return the copies that have offsets of the epoch; assert that the partition's list has
        them.
        """
        listed = list(all_segments(self.rlmm, self.tp, epoch))
        assert listed == [
            each
            for each in all_segments(self.rlmm, self.tp)
            if epoch in [entry.leader_epoch for entry in each.segment_leader_epochs]
        ]
        return {self._name(each.remote_log_segment_id.id): each.state for each in listed}

    def found(self, epoch: int, offset: int) -> str | None:
        """Return the copy that answers a fetch of the offset in that leader epoch."""
        found = self.rlmm.remote_log_segment_metadata(self.tp, epoch, offset).value
        return None if found is None else self._name(found.remote_log_segment_id.id)

    def read(self, offset: int) -> str | None:
        """Return the copy that a consumer without a leader epoch reads, by the tier's lineage."""
        epoch = self.lineage.epoch_for_offset(offset)
        return None if epoch is None else self.found(epoch, offset)

    def finds(self, epoch: int, offsets: Sequence[int]) -> list[str | None]:
        return [self.found(epoch, offset) for offset in offsets]

    def latest_tiered(self, end: int, *epochs: tuple[int, int]) -> int:
        """Return the last tiered offset in the lineage of a leader whose log ends at `end`
        (exclusive).

        Kafka answers ListOffsets(-5) with this offset, and copies after it; -1 if there is none.

        Source: RemoteLogManager.findHighestRemoteOffset.
        """
        leads = lineage(*epochs)
        for entry in reversed(leads.entries):
            highest = self.rlmm.highest_offset_for_epoch(self.tp, entry.leader_epoch).value
            if highest is not None:
                return min(leads.end_offset_for(entry.leader_epoch, end) - 1, highest)
        return -1

    @property
    def lineage(self) -> Lineage:
        """Return the tier's lineage."""
        return self.rlmm.partition_state(self.tp).value.lineage

    @property
    def local_log_start(self) -> int:
        """Return the first offset on the leader's disk by its last report; ListOffsets(-4)."""
        report = self.rlmm.partition_state(self.tp).value.report
        assert report is not None
        return report.local_log_start_offset

    def segments(self, *names: str) -> list[RemoteLogSegmentMetadata]:
        """Return RLMM's segments."""
        ids = [self._copies[name].remote_log_segment_id.id for name in names]
        found = self.rlmm.remote_log_segment_metadata_by_id(self.tp, ids).value
        return sorted(found, key=lambda each: ids.index(each.remote_log_segment_id.id))

    def stored(self) -> list[str]:
        """Return the copies that have objects."""
        keys = "".join(self._store.list_keys("")).replace("-", "")
        return [
            name for name, copy in self._copies.items() if copy.remote_log_segment_id.id.hex in keys
        ]

    def _line(self, event: PartitionEvent) -> str:
        by = f"by {event.broker_id} at {event.broker_leader_epoch}"
        if event.segment_id is None:
            return f"{' '.join(filter(None, [event.kind, event.to_state]))} {by}"
        key = event.key.removeprefix(f"{uuid_to_text(self.tp.topic_id)}:")
        return f"{key} {self._name(event.segment_id)} {event.to_state} {by}"

    def _name(self, segment_id: UUID) -> str:
        return next(
            name
            for name, copy in self._copies.items()
            if copy.remote_log_segment_id.id == segment_id
        )

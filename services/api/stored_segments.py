"""What the objects of one segment mean, beside what its metadata says. Pure: asks nobody."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias
from uuid import UUID

from services.api.anomalies import AnomalyKind
from services.api.segment_objects import SegmentObject, SegmentObjectKind
from services.api.segments import RemoteLogSegmentState

PartitionKey: TypeAlias = tuple[UUID, int]
"""Topic id and partition: keys of objects bear no topic's name."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """All objects of one segment id in one location, as one listing had them."""

    objects: tuple[SegmentObject, ...]

    @property
    def partition(self) -> PartitionKey:
        name = self.objects[0].name
        return name.topic_id, name.partition

    @property
    def id(self) -> UUID:
        return self.objects[0].name.segment_id

    @property
    def modified_ms(self) -> int:
        """When the newest of them was written."""
        return max(each.modified_ms for each in self.objects)

    @property
    def manifest(self) -> SegmentObject | None:
        for each in self.objects:
            if each.name.kind is SegmentObjectKind.MANIFEST:
                return each
        return None

    def complete_attempts(self) -> set[str]:
        """Attempts of which log and indexes are there; the manifest says which of them counts."""
        kinds: dict[str, set[SegmentObjectKind]] = {}
        for each in self.objects:
            if each.name.attempt is not None:
                kinds.setdefault(each.name.attempt, set()).add(each.name.kind)
        return {attempt for attempt, found in kinds.items() if len(found) == 2}

    @property
    def only_attempt(self) -> str | None:
        """The one that all its objects but the manifest are of; None: there are several, or none.
        What it is, the manifest need not be asked."""
        attempts = {each.name.attempt for each in self.objects} - {None}
        return attempts.pop() if len(attempts) == 1 else None

    def is_complete(self, counting_attempt: str | None) -> bool:
        return self.manifest is not None and counting_attempt in self.complete_attempts()


def stored_segments(objects: Iterable[SegmentObject]) -> Iterator[StoredSegment]:
    """Objects in order of keys, those of one segment together."""
    for _, found in groupby(
        objects, key=lambda each: (each.name.topic_id, each.name.partition, each.name.segment_id)
    ):
        yield StoredSegment(tuple(found))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is amiss with a segment; `objects` are those that nobody needs."""

    kind: AnomalyKind
    objects: Sequence[SegmentObject]
    detail: str


def judge(
    stored: StoredSegment,
    state: RemoteLogSegmentState | None,
    counting_attempt: str | None,
    *,
    was_deleted: bool,
) -> Verdict | None:
    """
    Args:
        state: of its metadata, read after the objects were listed; None: there is none. What is
            copied or deleted now is in order as it is.
        counting_attempt: the one that its manifest and, where it is finished, its metadata name;
            None: there is no manifest.
        was_deleted: an event says that the segment's deletion finished.
    """
    if state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        if stored.manifest is None:
            return Verdict(AnomalyKind.MISSING_OBJECTS, (), "the manifest")
        rest = [
            each
            for each in stored.objects
            if counting_attempt is not None and each.name.attempt not in (None, counting_attempt)
        ]
        return _orphans(rest, "left by a copy that does not count") if rest else None
    if state in (
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ):
        return None
    if state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED or was_deleted:
        return _orphans(stored.objects, "left by a deletion that finished")
    if stored.is_complete(counting_attempt):
        text = "a complete copy that no metadata names; never deleted, a rebuild can take it over"
        return Verdict(AnomalyKind.UNREFERENCED_COMPLETE, (), text)
    return _orphans(stored.objects, "left by a copy that never finished")


def _orphans(objects: Sequence[SegmentObject], detail: str) -> Verdict:
    return Verdict(AnomalyKind.ORPHAN_OBJECTS, objects, detail)

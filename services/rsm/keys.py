"""Names of objects. Made of ids and numbers only: lower-case hex, digits, "/", "-" and "."."""

import re
from dataclasses import dataclass
from uuid import UUID

from services.api.ids import ZERO_UUID
from services.api.segment_objects import SegmentObjectKind, SegmentObjectName
from services.api.segments import RemoteLogSegmentMetadata
from services.api.validation import INT32_MAX, INT64_MAX


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment id.

    For the prefix "tier/", topic id 67c8…01, partition 3, start offset 4711, segment id 0b4e…7f and
    the attempt 00c0ffee00c0ffee:

        tier/67c8…01/3/00000000000000004711-0b4e…7f.00c0ffee00c0ffee.log      the segment's bytes
        tier/67c8…01/3/00000000000000004711-0b4e…7f.00c0ffee00c0ffee.indexes  its index files
        tier/67c8…01/3/00000000000000004711-0b4e…7f.manifest                  written last

    (ids have 32 hex digits). Ids have one length, so no segment's keys begin with another's stem,
    and listing `prefix` finds one segment only.
    """

    stem: str

    @property
    def prefix(self) -> str:
        """What every key of this segment id begins with, of whatever attempt."""
        return f"{self.stem}."

    @property
    def manifest(self) -> str:
        return f"{self.stem}.manifest"

    def log(self, attempt: str) -> str:
        return f"{self.stem}.{attempt}.log"

    def indexes(self, attempt: str) -> str:
        return f"{self.stem}.{attempt}.indexes"


_NAME = re.compile(
    r"(?P<topic_id>[0-9a-f]{32})/(?P<partition>0|[1-9][0-9]{0,9})/(?P<start_offset>[0-9]{20})"
    r"-(?P<id>[0-9a-f]{32})\.(?:(?P<attempt>[0-9a-f]{16})\.(?P<file>log|indexes)|manifest)"
)


def segment_object_name(prefix: str, key: str) -> SegmentObjectName | None:
    """Whose object a key is, of whatever segment; None: it is none that SegmentKeys makes."""
    match = _NAME.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None:
        return None
    partition, start_offset = int(match["partition"]), int(match["start_offset"])
    topic_id, segment_id = UUID(match["topic_id"]), UUID(match["id"])
    in_range = partition <= INT32_MAX and start_offset <= INT64_MAX
    if not in_range or ZERO_UUID in (topic_id, segment_id):
        return None
    return SegmentObjectName(
        topic_id=topic_id,
        partition=partition,
        start_offset=start_offset,
        segment_id=segment_id,
        kind=SegmentObjectKind[(match["file"] or "manifest").upper()],
        attempt=match["attempt"],
    )


def keys_beside(key: str) -> SegmentKeys:
    """All keys of the segment that a key is of; it must have a segment_object_name."""
    folder, _, name = key.rpartition("/")
    return SegmentKeys(f"{folder}/{name.partition('.')[0]}")


def segment_keys(prefix: str, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
    """The keys of `metadata`'s segment; `prefix` is empty or ends with a slash."""
    segment_id = metadata.remote_log_segment_id
    partition = segment_id.topic_id_partition
    folder = f"{prefix}{partition.topic_id.hex}/{partition.partition}"
    return SegmentKeys(f"{folder}/{metadata.start_offset:020d}-{segment_id.id.hex}")

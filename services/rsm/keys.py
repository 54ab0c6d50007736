"""Names of objects. Made of ids and numbers only: lower-case hex, digits, "/", "-" and "."."""

from dataclasses import dataclass

from services.api.segments import RemoteLogSegmentMetadata


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


def segment_keys(prefix: str, metadata: RemoteLogSegmentMetadata) -> SegmentKeys:
    """The keys of `metadata`'s segment; `prefix` is empty or ends with a slash."""
    segment_id = metadata.remote_log_segment_id
    partition = segment_id.topic_id_partition
    folder = f"{prefix}{partition.topic_id.hex}/{partition.partition}"
    return SegmentKeys(f"{folder}/{metadata.start_offset:020d}-{segment_id.id.hex}")

"""Find the files of tiered segments in a broker's log directories, which are only read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.remote_storage_manager import SegmentFile
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.output import say
from services.rlm.kafka_log.indexes import INDEX_SUFFIXES
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.views.tier import problem_text
from services.workflows.segment_repair import LocalFiles


def files_in(log_dirs: Sequence[Path]) -> LocalFiles:
    """Find the partitions of the directories; return what finds the files of a segment.

    Raises:
        LogDirError: none of the directories can be used.
    """
    found = find_partitions(log_dirs)
    for problem in found.problems:
        say(problem_text(problem))
    folders = {(tp.topic_id, tp.partition): each.path for tp, each in found.partitions.items()}
    named = ", ".join(map(str, log_dirs))

    def files_of(row: RemoteLogSegmentMetadata) -> Mapping[SegmentFile, Path]:
        tp = row.remote_log_segment_id.topic_id_partition
        folder = folders.get((tp.topic_id, tp.partition))
        if folder is None:
            raise RemoteResourceNotFoundError(
                f"{named}: no {tp.topic}-{tp.partition} of topic id {uuid_to_text(tp.topic_id)}; "
                "run it on the host of a broker that has a replica"
            )
        segment = LocalSegment(folder, row.start_offset, 0, row.end_offset + 1)
        return {
            SegmentFile.LOG: segment.log_path,
            SegmentFile.PRODUCER_SNAPSHOT: segment.producer_snapshot_path,
            **{file: segment.file(suffix) for file, suffix in INDEX_SUFFIXES.items()},
        }

    return files_of

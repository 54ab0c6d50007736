"""The five scenarios of KIP-1266 in RLMM, and what a compacted topic of their metadata keeps."""

from collections.abc import Iterable, Iterator
from typing import Any

from services.api.ids import TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.interop.metadata_topic import decode_key
from services.interop.metadata_values import KEYED_VERSION, decode_value
from tests.contract.rlmm.segments import DELETE_FINISHED, DELETE_STARTED, FINISHED, segment

Present = dict[tuple[int | None, int | None], str]
"""The state under each key that has a value, by end offset and leader epoch."""

DONE = "COPY_SEGMENT_FINISHED"


def moved(rlmm: Any, metadata: RemoteLogSegmentMetadata, *states: Any) -> None:
    """Move a segment through states."""
    for state in states:
        rlmm.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(metadata.remote_log_segment_id, 9, state, 1)
        )


def five_scenarios(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> Iterator[Present]:
    """Play one scenario after the other; yield what is to be present whenever that is settled."""

    def copy(end_offset: int, epoch: int) -> RemoteLogSegmentMetadata:
        made = segment(tp, end_offset - 9, end_offset, broker_leader_epoch=epoch)
        rlmm.add_remote_log_segment_metadata(made)
        return made

    # 1: a copy. 2: two leaders, both finish. 3: a retry under one epoch.
    first = copy(1000, 3)
    moved(rlmm, first, FINISHED)
    old, new = copy(2000, 3), copy(2000, 4)
    moved(rlmm, old, FINISHED)
    moved(rlmm, new, FINISHED)
    retried = copy(3000, 5), copy(3000, 5)
    finished: Present = {(1000, 3): DONE, (2000, 3): DONE, (2000, 4): DONE}
    yield {**finished, (3000, 5): "COPY_SEGMENT_STARTED"}
    moved(rlmm, retried[1], FINISHED)
    yield {**finished, (3000, 5): DONE}
    yield {**finished, (3000, 5): DONE}
    moved(rlmm, retried[0], DELETE_STARTED, DELETE_FINISHED)
    yield {**finished, (3000, 5): DONE}
    # 4: a segment is deleted, and all its keys are forgotten.
    for each in (old, new):
        moved(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    yield {(1000, 3): DONE, (3000, 5): DONE}
    # 5: the partition is deleted; its marker stays.
    for each in (first, retried[1]):
        moved(rlmm, each, DELETE_STARTED, DELETE_FINISHED)
    for state in RemotePartitionDeleteState:
        rlmm.put_remote_partition_delete_metadata(RemotePartitionDeleteMetadata(tp, state, 1, 1))
    yield {(None, None): "DELETE_PARTITION_FINISHED"}


def present_of(
    tp: TopicIdPartition, records: Iterable[tuple[bytes | None, bytes | None]]
) -> Present:
    """Return what the last record of each key says, of keys and values in their order."""
    found: Present = {}
    for encoded, data in records:
        assert encoded is not None
        key = decode_key(encoded)
        assert (key.topic_id, key.partition) == (tp.topic_id, tp.partition)
        place = (key.end_offset, key.broker_leader_epoch)
        if data is None:
            found.pop(place, None)
            continue
        value = decode_value(data)
        assert value.version == KEYED_VERSION
        found[place] = value.metadata.state.value
    return found

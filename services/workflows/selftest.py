"""Copy one small segment through RLMM and RSM, look it up, read it back and delete it."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import (
    LogSegmentData,
    RemoteStorageManager,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.workflows.deletion import UNKNOWN_BROKER, Deleter
from services.workflows.removal import remove_partition

TOPIC = "sediment-selftest"
_LOG_BYTES = 65_536
_INDEX_BYTES = 64
_LEADER_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the test, or several that belong together.

    Attributes:
        error: None if the step succeeded.
    """

    name: str
    took_ms: float
    error: str | None = None


class _StepFailedError(Exception):
    """A step failed, and is in the list of steps."""


class _WrongAnswerError(Exception):
    """A service answered, but with another content than it got."""


def run_selftest(rlmm: RemoteLogMetadataManager, rsm: RemoteStorageManager) -> Sequence[Step]:
    """Run the steps until one fails; return them.

    The topic has a new id each time. The last step removes the partition with its segment, also
    after a failure. If that fails too, the partition stays marked, and RLM or a sweep removes it.
    """
    steps: list[Step] = []
    partition = TopicIdPartition(random_uuid(), TOPIC, 0)
    try:
        with suppress(_StepFailedError):
            _copy_and_read(rlmm, rsm, partition, steps)
    finally:
        with suppress(_StepFailedError), _step(steps, "delete"):
            _delete(rlmm, rsm, partition)
    return steps


def _copy_and_read(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    partition: TopicIdPartition,
    steps: list[Step],
) -> None:
    log = os.urandom(_LOG_BYTES)
    segment = _segment(partition)
    id_ = segment.remote_log_segment_id
    with _step(steps, "register"):
        rlmm.add_remote_log_segment_metadata(segment)
    with _step(steps, "copy"):
        custom = rsm.copy_log_segment_data(segment, _data(log))
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    with _step(steps, "commit"):
        update = RemoteLogSegmentMetadataUpdate(id_, _now_ms(), finished, UNKNOWN_BROKER, custom)
        rlmm.update_remote_log_segment_metadata(update)
    with _step(steps, "look up"):
        answer = rlmm.remote_log_segment_metadata(
            partition, _LEADER_EPOCH, segment.end_offset
        ).value
        is_same = answer is not None and answer.remote_log_segment_id == id_
        _require(is_same, f"RLMM returned {answer and answer.remote_log_segment_id}, not {id_}")
    with _step(steps, "fetch"):
        fetched = b"".join(rsm.fetch_log_segment(replace(segment, custom_metadata=custom), 0))
        _require(fetched == log, "RSM returned other bytes than it got")


def _delete(
    rlmm: RemoteLogMetadataManager, rsm: RemoteStorageManager, partition: TopicIdPartition
) -> None:
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    now_ms = _now_ms()
    rlmm.put_remote_partition_delete_metadata(
        RemotePartitionDeleteMetadata(partition, marked, now_ms, UNKNOWN_BROKER)
    )
    removal = remove_partition(rlmm, rsm, partition, Deleter(), now_ms)
    errors = [str(outcome.error) for outcome in removal.outcomes if outcome.error is not None]
    why = "; ".join([*errors, removal.left])
    _require(not removal.left, f"{partition} is not removed: {why}")


def _segment(partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
    now_ms = _now_ms()
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(partition, random_uuid()),
        start_offset=0,
        end_offset=99,
        max_timestamp_ms=now_ms,
        broker_id=UNKNOWN_BROKER,
        event_timestamp_ms=now_ms,
        segment_leader_epochs=segment_leader_epochs([(_LEADER_EPOCH, 0)]),
        segment_size_in_bytes=_LOG_BYTES,
        txn_idx_empty=True,
    )


def _data(log: bytes) -> LogSegmentData:
    files = [file for file in SegmentFile if file is not SegmentFile.TRANSACTION]
    contents = {file: log if file is SegmentFile.LOG else bytes(_INDEX_BYTES) for file in files}
    headers = [SegmentFileHeader(file, len(contents[file])) for file in files]
    return LogSegmentData(headers, [SegmentChunk(file, contents[file]) for file in files])


@contextmanager
def _step(steps: list[Step], name: str) -> Iterator[None]:
    began_s = time.monotonic()
    error = None
    try:
        yield
    except (RemoteStorageError, _WrongAnswerError) as e:
        error = str(e)
        raise _StepFailedError from e
    finally:
        steps.append(Step(name, (time.monotonic() - began_s) * 1000, error))


def _require(is_so: bool, sentence: str) -> None:
    if not is_so:
        raise _WrongAnswerError(sentence)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

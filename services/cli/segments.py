"""`sediment segments`: what RLMM knows of a partition."""

from datetime import UTC, datetime
from pathlib import Path

from services.api.ids import uuid_to_text
from services.api.segment_queries import all_segments
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.connections import connected_rlmm, find_partition
from services.cli.output import Format, print_json, print_table


def run(topic_partition: str, rlmm: str | None, data_dir: Path | None, output: Format) -> None:
    with connected_rlmm(rlmm, data_dir) as manager:
        tp = find_partition(manager, topic_partition)
        found = all_segments(manager, tp)
        if output is Format.JSON:
            for segment in found:
                print_json(_as_json(segment))
        else:
            columns = ("offsets", "epochs", "bytes", "state", "latest record", "segment id")
            print_table(f"{tp.topic}-{tp.partition}", columns, map(_as_row, found))


def _as_json(segment: RemoteLogSegmentMetadata) -> dict[str, object]:
    return {
        "segment_id": uuid_to_text(segment.remote_log_segment_id.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "segment_size_in_bytes": segment.segment_size_in_bytes,
        "state": segment.state.value,
        "segment_leader_epochs": [
            [e.leader_epoch, e.start_offset] for e in segment.segment_leader_epochs
        ],
        "broker_id": segment.broker_id,
        "broker_leader_epoch": segment.broker_leader_epoch,
        "txn_idx_empty": segment.txn_idx_empty,
    }


def _as_row(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    epochs = " ".join(f"{e.leader_epoch}:{e.start_offset}" for e in segment.segment_leader_epochs)
    return (
        f"{segment.start_offset}-{segment.end_offset}",
        epochs,
        segment.segment_size_in_bytes,
        segment.state.value,
        _time_text(segment.max_timestamp_ms),
        uuid_to_text(segment.remote_log_segment_id.id),
    )


def _time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")

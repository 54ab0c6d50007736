"""Records in as few words as a person needs to see what went wrong."""

from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from uuid import UUID

from services.api.calls import MutationOutcome
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata


def brief(value: object) -> str:
    """As `repr`, without defaults, without the partition; ids of segments as numbers."""
    match value:
        case RemoteLogSegmentId(id=segment_id):
            return brief(segment_id)
        case UUID(int=number):
            return f"id {number}"
        case TopicIdPartition(partition=partition):
            return f"partition {partition}"
        case MutationOutcome(applied, revision):
            return f"{'applied' if applied else 'repeated'} @{revision}"
        case RemoteLogSegmentMetadata():
            return _segment(value)
        case Enum():
            return value.name
        case tuple():
            return f"({', '.join(map(brief, value))})"
    if is_dataclass(value):
        said = [
            f"{field.name}={brief(getattr(value, field.name))}"
            for field in fields(value)
            if field.name != "kind" and not _is_default(field, value)
        ]
        return f"{type(value).__name__}({', '.join(said)})"
    return repr(value)


def _segment(segment: RemoteLogSegmentMetadata) -> str:
    epochs = ", ".join(
        f"{e.leader_epoch} from {e.start_offset}" for e in segment.segment_leader_epochs
    )
    said = [
        f"{segment.start_offset}-{segment.end_offset}, epochs {epochs}, {segment.state.name}",
        f"broker {segment.broker_id} at {segment.event_timestamp_ms}",
        f"leader {segment.broker_leader_epoch}, {segment.segment_size_in_bytes} bytes",
        f"custom {segment.custom_metadata!r}, txn_idx_empty {segment.txn_idx_empty}",
    ]
    return f"[{brief(segment.remote_log_segment_id)}: {', '.join(said)}]"


def _is_default(field: "Field[object]", value: object) -> bool:
    return field.default is not MISSING and getattr(value, field.name) == field.default

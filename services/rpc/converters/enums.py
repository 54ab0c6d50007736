"""Enums cross the wire by name, never by number."""

from collections.abc import Iterable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from services.api.anomalies import AnomalyKind
from services.api.errors import InvalidRequestError
from services.api.partition_lifecycle import PartitionRole, StopReason
from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_manager import FetchError, ProblemKind, RecordSource
from services.api.remote_storage_manager import IndexType, SegmentFile
from services.api.segment_objects import SegmentObjectKind
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as rlmm_pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as rsm_pb

E = TypeVar("E", bound=Enum)
V = TypeVar("V", bound=int)
V_co = TypeVar("V_co", bound=int, covariant=True)


class WireEnum(Protocol[V_co]):
    """A generated enum: numbers by name."""

    def Value(self, name: str) -> V_co: ...


class EnumConverter(Generic[E, V]):
    """Our enum and the wire's, whose names are ours behind a prefix."""

    def __init__(self, ours: type[E], wire: WireEnum[V], prefix: str) -> None:
        self._to_wire = {member: wire.Value(prefix + member.name) for member in ours}
        self._from_wire = {number: member for member, number in self._to_wire.items()}

    def members(self) -> Iterable[E]:
        return self._to_wire.keys()

    def to_proto(self, member: E) -> V:
        return self._to_wire[member]

    def from_proto(self, number: V, field: str) -> E:
        """Raise InvalidRequestError for UNSPECIFIED and for numbers of a later release."""
        member = self._from_wire.get(number)
        if member is None:
            raise InvalidRequestError(f"{field}: must be set to a known value, is {number}")
        return member


segment_state = EnumConverter(
    RemoteLogSegmentState, segment_pb.RemoteLogSegmentState, "REMOTE_LOG_SEGMENT_STATE_"
)
partition_delete_state = EnumConverter(
    RemotePartitionDeleteState,
    segment_pb.RemotePartitionDeleteState,
    "REMOTE_PARTITION_DELETE_STATE_",
)
retention_owner = EnumConverter(RetentionOwner, segment_pb.RetentionOwner, "RETENTION_OWNER_")
anomaly_kind = EnumConverter(AnomalyKind, rlmm_pb.AnomalyKind, "ANOMALY_KIND_")
index_type = EnumConverter(IndexType, segment_pb.IndexType, "INDEX_TYPE_")
segment_file = EnumConverter(SegmentFile, rsm_pb.SegmentFile, "SEGMENT_FILE_")
segment_object_kind = EnumConverter(
    SegmentObjectKind, rsm_pb.SegmentObjectKind, "SEGMENT_OBJECT_KIND_"
)
fetch_error = EnumConverter(FetchError, rlm_pb.FetchError, "FETCH_ERROR_")
record_source = EnumConverter(RecordSource, rlm_pb.RecordSource, "RECORD_SOURCE_")
problem_kind = EnumConverter(ProblemKind, rlm_pb.ProblemKind, "PROBLEM_KIND_")
partition_role = EnumConverter(PartitionRole, rlm_pb.PartitionRole, "PARTITION_ROLE_")
stop_reason = EnumConverter(StopReason, rlm_pb.StopReason, "STOP_REASON_")

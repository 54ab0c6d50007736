"""Provide a valid request for each RPC of RLMM, which changes nothing: tests spoil it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid4

import grpc
from google.protobuf.message import Message

from services.api.ids import RemoteLogSegmentId, TopicIdPartition, uuid_to_text
from services.api.segments import RemoteLogSegmentMetadata
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rpc.converters.partitions import (
    polled_log_to_proto,
    report_to_proto,
)
from services.rpc.converters.shared import (
    metadata_to_proto,
    segment_id_to_proto,
    topic_id_partition_to_proto,
)
from tests.contract.rlmm.partition_states import polled, report_of, taken
from tests.contract.rlmm.segments import FINISHED, add, segment
from tests.deep.fuzzing.calling import METHODS
from tests.harness.served import served_manager
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

TP = TopicIdPartition(UUID(int=0x5ED1), "orders", 0)
KNOWN = RemoteLogSegmentId(TP, UUID(int=0x5ED2))
"""The id of a finished segment: offsets 0 to 9."""
IMPORTED = RemoteLogSegmentId(TopicIdPartition(TP.topic_id, TP.topic, 1), UUID(int=0x5ED3))
STATE: Final = segment_pb.RemoteLogSegmentState
DELETE_STATE: Final = segment_pb.RemotePartitionDeleteState
FUTURE = 10**6
"""A revision that no partition reaches."""
RPCS = {method.name: method for method in METHODS["rlmm"]}


@contextmanager
def rlmm_of_sound_requests(database_url: str) -> Iterator[grpc.Channel]:
    """Yield a channel to an RLMM with one segment, a report of its partition, and another
    partition.
    """
    engine = create_database_engine(database_url)
    manager = SqlRemoteLogMetadataManager(engine)
    add(manager, known_segment(), FINISHED)
    taken(manager, report_of(TP))
    add(manager, segment(TopicIdPartition(TP.topic_id, TP.topic, 1), 0, 9))

    with served_manager(manager) as (opened, _):
        yield opened
    engine.dispose()


def known_segment() -> RemoteLogSegmentMetadata:
    return replace(segment(TP, 0, 9, custom_metadata=b"a"), remote_log_segment_id=KNOWN)


def tp_message() -> segment_pb.TopicIdPartition:
    return topic_id_partition_to_proto(TP)


def addition(segment_id: UUID | None = None) -> pb.AddRemoteLogSegmentMetadataRequest:
    attempt = RemoteLogSegmentId(TP, segment_id or uuid4())
    made = replace(
        segment(TP, 10, 19, {0: 10, 1: 15}),
        remote_log_segment_id=attempt,
        broker_leader_epoch=1,
    )
    return pb.AddRemoteLogSegmentMetadataRequest(metadata=metadata_to_proto(made), context=why())


def change() -> pb.UpdateRemoteLogSegmentMetadataRequest:
    update = segment_pb.RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment_id_to_proto(KNOWN),
        event_timestamp_ms=6_000,
        state=STATE.REMOTE_LOG_SEGMENT_STATE_DELETE_SEGMENT_STARTED,
        broker_id=1,
    )
    return pb.UpdateRemoteLogSegmentMetadataRequest(update=update, context=why())


def why() -> segment_pb.MutationContext:
    return segment_pb.MutationContext(
        broker_leader_epoch=3, expected_revision=FUTURE, expected_config_revision=FUTURE
    )


def only_reason() -> segment_pb.MutationContext:
    return segment_pb.MutationContext(reason="the database was restored")


def hold_message() -> pb.Hold:
    return pb.Hold(
        name="lake",
        kind=pb.HOLD_KIND_EXPORT,
        topic=TP.topic,
        topic_id=uuid_to_text(TP.topic_id),
        partition=TP.partition,
        first_offset=5,
    )


def deletion() -> pb.PutRemotePartitionDeleteMetadataRequest:
    metadata = segment_pb.RemotePartitionDeleteMetadata(
        topic_id_partition=tp_message(),
        state=DELETE_STATE.REMOTE_PARTITION_DELETE_STATE_DELETE_PARTITION_MARKED,
        event_timestamp_ms=7_000,
        broker_id=1,
    )
    return pb.PutRemotePartitionDeleteMetadataRequest(metadata=metadata, context=why())


def leadership() -> pb.OnPartitionLeadershipChangesRequest:
    each = pb.PartitionLeadership(topic_id_partition=tp_message(), leader_epoch=1)
    return pb.OnPartitionLeadershipChangesRequest(
        leaders=[each, each], followers=[each], broker_id=1
    )


def report() -> pb.ReportPartitionStateRequest:
    each = report_to_proto(report_of(TP))
    log = polled_log_to_proto(polled(TP))
    return pb.ReportPartitionStateRequest(reports=[each, each], polled_logs=[log, log])


def anomaly() -> pb.Anomaly:
    return pb.Anomaly(
        kind=pb.ANOMALY_KIND_ORPHAN_OBJECTS,
        topic_id=uuid_to_text(TP.topic_id),
        segment_id=uuid_to_text(KNOWN.id),
    )


def sound_requests() -> dict[str, Message]:
    """Return the requests by RPC name, for every RPC that takes a number.

    A request that would change something expects FUTURE, or is a repeat.
    """
    lookup = pb.GetRemoteLogSegmentMetadataRequest(topic_id_partition=tp_message())
    return {
        "AddRemoteLogSegmentMetadata": addition(),
        "AddRemoteLogSegmentMetadataBatch": pb.AddRemoteLogSegmentMetadataBatchRequest(
            adds=[addition(), addition()]
        ),
        "UpdateRemoteLogSegmentMetadata": change(),
        "UpdateRemoteLogSegmentMetadataBatch": pb.UpdateRemoteLogSegmentMetadataBatchRequest(
            updates=[change()]
        ),
        "GetRemoteLogSegmentMetadata": lookup,
        "GetRemoteLogSegmentMetadataBatch": pb.GetRemoteLogSegmentMetadataBatchRequest(
            lookups=[lookup, lookup]
        ),
        "GetHighestOffsetForEpoch": pb.GetHighestOffsetForEpochRequest(
            topic_id_partition=tp_message()
        ),
        "PutRemotePartitionDeleteMetadata": deletion(),
        "ListRemoteLogSegments": pb.ListRemoteLogSegmentsRequest(
            topic_id_partition=tp_message(), leader_epoch=0, min_offset=0, if_revision_not=0
        ),
        "GetRemoteLogSize": pb.GetRemoteLogSizeRequest(topic_id_partition=tp_message()),
        "GetNextSegmentWithTxnIndex": pb.GetNextSegmentWithTxnIndexRequest(
            topic_id_partition=tp_message()
        ),
        "OnPartitionLeadershipChanges": leadership(),
        "OnStopPartitions": pb.OnStopPartitionsRequest(partitions=[tp_message()], broker_id=1),
        "AnnounceEndpoint": pb.AnnounceEndpointRequest(
            endpoint=segment_pb.RlmEndpoint(
                cluster_id="c", directory_id="d", broker_id=1, address="host:1", listener="host:2"
            ),
            instance_id=uuid_to_text(KNOWN.id),
            lease_ms=1,
        ),
        "ListKeptSegments": pb.ListKeptSegmentsRequest(),
        "ListPartitions": pb.ListPartitionsRequest(),
        "GetPartitionRevisions": pb.GetPartitionRevisionsRequest(
            partitions=[tp_message(), tp_message()]
        ),
        "WatchPartitions": pb.WatchPartitionsRequest(
            partitions=[
                pb.WatchedPartition(topic_id_partition=tp_message(), after_revision=1),
                pb.WatchedPartition(
                    topic_id_partition=topic_id_partition_to_proto(IMPORTED.topic_id_partition)
                ),
            ]
        ),
        "PutTopicConfig": pb.PutTopicConfigRequest(
            topic_id=uuid_to_text(TP.topic_id), expected_revision=FUTURE
        ),
        "ReportPartitionState": report(),
        "RaiseLogStartOffset": pb.RaiseLogStartOffsetRequest(
            topic_id_partition=tp_message(), log_start_offset=5, context=why()
        ),
        "ScanRemoteLogSegments": pb.ScanRemoteLogSegmentsRequest(shards=1),
        "BinRemoteLogSegments": pb.BinRemoteLogSegmentsRequest(
            topic_id_partition=tp_message(), axis=pb.SEGMENT_AXIS_OFFSET, bins=1_000
        ),
        "ListEvents": pb.ListEventsRequest(topic_id_partition=tp_message()),
        "RenewCopyLeases": pb.RenewCopyLeasesRequest(
            segments=[segment_id_to_proto(KNOWN)], lease_ms=60_000, broker_id=1
        ),
        "RecordGap": pb.RecordGapRequest(
            topic_id_partition=tp_message(),
            gap=pb.OffsetGap(start_offset=20, end_offset=29, kind="LOST_BEFORE_COPY"),
            broker_id=1,
            context=why(),
        ),
        "SetHold": pb.SetHoldRequest(hold=hold_message(), lease_ms=1_000),
        "EndHold": pb.EndHoldRequest(hold=hold_message(), context=only_reason()),
        "ListHolds": pb.ListHoldsRequest(),
        "ReportAnomalies": pb.ReportAnomaliesRequest(anomalies=[anomaly()], run_id="run-1"),
        "ReportToolRun": pb.ReportToolRunRequest(
            kind=pb.RUN_KIND_SCRUB,
            run_id="run-1",
            outcome=pb.RUN_OUTCOME_DONE,
            part=1,
            parts=1,
            counts=[pb.RunCounts(topic_id=uuid_to_text(TP.topic_id))],
        ),
        "ListToolRuns": pb.ListToolRunsRequest(),
        "RecordObjectDeletions": pb.RecordObjectDeletionsRequest(
            topic_id_partition=tp_message(),
            deletions=[
                pb.ObjectDeletion(segment_id=uuid_to_text(KNOWN.id), object_key="1:prefix/x.log")
            ],
            context=why(),
        ),
        "ListAnomalies": pb.ListAnomaliesRequest(last_seen_from_ms=0),
        "ImportRemoteLogSegments": pb.ImportRemoteLogSegmentsRequest(
            segments=[metadata_to_proto(replace(known_segment(), remote_log_segment_id=IMPORTED))]
        ),
        "UndeletePartition": pb.UndeletePartitionRequest(
            topic_id_partition=tp_message(), context=why()
        ),
        "ConfirmDeletions": pb.ConfirmDeletionsRequest(
            topic_id=uuid_to_text(TP.topic_id), expected_config_revision=0, context=only_reason()
        ),
        "GetEarliestLogOffset": pb.GetEarliestLogOffsetRequest(topic_id_partition=tp_message()),
        "GetPartitionState": pb.GetPartitionStateRequest(topic_id_partition=tp_message()),
        "IsReady": pb.IsReadyRequest(topic_id_partition=tp_message()),
        "GetRemoteLogSegmentMetadataById": pb.GetRemoteLogSegmentMetadataByIdRequest(
            topic_id_partition=tp_message(), ids=[uuid_to_text(KNOWN.id)]
        ),
        "ReplaceSegmentData": pb.ReplaceSegmentDataRequest(
            segment_id=segment_id_to_proto(KNOWN),
            expected_custom_metadata=b"b",
            new_custom_metadata=b"a",
            context=why(),
        ),
        "ResetLeaderEpoch": pb.ResetLeaderEpochRequest(
            topic_id_partition=tp_message(), leader_epoch=1, context=why()
        ),
    }

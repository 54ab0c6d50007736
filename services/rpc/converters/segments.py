"""Convert RLMM's messages about segments: pages, changes, batches, look-ups, scans, imports, and
what was verified of them.
"""

from collections.abc import Sequence
from uuid import UUID

from services.api.calls import AtRevision
from services.api.errors import RemoteStorageError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partitions import (
    Verification,
    VerificationPage,
    VerificationRun,
    VerifiedTopic,
)
from services.api.remote_log_metadata_manager import (
    RecordedSweep,
    SegmentPage,
    SegmentUpdate,
    SweepRecord,
    UpdateOutcome,
)
from services.api.segment_batches import (
    AddOutcome,
    ImportedSegments,
    LookupOutcome,
    SegmentAddition,
    SegmentBatch,
    SegmentImport,
    SegmentLookup,
    SegmentScan,
)
from services.api.validation import within
from services.rpc.converters.shared import (
    context_from_proto,
    context_to_proto,
    items_from_proto,
    metadata_from_proto,
    metadata_to_proto,
    outcome_from_proto,
    outcome_to_proto,
    partition_delete_state,
    partition_of,
    require_set,
    segment_state,
    sweep_kind,
    sweep_outcome,
    topic_id_partition_to_proto,
    update_from_proto,
    update_to_proto,
    verification_kind,
    write_metadata,
)
from services.rpc.statuses import error_of, status_of
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb


def segment_page_to_proto(page: SegmentPage) -> pb.ListRemoteLogSegmentsResponse:
    return pb.ListRemoteLogSegmentsResponse(
        segments=[metadata_to_proto(segment) for segment in page.segments],
        next_page_token=page.next_page_token,
        revision=page.revision,
        not_modified=page.not_modified,
        log_start_offset=page.log_start_offset,
    )


def segment_page_from_proto(message: pb.ListRemoteLogSegmentsResponse) -> SegmentPage:
    return SegmentPage(
        segments=tuple(metadata_from_proto(segment) for segment in message.segments),
        next_page_token=message.next_page_token,
        revision=message.revision,
        not_modified=message.not_modified,
        log_start_offset=message.log_start_offset,
    )


def addition_to_proto(item: SegmentAddition) -> pb.AddRemoteLogSegmentMetadataRequest:
    return pb.AddRemoteLogSegmentMetadataRequest(
        metadata=metadata_to_proto(item.metadata),
        context=context_to_proto(item.context),
        lease_ms=item.lease_ms,
    )


def additions_from_proto(
    messages: Sequence[pb.AddRemoteLogSegmentMetadataRequest],
) -> tuple[SegmentAddition, ...]:
    return items_from_proto(messages, "adds", addition_from_proto)


def addition_from_proto(message: pb.AddRemoteLogSegmentMetadataRequest) -> SegmentAddition:
    require_set(message, "metadata")
    with within("metadata"):
        metadata = metadata_from_proto(message.metadata)
    with within("context"):
        context = context_from_proto(message.context)
    lease_ms = message.lease_ms if message.HasField("lease_ms") else None
    return SegmentAddition(metadata, context, lease_ms)


def add_outcome_to_proto(outcome: AddOutcome) -> pb.AddOutcome:
    if isinstance(outcome, RemoteStorageError):
        return pb.AddOutcome(error=status_of(outcome))
    return pb.AddOutcome(result=outcome_to_proto(outcome))


def add_outcome_from_proto(message: pb.AddOutcome) -> AddOutcome:
    if message.HasField("result"):
        return outcome_from_proto(message.result)
    return error_of(message.error)


def lookup_to_proto(lookup: SegmentLookup) -> pb.GetRemoteLogSegmentMetadataRequest:
    return pb.GetRemoteLogSegmentMetadataRequest(
        topic_id_partition=topic_id_partition_to_proto(lookup.topic_id_partition),
        epoch_for_offset=lookup.epoch_for_offset,
        offset=lookup.offset,
    )


def lookups_from_proto(
    messages: Sequence[pb.GetRemoteLogSegmentMetadataRequest],
) -> tuple[SegmentLookup, ...]:
    return items_from_proto(messages, "lookups", lookup_from_proto)


def lookup_from_proto(message: pb.GetRemoteLogSegmentMetadataRequest) -> SegmentLookup:
    tp = partition_of(message)
    return SegmentLookup(tp, message.epoch_for_offset, message.offset)


def lookup_outcomes_to_proto(
    outcomes: Sequence[LookupOutcome],
) -> pb.GetRemoteLogSegmentMetadataBatchResponse:
    response = pb.GetRemoteLogSegmentMetadataBatchResponse()
    for outcome in outcomes:
        _write_lookup_outcome(outcome, response.outcomes.add())
    return response


def _write_lookup_outcome(outcome: LookupOutcome, message: pb.LookupOutcome) -> None:
    """Write an outcome into an empty message within a larger one."""
    if isinstance(outcome, RemoteStorageError):
        message.error.CopyFrom(status_of(outcome))
        return
    message.result.revision = outcome.revision
    if outcome.value is not None:
        write_metadata(outcome.value, message.result.metadata)


def lookup_outcome_from_proto(message: pb.LookupOutcome) -> LookupOutcome:
    if not message.HasField("result"):
        return error_of(message.error)
    result = message.result
    found = metadata_from_proto(result.metadata) if result.HasField("metadata") else None
    return AtRevision(found, result.revision)


def ids_from_proto(ids: Sequence[str]) -> list[UUID]:
    return [uuid_from_text(id, f"ids[{index}]") for index, id in enumerate(ids)]


def segment_update_to_proto(item: SegmentUpdate) -> pb.UpdateRemoteLogSegmentMetadataRequest:
    return pb.UpdateRemoteLogSegmentMetadataRequest(
        update=update_to_proto(item.update), context=context_to_proto(item.context)
    )


def segment_update_from_proto(message: pb.UpdateRemoteLogSegmentMetadataRequest) -> SegmentUpdate:
    with within("update"):
        update = update_from_proto(message.update)
    with within("context"):
        context = context_from_proto(message.context)
    return SegmentUpdate(update, context)


def segment_updates_from_proto(
    messages: Sequence[pb.UpdateRemoteLogSegmentMetadataRequest],
) -> tuple[SegmentUpdate, ...]:
    return items_from_proto(messages, "updates", segment_update_from_proto)


def update_outcome_to_proto(outcome: UpdateOutcome) -> pb.UpdateOutcome:
    if isinstance(outcome, RemoteStorageError):
        return pb.UpdateOutcome(error=status_of(outcome))
    return pb.UpdateOutcome(result=outcome_to_proto(outcome))


def update_outcome_from_proto(message: pb.UpdateOutcome) -> UpdateOutcome:
    if message.HasField("result"):
        return outcome_from_proto(message.result)
    return error_of(message.error)


def scan_to_proto(scan: SegmentScan) -> pb.ScanRemoteLogSegmentsRequest:
    return pb.ScanRemoteLogSegmentsRequest(
        shard=scan.shard,
        shards=scan.shards,
        states=[segment_state.to_proto(state) for state in scan.states],
        topic=scan.topic,
        delete_states=[partition_delete_state.to_proto(state) for state in scan.delete_states],
        partition=scan.partition,
        columns=scan.columns,
    )


def scan_from_proto(message: pb.ScanRemoteLogSegmentsRequest) -> SegmentScan:
    return SegmentScan(
        shard=message.shard,
        shards=message.shards,
        states=[segment_state.from_proto(state, "states") for state in message.states],
        topic=message.topic,
        delete_states=[
            partition_delete_state.from_proto(state, "delete_states")
            for state in message.delete_states
        ],
        partition=message.partition if message.HasField("partition") else None,
        columns=tuple(message.columns),
    )


def segment_batch_to_proto(batch: SegmentBatch) -> pb.ScanRemoteLogSegmentsResponse:
    return pb.ScanRemoteLogSegmentsResponse(
        arrow_ipc=batch.arrow_ipc, rows=batch.rows, began_at_ms=batch.began_at_ms
    )


def segment_batch_from_proto(message: pb.ScanRemoteLogSegmentsResponse) -> SegmentBatch:
    return SegmentBatch(message.arrow_ipc, message.rows, message.began_at_ms)


def import_to_proto(item: SegmentImport) -> pb.ImportRemoteLogSegmentsRequest:
    return pb.ImportRemoteLogSegmentsRequest(
        segments=[metadata_to_proto(segment) for segment in item.segments],
        context=context_to_proto(item.context),
    )


def import_from_proto(message: pb.ImportRemoteLogSegmentsRequest) -> SegmentImport:
    segments = items_from_proto(message.segments, "segments", metadata_from_proto)
    with within("context"):
        context = context_from_proto(message.context)
    return SegmentImport(segments, context)


def imported_to_proto(imported: ImportedSegments) -> pb.ImportRemoteLogSegmentsResponse:
    return pb.ImportRemoteLogSegmentsResponse(
        imported=imported.imported, repeated_segments=imported.repeated
    )


def imported_from_proto(message: pb.ImportRemoteLogSegmentsResponse) -> ImportedSegments:
    return ImportedSegments(message.imported, message.repeated_segments)


def verification_to_proto(
    run: VerificationRun, topics: Sequence[VerifiedTopic]
) -> pb.ReportVerificationRequest:
    return pb.ReportVerificationRequest(
        kind=verification_kind.to_proto(run.kind),
        run_id=run.run_id,
        part=run.part,
        parts=run.parts,
        listed_at_ms=run.listed_at_ms,
        topics=[_verified_to_proto(topic) for topic in topics],
    )


def verification_from_proto(
    message: pb.ReportVerificationRequest,
) -> tuple[VerificationRun, tuple[VerifiedTopic, ...]]:
    kind = verification_kind.from_proto(message.kind, "kind")
    listed_at_ms = message.listed_at_ms if message.HasField("listed_at_ms") else None
    run = VerificationRun(kind, message.run_id, message.part, message.parts, listed_at_ms)
    return run, items_from_proto(message.topics, "topics", _verified_from_proto)


def _verified_to_proto(topic: VerifiedTopic) -> pb.VerifiedTopic:
    return pb.VerifiedTopic(
        topic_id=uuid_to_text(topic.topic_id),
        segments=topic.segments,
        verified_segments=topic.verified_segments,
        verified_bytes=topic.verified_bytes,
        failed_segments=topic.failed_segments,
    )


def _verified_from_proto(message: pb.VerifiedTopic) -> VerifiedTopic:
    return VerifiedTopic(
        uuid_from_text(message.topic_id, "topic_id"),
        message.segments,
        message.verified_segments,
        message.verified_bytes,
        message.failed_segments,
    )


def verification_page_to_proto(page: VerificationPage) -> pb.ListVerificationsResponse:
    return pb.ListVerificationsResponse(
        verifications=[
            pb.Verification(
                topic=each.topic,
                kind=verification_kind.to_proto(each.kind),
                parts=each.parts,
                verified_parts=each.verified_parts,
                ended_ms=each.ended_ms,
                last_ended_ms=each.last_ended_ms,
                run_id=each.run_id,
                verified=_verified_to_proto(each.verified),
            )
            for each in page.verifications
        ],
        next_page_token=page.next_page_token,
    )


def verification_page_from_proto(message: pb.ListVerificationsResponse) -> VerificationPage:
    return VerificationPage(
        tuple(
            Verification(
                each.topic,
                verification_kind.from_proto(each.kind, "kind"),
                each.parts,
                each.verified_parts,
                each.ended_ms,
                each.last_ended_ms,
                each.run_id,
                _verified_from_proto(each.verified),
            )
            for each in message.verifications
        ),
        message.next_page_token,
    )


def sweep_to_proto(record: SweepRecord) -> pb.ReportSweepRunRequest:
    return pb.ReportSweepRunRequest(
        kind=sweep_kind.to_proto(record.kind),
        topics=record.topics,
        run_id=record.run_id,
        outcome=sweep_outcome.to_proto(record.outcome),
        duration_ms=record.duration_ms,
        planned_segments=record.planned_segments,
        deleted_segments=record.deleted_segments,
        deleted_bytes=record.deleted_bytes,
        failed_segments=record.failed_segments,
    )


def sweep_from_proto(message: pb.ReportSweepRunRequest) -> SweepRecord:
    return SweepRecord(
        sweep_kind.from_proto(message.kind, "kind"),
        tuple(message.topics),
        message.run_id,
        sweep_outcome.from_proto(message.outcome, "outcome"),
        message.duration_ms,
        message.planned_segments,
        message.deleted_segments,
        message.deleted_bytes,
        message.failed_segments,
    )


def sweeps_to_proto(sweeps: Sequence[RecordedSweep]) -> pb.ListSweepRunsResponse:
    runs = [
        pb.SweepRun(report=sweep_to_proto(each.record), ended_ms=each.ended_ms) for each in sweeps
    ]
    return pb.ListSweepRunsResponse(runs=runs)


def sweeps_from_proto(message: pb.ListSweepRunsResponse) -> list[RecordedSweep]:
    """Read them; omit kinds and outcomes that only a later release knows."""
    return [
        RecordedSweep(sweep_from_proto(each.report), each.ended_ms)
        for each in message.runs
        if sweep_kind.knows(each.report.kind) and sweep_outcome.knows(each.report.outcome)
    ]

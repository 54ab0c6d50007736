"""Convert the messages of ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from collections.abc import Iterable, Sequence

from services.api.lineage import EpochEnd
from services.api.offset_queries import (
    EpochAnswer,
    EpochQuery,
    FoundOffset,
    OffsetQueries,
    OffsetQuery,
    RaisedLogStart,
    RecordsToDelete,
)
from services.rpc.converters.log import (
    epoch_end_to_proto,
    isolation_from_proto,
    isolation_level,
)
from services.rpc.converters.shared import (
    fetch_error,
    items_from_proto,
    partition_of,
    topic_id_partition_from_proto,
    topic_id_partition_to_proto,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb


def _current_epoch(message: pb.OffsetQuery | pb.EpochQuery) -> int | None:
    return message.current_leader_epoch if message.HasField("current_leader_epoch") else None


def offset_queries_to_proto(queries: OffsetQueries) -> pb.ListOffsetsRequest:
    return pb.ListOffsetsRequest(
        queries=[
            pb.OffsetQuery(
                topic_id_partition=topic_id_partition_to_proto(query.topic_id_partition),
                timestamp_ms=query.timestamp_ms,
                current_leader_epoch=query.current_leader_epoch,
            )
            for query in queries.queries
        ],
        isolation_level=isolation_level.to_proto(queries.isolation_level),
        timeout_ms=queries.timeout_ms,
    )


def offset_queries_from_proto(message: pb.ListOffsetsRequest) -> OffsetQueries:
    queries = items_from_proto(message.queries, "queries", _offset_query_from_proto)
    isolation = isolation_from_proto(message.isolation_level)
    return OffsetQueries(queries, isolation, message.timeout_ms)


def _offset_query_from_proto(message: pb.OffsetQuery) -> OffsetQuery:
    return OffsetQuery(partition_of(message), message.timestamp_ms, _current_epoch(message))


def found_offsets_to_proto(found: Iterable[FoundOffset]) -> pb.ListOffsetsResponse:
    return pb.ListOffsetsResponse(
        answers=[
            pb.FoundOffset(
                topic_id_partition=topic_id_partition_to_proto(each.topic_id_partition),
                error=fetch_error.to_proto(each.error),
                error_message=each.error_message,
                timestamp_ms=each.timestamp_ms,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
            )
            for each in found
        ]
    )


def found_offsets_from_proto(message: pb.ListOffsetsResponse) -> list[FoundOffset]:
    return [
        FoundOffset(
            topic_id_partition_from_proto(each.topic_id_partition),
            fetch_error.from_proto(each.error, "error"),
            each.error_message,
            each.timestamp_ms,
            each.offset,
            each.leader_epoch if each.HasField("leader_epoch") else None,
        )
        for each in message.answers
    ]


def epoch_queries_to_proto(queries: Sequence[EpochQuery]) -> pb.OffsetForLeaderEpochRequest:
    return pb.OffsetForLeaderEpochRequest(
        queries=[
            pb.EpochQuery(
                topic_id_partition=topic_id_partition_to_proto(query.topic_id_partition),
                leader_epoch=query.leader_epoch,
                current_leader_epoch=query.current_leader_epoch,
            )
            for query in queries
        ]
    )


def epoch_queries_from_proto(message: pb.OffsetForLeaderEpochRequest) -> tuple[EpochQuery, ...]:
    return items_from_proto(message.queries, "queries", _epoch_query_from_proto)


def _epoch_query_from_proto(message: pb.EpochQuery) -> EpochQuery:
    return EpochQuery(partition_of(message), message.leader_epoch, _current_epoch(message))


def epoch_answers_to_proto(answers: Iterable[EpochAnswer]) -> pb.OffsetForLeaderEpochResponse:
    return pb.OffsetForLeaderEpochResponse(
        answers=[
            pb.EpochAnswer(
                topic_id_partition=topic_id_partition_to_proto(each.topic_id_partition),
                error=fetch_error.to_proto(each.error),
                error_message=each.error_message,
                end=epoch_end_to_proto(each.end),
            )
            for each in answers
        ]
    )


def epoch_answers_from_proto(message: pb.OffsetForLeaderEpochResponse) -> list[EpochAnswer]:
    return [
        EpochAnswer(
            topic_id_partition_from_proto(each.topic_id_partition),
            fetch_error.from_proto(each.error, "error"),
            each.error_message,
            EpochEnd(each.end.leader_epoch, each.end.end_offset) if each.HasField("end") else None,
        )
        for each in message.answers
    ]


def records_to_delete_to_proto(wanted: Sequence[RecordsToDelete]) -> pb.DeleteRecordsRequest:
    return pb.DeleteRecordsRequest(
        partitions=[
            pb.RecordsToDelete(
                topic_id_partition=topic_id_partition_to_proto(each.topic_id_partition),
                before_offset=each.before_offset,
            )
            for each in wanted
        ]
    )


def records_to_delete_from_proto(message: pb.DeleteRecordsRequest) -> tuple[RecordsToDelete, ...]:
    return items_from_proto(
        message.partitions,
        "partitions",
        lambda each: RecordsToDelete(partition_of(each), each.before_offset),
    )


def raised_log_starts_to_proto(raised: Iterable[RaisedLogStart]) -> pb.DeleteRecordsResponse:
    return pb.DeleteRecordsResponse(
        answers=[
            pb.RaisedLogStart(
                topic_id_partition=topic_id_partition_to_proto(each.topic_id_partition),
                error=fetch_error.to_proto(each.error),
                error_message=each.error_message,
                log_start_offset=each.log_start_offset,
            )
            for each in raised
        ]
    )


def raised_log_starts_from_proto(message: pb.DeleteRecordsResponse) -> list[RaisedLogStart]:
    return [
        RaisedLogStart(
            topic_id_partition_from_proto(each.topic_id_partition),
            fetch_error.from_proto(each.error, "error"),
            each.error_message,
            each.log_start_offset,
        )
        for each in message.answers
    ]

"""Run one suite of reads and offsets on the manager itself and over gRPC, with what gRPC adds."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from services.api.errors import (
    FencedLeaderEpochError,
    InvalidRequestError,
    NotServedError,
    RetriableRemoteStorageError,
)
from services.api.ids import uuid_to_text
from services.api.lineage import EpochEnd, Lineage
from services.api.local_retention import LocalRetentionChange
from services.api.offset_queries import (
    EpochAnswer,
    EpochQuery,
    OffsetAnswer,
    OffsetQueries,
    OffsetQuery,
    RaisedLogStart,
    RecordsToDelete,
    SpecialTime,
)
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchRole,
    IsolationLevel,
)
from services.api.replicas import AuxStateQuery, RemoteLogAuxState, ReplicaService
from services.api.segments import segment_leader_epochs
from services.api.topic_config import LocalRetentionOwner
from services.records.index_files import AbortedTxn
from services.rpc.client.log import RemoteLogManagerClient
from tests.harness.served import served_rlm
from tests.harness.ship_stack import EVERYTHING, Stack
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    NAME,
    TOPIC_ID,
    PartitionFiles,
    batch,
    in_transaction,
    marker,
    producer_snapshot,
    with_epochs,
)
from tieredstorage.v1 import remote_log_manager_pb2 as pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as pb_grpc
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb

READ_COMMITTED = IsolationLevel.READ_COMMITTED
TP = segment_pb.TopicIdPartition(topic_id=uuid_to_text(TOPIC_ID), topic="t", partition=0)
LOG = [
    with_epochs(each, [(2, 10)])
    for each in (in_transaction(10, 9), marker(11, 9, ABORT), in_transaction(12, 8), batch(13))
]


@pytest.fixture(autouse=True)
def log(stack: Stack) -> None:
    """Offsets 0 to 9 in epoch 0, in the tier; to 13 in epoch 2: aborted, its end, and one open."""
    files = PartitionFiles(stack.log_dir)
    files.epochs((0, 0), (2, 10))
    files.segment(0, [batch(0, 5), batch(5, 5)])
    files.snapshot(10)
    files.segment(10, LOG)
    files.file(10, ".txnindex").write_bytes(AbortedTxn(9, 10, 11, 12).to_bytes())
    stack.ship()


class RlmReadsContract:
    """Tests reads with the fixture `rlm`, which leads the partition of the stack."""

    def test_a_committed_read_names_aborted_transactions_and_ends(
        self, rlm: ReplicaService
    ) -> None:
        wanted = (FetchPartition(NAME, 0, EVERYTHING),)
        parts = list(rlm.fetch(FetchRequest(wanted, EVERYTHING, READ_COMMITTED)))
        assert {part.error for part in parts} == {FetchError.NONE}
        aborted = [each for part in parts for each in part.aborted_transactions]
        assert aborted == [AbortedTransaction(10, 9)]
        assert parts[0].last_stable_offset == 12
        data = b"".join(part.record_batches for part in parts)
        assert data.endswith(LOG[1])

    def test_leader_epochs_of_a_reader(self, rlm: ReplicaService) -> None:
        def answer(current: int | None, last: int | None) -> tuple[FetchError, EpochEnd | None]:
            wanted = (FetchPartition(NAME, 12, EVERYTHING, current, last),)
            part = next(iter(rlm.fetch(FetchRequest(wanted, EVERYTHING))))
            return part.error, part.diverging_epoch

        assert answer(2, 2) == (FetchError.NONE, None)
        assert answer(0, None) == (FetchError.FENCED_LEADER_EPOCH, None)
        assert answer(3, None) == (FetchError.UNKNOWN_LEADER_EPOCH, None)
        assert answer(None, 0) == (FetchError.NONE, EpochEnd(0, 10))

    def test_a_fetch_waits_for_records(self, rlm: ReplicaService) -> None:
        wanted = (FetchPartition(NAME, 14, EVERYTHING),)
        began = time.monotonic()
        request = FetchRequest(wanted, EVERYTHING, max_wait_ms=150, min_bytes=1)
        (part,) = rlm.fetch(request)
        assert (part.error, part.record_batches) == (FetchError.NONE, b"")
        assert time.monotonic() - began >= 0.15

    def test_special_offsets(self, rlm: ReplicaService) -> None:
        asked = [special for special in SpecialTime if special is not SpecialTime.MAX_TIMESTAMP]
        queries = tuple(OffsetQuery(NAME, special) for special in asked)
        found = rlm.list_offsets(OffsetQueries(queries))
        assert {s: (f.offset, f.leader_epoch) for s, f in zip(asked, found, strict=True)} == {
            SpecialTime.LATEST: (14, 2),
            SpecialTime.EARLIEST: (0, 0),
            SpecialTime.EARLIEST_LOCAL: (0, 0),
            SpecialTime.LATEST_TIERED: (9, 0),
            SpecialTime.EARLIEST_PENDING_UPLOAD: (10, 2),
        }
        latest = (OffsetQuery(NAME, SpecialTime.LATEST),)
        (stable,) = rlm.list_offsets(OffsetQueries(latest, READ_COMMITTED, timeout_ms=20_000))
        assert stable == OffsetAnswer(NAME, offset=12, leader_epoch=2)

    def test_ends_of_leader_epochs(self, rlm: ReplicaService) -> None:
        queries = (EpochQuery(NAME, 1), EpochQuery(NAME, 3), EpochQuery(NAME, 0, 1))
        first, later, fenced = rlm.offsets_for_leader_epochs(queries)
        assert first == EpochAnswer(NAME, end=EpochEnd(0, 10))
        assert later == EpochAnswer(NAME)
        assert (fenced.error, fenced.end) == (FetchError.FENCED_LEADER_EPOCH, None)

    def test_records_are_deleted_up_to_the_high_watermark(self, rlm: ReplicaService) -> None:
        assert rlm.delete_records((RecordsToDelete(NAME, 7),)) == [
            RaisedLogStart(NAME, log_start_offset=7)
        ]
        (above,) = rlm.delete_records((RecordsToDelete(NAME, 15),))
        assert (above.error, above.log_start_offset) == (FetchError.OFFSET_OUT_OF_RANGE, -1)
        (start,) = rlm.list_offsets(OffsetQueries((OffsetQuery(NAME, SpecialTime.EARLIEST),)))
        assert (start.offset, start.leader_epoch) == (7, 0)

    def test_an_rlm_without_a_cluster_deletes_nothing_at_brokers(self, rlm: ReplicaService) -> None:
        (raised,) = rlm.delete_records((RecordsToDelete(NAME, 7),), brokers_too=True)
        assert (raised.error, raised.log_start_offset) == (FetchError.NONE, 7)
        assert "RLM_PARTITION_SOURCE=poller" in raised.local_error
        change = LocalRetentionChange(NAME.topic_id, NAME.topic, LocalRetentionOwner.RLM)
        with pytest.raises(NotServedError, match="RLM_PARTITION_SOURCE=poller"):
            rlm.set_local_retention_owner(change)

    def test_a_follower_reads_to_the_end_of_the_log(self, rlm: ReplicaService) -> None:
        wanted = (FetchPartition(NAME, 12, EVERYTHING),)
        request = FetchRequest(wanted, EVERYTHING, READ_COMMITTED, role=FetchRole.FOLLOWER)
        (part,) = rlm.fetch(request)
        assert part.record_batches == LOG[2] + LOG[3]

    def test_a_replica_begins_behind_the_tier(self, rlm: ReplicaService, stack: Stack) -> None:
        (segment,) = stack.segments()
        assert rlm.build_remote_log_aux_state(AuxStateQuery(NAME, 7)) == RemoteLogAuxState(
            next_offset=10,
            log_start_offset=0,
            lineage=Lineage(segment_leader_epochs([(0, 0)])),
            producer_snapshot=producer_snapshot(),
            segment_id=segment.remote_log_segment_id,
        )
        with pytest.raises(RetriableRemoteStorageError, match="offset 11 of leader epoch 2"):
            rlm.build_remote_log_aux_state(AuxStateQuery(NAME, 12, 2, 2, max_wait_ms=1))
        with pytest.raises(FencedLeaderEpochError, match="current_leader_epoch: "):
            rlm.build_remote_log_aux_state(AuxStateQuery(NAME, 7, current_leader_epoch=0))

    def test_no_query_and_too_many_are_refused(self, rlm: ReplicaService) -> None:
        with pytest.raises(InvalidRequestError, match="queries: must be 1 to 1000, are 0"):
            rlm.offsets_for_leader_epochs(())
        with pytest.raises(InvalidRequestError, match="partitions: must be 1 to 1000, are 0"):
            rlm.delete_records(())


class TestInProcess(RlmReadsContract):
    @pytest.fixture
    def rlm(self, stack: Stack) -> ReplicaService:
        return stack.rlm()


class TestOverGrpc(RlmReadsContract):
    @pytest.fixture
    def rlm(self, stack: Stack) -> Iterator[ReplicaService]:
        with served_rlm(stack.rlm()) as (channel, address):
            yield RemoteLogManagerClient(channel, address)


@pytest.fixture
def stub(stack: Stack) -> Iterator[pb_grpc.RemoteLogManagerStub]:
    with served_rlm(stack.rlm()) as (channel, _):
        yield pb_grpc.RemoteLogManagerStub(channel)


LATEST = pb.OffsetQuery(topic_id_partition=TP, timestamp_ms=-1)
WANTED = pb.FetchPartition(topic_id_partition=TP, max_bytes=1)


@pytest.mark.parametrize(
    ("rpc", "request_message", "message"),
    [
        ("Fetch", pb.FetchRequest(max_bytes=1), "partitions: must be 1 to 1000, are 0"),
        (
            "Fetch",
            pb.FetchRequest(partitions=[WANTED] * 60_000, max_bytes=1),
            "partitions: must be 1 to 1000, are 60000",
        ),
        (
            "Fetch",
            pb.FetchRequest(partitions=[WANTED] * 2, max_bytes=1),
            "names partition .* twice",
        ),
        ("Fetch", pb.FetchRequest(partitions=[WANTED], max_bytes=0), "max_bytes: must be 1 to"),
        ("Fetch", pb.FetchRequest(partitions=[WANTED], max_bytes=2**31 - 1), "max_bytes: must be"),
        (
            "Fetch",
            pb.FetchRequest(partitions=[pb.FetchPartition(topic_id_partition=TP)], max_bytes=1),
            r"partitions\[0\].max_bytes: must be 1 to",
        ),
        ("ListOffsets", pb.ListOffsetsRequest(), "queries: must be 1 to 1000, are 0"),
        ("ListOffsets", pb.ListOffsetsRequest(queries=[LATEST] * 1001), "queries: must be 1 to"),
        (
            "ListOffsets",
            pb.ListOffsetsRequest(queries=[LATEST, pb.OffsetQuery()]),
            r"queries\[1\].topic_id_partition: must be set",
        ),
        (
            "ListOffsets",
            pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic_id_partition=TP, timestamp_ms=-7)]),
            r"queries\[0\].timestamp_ms: must be -6",
        ),
        ("ListOffsets", pb.ListOffsetsRequest(queries=[LATEST], timeout_ms=-1), "timeout_ms: must"),
        (
            "OffsetForLeaderEpoch",
            pb.OffsetForLeaderEpochRequest(
                queries=[pb.EpochQuery(topic_id_partition=TP, leader_epoch=-1)]
            ),
            r"queries\[0\].leader_epoch: must be 0",
        ),
        (
            "DeleteRecords",
            pb.DeleteRecordsRequest(
                partitions=[pb.RecordsToDelete(topic_id_partition=TP, before_offset=1)] * 2
            ),
            "partitions: names partition",
        ),
        (
            "DeleteRecords",
            pb.DeleteRecordsRequest(
                partitions=[pb.RecordsToDelete(topic_id_partition=TP, before_offset=-2)]
            ),
            r"partitions\[0\].before_offset: must be -1",
        ),
        (
            "BuildRemoteLogAuxState",
            pb.BuildRemoteLogAuxStateRequest(offset=1),
            "topic_id_partition",
        ),
        (
            "BuildRemoteLogAuxState",
            pb.BuildRemoteLogAuxStateRequest(topic_id_partition=TP),
            "offset: must be 1",
        ),
        (
            "BuildRemoteLogAuxState",
            pb.BuildRemoteLogAuxStateRequest(topic_id_partition=TP, offset=1, max_wait_ms=60_001),
            "max_wait_ms: must be 0 to 60000",
        ),
    ],
)
def test_a_malformed_request_names_the_field(
    stub: pb_grpc.RemoteLogManagerStub, rpc: str, request_message: object, message: str
) -> None:
    def call() -> None:
        answer = getattr(stub, rpc)(request_message, timeout=30)
        list(answer if rpc in ("Fetch", "BuildRemoteLogAuxState") else ())

    with pytest.raises(grpc.RpcError, match=message) as refusal:
        call()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("level", [3, 99])
def test_an_isolation_level_of_a_later_release_is_refused(
    stub: pb_grpc.RemoteLogManagerStub, level: int
) -> None:
    wanted = pb.FetchPartition(topic_id_partition=TP, max_bytes=1)
    request = pb.FetchRequest(partitions=[wanted], max_bytes=1)
    request.isolation_level = level  # type: ignore[assignment]
    with pytest.raises(grpc.RpcError, match="isolation_level: must be set to a known value"):
        list(stub.Fetch(request, timeout=30))


def test_the_example_of_grpcurl_reads_by_reflection(stack: Stack) -> None:
    page = (Path(__file__).parents[2] / "docs" / "use" / "clients.md").read_text()
    found = re.search(r"grpcurl -plaintext -d '(\{.*?\})' \\\n\s+\S+ (\S+)/(\S+)", page, re.DOTALL)
    assert found is not None
    text, service, method = found.groups()
    with served_rlm(stack.rlm()) as (channel, _):
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        described = pool.FindServiceByName(service).FindMethodByName(method)
        request: Any = json_format.Parse(text, GetMessageClass(described.input_type)())
        request.partitions[0].topic_id_partition.CopyFrom(
            json_format.ParseDict(
                {"topicId": TP.topic_id, "topic": TP.topic},
                type(request.partitions[0].topic_id_partition)(),
            )
        )
        call = channel.unary_stream(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        answers = list(call(request, timeout=30))
    assert b"".join(answer.record_batches for answer in answers)
    assert {answer.error for answer in answers} == {pb.FETCH_ERROR_NONE}
